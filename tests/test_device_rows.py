# SPDX-License-Identifier: MIT
"""COO gradients of which only the device knows how many different rows they have.

The operators have the bits of those on the CPU; the devices are those of
``test_cuda_operators.py``.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from emulated import Device, same_bits, sentence_of
from nccl_like import Nowhere, job_nowhere, nccl_like
from ranks import Ranks
from torch import Tensor

import s2reducer
from s2reducer import device_rows, ops
from s2reducer.device import HostCopy
from s2reducer.device_rows import coalesced_on_device, numbered_on_device
from s2reducer.exchange import HEADER_NBYTES, Header, identity, message_of
from s2reducer.ordered_stages import begin_rows
from s2reducer.rows import coalesced, number_rows, rows_of, table_of
from s2reducer.segments import LayoutCache

pytestmark = pytest.mark.usefixtures("seed")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# Entries, elements of a row, rows of the table.
SIZES = [(0, 3, 9), (1, 1, 1), (300, 5, 40), (70, 130, 1000), (90, 4, 2**40)]


def longs(*sizes: int) -> list[Tensor]:
    return [torch.full((size,), -7) for size in sizes]


# ------------------------------------------------------------------------------------------------
# The operators
# ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_they_are_those_that_are_looked_for(device: Device) -> None:
    wanted = " ".join((device_rows.__doc__ or "").split())
    for name in ("coo_sort_counted", "coo_sum_counted"):
        assert name in device.names()
        assert str(device.schemas[name]).partition("::")[2] in wanted


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_rows_that_the_device_counts(
    device: Device, size: tuple[int, int, int], dtype: torch.dtype
) -> None:
    n, width, nrows = size
    indices, values = torch.randint(0, nrows, (n,)), torch.randn(n, width).to(dtype)
    expected = longs(n, n, n + 1)
    k = ops.coo_sort(indices, nrows, *expected)
    sums = torch.empty(k, width, dtype=dtype)
    ops.coo_sum(values, expected[0], expected[2][: k + 1], sums)

    _, order, rows, starts, count, valid = device.call(
        "coo_sort_counted", indices, nrows, *longs(n, n, n + 1, 1, 1)
    )
    assert (count.item(), valid.item()) == (k, 1)
    assert torch.equal(order, expected[0])
    assert torch.equal(rows[:k], expected[1][:k])
    assert torch.equal(starts[: k + 1], expected[2][: k + 1])

    starts[k + 1 :] = 1 << 60  # means nothing
    untouched = torch.full((n, width), 7.0, dtype=dtype)
    *_, found = device.call("coo_sum_counted", values, order, starts, count, untouched)
    assert same_bits(found[:k], sums)
    assert torch.equal(found[k:], untouched[k:])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [-1, 40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("place", [0, 150, 299])
def test_a_row_that_is_not_of_the_table(device: Device, wrong: int, place: int) -> None:
    indices = torch.randint(0, 40, (300,))
    indices[place] = wrong
    *_, valid = device.call("coo_sort_counted", indices, 40, *longs(300, 300, 301, 1, 1))
    assert valid.item() == 0


TWO, THREE = torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
ONE, ROWS = THREE[:1], torch.zeros(2, 4)
WRONG: list[tuple[str, list[Any], str]] = [
    ("sort", [TWO, 9, TWO, TWO, TWO, ONE, ONE], "starts must have 3 elements, but has 2"),
    ("sort", [TWO, 9, TWO, TWO, THREE, TWO, ONE], "count must have 1 elements, but has 2"),
    ("sort", [TWO, 9, TWO, TWO, THREE, ONE, TWO], "valid must have 1 elements, but has 2"),
    ("sort", [TWO, -1, TWO, TWO, THREE, ONE, ONE], "nrows must lie between 0 and 2^40, but is -1"),
    ("sum", [ROWS, TWO, THREE, TWO, ROWS], "count must have 1 elements, but has 2"),
    ("sum", [ROWS, TWO, TWO, ONE, ROWS], "sums must have the shape [1, 4], but has [2, 4]"),
    ("sum", [ROWS, ONE, THREE, ONE, ROWS], "order must have 2 elements, but has 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG, ids=[f"{i}-{case[0]}" for i, case in enumerate(WRONG)])
def test_wrong_arguments(device: Device, case: tuple[str, list[Any], str]) -> None:
    name, arguments, said = case
    with pytest.raises(RuntimeError) as raised:
        device.call(f"coo_{name}_counted", *arguments)
    assert sentence_of(raised.value) == f"coo_{name}_counted: {said}"


# ------------------------------------------------------------------------------------------------
# What is made of them
# ------------------------------------------------------------------------------------------------


class Operators:
    """Those for a device as if for tensors on the CPU, with garbage behind what they count."""

    def __init__(self) -> None:
        self.coo_sort_counted = self.coo_sum_counted = self

    def default(self, *arguments: Any) -> None:
        if isinstance(arguments[1], int):
            indices, nrows, order, rows, starts, count, valid = arguments
            try:
                count.fill_(ops.coo_sort(indices, nrows, order, rows, starts))
            except RuntimeError:
                count.fill_(5)
            else:
                rows[count:] = 7
            valid.fill_(bool(((indices >= 0) & (indices < nrows)).all()))
        else:
            values, order, starts, count, sums = arguments
            k = int(count)
            sums.fill_(float("nan"))
            if k > 0:
                ops.coo_sum(values, order, starts[: k + 1], sums[:k])


def tables(counts: list[int], dtype: torch.dtype) -> list[Tensor]:
    sizes = [(500, 12), (3000, 16), (8, 8)]
    return [
        torch.sparse_coo_tensor(
            torch.randint(0, nrows, (1, n)),
            torch.randn(n, width).to(dtype),
            (nrows, width),
            check_invariants=False,
        )
        for n, (nrows, width) in zip(counts, sizes, strict=False)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("counts", [[40], [0], [40, 0, 90], [0, 200, 30], [0, 0]])
def test_tables_have_the_rows_that_the_host_would_find(
    monkeypatch: pytest.MonkeyPatch, counts: list[int], dtype: torch.dtype
) -> None:
    gradients = tables(counts, dtype)
    shapes = [table_of(gradient) for gradient in gradients]
    pairs = list(zip(gradients, shapes, strict=True))
    expected = [coalesced(*rows_of(gradient, table), table.nrows) for gradient, table in pairs]
    expected_list, expected_nrows = number_rows(shapes, [numbers for numbers, _ in expected])

    monkeypatch.setattr(device_rows, "_ops", Operators())
    for takes_counts in (False, True):
        monkeypatch.setattr(device_rows, "_takes_counts", lambda _, takes=takes_counts: takes)
        own = [coalesced_on_device(gradient, table) for gradient, table in pairs]
        for found, (numbers, values) in zip(own, expected, strict=True):
            k = int(found.count)
            assert torch.equal(found.numbers[:k], numbers)
            assert same_bits(found.values[:k], values)
        listed, live, nrows = numbered_on_device(shapes, own)
        assert len(listed) == (sum(counts) if takes_counts else len(expected_list))
        assert torch.equal(listed[: int(live)], expected_list)
        assert nrows == expected_nrows


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_row_of_no_table_is_told(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    gradients = tables([40, 30, 20], torch.float32)
    gradients[which]._indices()[0, 3] = 3000
    monkeypatch.setattr(device_rows, "_ops", Operators())
    monkeypatch.setattr(device_rows, "_takes_counts", lambda _: True)
    shapes = [table_of(gradient) for gradient in gradients]
    own = [coalesced_on_device(*pair) for pair in zip(gradients, shapes, strict=True)]
    assert [int(rows.count) < 0 for rows in own] == [n == which for n in range(3)]
    assert numbered_on_device(shapes[which : which + 1], own[which : which + 1])[1].tolist() == [-1]
    assert numbered_on_device(shapes, own)[1].tolist() == [-1]


def reduce_wrong_rows() -> str:
    """As if on a device, over what is like NCCL: the text of the error on every rank."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    (gradient,) = tables([40], torch.float32)
    with nccl_like(), pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_rows, "_ops", Operators())
        patched.setattr(device_rows, "_takes_counts", lambda device: True)
        total = s2reducer.all_reduce(gradient, op="sum")
        numbers = total._indices()[0].tolist()
        assert numbers == sorted(set(numbers)) and {*gradient._indices()[0].tolist()} <= {*numbers}
        if rank == 1:
            gradient._indices()[0, 3] = -1
        with pytest.raises(s2reducer.S2Error) as raised:
            s2reducer.all_reduce(gradient, op="sum")
        assert isinstance(raised.value.__cause__, ValueError)
    return str(raised.value)


def test_all_ranks_learn_of_a_row_of_no_table(ranks: Ranks) -> None:
    texts = ranks.run(3, reduce_wrong_rows)
    assert len(set(texts)) == 1
    assert "rows - 1, but on rank 1 some do not" in texts[0]


class Nothing:
    """Operators that leave everything as it is: on the meta device there is nothing to write."""

    coo_sort_counted = coo_sum_counted = property(lambda self: self)

    def default(self, *arguments: Any) -> None:
        assert all(each.is_meta for each in arguments if isinstance(each, Tensor))


@pytest.mark.parametrize("plan", ["owner", "gather", "union"])
def test_tables_are_reduced_with_one_read(monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """On the meta device, where a read raises; what arrives at the host is put into its place."""
    ranks = [tables(counts, torch.float32) for counts in ([40, 90], [60, 80], [0, 70])]
    shapes = [table_of(gradient) for gradient in ranks[0]]
    distinct = [
        [coalesced(*rows_of(gradient, table), table.nrows)[0] for gradient, table in pairs]
        for pairs in (zip(gradients, shapes, strict=True) for gradients in ranks)
    ]
    lists = [number_rows(shapes, numbers)[0].to(torch.int32) for numbers in distinct]
    layout = LayoutCache(None).layout([torch.zeros(500, 12), torch.zeros(3000, 16)])
    layout.memory.most_live = max(map(len, lists))
    reads = 0

    def wait(copy: HostCopy) -> tuple[Tensor, ...]:
        nonlocal reads
        reads += 1
        assert all(copied.is_meta for copied in copy._copies)
        messages, counts = copy._copies
        room = (messages.shape[1] - HEADER_NBYTES) // 4
        padded = [torch.cat([one, one.new_zeros(room - len(one))]) for one in lists]
        filled = torch.stack(
            [
                message_of(
                    Header(identity(layout, torch.float32), step=5),
                    row.view(torch.uint8),
                    torch.tensor([len(one)]),
                )
                for one, row in zip(lists, padded, strict=True)
            ]
        )
        assert filled.shape == messages.shape and counts.shape == (2,)
        return filled, torch.tensor([len(numbers) for numbers in distinct[1]])

    monkeypatch.setattr(HostCopy, "wait", wait)
    monkeypatch.setattr(device_rows, "_ops", Nothing())
    gradients = [
        torch.sparse_coo_tensor(
            gradient._indices().to("meta"),
            gradient._values().to("meta"),
            gradient.shape,
            check_invariants=False,
        )
        for gradient in ranks[1]
    ]
    job = job_nowhere(gradients[0], layout, plan=plan)
    job.tables = gradients
    begun = begin_rows(job, Nowhere(1, 3))
    assert reads == 0
    second = begun()
    assert reads == 1
    sums = second(Nowhere(1, 3))
    assert reads == 1
    for number, (total, gradient) in enumerate(zip(sums, gradients, strict=True)):
        union = torch.cat([numbers[number] for numbers in distinct]).unique()
        assert total.shape == gradient.shape and total._nnz() == len(union)
    assert [part.plan for part in job.parts] == [plan]
