# SPDX-License-Identifier: MIT
"""``s2reducer.all_reduce``: one tensor, without DDP."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import SKETCH, Ranks, assert_same_on_all_ranks, cases, world_sizes
from seeds import SEED
from torch import Tensor

import s2reducer
from s2reducer import S2Error

pytestmark = pytest.mark.usefixtures("seed")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]


def values_of(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small multiples of 120 in some rows, so that sums and means of up to 8 ranks are exact."""
    random_numbers = torch.Generator().manual_seed(seed + rank)
    values = torch.randint(-4, 5, shape, generator=random_numbers) * 120
    if shape:
        live = torch.rand(shape[0], generator=random_numbers) < 0.1
        values *= live.view(-1, *[1] * (len(shape) - 1))
    return values.to(dtype)


def reduce(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, op: str, settings: dict[str, Any]
) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = values_of(seed, rank, shape, dtype)
    total = sum(values_of(seed, r, shape, dtype).double() for r in range(world_size))
    expected = (total / world_size if op == "mean" else total).to(dtype)
    result = s2reducer.all_reduce(own, op=op, **settings)
    assert result is own  # written in place
    assert torch.equal(result, expected)
    assert_same_on_all_ranks([result])


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 5, 8, fast=2))
@pytest.mark.parametrize(
    "plan", cases(["auto", "dense", "gather", "owner", "sketch", "union"], "auto", "owner")
)
def test_sums_and_means(ranks: Ranks, plan: str, world_size: int) -> None:
    for shape in [(3000, 32), (), (7,), (0, 5), (2, 3, 4)]:
        for op in ("sum", "mean"):
            ranks.run(world_size, reduce, SEED, shape, torch.float32, op, {"plan": plan})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "plan",
    ["auto", *(pytest.param(plan, marks=pytest.mark.slow) for plan in ("owner", "union")), SKETCH],
)
def test_every_float(ranks: Ranks, dtype: torch.dtype, plan: str) -> None:
    for op in ("sum", "mean"):
        ranks.run(3, reduce, SEED, (2000, 16), dtype, op, {"plan": plan})


def reduce_integers(seed: int, dtype: torch.dtype) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    values = [
        torch.randint(0, 100, (500, 8), generator=torch.Generator().manual_seed(seed + r)).to(dtype)
        for r in range(world_size)
    ]
    expected = values[0].clone()
    for value in values[1:]:
        expected += value  # which wraps around
    assert torch.equal(s2reducer.all_reduce(values[rank].clone(), op="sum"), expected)
    rows = torch.tensor([[3, 1, 3], [1, 1, 9], [4, 0, 0]])
    tensors = [
        torch.sparse_coo_tensor(rows[r][None], v[:3], (10, 8), check_invariants=False)
        for r, v in enumerate(values)
    ]
    result = s2reducer.all_reduce(tensors[rank], op="sum")
    expected = torch.zeros(10, 8, dtype=dtype)
    for tensor in tensors:
        expected += tensor.to_dense()
    assert result.is_coalesced() and result.indices().tolist() == [[0, 1, 3, 4, 9]]
    assert torch.equal(result.to_dense(), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers_are_summed(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(3, reduce_integers, SEED, dtype)


def reduce_transposed() -> None:
    rank = dist.get_rank()
    tensor = torch.zeros(64, 500).t()
    tensor[7] = float(rank + 1)
    pointer = tensor.data_ptr()
    result = s2reducer.all_reduce(tensor, op="sum")
    assert result.data_ptr() == pointer and result.stride() == (1, 500)
    assert result[7].eq(3.0).all() and int(result.count_nonzero()) == 64
    leaf = torch.full((100, 64), float(rank), requires_grad=True)
    assert s2reducer.all_reduce(leaf).detach().eq(0.5).all() and leaf.requires_grad


def test_any_strides_and_leaves(ranks: Ranks) -> None:
    ranks.run(2, reduce_transposed)


def reduce_over_a_part() -> float:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank()
    tensor = torch.full((5000,), float(rank))
    return float(s2reducer.all_reduce(tensor, pairs[rank // 2], op="sum")[0])


def test_a_group_of_some_ranks(ranks: Ranks) -> None:
    assert ranks.run(4, reduce_over_a_part) == [1.0, 1.0, 5.0, 5.0]


def reduce_differently(settings: list[dict[str, Any]], shapes: list[tuple[int, ...]]) -> str:
    rank = dist.get_rank()
    with pytest.raises(S2Error) as raised:
        s2reducer.all_reduce(torch.ones(shapes[rank]), **settings[rank])
    # All ranks know alike that nothing has happened, so they can go on.
    assert s2reducer.all_reduce(torch.ones(5000), op="sum")[0] == 2.0
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "shapes"),
    [
        ([{"op": "sum"}, {"op": "mean"}], [(5000,), (5000,)]),
        ([{"plan": "owner"}, {"plan": "gather"}], [(5000,), (5000,)]),
        ([{}, {}], [(5000,), (4000,)]),
        ([{}, {}], [(5000,), (0,)]),
        ([{}, {}], [(50, 100), (100, 50)]),
    ],
)
def test_ranks_that_call_it_differently_all_say_so(
    ranks: Ranks, settings: list[dict[str, Any]], shapes: list[tuple[int, ...]]
) -> None:
    for text in ranks.run(2, reduce_differently, settings, shapes):
        assert "segments, dtype or settings must be the same" in text
        assert text.startswith("all_reduce")


@pytest.mark.parametrize(
    ("tensor", "settings", "error", "sentence"),
    [
        ([1.0], {}, TypeError, "tensor must be a torch.Tensor, but is list"),
        (torch.ones(3), {"op": "max"}, ValueError, 'op must be "mean" or "sum", but is \'max\''),
        (torch.ones(3, dtype=torch.int32), {}, ValueError, 'op must be "sum" for whole numbers'),
        (
            torch.ones(3, dtype=torch.bool),
            {"op": "sum"},
            TypeError,
            "tensor must be one of float32",
        ),
        (torch.ones(3, dtype=torch.complex64), {}, TypeError, "but is complex64"),
        (torch.ones(3), {"plan": "best"}, ValueError, "plan must be one of"),
        (torch.ones(3), {"block": 0}, ValueError, "block must lie between"),
        (torch.ones(3), {}, RuntimeError, "there is no default process group"),
    ],
)
def test_wrong_arguments(
    tensor: Any, settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        s2reducer.all_reduce(tensor, **settings)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_other_sparse_layouts() -> None:
    with pytest.raises(TypeError, match=r"tensor must be dense or COO, but its layout is .*csr"):
        s2reducer.all_reduce(torch.ones(3, 3).to_sparse_csr())
