# SPDX-License-Identifier: MIT
"""The operators for sketches, against the reference, and against what theory says of them."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sketches import draw_ids, draw_seed, estimate, inserted, peel, same_bits, weighed, whole
from torch import Tensor

from s2reducer import _C, ops, reference_sketch

VECTORS = Path(__file__).parent / "vectors" / "sketch.json"
pytestmark = pytest.mark.usefixtures("seed")
SHAPES = [(1, 40, 5), (2, 33, 1), (3, 26, 64), (4, 31, 3), (5, 21, 130), (8, 1, 7)]


@pytest.fixture(params=_C.cpu_variants())
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    _C.cpu_variant_force(request.param)
    yield
    _C.cpu_variant_force(_C.cpu_variant_best())


# ------------------------------------------------------------------------------------------------
# Against the reference
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_everything_is_that_of_the_reference(shape: tuple[int, int, int], variant: None) -> None:
    rows, width, block = shape
    for n in (0, 1, rows * width // 2, rows * width * 3 // 4):
        seed, ids, values = draw_seed(), draw_ids(n), torch.randn(n, block)
        values *= 10.0 ** torch.randint(-3, 4, (n, 1))
        table = inserted(shape, seed, ids, values)
        expected = reference_sketch.insert(torch.zeros(shape), seed, ids.tolist(), values)
        assert same_bits(table, expected)
        assert same_bits(
            estimate(table, seed, ids), reference_sketch.estimate(table, seed, ids.tolist())
        )
        magnitudes = weighed((rows, width), seed, ids, values)
        expected = reference_sketch.weigh(torch.zeros(rows, width), seed, ids.tolist(), values)
        assert same_bits(magnitudes, expected)
        for nranks, known, max_rounds in ((1, None, 0), (4, None, 2), (4, 1e4 * magnitudes, 0)):
            peeled = reference_sketch.peel(table, seed, ids.tolist(), nranks, known, max_rounds)
            got = peel(table.clone(), seed, ids, nranks, known, max_rounds)
            assert same_bits(got.values, peeled.values)
            assert got.decoded.tolist() == peeled.decoded
            assert got.bounds.tolist() == peeled.bounds
            assert got.norms.tolist() == peeled.norms
            assert got.ndecoded == sum(peeled.decoded)
            assert got.nrounds == len(peeled.rounds)
        ops.sketch_subtract(table, seed, ids, values)
        assert float(table.abs().max()) <= 1e-5 * float(values.abs().max() if n else 0)


def test_estimates_of_cells_of_any_bits_are_those_of_the_reference(variant: None) -> None:
    for shape in SHAPES:
        table = torch.randint(-(2**31), 2**31, shape).int().view(torch.float32)
        table[torch.rand(shape) < 0.3] = 0.0
        table[torch.rand(shape) < 0.2] = -0.0
        table[torch.rand(shape) < 0.1] = math.inf
        seed, ids = draw_seed(), draw_ids(20)
        got = estimate(table, seed, ids)
        expected = reference_sketch.estimate(table, seed, ids.tolist())
        nan = expected.isnan()
        assert torch.equal(got.isnan(), nan)
        assert same_bits(got[~nan], expected[~nan])


# ------------------------------------------------------------------------------------------------
# The hash
# ------------------------------------------------------------------------------------------------


def plain_hash(seed: int, number: int) -> int:
    """SplitMix64 in whole numbers without a limit, cut to 64 bits where it must be."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z // 2**27) * 0x94D049BB133111EB % 2**64
    return z ^ z // 2**31


def test_vectors_are_those_of_the_reference_and_of_plain_integers() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert len(vectors) >= 30
    for vector in vectors:
        seed, block_id = int(vector["seed"]), int(vector["id"])
        row, width = vector["row"], vector["width"]
        place = reference_sketch.places(seed, block_id, 8, width)[row]
        value = plain_hash(plain_hash(seed, block_id), row)
        assert place.cell == vector["cell"] == value // 2**32 * width // 2**32 < width
        assert (place.sign < 0) == vector["negative"] == (value % 2 == 1)


def test_the_operator_takes_seeds_and_ids_of_all_sizes() -> None:
    for seed in (0, 1, 2**63 - 1, 2**63, 2**64 - 1):
        for block_id in (0, 1, 2**40, 2**63 - 2):
            table = inserted((8, 11, 1), seed, torch.tensor([block_id]), torch.ones(1, 1))
            expected = torch.zeros(8, 11, 1)
            for row, cell, sign in reference_sketch.places(seed, block_id, 8, 11):
                expected[row, cell] = sign
            assert torch.equal(table, expected)


def places_of(seed: int, ids: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Signed numbers of the cells, from 1, in two rows: out of the means of cells that say both."""
    numbers = torch.arange(1, width + 1).float()
    table = torch.stack([numbers, 1024 * numbers]).view(2, width, 1)
    both = (2 * estimate(table, seed, ids)).view(-1)
    second = (both / 1024).round()
    return (both - 1024 * second).long(), second.long()


@pytest.mark.parametrize("seed", [0, 1, 0xFEDCBA9876543210])
@pytest.mark.parametrize("step", [1, 1 << 40])
def test_cells_and_signs_are_even_and_tell_nothing_of_each_other(seed: int, step: int) -> None:
    """Chi-square of two rows' cells and signs together: 1023 degrees of freedom, one in 10^6."""
    n, width = 102_400, 16
    first, second = places_of(seed, step * torch.arange(n), width)
    for signed in (first, second):
        assert signed.abs().min() == 1 and signed.abs().max() == width
        # And of a coin alone, which is a matter of 1 degree.
        assert (int((signed < 0).sum()) - n / 2) ** 2 / (n / 4) < 23.9
    signed = torch.stack([first, second])
    digits = signed.abs() - 1 + width * (signed < 0)
    counts = torch.bincount(digits[0] * 2 * width + digits[1], minlength=4 * width * width)
    assert len(counts) == 1024
    expected = n / len(counts)
    assert float(((counts - expected) ** 2 / expected).sum()) < 1252


# ------------------------------------------------------------------------------------------------
# What a sketch is for
# ------------------------------------------------------------------------------------------------


def test_the_sum_of_tables_is_the_table_of_the_sum() -> None:
    for shape in SHAPES:
        seed, ids = draw_seed(), draw_ids(30)
        a, b = whole(30, shape[2]), whole(30, shape[2])
        table = inserted(shape, seed, ids, a)
        ops.sketch_merge(table, seed, inserted(shape, seed, ids, b), seed)
        assert same_bits(table, inserted(shape, seed, ids, a + b))
        ops.sketch_subtract(table, seed, ids, b)
        assert torch.equal(table, inserted(shape, seed, ids, a))


@pytest.mark.parametrize("nranks", [2, 3, 8])
def test_sums_of_ranks_that_have_different_blocks_are_exact(nranks: int, variant: None) -> None:
    n, block, seed = 400, 20, 11
    ids, total = draw_ids(n), torch.zeros(n, block)
    table = torch.zeros(3, 200, block)
    for rank in range(nranks):
        mine = torch.rand(n) < 0.4
        mine[rank::nranks] = True  # every block is somebody's
        values = whole(int(mine.sum()), block)
        total[mine] += values
        other = inserted((3, 200, block), seed, ids[mine], values)
        ops.sketch_merge(table, seed, other, seed)
    peeled = peel(table, seed, ids, nranks)
    assert peeled.ndecoded == n and bool(peeled.decoded.all())
    assert same_bits(peeled.values, total + 0.0)


def test_all_blocks_one_block_and_none() -> None:
    for n in (0, 1, 600):
        ids, values = torch.arange(n), whole(n, 33)
        peeled = peel(inserted((3, 350, 33), 5, ids, values), 5, ids)
        assert peeled.ndecoded == n
        assert same_bits(peeled.values, values + 0.0)
        assert peeled.nrounds == min(n, 1) or n > 1


def test_blocks_that_share_all_their_cells_are_stuck_and_said_to_be() -> None:
    ids, values = torch.tensor([4, 5, 6]), torch.tensor([[1.0, 2], [10, 20], [100, 200]])

    def cells(seed: int, block_id: int) -> list[int]:
        return [place.cell for place in reference_sketch.places(seed, block_id, 3, 3)]

    seed = next(s for s in range(10**6) if cells(s, 4) == cells(s, 5) != cells(s, 6))
    table = inserted((3, 3, 2), seed, ids, values)
    peeled = peel(table, seed, ids)
    assert peeled.decoded.tolist() == [False, False, True]
    assert peeled.values.tolist() == [[0, 0], [0, 0], [100, 200]]
    assert peeled.bounds.tolist() == [math.inf, math.inf, 0]
    assert (peeled.ndecoded, peeled.nrounds) == (1, 1)
    # What is left in their cells is theirs alone.
    ops.sketch_subtract(table, seed, ids[:1], values[:1])
    assert torch.equal(estimate(table, seed, ids[1:2]), values[1:2])


def test_a_hopeless_table_gives_nothing() -> None:
    ids, values = torch.arange(50), torch.randn(50, 9)
    for rows in (1, 3, 8):
        table = inserted((rows, 1, 9), 3, ids, values)
        before = table.clone()
        peeled = peel(table, 3, ids)
        assert (peeled.ndecoded, peeled.nrounds) == (0, 0)
        assert not peeled.decoded.any()
        assert same_bits(peeled.values, torch.zeros(50, 9))
        assert bool((peeled.bounds == math.inf).all())
        assert same_bits(table, before)


def test_rounds_can_be_limited() -> None:
    ids, values = torch.arange(500), whole(500, 4)
    table = inserted((3, 217, 4), 8, ids, values)
    nrounds = peel(table.clone(), 8, ids).nrounds
    assert nrounds > 5
    before = torch.zeros(500, dtype=torch.bool)
    for limit in range(1, nrounds + 2):
        peeled = peel(table.clone(), 8, ids, max_rounds=limit)
        assert peeled.nrounds == min(limit, nrounds)
        assert bool((peeled.decoded >= before).all())
        assert (peeled.ndecoded > int(before.sum())) == (limit <= nrounds)
        assert same_bits(peeled.values, torch.where(peeled.decoded[:, None], values + 0.0, 0.0))
        before = peeled.decoded
    assert bool(before.all())


def count_failures(n: int, per_block: float, seeds: range) -> int:
    width = math.ceil(per_block * n / 3)
    ids, table = torch.arange(n), torch.zeros(3, width, 1)
    return sum(peel(table, seed, ids).ndecoded < n for seed in seeds)


def test_three_rows_decode_all_of_a_thousand_blocks() -> None:
    """With 1.3 cells for each, in 99 of 100 tables; most failures are two that share all cells."""
    assert count_failures(1000, 1.3, range(1000)) <= 10


@pytest.mark.slow
def test_three_rows_decode_all_of_many_blocks() -> None:
    assert count_failures(100_000, 1.25, range(100)) == 0


@pytest.mark.parametrize("cells", [0.25, 1.0, 4.0])
def test_the_error_of_one_row_is_that_of_theory(cells: float) -> None:
    n = 40_000
    ids, values = torch.arange(n), torch.randn(n, 1)
    table = inserted((1, int(cells * n), 1), draw_seed(), ids, values)
    error = estimate(table, 1, ids) - values
    assert error.norm() / values.norm() > 1  # another seed: nothing of it can be read
    seed = draw_seed()
    table = inserted((1, int(cells * n), 1), seed, ids, values)
    relative = float((estimate(table, seed, ids) - values).norm() / values.norm())
    assert relative == pytest.approx(math.sqrt(1 / cells), rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 8),
    width=st.integers(1, 60),
    block=st.integers(1, 9),
    n=st.integers(0, 60),
    seed=st.integers(0, 2**64 - 1),
    nranks=st.integers(1, 256),
)
def test_what_is_decoded_is_right(
    rows: int, width: int, block: int, n: int, seed: int, nranks: int
) -> None:
    ids = torch.arange(n) * 3 + seed % 1000
    values = (torch.arange(n * block).view(n, block) * 7 % 401 - 200).float()
    table = inserted((rows, width, block), seed, ids, values)
    peeled = peel(table, seed, ids, nranks)
    assert same_bits(peeled.values, torch.where(peeled.decoded[:, None], values + 0.0, 0.0))
    assert torch.equal(peeled.bounds.isfinite(), peeled.decoded)
    assert peeled.ndecoded == int(peeled.decoded.sum())


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_whether_values_are_finite(dtype: torch.dtype, parallel: bool, variant: None) -> None:
    for n in (0, 1, 31, 300_000):
        values = torch.randn(n).to(dtype)
        values[: n // 2] = torch.finfo(dtype).max
        assert ops.values_finite(values, parallel) is True
        for bad in (math.inf, -math.inf, math.nan) if n else ():
            at = random.randrange(n)
            before = values[at].item()
            values[at] = bad
            assert ops.values_finite(values, parallel) is False
            values[at] = before


# ------------------------------------------------------------------------------------------------
# Errors: one sentence that names the argument, and nothing written
# ------------------------------------------------------------------------------------------------


def test_wrong_tables_are_named() -> None:
    ids, values = torch.arange(2), torch.ones(2, 4)
    for shape in ((0, 5, 4), (9, 5, 4), (3, 0, 4), (3, 5, 0)):
        with pytest.raises(RuntimeError, match=r"table must have 1 to 8 rows.*has the shape \["):
            ops.sketch_insert(torch.zeros(shape), 0, ids, values)
    with pytest.raises(
        RuntimeError, match=r"table must be .* \[rows, width, block\], but .* 1 dim"
    ):
        ops.sketch_insert(torch.zeros(60), 0, ids, values)
    with pytest.raises(RuntimeError, match=r"table must be .* float32 .* but its dtype is Double"):
        ops.sketch_insert(torch.zeros(3, 5, 4).double(), 0, ids, values)
    with pytest.raises(RuntimeError, match=r"table must be .* but it is not contiguous"):
        ops.sketch_insert(torch.zeros(3, 5, 8)[:, :, ::2], 0, ids, values)


def test_wrong_blocks_are_named() -> None:
    table, values = torch.full((3, 5, 4), 9.0), torch.full((2, 4), 9.0)
    for op in (ops.sketch_insert, ops.sketch_subtract, ops.sketch_estimate):
        for wrong in ([3, 3], [3, 2], [-1, 2]):
            with pytest.raises(RuntimeError, match="ids must ascend strictly from 0 or more"):
                op(table, 0, torch.tensor(wrong), values)
        with pytest.raises(RuntimeError, match=r"values must have the shape \[3, 4\] .* \[2, 4\]"):
            op(table, 0, torch.arange(3), values)
        with pytest.raises(RuntimeError, match=r"values must have the shape \[2, 4\] .* \[2, 3\]"):
            op(table, 0, torch.arange(2), values[:, :3].clone())
        with pytest.raises(RuntimeError, match=r"values must be .* but its dtype is BFloat16"):
            op(table, 0, torch.arange(2), values.bfloat16())
        with pytest.raises(RuntimeError, match=r"ids must be .* int64, but its dtype is Int"):
            op(table, 0, torch.arange(2).int(), values)
    assert bool((table == 9).all()) and bool((values == 9).all())


def test_wrong_arguments_of_weighing_are_named() -> None:
    magnitudes, ids, values = torch.full((3, 5), 9.0), torch.arange(2), torch.ones(2, 4)

    def weigh(sentence: str, *arguments: object) -> None:
        with pytest.raises(RuntimeError, match=sentence):
            ops.sketch_weigh(*arguments)  # type: ignore[arg-type]

    weigh("ids must ascend strictly from 0 or more", magnitudes, 0, ids.flip(0), values)
    weigh("values must have 3 rows .* ids, but has 2", magnitudes, 0, torch.arange(3), values)
    weigh("values must be .* but its dtype is Double", magnitudes, 0, ids, values.double())
    weigh("magnitudes must be .* 2-D .* but it has 3 dim", torch.ones(3, 5, 4), 0, ids, values)
    weigh("magnitudes must be .* not contiguous", torch.ones(3, 10)[:, ::2], 0, ids, values)
    weigh("magnitudes must be .* but its dtype is Half", magnitudes.half(), 0, ids, values)
    for shape, block in (((0, 5), 4), ((9, 5), 4), ((3, 0), 4), ((3, 5), 0)):
        sentence = "magnitudes must have 1 to 8 rows .* and values a block of at least 1"
        weigh(sentence, torch.ones(shape), 0, ids, torch.ones(2, block))
    assert bool((magnitudes == 9).all())


def test_merges_of_different_sketches_are_refused() -> None:
    table = torch.full((3, 5, 4), 9.0)
    for other, seed in (
        (torch.ones(2, 5, 4), 7),
        (torch.ones(3, 6, 4), 7),
        (torch.ones(3, 5, 5), 7),
        (torch.ones(3, 5, 4), 8),
    ):
        with pytest.raises(RuntimeError, match="other must have the shape and the seed of table"):
            ops.sketch_merge(table, 7, other, seed)
    assert bool((table == 9).all())


def test_wrong_arguments_of_a_peel_are_named() -> None:
    table, ids = torch.full((3, 5, 4), 9.0), torch.arange(2)
    nbytes = ops.sketch_scratch_nbytes(table, 2)
    scratch = torch.full((nbytes + 16,), 9, dtype=torch.uint8)
    good: dict[str, object] = {
        "nranks": 1,
        "magnitudes": None,
        "values": torch.full((2, 4), 9.0),
        "decoded": torch.ones(2, dtype=torch.bool),
        "bounds": torch.full((2,), 9.0),
        "norms": torch.full((2,), 9.0),
        "scratch": scratch[:nbytes],
        "max_rounds": 0,
    }
    for wrong, sentence in (
        ({"nranks": 0}, "nranks must lie between 1 and 256, but is 0"),
        ({"nranks": 257}, "nranks must lie between 1 and 256, but is 257"),
        ({"max_rounds": -1}, "max_rounds must be 0 or more, but is -1"),
        ({"values": torch.ones(3, 4)}, r"values must have the shape \[2, 4\]"),
        ({"decoded": torch.ones(3).bool()}, "decoded must have 2 elements, but has 3"),
        ({"decoded": torch.ones(2).byte()}, "decoded must be .* bool, but its dtype is Byte"),
        ({"bounds": torch.ones(1)}, "bounds must have 2 elements, but has 1"),
        ({"bounds": torch.ones(2).double()}, "bounds must be .* float32, but its dtype is Double"),
        ({"norms": torch.ones(3)}, "norms must have 2 elements, but has 3"),
        ({"norms": torch.ones(2, 1)}, "norms must be .* 1-D .* but it has 2 dimensions"),
        ({"magnitudes": torch.ones(3, 4)}, r"magnitudes must have the shape \[3, 5\] .* \[3, 4\]"),
        ({"magnitudes": torch.ones(15)}, "magnitudes must be .* 2-D .* but it has 1 dimensions"),
        ({"magnitudes": torch.ones(3, 5).int()}, "magnitudes must be .* but its dtype is Int"),
        ({"scratch": scratch}, f"scratch must have {nbytes} bytes .* but has {nbytes + 16}"),
        ({"scratch": scratch[1 : nbytes + 1]}, "scratch must begin at a multiple of 8 bytes"),
    ):
        with pytest.raises(RuntimeError, match=sentence):
            ops.sketch_peel(table, 0, ids, **{**good, **wrong})  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="ids must ascend strictly from 0 or more"):
        ops.sketch_peel(table, 0, ids.flip(0), **good)  # type: ignore[arg-type]
    assert bool((table == 9).all()) and bool((scratch == 9).all())
    for name in ("values", "bounds", "norms"):
        assert bool((good[name] == 9).all())  # type: ignore[attr-defined]
