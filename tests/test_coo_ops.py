# SPDX-License-Identifier: MIT
"""The operators for COO gradients, against the reference and against ``Tensor.coalesce``."""

import random

import pytest
import torch
from torch import Tensor

from s2reducer import ops, reference
from s2reducer.segments import segments_of

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
pytestmark = pytest.mark.usefixtures("seed")


def sort(indices: Tensor, nrows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Order, distinct rows, starts."""
    n = indices.numel()
    order, rows = torch.full((n,), -7), torch.full((n,), -7)
    starts = torch.full((n + 1,), -7)
    count = ops.coo_sort(indices, nrows, order, rows, starts)
    return order, rows[:count], starts[: count + 1]


def coalesce(indices: Tensor, values: Tensor, nrows: int, parallel: bool) -> tuple[Tensor, Tensor]:
    order, rows, starts = sort(indices, nrows)
    sums = values.new_full((len(rows), values.shape[1]), float("nan"))
    ops.coo_sum(values, order, starts, sums, parallel)
    return rows, sums


def unite(lists: list[Tensor], nrows: int) -> tuple[Tensor, Tensor]:
    together = torch.cat(lists)
    rows, entries = torch.full_like(together, -7), torch.full_like(together, -7)
    count = ops.coo_unite(
        together, torch.tensor([len(rows) for rows in lists]), nrows, rows, entries
    )
    bitmaps = torch.full((len(lists), (count + 63) // 64 * 8), 255, dtype=torch.uint8)
    ops.coo_bitmaps(entries, count, bitmaps)
    return rows[:count], bitmaps


def draws() -> list[tuple[Tensor, int]]:
    """Row numbers of all kinds, and how many rows there are."""
    return [
        (torch.randint(0, nrows, (n,)), nrows)
        for n in (0, 1, 2, 300)
        for nrows in (1, 5, 1000, 10**9, 2**40)
    ] + [
        (torch.arange(300), 300),
        (torch.arange(300).flip(0), 10**9),
        (torch.randint(0, 40, (300,)).sort().values, 40),
        (torch.tensor([2**40 - 1, 0, 2**40 - 1]), 2**40),
    ]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("width", [1, 3, 64, 1100])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rows_and_sums_are_those_of_the_reference(
    dtype: torch.dtype, width: int, parallel: bool
) -> None:
    for indices, nrows in draws():
        values = torch.randn(len(indices), width).to(dtype)
        expected_rows, expected = reference.coalesce(indices, values)
        rows, sums = coalesce(indices, values, nrows, parallel)
        assert rows.tolist() == expected_rows
        assert torch.equal(sums, expected)


def test_order_is_that_of_a_stable_sort() -> None:
    for indices, nrows in draws():
        order, rows, starts = sort(indices, nrows)
        assert torch.equal(order, torch.sort(indices, stable=True).indices)
        distinct, counts = indices.unique(return_counts=True)
        assert torch.equal(rows, distinct)
        assert torch.equal(starts.diff(), counts) and starts[0] == 0


def test_exact_sums_are_those_of_torch() -> None:
    for dtype in (torch.float32, torch.float64):
        indices = torch.randint(0, 5000, (20_000,))
        values = torch.randint(-8, 9, (20_000, 16)).to(dtype)
        expected = torch.sparse_coo_tensor(
            indices[None], values, (5000, 16), check_invariants=True
        ).coalesce()
        rows, sums = coalesce(indices, values, 5000, parallel=True)
        assert torch.equal(rows, expected.indices()[0])
        assert torch.equal(sums, expected.values())


def test_repeats_are_added_wide_in_order_and_rounded_once() -> None:
    repeats = torch.zeros(4, dtype=torch.int64)
    for dtype, column, expected in (
        (torch.float32, [2.0**24, 1, 1, 1], 2.0**24 + 4),  # 2^24 + 3 is halfway, to even
        (torch.float64, [2.0**53, 1, 1, 1], 2.0**53),  # each 1 is lost, in this order
        (torch.float64, [1, 1, 1, 2.0**53], 2.0**53 + 4),
        (torch.float16, [2048, 1, 1, 1], 2052),
        (torch.bfloat16, [256, 1, 1, 1], 260),
    ):
        _, sums = coalesce(repeats, torch.tensor(column, dtype=dtype)[:, None], 1, parallel=False)
        assert sums.item() == expected


def test_no_partial_sum_of_a_half_type_overflows() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        largest = torch.finfo(dtype).max
        column = torch.tensor([largest] * 50 + [-largest] * 49, dtype=dtype)[:, None]
        _, sums = coalesce(torch.zeros(99, dtype=torch.int64), column, 1, parallel=False)
        assert sums.item() == largest
    smallest = torch.full((3, 1), 2.0**-133, dtype=torch.bfloat16)
    _, sums = coalesce(torch.zeros(3, dtype=torch.int64), smallest, 1, parallel=False)
    assert sums.item() == 3 * 2.0**-133


def test_a_row_that_does_not_repeat_keeps_its_bits() -> None:
    values = torch.tensor([[-0.0, float("nan")], [float("-inf"), 1e-45]])
    for indices in ([3, 1], [1, 3]):
        _, sums = coalesce(torch.tensor(indices), values, 4, parallel=False)
        expected = values if indices == [1, 3] else values.flip(0)
        assert torch.equal(sums.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("nranks", [1, 2, 8, 256])
def test_unions_are_those_of_the_reference(nranks: int) -> None:
    for nrows in (1, 70, 5000, 2**40):
        pool = torch.randint(0, nrows, (100,)).unique()
        lists = [pool[torch.rand(len(pool)) < random.random()] for _ in range(nranks)]
        lists[random.randrange(nranks)] = pool[:0]
        expected, expected_bitmaps = reference.unite([rows.tolist() for rows in lists])
        union, bitmaps = unite(lists, nrows)
        assert union.tolist() == expected
        assert torch.equal(bitmaps, expected_bitmaps)


def test_a_union_is_a_compact_problem_for_the_plans() -> None:
    """Every rank's rows, over the union, with the owners that sum them."""
    lists = [torch.randint(0, 10**9, (50,)).unique() for _ in range(3)]
    lists[1] = torch.cat([lists[1], lists[0][::2]]).unique()
    union, bitmaps = unite(lists, 10**9)
    segments = segments_of([len(union) * 16], [16])
    positions, owners = torch.arange(len(union)), torch.empty(len(union), dtype=torch.int16)
    ops.plan_owners(bitmaps, segments, positions, 5, owners)
    touched = [reference.positions(bitmap) for bitmap in bitmaps]
    assert [union[where].tolist() for where in touched] == [rows.tolist() for rows in lists]
    assert owners.tolist() == reference.owners(touched, segments, 5)


# ------------------------------------------------------------------------------------------------
# Errors: one sentence that names the argument, and nothing written
# ------------------------------------------------------------------------------------------------


def longs(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_wrong_arguments_of_a_sort_are_named() -> None:
    out = [torch.full((2,), 9), torch.full((2,), 9), torch.full((3,), 9)]
    with pytest.raises(RuntimeError, match="indices must lie between 0 and nrows - 1, which is 4"):
        ops.coo_sort(longs(0, 5), 5, *out)
    with pytest.raises(RuntimeError, match="indices must lie between 0 and nrows - 1, which is 4"):
        ops.coo_sort(longs(-1, 0), 5, *out)
    with pytest.raises(RuntimeError, match=r"nrows must lie between 0 and 2\^40, but is"):
        ops.coo_sort(longs(0, 1), 2**40 + 1, *out)
    with pytest.raises(RuntimeError, match="order must have 3 elements, but has 2"):
        ops.coo_sort(longs(0, 1, 2), 5, *out)
    with pytest.raises(RuntimeError, match="starts must have 3 elements, but has 2"):
        ops.coo_sort(longs(0, 1), 5, out[0], out[1], out[2][:2])
    with pytest.raises(RuntimeError, match=r"indices must be .* int64, but its dtype is Int"):
        ops.coo_sort(longs(0, 1).int(), 5, *out)
    many = torch.zeros(2**24 + 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="indices has too many elements for so many rows"):
        ops.coo_sort(many, 2**40, many, many, torch.zeros(2**24 + 2, dtype=torch.int64))
    assert all(bool((tensor == 9).all()) for tensor in out)


def test_wrong_arguments_of_a_sum_are_named() -> None:
    values, sums = torch.ones(3, 2), torch.full((2, 2), 9.0)
    order, starts = longs(1, 0, 2), longs(0, 1, 3)
    with pytest.raises(RuntimeError, match="order and starts must be what coo_sort gives for 3"):
        ops.coo_sum(values, longs(1, 0, 3), starts, sums)
    with pytest.raises(RuntimeError, match="order and starts must be what coo_sort gives for 3"):
        ops.coo_sum(values, order, longs(0, 1, 4), sums)
    with pytest.raises(RuntimeError, match=r"sums must have the shape \[2, 2\], but has \[3, 2\]"):
        ops.coo_sum(values, order, starts, torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="sums must have the dtype of values"):
        ops.coo_sum(values, order, starts, sums.double())
    with pytest.raises(RuntimeError, match=r"values must be .* 2-D .* but it has 1 dimensions"):
        ops.coo_sum(values.view(-1), order, starts, sums)
    with pytest.raises(RuntimeError, match="starts must have at least 1 element"):
        ops.coo_sum(values, order, longs(), sums)
    assert bool((sums == 9).all())


def test_wrong_arguments_of_a_union_are_named() -> None:
    rows, entries = torch.full((4,), 9), torch.full((4,), 9)
    lists = longs(2, 7, 5, 7)
    with pytest.raises(RuntimeError, match="each of the lists must ascend strictly between 0 and"):
        ops.coo_unite(lists, longs(3, 1), 10, rows, entries)
    with pytest.raises(RuntimeError, match=r"each of the lists .* nrows - 1, which is 6"):
        ops.coo_unite(lists, longs(2, 2), 7, rows, entries)
    with pytest.raises(RuntimeError, match="lengths must add up to the 4 elements of lists"):
        ops.coo_unite(lists, longs(2, 1), 10, rows, entries)
    with pytest.raises(RuntimeError, match=r"lengths must be 0 or more .* but one is -1"):
        ops.coo_unite(lists, longs(-1, 5), 10, rows, entries)
    with pytest.raises(RuntimeError, match="lengths must have 1 to 256 elements, but has 0"):
        ops.coo_unite(lists, longs(), 10, rows, entries)
    assert bool((rows == 9).all()) and bool((entries == 9).all())

    bitmaps = torch.full((2, 8), 9, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="entries must be what coo_unite gives for 2 ranks"):
        ops.coo_bitmaps(longs(0, 2), 3, bitmaps)
    with pytest.raises(RuntimeError, match=r"entries must be what coo_unite gives .* union of 3"):
        ops.coo_bitmaps(longs(0, 3 * 256), 3, bitmaps)
    with pytest.raises(RuntimeError, match="bitmaps must have 16 bytes a row for a union of 65"):
        ops.coo_bitmaps(longs(0, 1), 65, bitmaps)
    assert bool((bitmaps == 9).all())
