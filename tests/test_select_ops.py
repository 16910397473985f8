# SPDX-License-Identifier: MIT
"""The operators for selection and error feedback, against the reference, bit by bit."""

import math
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import SEED
from torch import Tensor

from s2reducer import _C, reference, reference_select, select_ops

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def best_variant_again(seed: None) -> Iterator[None]:
    yield
    _C.cpu_variant_force(_C.cpu_variant_best())


@st.composite
def float32s(draw: st.DrawFn, most: int = 4097, finite: bool = False) -> Tensor:
    """Up to a few thousand floats: any bits, or few values and so many that are equal."""
    sizes = [0, 1, 2, 63, 64, 65, 200, 513, 1025, 4097]
    n = draw(st.sampled_from([size for size in sizes if size <= most]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    bits = torch.randint(-(2**31), 2**31, (n,), generator=generator).int()
    values = bits.view(torch.float32).clone()
    kind = draw(st.sampled_from(["any", "normal", "few", "zeros"]))
    if kind != "any":
        values = torch.randn(n, generator=generator) * 10.0 ** draw(st.integers(-3, 3))
    if kind == "few":
        values = values.sign() * draw(st.sampled_from([1.0, 1e-40, math.inf]))
    if kind == "zeros":
        values[torch.rand(n, generator=generator) < 0.9] = -0.0
    if finite:
        values[~values.isfinite()] = 1.0
    return values


variants = st.sampled_from(_C.cpu_variants())
parallels = st.booleans()


def empty_bitmap(n: int) -> Tensor:
    return torch.full((select_ops.selected_nbytes(n),), 255, dtype=torch.uint8)


def bitmap_of(selected: list[int], n: int) -> Tensor:
    return reference.bitmap(selected, select_ops.selected_nbytes(n))


def select_top(scores: Tensor, keep: int, parallel: bool = False) -> tuple[Tensor, float]:
    bitmap = empty_bitmap(len(scores))
    nbytes = select_ops.select_scratch_nbytes(len(scores))
    scratch = torch.full((nbytes,), 255, dtype=torch.uint8)
    return bitmap, select_ops.select_top(scores, keep, bitmap, scratch, parallel)


def same(a: Tensor, b: Tensor) -> bool:
    """The same bits, but one NaN is as good as another."""
    nan = a.isnan()
    if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(nan, b.isnan()):
        return False
    return torch.equal(a[~nan].view(torch.uint8), b[~nan].view(torch.uint8))


# ------------------------------------------------------------------------------------------------
# Selection
# ------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(scores=float32s(), share=st.floats(0, 1), variant=variants, parallel=parallels)
def test_top(scores: Tensor, share: float, variant: str, parallel: bool) -> None:
    _C.cpu_variant_force(variant)
    keep = round(share * len(scores))
    wanted = reference_select.top(scores, keep)
    bitmap, threshold = select_top(scores, keep, parallel)
    assert torch.equal(bitmap, bitmap_of(wanted, len(scores)))
    if keep == 0:
        assert math.isnan(threshold)
    else:
        least = torch.tensor(min(reference_select.magnitudes(scores[wanted])), dtype=torch.int32)
        assert same(torch.tensor(threshold), least.view(torch.float32))


@settings(max_examples=60, deadline=None)
@given(
    scores=float32s(),
    threshold=st.floats(0, width=32) | st.sampled_from([0.0, 1.0, 1e-40, math.inf]),
    variant=variants,
    parallel=parallels,
)
def test_above(scores: Tensor, threshold: float, variant: str, parallel: bool) -> None:
    _C.cpu_variant_force(variant)
    wanted = reference_select.above(scores, threshold)
    bitmap = empty_bitmap(len(scores))
    assert select_ops.select_above(scores, threshold, bitmap, parallel) == len(wanted)
    assert torch.equal(bitmap, bitmap_of(wanted, len(scores)))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), numel=st.integers(0, 700), share=st.floats(0, 1))
def test_random(seed: int, numel: int, share: float) -> None:
    keep = round(share * numel)
    wanted = reference_select.random(seed, numel, keep)
    bitmap = empty_bitmap(numel)
    select_ops.select_random(seed, numel, keep, bitmap)
    assert len(wanted) == keep
    assert torch.equal(bitmap, bitmap_of(wanted, numel))


@pytest.mark.parametrize(
    "variant",
    [
        name if name == _C.cpu_variant_best() else pytest.param(name, marks=pytest.mark.slow)
        for name in _C.cpu_variants()
    ],
)
@pytest.mark.parametrize("kind", ["normal", "sorted", "mostly zeros", "equal", "two values"])
def test_the_top_of_many_scores_is_that_of_a_sort(kind: str, variant: str) -> None:
    """Enough for a sample; the thread pool cuts them."""
    _C.cpu_variant_force(variant)
    n = 200_003
    scores = {
        "normal": lambda: torch.randn(n),
        "sorted": lambda: torch.arange(n).float(),
        "mostly zeros": lambda: torch.randn(n) * (torch.rand(n) < 0.01),
        "equal": lambda: torch.full((n,), -2.0),
        "two values": lambda: torch.where(torch.rand(n) < 0.3, 1.0, 3.0),
    }[kind]()
    order = scores.abs().sort(descending=True, stable=True).indices
    for keep in (1, 1000, n // 3, n - 5):
        wanted = torch.zeros(select_ops.selected_nbytes(n) * 8, dtype=torch.uint8)
        wanted[order[:keep]] = 1
        packed = (wanted.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)
        for parallel in (False, True):
            bitmap, threshold = select_top(scores, keep, parallel)
            assert torch.equal(bitmap, packed)
            assert threshold == float(scores[order[keep - 1]].abs())


def test_random_sets_differ_by_their_seed_and_name_all_alike() -> None:
    counts, seen = torch.zeros(64), set()
    for seed in range(SEED, SEED + 3000):
        bitmap = empty_bitmap(50)
        select_ops.select_random(seed, 50, 5, bitmap)
        chosen = reference.positions(bitmap)
        counts[chosen] += 1
        seen.add(tuple(chosen))
    assert len(seen) > 2950  # of 2 million sets two are the same once in some 500 thousand pairs
    # Each is in a tenth: 300, with a standard deviation of 16.4.
    assert bool((counts[:50] > 200).all()) and bool((counts[:50] < 400).all())
    assert not counts[50:].any()


# ------------------------------------------------------------------------------------------------
# Error feedback
# ------------------------------------------------------------------------------------------------

scales = st.sampled_from([1.0, 1024.0, 65536.0, 3.0, 0.1, 2.0**-20])


@settings(max_examples=60, deadline=None)
@given(
    values=float32s(),
    dtype=st.sampled_from(FLOATS),
    scale=scales,
    owing=st.booleans(),
    variant=variants,
    parallel=parallels,
)
def test_add(
    values: Tensor, dtype: torch.dtype, scale: float, owing: bool, variant: str, parallel: bool
) -> None:
    _C.cpu_variant_force(variant)
    values = values.to(dtype)
    before, owed = torch.randn(len(values)) if owing else None, torch.full((len(values),), 9.0)
    touched = select_ops.owed_add(values, before, owed, 1 / scale, parallel)
    assert touched == bool((values != 0).any())
    assert same(owed, reference_select.add(values, before, 1 / scale))


@settings(max_examples=60, deadline=None)
@given(owed=float32s(most=513), block=st.integers(1, 300), variant=variants, parallel=parallels)
def test_energies(owed: Tensor, block: int, variant: str, parallel: bool) -> None:
    _C.cpu_variant_force(variant)
    energies = torch.full((-(-len(owed) // block),), -9.0)
    select_ops.owed_energies(owed, block, energies, parallel)
    assert same(energies, reference_select.energies(owed, block))


@settings(max_examples=80, deadline=None)
@given(
    owed=float32s(most=1025),
    block=st.integers(1, 70),
    share=st.sampled_from([None, 0.0, 0.1, 0.5, 1.0]),
    dtype=st.sampled_from(FLOATS),
    scale=scales,
    variant=variants,
    parallel=parallels,
)
def test_deliver(
    owed: Tensor,
    block: int,
    share: float | None,
    dtype: torch.dtype,
    scale: float,
    variant: str,
    parallel: bool,
) -> None:
    _C.cpu_variant_force(variant)
    n = -(-len(owed) // block)
    selected = [b for b in range(n) if share is None or random.random() < share]
    wanted, rest = reference_select.deliver(owed, block, selected, dtype, scale)
    values = torch.full((len(owed),), 9.0, dtype=dtype)
    bitmap = None if share is None else bitmap_of(selected, n)
    select_ops.owed_deliver(owed, block, bitmap, values, scale, parallel)
    assert same(values, wanted)
    assert same(owed, rest)


@settings(max_examples=60, deadline=None)
@given(
    owed=float32s(finite=True),
    dtype=st.sampled_from(FLOATS),
    variant=variants,
)
def test_what_is_delivered_and_what_is_owed_are_all_there_is(
    owed: Tensor, dtype: torch.dtype, variant: str
) -> None:
    """To the last bit, whatever was rounded; except where a half type has become infinite."""
    _C.cpu_variant_force(variant)
    before, values = owed.clone(), torch.empty(len(owed), dtype=dtype)
    select_ops.owed_deliver(owed, 4, None, values)
    finite = values.isfinite()
    assert torch.equal((values.double() + owed.double())[finite], before.double()[finite])
    assert torch.equal(owed[~finite], before[~finite])
    if dtype in (torch.float32, torch.float64):
        assert not owed.view(torch.int32).any()


# ------------------------------------------------------------------------------------------------
# Refusals
# ------------------------------------------------------------------------------------------------


def test_wrong_arguments_of_selections_are_named() -> None:
    scores, bitmap = torch.full((70,), 9.0), torch.full((16,), 9, dtype=torch.uint8)
    scratch = torch.full((576,), 9, dtype=torch.uint8)

    def top(sentence: str, *arguments: object) -> None:
        with pytest.raises(RuntimeError, match=f"select_top: {sentence}"):
            select_ops.select_top(*arguments)  # type: ignore[arg-type]

    top("keep must lie between 0 and 70, but is 71", scores, 71, bitmap, scratch[:560])
    top("keep must lie between 0 and 70, but is -1", scores, -1, bitmap, scratch[:560])
    top("scores must be .* its dtype is Double", scores.double(), 1, bitmap, scratch[:560])
    top("scores must be .* 1-D .* 2 dimensions", scores.view(7, 10), 1, bitmap, scratch[:560])
    top("bitmap must have 16 bytes for 70 scores, but has 8", scores, 1, bitmap[:8], scratch[:560])
    top("scratch must have 560 bytes for 70 scores, but has 576", scores, 1, bitmap, scratch)
    top("scratch must begin at a multiple of 8 bytes", scores, 1, bitmap, scratch[1:561])
    with pytest.raises(RuntimeError, match=r"select_above: threshold must not be below zero"):
        select_ops.select_above(scores, -1.0, bitmap)
    with pytest.raises(RuntimeError, match=r"select_above: bitmap must have 16 bytes .* has 8"):
        select_ops.select_above(scores, 1.0, bitmap[:8])
    with pytest.raises(RuntimeError, match=r"select_random: keep must lie .* 70, but is 71"):
        select_ops.select_random(1, 70, 71, bitmap)
    with pytest.raises(RuntimeError, match=r"select_random: numel must lie .* but is -1"):
        select_ops.select_random(1, -1, 0, bitmap)
    with pytest.raises(RuntimeError, match=r"bitmap must have 8 bytes for 64 elements, .* 16"):
        select_ops.select_random(1, 64, 1, bitmap)
    assert bool((bitmap == 9).all()) and bool((scratch == 9).all())


def test_wrong_arguments_of_error_feedback_are_named() -> None:
    owed, values = torch.full((70,), 9.0), torch.full((70,), 9.0)
    bitmap, energies = torch.full((8,), 9, dtype=torch.uint8), torch.full((10,), 9.0)
    with pytest.raises(RuntimeError, match=r"owed must have 70 elements, but has 69"):
        select_ops.owed_add(values, None, owed[:69])
    with pytest.raises(RuntimeError, match=r"before must have 70 elements, but has 69"):
        select_ops.owed_add(values, values[:69], owed)
    with pytest.raises(RuntimeError, match=r"values must be .* but its dtype is Int"):
        select_ops.owed_add(values.int(), None, owed)
    with pytest.raises(RuntimeError, match=r"energies must have 10 elements, but has 9"):
        select_ops.owed_energies(owed, 7, energies[:9])
    with pytest.raises(RuntimeError, match=r"block must be 1 or more, but is 0"):
        select_ops.owed_energies(owed, 0, energies)
    with pytest.raises(RuntimeError, match=r"bitmap must have 16 bytes for 70 blocks, but has 8"):
        select_ops.owed_deliver(owed, 1, bitmap, values)
    with pytest.raises(RuntimeError, match=r"values must have 70 elements, but has 69"):
        select_ops.owed_deliver(owed, 7, bitmap, values[:69])
    for wrong in (0.0, -1.0, math.nan, math.inf, 1e-50, 1e50):
        with pytest.raises(RuntimeError, match=r"factor must be a finite number above zero"):
            select_ops.owed_add(values, None, owed, wrong)
        with pytest.raises(RuntimeError, match=r"scale must be, and its reciprocal, a finite"):
            select_ops.owed_deliver(owed, 7, bitmap, values, wrong)
    assert bool((owed == 9).all()) and bool((values == 9).all()) and bool((energies == 9).all())
