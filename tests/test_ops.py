# SPDX-License-Identifier: MIT
"""The operators, against plain PyTorch, under every variant of the kernels."""

import itertools
from collections.abc import Iterator

import pytest
import torch

from s2reducer import _C, ops, select_ops

OPS = torch.ops.s2reducer
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=_C.cpu_variants(), autouse=True)
def variant(request: pytest.FixtureRequest, seed: None) -> Iterator[str]:
    _C.cpu_variant_force(request.param)
    yield request.param
    _C.cpu_variant_force(_C.cpu_variant_best())


class Bucket:
    """Segments of several block lengths, gaps between them, and the naive answer to everything."""

    def __init__(self, shapes: list[tuple[int, int]], dtype: torch.dtype, density: float) -> None:
        rows, offset, bit = [], 3, 64
        for numel, block in shapes:
            rows.append((offset, numel, block, bit))
            offset += numel + 5
            bit += -(-numel // block) + 63 & ~63
        self.segments = torch.tensor(rows, dtype=torch.int64).view(-1, 4)
        self.nbytes = bit // 8 if shapes else 0
        self.values = torch.randint(-8, 9, (offset,)).to(dtype)
        self.live: list[tuple[int, int, int, int]] = []  # bit, first element, end, block
        for start, numel, block, first in rows:
            for index in range(-(-numel // block)):
                begin, end = start + index * block, min(start + numel, start + (index + 1) * block)
                if torch.rand(()) < density:
                    self.values[end - 1] = 5.0
                    self.live.append((first + index, begin, end, block))
                else:
                    self.values[begin:end] = 0.0

    @property
    def positions(self) -> torch.Tensor:
        return torch.tensor([bit for bit, *_ in self.live], dtype=torch.int64)

    @property
    def bitmap(self) -> torch.Tensor:
        bits = torch.zeros(self.nbytes * 8, dtype=torch.uint8)
        bits[self.positions] = 1
        return (bits.view(-1, 8) << torch.arange(8)).sum(1).to(torch.uint8)

    @property
    def packed(self) -> torch.Tensor:
        parts = []
        for _, begin, end, block in self.live:
            part = torch.zeros(block, dtype=self.values.dtype)
            part[: end - begin] = self.values[begin:end]
            parts.append(part)
        return torch.cat(parts) if parts else torch.zeros(0, dtype=self.values.dtype)


SHAPES = [(1000, 64), (0, 4), (77, 1), (640, 8), (10, 64), (513, 100), (129, 3)]


def buckets(dtype: torch.dtype) -> list[Bucket]:
    return [
        Bucket(SHAPES, dtype, 0.3),
        Bucket(SHAPES, dtype, 0.0),
        Bucket(SHAPES, dtype, 1.0),
        Bucket([(4096 * 65 + 7, 4096)], dtype, 0.1),
        Bucket([], dtype, 1.0),
    ]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_bitmap_positions_and_counts(dtype: torch.dtype, parallel: bool) -> None:
    for bucket in buckets(dtype):
        bitmap = torch.full((bucket.nbytes,), 255, dtype=torch.uint8)
        negative_zeros = torch.full((1,), -1)
        ops.bitmap_from_nonzero(bucket.values, bucket.segments, bitmap, negative_zeros, parallel)
        assert torch.equal(bitmap, bucket.bitmap)
        assert negative_zeros.item() == 0

        counts = torch.full((len(bucket.segments),), -1)
        ops.bitmap_count(bitmap, bucket.segments, counts)
        firsts = bucket.segments[:, 3].tolist()
        expected = [
            sum(first <= bit < end for bit, *_ in bucket.live)
            for first, end in itertools.pairwise([*firsts, bucket.nbytes * 8])
        ]
        assert counts.tolist() == expected

        positions = torch.empty(len(bucket.live), dtype=torch.int64)
        ops.bitmap_positions(bitmap, positions)
        assert torch.equal(positions, bucket.positions)


def test_nan_and_subnormal_are_live_and_negative_zeros_are_counted() -> None:
    values = torch.zeros(8 * 5)
    values[8], values[17], values[39] = float("nan"), 1e-45, float("-inf")
    values[0] = values[9] = values[25] = -0.0
    bitmap, negative_zeros = torch.empty(8, dtype=torch.uint8), torch.empty(1, dtype=torch.int64)
    segments = torch.tensor([[0, 40, 8, 0]])
    ops.bitmap_from_nonzero(values, segments, bitmap, negative_zeros)
    assert bitmap.tolist() == [0b10110, 0, 0, 0, 0, 0, 0, 0]
    assert negative_zeros.item() == 2  # blocks 0 and 3; the one in block 1 is beside a NaN

    ops.blocks_clear_dead(bitmap, segments, values)
    assert not values[0].signbit() and not values[25].signbit() and values[9].signbit()
    assert values[8].isnan() and values[17] == 1e-45 and values[39] == float("-inf")


def test_set_operations() -> None:
    a = torch.randint(0, 256, (64,), dtype=torch.uint8)
    b = torch.randint(0, 256, (64,), dtype=torch.uint8)
    union, difference = a.clone(), a.clone()
    ops.bitmap_or(union, b)
    ops.bitmap_andnot(difference, b)
    assert torch.equal(union, a | b)
    assert torch.equal(difference, a & ~b)


def test_the_union_of_ranks_and_its_counts() -> None:
    segments = torch.tensor([[0, 80, 8, 0], [80, 24, 8, 64]])
    bitmaps = torch.zeros(2, 16, dtype=torch.uint8)
    bitmaps[0, :2], bitmaps[0, 8] = torch.tensor([0b101, 0b10]), 0b1
    bitmaps[1, 0], bitmaps[1, 8] = 0b110, 0b100
    union, counts = torch.full((16,), 9, dtype=torch.uint8), torch.full((3, 2), -1)
    ops.bitmap_unite(bitmaps, segments, union, counts)
    assert torch.equal(union, bitmaps[0] | bitmaps[1])
    assert counts.tolist() == [[3, 1], [2, 1], [4, 2]]


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gather_and_scatter(dtype: torch.dtype, parallel: bool) -> None:
    for bucket in buckets(dtype):
        packed = torch.full_like(bucket.packed, float("nan"))
        ops.blocks_gather(
            bucket.values, bucket.segments, bucket.positions, packed, parallel=parallel
        )
        assert torch.equal(packed, bucket.packed)

        # Back into other values: the named blocks become ours, the rest stays.
        target = torch.full_like(bucket.values, 7.0)
        expected = target.clone()
        for _, begin, end, _ in bucket.live:
            expected[begin:end] = bucket.values[begin:end]
        ops.blocks_scatter(packed, bucket.segments, bucket.positions, target, parallel=parallel)
        assert torch.equal(target, expected)


@pytest.mark.parametrize("divisor", [1.0, 4.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gather_widens_and_divides_and_scatter_rounds(dtype: torch.dtype, divisor: float) -> None:
    for bucket in buckets(dtype):
        packed = torch.full_like(bucket.packed, float("nan"), dtype=torch.float32)
        ops.blocks_gather(bucket.values, bucket.segments, bucket.positions, packed, divisor)
        assert torch.equal(packed, bucket.packed.float() / divisor)

        target = torch.zeros_like(bucket.values)
        ops.blocks_scatter(packed, bucket.segments, bucket.positions, target, divisor)
        expected = torch.zeros_like(bucket.values)
        for _, begin, end, _ in bucket.live:
            values = bucket.values[begin:end].float() / divisor / divisor
            expected[begin:end] = values.to(dtype)
        assert torch.equal(target, expected)


@pytest.mark.parametrize(
    ("dtype", "accumulator"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.float64),
    ],
)
def test_add(dtype: torch.dtype, accumulator: torch.dtype) -> None:
    for bucket in buckets(dtype):
        sums = torch.arange(bucket.values.numel(), dtype=accumulator)
        expected = sums.clone()
        for _, begin, end, _ in bucket.live:
            expected[begin:end] += bucket.values[begin:end].to(accumulator)
        ops.blocks_add(bucket.packed, bucket.segments, bucket.positions, sums)
        assert torch.equal(sums, expected)


def of_ranks(bucket: Bucket, count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Packed blocks of ranks that have about half of the bucket's each, and positions."""
    packed, positions = [], []
    for _ in range(count):
        live = [block for block in bucket.live if torch.rand(()) < 0.5]
        blocks = []
        for _, begin, end, length in live:
            values = torch.randn(length) * 10.0 ** torch.randint(-6, 5, (length,))
            values[end - begin :] = float("nan")  # what fills up is ignored
            blocks.append(values.to(bucket.values.dtype))
        packed.append(torch.cat(blocks) if blocks else bucket.values[:0])
        positions.append(torch.tensor([bit for bit, *_ in live], dtype=torch.int64))
    return packed, positions


@pytest.mark.parametrize("divisor", [1.0, 4.0, 3.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_have_the_bits_of_adding_rank_by_rank(dtype: torch.dtype, divisor: float) -> None:
    wide = torch.float64 if dtype.itemsize > 2 else torch.float32
    before, after = (divisor, 1.0) if dtype is torch.float64 else (1.0, divisor)
    for bucket, count in itertools.product(buckets(dtype), (1, 2, 5)):
        packed, positions = of_ranks(bucket, count)
        total = torch.zeros(bucket.values.numel(), dtype=wide)
        for part, where in zip(packed, positions, strict=True):
            ops.blocks_add(part.to(wide) / before, bucket.segments, where, total)
        expected = torch.full_like(bucket.values, 7.0)
        for begin, numel, *_ in bucket.segments.tolist():
            expected[begin : begin + numel] = (total[begin : begin + numel] / after).to(dtype)
        for parallel in (True, False):
            sums = torch.full_like(bucket.values, 7.0)  # which stays between segments
            ops.blocks_sum(packed, bucket.segments, positions, sums, None, divisor, parallel)
            assert torch.equal(sums.view(torch.uint8), expected.view(torch.uint8))

        lost = torch.zeros(bucket.values.numel())
        sums = torch.full_like(bucket.values, 7.0)
        ops.blocks_sum(packed, bucket.segments, positions, sums, lost, divisor)
        for begin, numel, *_ in bucket.segments.tolist():
            mean = (total[begin : begin + numel] / after).float()
            rounded = mean.to(dtype)
            assert torch.equal(sums[begin : begin + numel], rounded)
            assert torch.equal(lost[begin : begin + numel], mean - rounded.float())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.float32, 3e38),
        (torch.float64, 2.0**1023),
        (torch.float16, 6e4),
        (torch.bfloat16, 3.3e38),
    ],
)
def test_means_of_256_ranks_do_not_overflow(dtype: torch.dtype, value: float) -> None:
    packed, sums = torch.full((24,), value, dtype=dtype), torch.empty(24, dtype=dtype)
    segments, positions = torch.tensor([[0, 24, 8, 0]]), torch.arange(3)
    ops.blocks_sum([packed] * 256, segments, [positions] * 256, sums, None, 256.0)
    assert torch.equal(sums, packed)


@pytest.mark.parametrize("dtype", FLOATS)
def test_convert_rounds_once_to_nearest_even(dtype: torch.dtype) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (100_003,)).to(torch.int32)
    values = bits.view(torch.float32)
    values = torch.cat([values, torch.randn(1000), torch.randn(1000) * 1e-6, torch.zeros(5)])
    for divisor in (1.0, 8.0, 3.0):
        converted = torch.empty(values.numel(), dtype=dtype)
        ops.values_convert(values, converted, divisor)
        wide = values.double() if dtype is torch.float64 else values
        expected = (wide / divisor).to(dtype)
        torch.testing.assert_close(converted, expected, rtol=0, atol=0, equal_nan=True)
    back = torch.empty_like(values)
    ops.values_convert(converted, back)
    torch.testing.assert_close(back, converted.to(torch.float32), rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------------------------
# Errors: one sentence that names the argument, and nothing written
# ------------------------------------------------------------------------------------------------

SEGMENTS = torch.tensor([[0, 20, 8, 0]])
GATHER = (torch.ones(20), SEGMENTS, torch.tensor([0, 2]), torch.full((16,), 9.0))


def gather(
    values: torch.Tensor = GATHER[0],
    segments: torch.Tensor = GATHER[1],
    positions: torch.Tensor = GATHER[2],
    packed: torch.Tensor = GATHER[3],
    divisor: float = 1.0,
) -> None:
    OPS.blocks_gather(values, segments, positions, packed, divisor)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"values": torch.ones(20).int()},
            "values must be {} of float32, .*, but its dtype is Int",
        ),
        ({"values": torch.ones(20).to(torch.cfloat)}, "values must be .* dtype is ComplexFloat"),
        ({"values": torch.ones(40)[::2]}, "values must be {}.* but it is not contiguous"),
        ({"values": torch.ones(4, 5)}, "values must be {}.* but it has 2 dimensions"),
        ({"values": torch.ones(20).to_sparse()}, "values must be {}.* but it is sparse"),
        ({"values": torch.ones(19)}, "segments must ascend .* within the 19 elements"),
        ({"segments": SEGMENTS.int()}, "segments must be .* but its dtype is Int"),
        ({"segments": SEGMENTS[:, :3].contiguous()}, "segments must be .* but it has 3 columns"),
        ({"segments": torch.tensor([[0, 20, 0, 0]])}, "segments must ascend .* at least 1 element"),
        ({"segments": torch.tensor([[0, 20, 8, 1]])}, "segments must ascend .* multiples of 64"),
        ({"positions": torch.tensor([2, 0])}, "positions must ascend strictly"),
        ({"positions": torch.tensor([0, 3])}, "positions must ascend strictly and name blocks"),
        ({"positions": torch.tensor([0.0, 2.0])}, "positions must be {} of int64, but .* Float"),
        ({"packed": torch.full((15,), 9.0)}, "packed must have 16 elements .*, but has 15"),
        (
            {"packed": torch.full((16,), 9.0).double(), "values": torch.ones(20).half()},
            "the dtypes of values and packed must be .* but are float16 and float64$",
        ),
        ({"divisor": 0.0}, "divisor must be a finite number above zero, but is 0"),
        ({"divisor": float("nan")}, "divisor must be a finite number above zero, but is nan"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_written(
    arguments: dict[str, object], sentence: str
) -> None:
    expected = sentence.format("a contiguous 1-D CPU tensor")
    with pytest.raises(RuntimeError, match="^s2reducer::blocks_gather: " + expected):
        gather(**arguments)  # type: ignore[arg-type]
    packed = arguments.get("packed", GATHER[3])
    assert isinstance(packed, torch.Tensor) and bool((packed == 9.0).all())


def test_tensors_on_another_device_are_refused() -> None:
    bitmap = torch.full((8,), 5, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="on several devices: cpu, meta"):
        OPS.bitmap_or(bitmap, bitmap.to("meta"))
    with pytest.raises(RuntimeError, match="on several devices: cpu, meta"):
        gather(packed=torch.empty(16, device="meta"))
    assert bool((bitmap == 5).all())


def test_scatter_and_add_leave_their_target_alone_when_they_refuse() -> None:
    for op in (OPS.blocks_scatter, OPS.blocks_add):
        target = torch.full((20,), 3.0)
        with pytest.raises(RuntimeError, match="positions must ascend strictly"):
            op(torch.ones(16), SEGMENTS, torch.tensor([0, 5]), target)
        with pytest.raises(RuntimeError, match="packed must have 8 elements"):
            op(torch.ones(16), SEGMENTS, torch.tensor([1]), target)
        assert torch.equal(target, torch.full((20,), 3.0))


def test_sums_refuse_what_is_not_of_their_layout_and_write_nothing() -> None:
    good, where = torch.ones(16), torch.tensor([0, 2])
    sums, lost = torch.full((20,), 9.0), torch.full((20,), 9.0)
    for sentence, packed, positions, divisor in [
        ("packed must have 1 to 256 tensors, but has 0", [], [], 1.0),
        ("packed must have 1 to 256 tensors, but has 257", [good] * 257, [where] * 257, 1.0),
        ("positions must have the 2 tensors of packed, but has 1", [good] * 2, [where], 1.0),
        ("packed must have the dtype of sums, float32, but has float16", [good.half()], [where], 1),
        ("packed must have 16 elements", [good, good[:15]], [where, where], 1.0),
        ("positions must ascend strictly", [good, good], [where, where.flip(0)], 1.0),
        ("positions must ascend strictly", [good, good], [where, where + 1], 1.0),
        ("divisor must be a finite number above zero, but is 0", [good], [where], 0.0),
    ]:
        with pytest.raises(RuntimeError, match="^s2reducer::blocks_sum: " + sentence):
            OPS.blocks_sum(packed, SEGMENTS, positions, sums, lost, divisor)
    with pytest.raises(RuntimeError, match="lost must have the 20 elements of sums, but has 19"):
        OPS.blocks_sum([good], SEGMENTS, [where], sums, lost[:19].clone())
    with pytest.raises(RuntimeError, match=r"lost must be .* float32, but its dtype is Double"):
        OPS.blocks_sum([good], SEGMENTS, [where], sums, lost.double())
    assert bool((sums == 9.0).all()) and bool((lost == 9.0).all())


def test_bitmaps_of_another_length_are_refused() -> None:
    bitmap, zeros = torch.full((16,), 5, dtype=torch.uint8), torch.full((1,), 5)
    with pytest.raises(
        RuntimeError, match="bitmap must have 8 bytes for these segments, but has 16"
    ):
        OPS.bitmap_from_nonzero(torch.ones(20), SEGMENTS, bitmap, zeros)
    with pytest.raises(RuntimeError, match="other must have the 16 bytes of bitmap, but has 8"):
        OPS.bitmap_or(bitmap, bitmap[:8].clone())
    with pytest.raises(RuntimeError, match="bitmap must have a multiple of 8 bytes, but has 3"):
        OPS.bitmap_andnot(bitmap[:3].clone(), bitmap[:3].clone())
    with pytest.raises(RuntimeError, match="positions must have one element for each set bit"):
        OPS.bitmap_positions(bitmap, torch.empty(3, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="counts must have 1 elements, but has 2"):
        OPS.bitmap_count(bitmap[:8].clone(), SEGMENTS, torch.empty(2, dtype=torch.int64))
    united = (bitmap[:8].clone(), torch.zeros(3, 1).long())
    with pytest.raises(RuntimeError, match="bitmaps must have 1 to 256 rows, but has 0"):
        OPS.bitmap_unite(bitmap.view(2, 8)[:0], SEGMENTS, *united)
    with pytest.raises(RuntimeError, match="bitmaps must have rows of the 8 bytes of bitmap"):
        OPS.bitmap_unite(bitmap.view(1, 16), SEGMENTS, *united)
    with pytest.raises(
        RuntimeError, match=r"counts must have the shape \[2, 1\], but has \[3, 1\]"
    ):
        OPS.bitmap_unite(bitmap[:8].view(1, 8), SEGMENTS, *united)
    with pytest.raises(RuntimeError, match="negative_zeros must have 1 elements, but has 2"):
        OPS.bitmap_from_nonzero(torch.ones(20), SEGMENTS, bitmap[:8].clone(), torch.zeros(2).long())
    assert bool((bitmap == 5).all()) and zeros.item() == 5


# ------------------------------------------------------------------------------------------------
# What torch asks of an operator
# ------------------------------------------------------------------------------------------------


def opcheck_cases() -> Iterator[tuple[str, tuple[object, ...]]]:
    bitmap = torch.tensor([0b101, 0, 0, 0, 0, 0, 0, 0], dtype=torch.uint8)
    values, packed = torch.ones(20), torch.ones(16)
    positions = torch.tensor([0, 2])
    yield "bitmap_from_nonzero", (values, SEGMENTS, bitmap.clone(), torch.zeros(1).long())
    yield "bitmap_or", (bitmap.clone(), bitmap)
    yield "bitmap_andnot", (bitmap.clone(), bitmap)
    yield "bitmap_count", (bitmap, SEGMENTS, torch.zeros(1).long())
    unite = (torch.zeros_like(bitmap), torch.zeros(3, 1).long())
    yield "bitmap_unite", (torch.stack([bitmap, bitmap]), SEGMENTS, *unite)
    yield "bitmap_positions", (bitmap, torch.zeros(2).long())
    yield "blocks_gather", (values, SEGMENTS, positions, packed.clone(), 2.0)
    yield "blocks_scatter", (packed, SEGMENTS, positions, values.clone(), 2.0)
    yield "blocks_add", (packed, SEGMENTS, positions, values.clone())
    for lost in (None, torch.zeros(20)):
        ranks = [packed, packed], SEGMENTS, [positions, positions]
        yield "blocks_sum", (*ranks, values.clone(), lost, 2.0)
    yield "blocks_clear_dead", (bitmap, SEGMENTS, values.clone())
    yield "values_convert", (values, torch.zeros(20).half(), 2.0)
    yield "values_finite", (values, torch.zeros(1).long())
    yield "bitmap_from_positions", (positions, bitmap.clone())
    packed_list = torch.zeros(ops.list_nbytes(64, 2), dtype=torch.uint8)
    yield "list_encode", (positions, 64, packed_list.clone())
    OPS.list_encode(positions, 64, packed_list)
    yield "list_decode", (packed_list, 64, positions.clone())
    owners, exchanges = torch.zeros(2, dtype=torch.int16), torch.zeros(2, 6).long()
    plan = (torch.stack([bitmap, bitmap]), SEGMENTS, positions)
    yield "plan_owners", (*plan, 7, owners.clone())
    yield "plan_exchanges", (*plan, owners, 0, exchanges.clone())
    OPS.plan_exchanges(*plan, owners, 0, exchanges)
    lists = (positions.clone(), torch.zeros(4).long(), positions.clone(), SEGMENTS.clone())
    yield "plan_lists", (*plan, owners, 0, exchanges, *lists)
    indices, one = torch.tensor([7, 2]), torch.zeros(1).long()
    order, rows, starts = torch.tensor([1, 0]), torch.zeros(2).long(), torch.tensor([0, 1, 2])
    yield "coo_sort", (indices, 10, order.clone(), rows.clone(), starts.clone(), one.clone())
    yield "coo_sum", (torch.ones(2, 3), order, starts, torch.zeros(2, 3))
    yield "coo_unite", (indices, torch.ones(2).long(), 10, rows.clone(), rows.clone(), one.clone())
    yield "coo_bitmaps", (torch.tensor([0, 257]), 2, torch.zeros(2, 8, dtype=torch.uint8))
    table, rows_of_2 = torch.ones(3, 5, 4), torch.ones(2, 4)
    sketch = (7, positions, rows_of_2.clone())
    yield "sketch_insert", (table.clone(), *sketch)
    yield "sketch_subtract", (table.clone(), *sketch)
    yield "sketch_weigh", (torch.ones(3, 5), *sketch)
    yield "sketch_estimate", (table, *sketch)
    yield "sketch_merge", (table.clone(), 7, table, 7)
    scratch = torch.zeros(ops.sketch_scratch_nbytes(table, 2), dtype=torch.uint8)
    outputs = (rows_of_2.clone(), torch.zeros(2).bool(), torch.zeros(2), torch.zeros(2), scratch)
    for magnitudes in (None, torch.ones(3, 5)):
        arguments = (table.clone(), 7, positions, 1, magnitudes, 0, *outputs)
        yield "sketch_peel", (*arguments, torch.zeros(2).long())
    scratch = torch.zeros(select_ops.select_scratch_nbytes(20), dtype=torch.uint8)
    yield "select_top", (values, 3, bitmap.clone(), torch.zeros(1), scratch)
    yield "select_above", (values, 0.5, bitmap.clone(), one.clone())
    yield "select_random", (7, 20, 3, bitmap.clone())
    for before in (None, values):
        yield "owed_add", (values.half(), before, torch.zeros(20), one.clone(), 0.5)
    yield "owed_energies", (values, 7, torch.zeros(3))
    for selected in (None, bitmap):
        yield "owed_deliver", (values.clone(), 7, selected, torch.zeros(20).half(), 2.0)


@pytest.mark.parametrize(
    ("name", "arguments"), list(opcheck_cases()), ids=lambda value: str(value)[:20]
)
def test_opcheck(name: str, arguments: tuple[object, ...], variant: str) -> None:
    if variant != _C.cpu_variant_best():
        pytest.skip("says nothing about kernels: one variant is enough")
    torch.library.opcheck(getattr(OPS, name).default, arguments)


def test_every_operator_is_covered() -> None:
    registered = {
        name.split("::")[1]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("s2reducer::")
    }
    assert registered == {name for name, _ in opcheck_cases()}


def test_results_do_not_depend_on_threads() -> None:
    values = torch.randn(3_000_000)
    values[torch.rand(values.numel() // 100).lt(0.5).repeat_interleave(100)] = 0.0
    segments = torch.tensor([[0, values.numel(), 100, 0]])
    nbytes = -(-values.numel() // 100 // 64) * 8
    seen = []
    threads = torch.get_num_threads()
    for count, parallel in itertools.product((1, 2, 4), (True, False)):
        torch.set_num_threads(count)
        bitmap, zeros = torch.empty(nbytes, dtype=torch.uint8), torch.empty(1, dtype=torch.int64)
        ops.bitmap_from_nonzero(values, segments, bitmap, zeros, parallel)
        counts = torch.empty(1, dtype=torch.int64)
        ops.bitmap_count(bitmap, segments, counts)
        positions = torch.empty(int(counts), dtype=torch.int64)
        ops.bitmap_positions(bitmap, positions)
        packed = torch.empty(int(counts) * 100)
        ops.blocks_gather(values, segments, positions, packed, 3.0, parallel)
        target = torch.zeros_like(values)
        ops.blocks_scatter(packed, segments, positions, target, 1.0, parallel)
        seen.append(target)
    torch.set_num_threads(threads)
    assert torch.equal(seen[0], values / 3.0)
    assert all(torch.equal(seen[0], other) for other in seen)
