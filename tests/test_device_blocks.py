# SPDX-License-Identifier: MIT
"""torch's operators for devices against those of the C core: the same bits, and nothing is read.

They run on CPU tensors here, and on the meta device, where there is nothing that could be read.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from s2reducer import device_blocks, ops
from s2reducer.device import HostCopy, SideStream, future_on, to_device
from s2reducer.segments import segments_of
from s2reducer.worker import Outcome

CPU, META = torch.device("cpu"), torch.device("meta")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
HALVES = (torch.float16, torch.bfloat16)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
WIDE = {torch.float32: [torch.float64, torch.float32], torch.float64: [torch.float64]} | {
    half: [torch.float32] for half in HALVES
}
# As values_convert() takes them.
PAIRS = [(half, torch.float32) for half in HALVES]
PAIRS += [(torch.float32, dtype) for dtype in DTYPES]
PAIRS += [(torch.float64, dtype) for dtype in (torch.float64, torch.float32)]

fuzzed = settings(max_examples=40, deadline=None, print_blob=True)
seeds = st.integers(0, 2**32 - 1)
divisors = st.sampled_from([1.0, 2.0, 3.0, 7.0, 1e-3])


def assert_same_bits(one: Tensor, other: Tensor) -> None:
    """But for which NaN a NaN is."""
    assert one.dtype == other.dtype and one.shape == other.shape
    if one.is_floating_point():
        nans = one.isnan()
        assert torch.equal(nans, other.isnan())
        bits = BITS[one.element_size()]
        one, other = (x.masked_fill(nans, 1.0).view(bits) for x in (one, other))
    assert torch.equal(one, other)


def random_values(numel: int, dtype: torch.dtype, random: torch.Generator) -> Tensor:
    """Of every size, subnormals and both zeros among them, and a few that are not finite."""
    exponents = torch.randint(-50, 40, (numel,), generator=random)
    values = torch.randn(numel, generator=random, dtype=torch.float64) * 2.0**exponents
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 6e-8])
    where = torch.rand(numel, generator=random) < 0.2
    chosen = torch.randint(len(special), (numel,), generator=random)
    return torch.where(where, special.double()[chosen], values).to(dtype)


class Bucket:
    """Segments with gaps between them; of some blocks all elements are zeros of either sign."""

    def __init__(self, shapes: list[tuple[int, int]], dtype: torch.dtype, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        offsets = [3]
        for numel, _ in shapes:
            offsets.append(offsets[-1] + numel + 5)
        numels, blocks = ([shape[i] for shape in shapes] for i in (0, 1))
        self.segments = segments_of(numels, blocks, offsets[:-1])
        self.nbytes = ops.bitmap_nbytes(self.segments)
        self.values = random_values(offsets[-1], dtype, self.random)
        density = float(torch.rand((), generator=self.random))
        self.numels, chosen = [], []
        for offset, numel, block, bit in self.segments.tolist():
            for number, begin in enumerate(range(0, numel, block)):
                if float(torch.rand((), generator=self.random)) < density:
                    chosen.append(bit + number)
                    self.numels.append(block)
                else:
                    end = min(begin + block, numel)
                    zeros = torch.randint(-1, 2, (end - begin,), generator=self.random).to(dtype)
                    self.values[offset + begin : offset + end] = zeros.clamp(max=0) * 0.0
        self.positions = torch.tensor(chosen, dtype=torch.int64)

    def packed(self, dtype: torch.dtype) -> Tensor:
        return random_values(sum(self.numels), dtype, self.random)


shapes = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 70)), max_size=5)


def buckets(dtypes: list[torch.dtype] = DTYPES) -> Any:
    return st.builds(Bucket, shapes, st.sampled_from(dtypes), seeds)


@fuzzed
@given(buckets())
def test_bitmap_and_negative_zeros(bucket: Bucket) -> None:
    results = []
    for operators in (ops, device_blocks):
        bitmap = torch.full((bucket.nbytes,), 255, dtype=torch.uint8)
        negative_zeros = torch.full((1,), -1)
        operators.bitmap_from_nonzero(bucket.values, bucket.segments, bitmap, negative_zeros)
        results.append((bitmap, negative_zeros))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_negative_zeros_are_not_live_and_nans_are() -> None:
    values = torch.zeros(40)
    values[8], values[17], values[0] = float("nan"), 1e-45, -0.0
    bitmap, negative_zeros = torch.empty(8, dtype=torch.uint8), torch.empty(1, dtype=torch.int64)
    segments = torch.tensor([[0, 40, 8, 0]])
    device_blocks.bitmap_from_nonzero(values, segments, bitmap, negative_zeros)
    assert bitmap.tolist() == [0b110, 0, 0, 0, 0, 0, 0, 0] and negative_zeros.item() == 1
    device_blocks.blocks_clear_dead(bitmap, segments, values)
    assert not values.signbit()[0] and values[8].isnan() and values[17] == 1e-45


def pairs_of(dtype: torch.dtype) -> list[torch.dtype]:
    """What a gather may turn it into."""
    return [to for source, to in PAIRS if source == dtype] + [dtype]


@fuzzed
@given(buckets(), st.data())
def test_gather(bucket: Bucket, data: Any) -> None:
    dtype = data.draw(st.sampled_from(pairs_of(bucket.values.dtype)))
    divisor = data.draw(divisors)
    if dtype == bucket.values.dtype in HALVES:
        divisor = 1.0
    results = []
    for operators in (ops, device_blocks):
        packed = torch.full((sum(bucket.numels),), 7.0, dtype=dtype)
        operators.blocks_gather(bucket.values, bucket.segments, bucket.positions, packed, divisor)
        results.append(packed)
    assert_same_bits(*results)


@fuzzed
@given(buckets(), st.data())
def test_scatter(bucket: Bucket, data: Any) -> None:
    dtype = bucket.values.dtype
    sources = [source for source, to in PAIRS if to == dtype] + [dtype]
    packed, divisor = bucket.packed(data.draw(st.sampled_from(sources))), data.draw(divisors)
    if packed.dtype == dtype in HALVES:
        divisor = 1.0
    results = []
    for operators in (ops, device_blocks):
        values = bucket.values.clone()
        operators.blocks_scatter(packed, bucket.segments, bucket.positions, values, divisor)
        results.append(values)
    assert_same_bits(*results)


@fuzzed
@given(buckets(), st.data())
def test_add(bucket: Bucket, data: Any) -> None:
    wide = data.draw(st.sampled_from(WIDE[bucket.values.dtype]))
    results = []
    packed = [bucket.packed(bucket.values.dtype) for _ in range(3)]  # as of three ranks
    for operators in (ops, device_blocks):
        total = bucket.values.to(wide)
        for part in packed:
            operators.blocks_add(part, bucket.segments, bucket.positions, total)
        results.append(total)
    assert_same_bits(*results)


@fuzzed
@given(buckets(), st.integers(1, 4), divisors, st.booleans())
def test_sum(bucket: Bucket, nranks: int, divisor: float, loses: bool) -> None:
    """Of ranks that have some of the blocks each; between segments nothing is promised."""
    dtype, block = bucket.values.dtype, [int(row[2]) for row in bucket.segments.tolist()]
    firsts = bucket.segments[:, 3].contiguous()
    packed, positions = [], []
    for _ in range(nranks):
        kept = torch.rand(len(bucket.positions), generator=bucket.random) < 0.6
        positions.append(bucket.positions[kept])
        which = torch.searchsorted(firsts, positions[-1], right=True) - 1
        numel = sum(block[segment] for segment in which.tolist())
        packed.append(random_values(numel, dtype, bucket.random))
    results = []
    for operators in (ops, device_blocks):
        sums = torch.full_like(bucket.values, 7.0)
        lost = torch.full((sums.numel(),), 7.0) if loses else None
        operators.blocks_sum(packed, bucket.segments, positions, sums, lost, divisor)
        results.append([sums] if lost is None else [sums, lost])
    for offset, numel, _, _ in bucket.segments.tolist():
        for one, other in zip(*results, strict=True):
            assert_same_bits(*(x[offset : offset + numel] for x in (one, other)))


@fuzzed
@given(buckets())
def test_clear_dead(bucket: Bucket) -> None:
    bitmap = torch.empty(bucket.nbytes, dtype=torch.uint8)
    ops.bitmap_from_positions(bucket.positions, bitmap)
    results = []
    for operators in (ops, device_blocks):
        values = bucket.values.clone()
        operators.blocks_clear_dead(bitmap, bucket.segments, values)
        results.append(values)
    assert_same_bits(*results)


@fuzzed
@given(st.sampled_from(PAIRS), st.integers(0, 500), seeds, divisors)
def test_convert_and_finite(
    pair: tuple[torch.dtype, torch.dtype], numel: int, seed: int, divisor: float
) -> None:
    source, target = pair
    values = random_values(numel, source, torch.Generator().manual_seed(seed))
    results = []
    for operators in (ops, device_blocks):
        converted = torch.full((numel,), 7.0, dtype=target)
        operators.values_convert(values, converted, divisor)
        results.append(converted)
    assert_same_bits(*results)
    for some in (values, values[values.isfinite()]):
        assert bool(device_blocks.values_finite(some)) == ops.values_finite(some)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_on_the_device_is_read(dtype: torch.dtype) -> None:
    """item(), nonzero() and masks that select raise on the meta device."""
    bucket = Bucket([(1000, 64), (77, 1), (0, 4), (513, 100)], dtype, seed=3)
    assert len(bucket.positions) > 3
    where = (bucket.segments, bucket.positions)
    values = bucket.values.to(META)
    wide = values.to(WIDE[dtype][0])
    packed = values.new_empty(sum(bucket.numels))
    bitmap = values.new_empty(bucket.nbytes, dtype=torch.uint8)
    device_blocks.bitmap_from_nonzero(
        values, bucket.segments, bitmap, values.new_empty(1, dtype=torch.int64)
    )
    device_blocks.blocks_gather(values, *where, packed)
    device_blocks.blocks_gather(values, *where, packed.to(wide.dtype), 3.0)
    device_blocks.blocks_scatter(packed, *where, values)
    device_blocks.blocks_scatter(packed.to(torch.float32), *where, values.to(torch.float32), 3.0)
    device_blocks.blocks_add(packed, *where, wide)
    lost = values.new_empty(values.numel(), dtype=torch.float32)
    segments, positions = where
    device_blocks.blocks_sum([packed] * 2, segments, [positions] * 2, values, lost, 2.0)
    device_blocks.blocks_clear_dead(bitmap, bucket.segments, values)
    device_blocks.blocks_clear_dead(
        torch.empty(bucket.nbytes, dtype=torch.uint8), bucket.segments, values
    )
    device_blocks.values_convert(values, values.to(torch.float32), 3.0)
    assert device_blocks.values_finite(values).shape == ()
    with pytest.raises(RuntimeError, match="meta"):
        bool(device_blocks.values_finite(values))


def test_on_the_cpu_there_is_nothing_to_copy_or_to_wait_for() -> None:
    tensor = torch.arange(5)
    assert to_device(tensor, CPU) is tensor
    (copy,) = HostCopy(tensor).wait()
    assert copy is tensor
    with SideStream(CPU).after(tensor):
        assert future_on(CPU).done() is False


def test_torch_finds_the_tensors_in_a_result() -> None:
    """It records the stream of those that it finds in the value of a future."""
    dense, coo = torch.ones(3), torch.ones(2, 2).to_sparse()
    found = torch._jit_internal._extract_tensors(Outcome(result=[dense, coo]))
    assert found[0] is dense and found[1] is coo and len(found) == 2
    assert torch._jit_internal._extract_tensors(Outcome(error=ValueError("no"))) == []
