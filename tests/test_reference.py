# SPDX-License-Identifier: MIT
"""The oracle itself: against answers written out by hand, and beside the operators of the core."""

import pytest
import torch
from torch import Tensor

from s2reducer import ops, reference
from s2reducer.segments import segments_of

# The worked example at the top of csrc/s2.h.
VALUES = torch.tensor([0.0, 0, 5, 1, 0, 0, 0, 0, 0, 7])
SEGMENTS = segments_of([6, 4], [2, 3])


def test_the_example_of_the_header() -> None:
    live = reference.live_positions(VALUES, SEGMENTS)
    assert live == [1, 65]
    bitmap = reference.bitmap(live, 16)
    assert bitmap.tolist() == [2, *[0] * 7, 2, *[0] * 7]
    assert reference.positions(bitmap) == live
    packed = reference.gather(VALUES, SEGMENTS, live)
    assert packed.tolist() == [5, 1, 7, 0, 0]
    assert torch.equal(reference.scatter(packed, SEGMENTS, live, torch.zeros(10)), VALUES)
    start = torch.arange(10.0)
    added = reference.add(packed, SEGMENTS, live, start)
    assert added.tolist() == [0, 1, 7, 4, 4, 5, 6, 7, 8, 16]
    assert start.tolist() == list(range(10))


def test_what_makes_a_block_live() -> None:
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([0.0, -0.0, nan, 0.0, -inf, 0.0, 1e-45, 0.0, 0.0, 0.0])
    assert reference.live_positions(values, segments_of([10], [2])) == [1, 2, 3]


def test_nothing_at_all() -> None:
    for segments in (segments_of([], []), segments_of([0, 0], [1, 5])):
        assert reference.live_positions(torch.zeros(0), segments) == []
        assert reference.gather(torch.zeros(0), segments, []).numel() == 0


def test_means() -> None:
    ranks = [VALUES, VALUES.flip(0), torch.zeros(10), torch.ones(10) * -4]
    expected = torch.tensor([0.75, -1, 0.25, -0.75, -1, -1, -0.75, 0.25, -1, 0.75])
    assert torch.equal(reference.mean(ranks), expected)
    assert torch.equal(reference.union_mean(ranks, SEGMENTS), expected)
    sparse = reference.union_mean([VALUES, -2 * VALUES], SEGMENTS)
    assert sparse.tolist() == [0, 0, -2.5, -0.5, 0, 0, 0, 0, 0, -3.5]
    assert not torch.signbit(sparse[:2]).any()  # outside the union a zero has no sign


def test_half_types_are_summed_wide_and_rounded_once() -> None:
    ranks = [torch.tensor([value], dtype=torch.bfloat16) for value in (1024, 4, 4, 4)]
    expected = torch.tensor([259.0], dtype=torch.bfloat16)
    assert torch.equal(reference.union_mean(ranks, segments_of([1], [1])), expected)
    assert torch.equal(reference.mean(ranks), expected)


def random_bucket(dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numels = torch.randint(0, 300, (6,), generator=generator).tolist()
    blocks = torch.randint(1, 70, (6,), generator=generator).tolist()
    values = torch.randint(-4, 5, (sum(numels),), generator=generator).to(dtype)
    values[torch.rand(len(values), generator=generator) < 0.97] = 0.0
    return values, segments_of(numels, blocks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_the_core_agrees(dtype: torch.dtype, seed: int) -> None:
    values, segments = random_bucket(dtype, seed)
    live = reference.live_positions(values, segments)
    bitmap = torch.empty(ops.bitmap_nbytes(segments), dtype=torch.uint8)
    ops.bitmap_from_nonzero(values, segments, bitmap, torch.empty(1, dtype=torch.int64))
    assert torch.equal(bitmap, reference.bitmap(live, len(bitmap)))
    positions = torch.empty(len(live), dtype=torch.int64)
    ops.bitmap_positions(bitmap, positions)
    assert positions.tolist() == reference.positions(bitmap) == live

    expected = reference.gather(values, segments, live)
    packed = torch.empty_like(expected)
    ops.blocks_gather(values, segments, positions, packed)
    assert torch.equal(packed, expected)
    target = torch.full_like(values, 9)
    expected = reference.scatter(packed, segments, live, target)
    ops.blocks_scatter(packed, segments, positions, target)
    assert torch.equal(target, expected)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    accumulator = torch.arange(len(values), dtype=wide)
    expected = reference.add(packed, segments, live, accumulator)
    ops.blocks_add(packed, segments, positions, accumulator)
    assert torch.equal(accumulator, expected)


def test_rows_of_a_coo_gradient() -> None:
    indices, values = torch.tensor([7, 2, 7]), torch.tensor([[1.0], [2], [4]])
    rows, sums = reference.coalesce(indices, values)
    assert rows == [2, 7] and sums.tolist() == [[2], [5]]
    rows, sums = reference.coalesce(indices[:0], values[:0])
    assert rows == [] and sums.shape == (0, 1) and sums.dtype == torch.float32
    union, bitmaps = reference.unite([[2, 7], [5, 7], []])
    assert union == [2, 5, 7]
    assert bitmaps[:, 0].tolist() == [0b101, 0b110, 0]
    assert bitmaps.shape == (3, 8) and not bitmaps[:, 1:].any()
