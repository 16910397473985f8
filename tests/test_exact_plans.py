# SPDX-License-Identifier: MIT
"""``owner`` and ``gather``: sums in rank order, rounded once, whatever the plan and the index."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, world_sizes
from seeds import SEED
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import exchange, reference
from s2reducer.constants import Constants
from s2reducer.plans.choice import choose, costs, dense_cost
from s2reducer.segments import LayoutCache

pytestmark = pytest.mark.usefixtures("seed")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


Densities = tuple[float, float]  # of rank 0, and of the others


def gradients(
    seed: int, rank: int, step: int, dtype: torch.dtype, densities: Densities
) -> list[Tensor]:
    """Any values at all, some rows of them, in parameters of several shapes."""
    density = densities[rank > 0]
    random_numbers = torch.Generator().manual_seed(seed + 1000 * step + rank)
    result = []
    for shape in [(3000, 16), (130, 50), (77,), (2000, 64), (5, 5)]:
        values = torch.randn(shape, generator=random_numbers, dtype=torch.float64)
        rows = (shape[0], *[1] * (len(shape) - 1))
        values *= 10.0 ** torch.randint(-4, 4, rows, generator=random_numbers)
        values[torch.rand(shape[0], generator=random_numbers) >= density] = 0.0
        result.append(values.to(dtype))
    return result


def expected_mean(
    seed: int, step: int, dtype: torch.dtype, densities: Densities, world_size: int
) -> list[Tensor]:
    """In rank order, in the wider type, rounded once."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else torch.float64
    ranks = [gradients(seed, rank, step, dtype, densities) for rank in range(world_size)]
    result = []
    for values in zip(*ranks, strict=True):
        total = torch.zeros_like(values[0], dtype=wide)
        for value in values:
            total += value.to(wide) / (world_size if dtype == torch.float64 else 1)
        result.append((total / (1 if dtype == torch.float64 else world_size)).to(dtype))
    return result


def train(
    seed: int, dtype: torch.dtype, densities: Densities, steps: int, settings: dict[str, Any]
) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    like = [torch.zeros_like(value) for value in gradients(seed, 0, 0, dtype, (0.0, 0.0))]
    ddp = DistributedDataParallel(Given(*like), bucket_cap_mb=0.15)
    state = s2reducer.register(ddp, **settings)
    for step in range(steps):
        ddp.zero_grad()
        ddp(dict(enumerate(gradients(seed, rank, step, dtype, densities)))).backward()
        results = [parameter.grad for parameter in ddp.parameters()]
        assert_same_on_all_ranks(results)
        expected = expected_mean(seed, step, dtype, densities, world_size)
        for result, value in zip(results, expected, strict=True):
            assert torch.equal(result, value), (step, tuple(value.shape))
    plans = {record["plan"] for record in state.report().as_dict()["parameters"]}
    assert plans <= ({"owner", "gather"} if world_size > 1 else {"none"})


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 4, 5, 8))
@pytest.mark.parametrize("plan", ["owner", "gather"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_in_rank_order_and_rounded_once(
    ranks: Ranks, dtype: torch.dtype, plan: str, world_size: int
) -> None:
    ranks.run(world_size, train, SEED, dtype, (0.05, 0.05), 3, {"plan": plan})


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_deterministic_keeps_to_these_plans_at_every_density(ranks: Ranks, density: float) -> None:
    ranks.run(3, train, SEED, torch.float32, (density, density), 3, {"deterministic": True})


@pytest.mark.parametrize("world_size", world_sizes(2, 3, 4, 8))
@pytest.mark.parametrize("densities", [(0.9, 0.01), (0.01, 0.9), (1.0, 0.0)])
def test_a_heavy_or_a_light_rank_changes_nothing(
    ranks: Ranks, densities: Densities, world_size: int
) -> None:
    ranks.run(world_size, train, SEED, torch.float32, densities, 3, {"plan": "owner"})


def with_lists(*arguments: Any) -> None:
    """Every index but a bucket's first as a list, however small the bucket."""
    exchange._LIST_MUST_SAVE_NBYTES = -(10**9)
    try:
        train(*arguments)
    finally:
        exchange._LIST_MUST_SAVE_NBYTES = 16 * 1024


@pytest.mark.parametrize("density", [0.0, 0.02, 1.0])
def test_lists_give_the_same_as_bitmaps(ranks: Ranks, density: float) -> None:
    ranks.run(3, with_lists, SEED, torch.float32, (density, density), 4, {"plan": "owner"})


def one_value(dtype: torch.dtype, value: float, plan: str) -> float:
    ddp = DistributedDataParallel(Given(torch.zeros(512, 16, dtype=dtype)))
    s2reducer.register(ddp, plan=plan)
    gradient = torch.zeros(512, 16, dtype=dtype)
    gradient[7, 3] = value
    ddp({0: gradient}).backward()
    grad = next(ddp.parameters()).grad
    assert grad is not None and int((grad != 0).sum()) == 1
    return float(grad[7, 3])


@pytest.mark.parametrize("plan", ["owner", "gather", "union"])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float32, 3e38),
        (torch.float64, 1.5e308),
        (torch.float16, 30000.0),
        (torch.float16, 6e-8),
        (torch.bfloat16, 3.3e38),
        (torch.bfloat16, 2.0**-133),  # the smallest there is
    ],
)
def test_the_mean_of_equal_values_is_that_value(
    ranks: Ranks, dtype: torch.dtype, value: float, plan: str
) -> None:
    exact = float(torch.tensor(value, dtype=dtype))
    if plan == "union" and value < 1e-7:
        pytest.skip("union divides before it adds, as AllReduce must")
    assert ranks.run(4, one_value, dtype, value, plan) == [exact] * 4


# ------------------------------------------------------------------------------------------------
# Bytes, and the choice of a plan
# ------------------------------------------------------------------------------------------------


def sent_bytes(seed: int, plan: str, density: float, rows: int, width: int) -> tuple[int, int, int]:
    """Bytes of the second step, and this rank's and the union's live rows."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(Given(torch.zeros(rows, width)))
    state = s2reducer.register(ddp, plan=plan)
    union = torch.zeros(rows, dtype=torch.bool)
    for other in range(world_size):
        random_numbers = torch.Generator().manual_seed(seed + other)
        live = torch.rand(rows, generator=random_numbers) < density
        union |= live
        if other == rank:
            own = live
    before = 0
    for _ in range(2):
        ddp.zero_grad()
        before = state.report().bytes_sent
        ddp({0: own.float()[:, None].expand(rows, width).contiguous()}).backward()
    return state.report().bytes_sent - before, int(own.sum()), int(union.sum())


@pytest.mark.parametrize("density", [0.01, 0.2])
@pytest.mark.parametrize("world_size", world_sizes(2, 4))
def test_bytes_follow_the_formulas(ranks: Ranks, world_size: int, density: float) -> None:
    rows, width, peers = 20_000, 16, world_size - 1
    index = peers * (rows / 8 + 8 + exchange.HEADER_NBYTES)
    for plan in ("owner", "gather"):
        answers = ranks.run(world_size, sent_bytes, 1, plan, density, rows, width)
        union, total = answers[0][2], sum(own for _, own, _ in answers)
        most = max(own for _, own, _ in answers)
        row = 4 * width
        cap = -(-(union * 21 // 20 + 1) // world_size) + 1
        mean = (total - union + peers * union) * row / world_size
        sent = [nbytes for nbytes, _, _ in answers]
        if plan == "gather":
            assert all(index + peers * most * row - 8 * peers <= n for n in sent)
            assert all(n <= index + peers * most * row for n in sent)
        else:
            # What the cap moves away from the ranks that have it is sent in addition.
            assert sum(sent) / world_size <= 1.10 * mean + index + peers * row
            assert max(sent) <= index + (most + peers * cap) * row


def test_the_choice_follows_the_bytes() -> None:
    layout = LayoutCache(None).layout([torch.zeros(4096, 64)])

    def index(density: list[float]) -> exchange.Index:
        bitmaps = []
        for rank, share in enumerate(density):
            random_numbers = torch.Generator().manual_seed(rank)
            live = torch.rand(4096, generator=random_numbers) < share
            bitmaps.append(reference.bitmap(live.nonzero().flatten().tolist(), 512))
        ranks = torch.stack(bitmaps)
        return exchange.Index(ranks, *exchange.united(layout, ranks), len(ranks), 0, 1)

    def chosen(density: list[float]) -> str:
        dense = dense_cost(layout.numel, torch.float32, len(density))
        candidates = costs(layout, index(density), torch.float32) | {"dense": dense}
        return choose(candidates, dense, "none", Constants()).plan

    assert chosen([0.01] * 2) == "gather"
    assert chosen([0.05] * 8) == "owner"
    assert chosen([1.0] * 4) == "dense"
    cost = dense_cost(4096 * 64, torch.float32, 4)
    assert cost.nbytes == 1.5 * 4096 * 64 * 4
    assert Constants(round=0.25, dense=2.0).seconds(cost) == 0.25 + 2 * cost.nbytes


def plans_of_ranks(density_of_rank: list[float]) -> list[str]:
    """One rank's density tells it nothing that the others do not know."""
    rank = dist.get_rank()
    ddp = DistributedDataParallel(Given(torch.zeros(4096, 64)))
    state = s2reducer.register(ddp)
    plans = []
    for step in range(3):
        share = density_of_rank[(rank + step) % len(density_of_rank)]
        gradient = (torch.rand(4096, 1) < share).float().expand(4096, 64).contiguous()
        ddp.zero_grad()
        ddp({0: gradient}).backward()
        plans.append(state.report().as_dict()["parameters"][0]["plan"])
    return plans


def test_ranks_of_different_density_choose_alike(ranks: Ranks) -> None:
    answers = ranks.run(3, plans_of_ranks, [0.01, 0.9, 0.3])
    assert answers[0] == answers[1] == answers[2]


# ------------------------------------------------------------------------------------------------
# Ranks that disagree
# ------------------------------------------------------------------------------------------------


def reduce_other_shapes() -> str:
    """What the header says of ranks whose buckets differ; DDP itself would refuse such models."""
    rank = dist.get_rank()
    rows = 1000 if rank == 0 else 2000
    ddp = DistributedDataParallel(Given(torch.zeros(rows, 32)), init_sync=False)
    s2reducer.register(ddp, plan="owner")
    with pytest.raises(RuntimeError) as raised:
        ddp({0: torch.ones(rows, 32)}).backward()
    return str(raised.value)


def test_ranks_with_other_shapes_all_say_so(ranks: Ranks) -> None:
    for text in ranks.run(2, reduce_other_shapes):
        assert (
            "the ranks reduce different buckets: the segments, dtype or settings must be the same"
            in text
        )
