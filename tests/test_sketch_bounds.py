# SPDX-License-Identifier: MIT
"""How far peeled blocks are from the sums, what is said of it, and what is set to zero for it."""

import math
from collections.abc import Iterator

import pytest
import torch
from sketches import draw_ids, draw_seed, inserted, peel, weighed, whole
from torch import Tensor

from s2reducer import _C, reference_sketch

pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture(params=_C.cpu_variants())
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    _C.cpu_variant_force(request.param)
    yield
    _C.cpu_variant_force(_C.cpu_variant_best())


# ------------------------------------------------------------------------------------------------
# Bounds
# ------------------------------------------------------------------------------------------------


def sums_of_ranks(
    parts: list[Tensor], shape: tuple[int, int, int], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Table and magnitudes of all ranks, added in float32, and the blocks in float64."""
    table, magnitudes = torch.zeros(shape), torch.zeros(shape[:2])
    ids, exact = torch.arange(len(parts[0])), torch.zeros(parts[0].shape).double()
    for values in parts:
        table += inserted(shape, seed, ids, values)
        magnitudes += weighed(shape[:2], seed, ids, values)
        exact += values.double()
    return table, magnitudes, exact


def test_blocks_are_within_their_bounds() -> None:
    """Sums of four ranks in float32, against the same in float64; sizes over six decades."""
    n, block, nranks, seed = 2000, 16, 4, draw_seed()
    sizes = 10.0 ** (2 * torch.randn(n, 1)).clamp(-4, 4)
    parts = [sizes * torch.randn(n, block) for _ in range(nranks)]
    table, magnitudes, exact = sums_of_ranks(parts, (3, 900, block), seed)
    peeled = peel(table, seed, torch.arange(n), nranks, magnitudes)
    assert peeled.ndecoded >= n - 10
    error = (peeled.values.double() - exact).abs()[peeled.decoded]
    bounds = peeled.bounds[peeled.decoded].double()
    cleared = peeled.values[peeled.decoded] == 0
    assert bool((error[~cleared] <= bounds[:, None].expand_as(error)[~cleared]).all())
    assert bool((error.amax(1) <= bounds * (1 + 1 / math.sqrt(block))).all())
    assert float(error.max()) > 0 and bool(cleared.any())
    # It is no idle bound: half of the blocks are known to 2^-13 of their largest element.
    norms = exact.abs().amax(1)[peeled.decoded]
    assert float((bounds / norms).median()) < 2.0**-13


@pytest.mark.parametrize("nranks", [1, 4])
def test_the_bound_of_a_block_alone_is_that_of_additions(nranks: int) -> None:
    ids, values = torch.arange(2), torch.tensor([[3.0, -5.0], [0.5, 0.0]])
    seed = next(s for s in range(100) if len(set(cells_of(s, ids, 50))) == 6)
    table = inserted((3, 50, 2), seed, ids, values)
    magnitudes = weighed((3, 50), seed, ids, values)
    power = {1: 0, 4: 4}[nranks]  # of three additions
    largest = torch.tensor([5.0, 0.5]).double()
    expected = (power * (2.0**-23 * largest) ** 2).sqrt()
    assert torch.equal(peel(table.clone(), seed, ids, nranks).bounds, expected.float())
    # And twice the squares with magnitudes, which tell of the same additions.
    peeled = peel(table.clone(), seed, ids, nranks, magnitudes)
    assert torch.equal(peeled.bounds, (math.sqrt(2) * expected).float())


def cells_of(seed: int, ids: Tensor, width: int) -> list[tuple[int, int]]:
    places = [place for i in ids.tolist() for place in reference_sketch.places(seed, i, 3, width)]
    return [(row, cell) for row, cell, _ in places]


def test_what_ranks_that_cancel_leave_in_others_is_in_their_bounds() -> None:
    """Every second block is a million times as large on two ranks, with a sum of zero."""
    n, block, seed = 2000, 16, draw_seed()
    ids, rest = torch.arange(n), torch.randn(n, block)
    large = 1e6 * torch.randn(n, block) * (ids % 2 == 1)[:, None]
    parts = [torch.where(large != 0, large, rest), torch.where(large != 0, -large, rest)]
    table, magnitudes, exact = sums_of_ranks(parts, (3, 900, block), seed)
    assert not exact[1::2].any()

    def outside(known: Tensor | None) -> Tensor:
        peeled = peel(table.clone(), seed, ids, 2, known)
        assert peeled.ndecoded >= n - 10
        error = (peeled.values.double() - exact).abs().amax(1)
        limits = peeled.bounds * torch.where(peeled.values == 0, 1.25, 1.0).amax(1)
        return (error > limits) & peeled.decoded

    assert int(outside(None).sum()) > n / 4
    assert not outside(magnitudes).any()


def test_magnitudes_of_nothing_are_as_none() -> None:
    ids, values = torch.arange(60), torch.randn(60, 5)
    table = inserted((3, 30, 5), 4, ids, values)
    with_zeros = peel(table.clone(), 4, ids, 3, torch.zeros(3, 30))
    without = peel(table.clone(), 4, ids, 3)
    assert with_zeros.nrounds > 1
    for one, other in zip(with_zeros[:4], without[:4], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("nranks", [1, 2, 4])
def test_infinite_magnitudes_make_bounds_infinite(nranks: int) -> None:
    """Also where one rank has one block in a cell, and nothing was rounded."""
    ids, values = torch.arange(60), whole(60, 5)
    table = inserted((3, 30, 5), 4, ids, values)
    peeled = peel(table, 4, ids, nranks, torch.full((3, 30), math.inf))
    assert bool(peeled.decoded.any())
    assert bool((peeled.bounds == math.inf).all())


# ------------------------------------------------------------------------------------------------
# Elements that may be zero
# ------------------------------------------------------------------------------------------------


def one_round_later(seed: int = 3) -> tuple[tuple[int, int], Tensor]:
    """Two rows of three cells in which the second block is alone without the others: ``s2.h``."""
    cells = [{place[:2] for place in reference_sketch.places(seed, i, 2, 3)} for i in range(3)]
    assert cells[0] & cells[1] and cells[1] & cells[2] and not cells[0] & cells[2]
    return (2, 3), torch.arange(3)


def test_a_block_loses_no_more_than_its_bound(variant: None) -> None:
    (rows, width), ids = one_round_later()
    values = torch.zeros(3, 512)
    values[[0, 2], 0] = 2000.0
    values[1] = 1e-5
    values[1, 0] = 1.0
    peeled = peel(inserted((rows, width, 512), 3, ids, values), 3, ids)
    bound = float(peeled.bounds[1])
    assert 1e-5 < bound / math.sqrt(512) < 2e-5
    assert torch.count_nonzero(peeled.values[1]) == 1  # all of the small ones are cleared
    error = float((peeled.values[1] - values[1]).double().norm())
    assert 1e-5 * math.sqrt(510) < error <= bound
    assert peeled.norms.tolist() == [2000.0, float(peeled.values[1, 0]), 2000.0]


def test_zeros_of_all_ranks_come_out_as_zeros() -> None:
    n, block, nranks, seed = 2000, 64, 4, draw_seed()
    zeros = torch.rand(n, block) < 0.25
    parts = [torch.randn(n, block).masked_fill(zeros, 0.0) for _ in range(nranks)]
    table, magnitudes, _ = sums_of_ranks(parts, (3, 950, block), seed)
    peeled = peel(table, seed, torch.arange(n), nranks, magnitudes)
    assert peeled.ndecoded >= n - 10
    wrong = (peeled.values != 0) & zeros & peeled.decoded[:, None]
    print(f"{int(wrong.sum())} of {int(zeros.sum())}")
    assert int(wrong.sum()) <= 1e-3 * int(zeros.sum())
    lost = (peeled.values == 0) & ~zeros & peeled.decoded[:, None]
    assert int(lost.sum()) <= 1e-3 * n * block


def test_a_block_that_was_alone_is_left_as_it_is(variant: None) -> None:
    """On two ranks it may have been more, but no neighbour has left anything in it."""
    (rows, width), ids = one_round_later()
    values = torch.tensor([[8388608.0, 1.0], [1000.0, 0.5], [8388608.0, -1.0]])
    magnitudes = weighed((rows, width), 3, ids, values)
    peeled = peel(inserted((rows, width, 2), 3, ids, values), 3, ids, 2, magnitudes)
    assert bool((peeled.bounds / math.sqrt(2) >= 0.99).all())
    assert peeled.values.tolist() == [[8388608.0, 1.0], [1000.0, 0.0], [8388608.0, -1.0]]
    assert peeled.norms.tolist() == [8388608.0, 1000.0, 8388608.0]


@pytest.mark.parametrize("block", [1, 3, 64, 130])
def test_norms_are_those_of_the_values(block: int, variant: None) -> None:
    ids, values = draw_ids(70), torch.randn(70, block) * 10.0 ** torch.randint(-6, 7, (70, 1))
    table = inserted((3, 32, block), 9, ids, values)
    magnitudes = 10 * weighed((3, 32), 9, ids, values)
    peeled = peel(table, 9, ids, 4, magnitudes)
    assert peeled.ndecoded > 20
    assert torch.equal(peeled.norms, peeled.values.abs().amax(1))
    assert bool((peeled.norms[~peeled.decoded] == 0).all())
