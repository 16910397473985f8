# SPDX-License-Identifier: MIT
"""The operators on CUDA tensors beside those on the CPU: the same bits, and the same errors.

What runs are the operators and the kernels of the real object, on a device if there is one, and
built for an emulated device: see tests/cuda/emulator.  There they read and write what lies where,
and nothing else.
"""

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import Device, copied, same_bits, sentence_of, tensors_of
from sketches import draw_ids, draw_seed
from test_device_blocks import DTYPES, PAIRS, WIDE, Bucket
from torch.utils import cpp_extension

from s2reducer import ops, select_ops

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seed")]

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = torch.ops.s2reducer
SHAPES = [(1000, 64), (0, 4), (77, 1), (640, 8), (10, 64), (513, 100), (129, 3)]

# Whether they can go on is known only when what lies on the device has been read; what is made of
# rows there has an operator of its own, see device_rows.py.
NOT_ON_DEVICES = {"list_decode", "coo_sort", "coo_unite"}


def check(device: Device, name: str, *arguments: Any) -> list[torch.Tensor]:
    """All tensors after the call, which are the same after both."""
    on_cpu = copied(arguments)
    getattr(OPERATORS, name).default(*on_cpu)
    expected = tensors_of(on_cpu)
    for number, (one, other) in enumerate(
        zip(device.call(name, *arguments), expected, strict=True)
    ):
        assert same_bits(one, other), f"tensor {number} of {name}"
    return expected


def buckets(dtype: torch.dtype) -> list[Bucket]:
    return [
        Bucket(shapes, dtype, random.getrandbits(32))
        for shapes in (SHAPES, SHAPES[3:4], [(4096 * 5 + 7, 4096)], [])
    ]


def bytes_of(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8)


def longs(*shape: int) -> torch.Tensor:
    return torch.full(shape, -7)


def test_every_operator_has_a_twin(device: Device) -> None:
    assert set(device.schemas) - device.names() == NOT_ON_DEVICES


# ------------------------------------------------------------------------------------------------
# Bitmaps, blocks and values
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_bitmaps(device: Device, dtype: torch.dtype) -> None:
    for bucket in buckets(dtype):
        values, segments = bucket.values, bucket.segments
        _, _, bitmap, _ = check(
            device, "bitmap_from_nonzero", values, segments, bytes_of(bucket.nbytes), longs(1)
        )
        check(device, "bitmap_count", bitmap, segments, longs(len(segments)))
        live = longs(int(bits_of(bitmap)))
        check(device, "bitmap_positions", bitmap, live)
        check(device, "bitmap_from_positions", bucket.positions, bytes_of(bucket.nbytes))
        check(device, "blocks_clear_dead", bitmap, segments, values)


def bits_of(bitmap: torch.Tensor) -> torch.Tensor:
    return ((bitmap.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1).sum()


def test_sets(device: Device) -> None:
    for nbytes in (0, 8, 8 * 300):
        check(device, "bitmap_or", bytes_of(nbytes), bytes_of(nbytes))
        check(device, "bitmap_andnot", bytes_of(nbytes), bytes_of(nbytes))
    for bucket in buckets(torch.float32):
        for nranks in (1, 5):
            ranks = torch.stack([bitmap_of_some(bucket) for _ in range(nranks)])
            counts = longs(nranks + 1, len(bucket.segments))
            check(device, "bitmap_unite", ranks, bucket.segments, bytes_of(bucket.nbytes), counts)


def some(positions: torch.Tensor) -> torch.Tensor:
    return positions[torch.rand(len(positions)) < 0.6]


def bitmap_of_some(bucket: Bucket) -> torch.Tensor:
    bitmap = bytes_of(bucket.nbytes)
    ops.bitmap_from_positions(some(bucket.positions), bitmap)
    return bitmap


@pytest.mark.parametrize("divisor", [1.0, 3.0])
@pytest.mark.parametrize(("wide", "narrow"), PAIRS)
def test_gather_and_convert(
    device: Device, wide: torch.dtype, narrow: torch.dtype, divisor: float
) -> None:
    for bucket in buckets(wide):
        where = (bucket.segments, bucket.positions)
        packed = bucket.packed(narrow)
        check(device, "blocks_gather", bucket.values, *where, packed, divisor)
        check(device, "values_convert", bucket.values, bucket.values.to(narrow), divisor)
        packed = bucket.packed(wide)
        check(device, "blocks_scatter", packed, *where, bucket.values.to(narrow), divisor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add(device: Device, dtype: torch.dtype) -> None:
    for bucket in buckets(dtype):
        for wide in WIDE[dtype]:
            accumulator = torch.randn(len(bucket.values)).to(wide)
            packed = bucket.packed(dtype)
            check(device, "blocks_add", packed, bucket.segments, bucket.positions, accumulator)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(device: Device, dtype: torch.dtype) -> None:
    for bucket in buckets(dtype):
        for nranks in (1, 3, 6):
            which = [torch.rand(len(bucket.positions)) < 0.6 for _ in range(nranks)]
            numels = torch.tensor(bucket.numels, dtype=torch.int64)
            packed = [torch.randn(int(numels[those].sum())).to(dtype) for those in which]
            positions = [bucket.positions[those] for those in which]
            sums = torch.full((len(bucket.values),), 7.0, dtype=dtype)
            for lost in (None, torch.full((len(sums),), 7.0)):
                check(device, "blocks_sum", packed, bucket.segments, positions, sums, lost, 3.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite(device: Device, dtype: torch.dtype) -> None:
    for numel in (0, 1, 1000):
        values = torch.randn(numel).to(dtype)
        *_, finite = check(device, "values_finite", values, longs(1))
        assert finite.item() == 1
        values[-1:] = float("nan")
        *_, finite = check(device, "values_finite", values, longs(1))
        assert finite.item() == (numel == 0)


# ------------------------------------------------------------------------------------------------
# Lists and plans
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbits", [1, 65, 4097, 10**9])
def test_lists(device: Device, nbits: int) -> None:
    for count in (0, 1, min(nbits, 300)):
        where = torch.tensor(sorted(random.sample(range(nbits), count)), dtype=torch.int64)
        check(device, "list_encode", where, nbits, bytes_of(ops.list_nbytes(nbits, count)))


@pytest.mark.parametrize("nranks", [1, 2, 7])
def test_plans(device: Device, nranks: int) -> None:
    for bucket in buckets(torch.float32):
        ranks = torch.stack([bitmap_of_some(bucket) for _ in range(nranks)])
        union = ranks[0].clone()
        for other in ranks:
            union |= other
        positions = longs(int(bits_of(union)))
        ops.bitmap_positions(union, positions)
        given = (ranks, bucket.segments, positions)
        owners = torch.full((len(positions),), -7, dtype=torch.int16)
        *_, owners = check(device, "plan_owners", *given, random.getrandbits(63), owners)
        rank = random.randrange(nranks)
        *_, exchanges = check(device, "plan_exchanges", *given, owners, rank, longs(nranks, 6))
        sent, _, received, *_ = exchanges.sum(0).tolist()
        lists = (longs(sent), longs(received), longs(len(positions)), longs(*bucket.segments.shape))
        check(device, "plan_lists", *given, owners, rank, exchanges, *lists)


# ------------------------------------------------------------------------------------------------
# Rows
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_rows(device: Device, dtype: torch.dtype) -> None:
    for n, width, nrows in ((0, 3, 9), (1, 1, 1), (300, 5, 40), (70, 130, 1000)):
        indices = torch.randint(0, nrows, (n,))
        order, rows, starts = longs(n), longs(n), longs(n + 1)
        count = ops.coo_sort(indices, nrows, order, rows, starts)
        sums = torch.full((count, width), 7.0, dtype=dtype)
        values = torch.randn(n, width).to(dtype)
        check(device, "coo_sum", values, order, starts[: count + 1], sums)


def test_bitmaps_of_rows(device: Device) -> None:
    for nranks, nrows in ((1, 1), (3, 500), (7, 10**6)):
        lists = [torch.randint(0, nrows, (random.randrange(90),)).unique() for _ in range(nranks)]
        together = torch.cat(lists)
        lengths = torch.tensor([len(each) for each in lists])
        rows, entries = longs(len(together)), longs(len(together))
        count = ops.coo_unite(together, lengths, nrows, rows, entries)
        bitmaps = bytes_of(nranks * ((count + 63) // 64 * 8)).view(nranks, -1)
        check(device, "coo_bitmaps", entries, count, bitmaps)


# ------------------------------------------------------------------------------------------------
# Sketches
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 40, 5), (3, 26, 64), (3, 130, 1), (8, 1, 7)])
def test_sketches(device: Device, shape: tuple[int, int, int]) -> None:
    rows, width, block = shape
    for n in (0, 1, rows * width * 3 // 4):
        seed, ids, values = ops.signed(draw_seed()), draw_ids(n), torch.randn(n, block)
        table, *_ = check(device, "sketch_insert", torch.randn(shape), seed, ids, values)
        check(device, "sketch_subtract", table, seed, ids, values)
        check(device, "sketch_merge", table, seed, torch.randn(shape), seed)
        check(device, "sketch_estimate", table, seed, ids, values)
        magnitudes, *_ = check(device, "sketch_weigh", torch.zeros(rows, width), seed, ids, values)
        table = torch.zeros(shape)
        OPERATORS.sketch_insert.default(table, seed, ids, values)
        for known in (None, magnitudes):
            for max_rounds in (1, 40):
                peel(device, table, seed, ids, known, max_rounds)


def peel(
    device: Device,
    table: torch.Tensor,
    seed: int,
    ids: torch.Tensor,
    magnitudes: torch.Tensor | None,
    max_rounds: int,
) -> None:
    """What the table and the scratch hold afterwards means nothing."""
    n, block = len(ids), table.shape[2]
    outputs = [torch.full((n, block), 7.0), torch.ones(n, dtype=torch.bool)]
    outputs += [torch.full((n,), 7.0), torch.full((n,), 7.0)]
    scratch = torch.zeros(ops.sketch_scratch_nbytes(table, n), dtype=torch.uint8)
    given = [table, seed, ids, 2, magnitudes, max_rounds, *outputs, scratch, longs(2)]
    on_cpu = copied(given)
    OPERATORS.sketch_peel.default(*on_cpu)
    expected = tensors_of(on_cpu)
    found = device.call("sketch_peel", *given[:10], scratch[:0], given[11])
    for one, other in zip(found[1:-2] + found[-1:], expected[1:-2] + expected[-1:], strict=True):
        assert same_bits(one, other)


# ------------------------------------------------------------------------------------------------
# Selection and error feedback
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numel", [0, 1, 63, 1000, 5001])
def test_selections(device: Device, numel: int) -> None:
    scores = torch.randn(numel).mul(4).round()  # with many that are equal
    scores[::97] = float("nan")
    bitmap = bytes_of(select_ops.selected_nbytes(numel))
    for keep in sorted({0, min(numel, 1), numel // 3, numel}):
        top = (scores, keep, bitmap, torch.zeros(1))
        scratch = bytes_of(select_ops.select_scratch_nbytes(numel))
        on_cpu = copied(top)
        OPERATORS.select_top.default(*on_cpu, scratch)
        found = device.call("select_top", *top, scratch[:0])
        assert all(map(same_bits, found, tensors_of(on_cpu)))
        check(device, "select_random", random.getrandbits(63), numel, keep, bitmap)
    for threshold in (0.0, 3.0, float("inf")):
        check(device, "select_above", scores, threshold, bitmap, longs(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_owed(device: Device, dtype: torch.dtype) -> None:
    for numel, block in ((0, 3), (1, 1), (1000, 64), (3001, 7)):
        values, owed = torch.randn(numel).to(dtype), torch.randn(numel)
        nblocks = -(-numel // block)
        bitmap = bytes_of(select_ops.selected_nbytes(nblocks))
        if nblocks % 64:
            bitmap[-8:] = 0  # the last word may have bits of no block
        for before in (None, torch.randn(numel)):
            check(device, "owed_add", values, before, owed, longs(1), 0.3)
        check(device, "owed_add", values * 0, None, owed, longs(1), 0.3)
        check(device, "owed_energies", owed, block, torch.zeros(nblocks))
        for selected in (None, bitmap):
            check(device, "owed_deliver", owed, block, selected, values, 3.0)


# ------------------------------------------------------------------------------------------------
# Errors
# ------------------------------------------------------------------------------------------------

SEGMENTS = torch.tensor([[0, 40, 8, 0]])
VALUES, BITMAP = torch.ones(40), torch.zeros(8, dtype=torch.uint8)
ONE, POSITIONS = torch.zeros(1, dtype=torch.int64), torch.tensor([1, 3])
RANKS, OWNERS = torch.zeros(2, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.int16)
TABLE, IDS = torch.zeros(3, 9, 4), torch.tensor([2, 5])
PEELED = (torch.zeros(2, dtype=torch.bool), torch.zeros(2), torch.zeros(2))

WRONG: list[tuple[Any, ...]] = [
    ("bitmap_from_nonzero", VALUES.int(), SEGMENTS, BITMAP, ONE),
    ("bitmap_from_nonzero", VALUES.view(4, 10), SEGMENTS, BITMAP, ONE),
    ("bitmap_from_nonzero", VALUES, SEGMENTS[:, :3].contiguous(), BITMAP, ONE),
    ("bitmap_from_nonzero", VALUES[:30], SEGMENTS, BITMAP, ONE),
    ("bitmap_from_nonzero", VALUES, SEGMENTS, torch.zeros(16, dtype=torch.uint8), ONE),
    ("bitmap_from_nonzero", VALUES, SEGMENTS, BITMAP, POSITIONS),
    ("bitmap_or", BITMAP, BITMAP[:0]),
    ("bitmap_or", BITMAP[:7], BITMAP[:7]),
    ("bitmap_andnot", BITMAP, BITMAP.int()),
    ("bitmap_count", BITMAP, SEGMENTS, POSITIONS),
    ("bitmap_unite", RANKS[:0], SEGMENTS, BITMAP, torch.zeros(3, 1, dtype=torch.int64)),
    ("bitmap_unite", RANKS, SEGMENTS, BITMAP, torch.zeros(2, 1, dtype=torch.int64)),
    ("bitmap_positions", BITMAP[:5], POSITIONS),
    ("bitmap_from_positions", POSITIONS.int(), BITMAP),
    ("blocks_gather", VALUES, SEGMENTS, POSITIONS, torch.zeros(16), 0.0),
    ("blocks_gather", VALUES.half(), SEGMENTS, POSITIONS, torch.zeros(16).bfloat16()),
    ("blocks_scatter", torch.zeros(16), SEGMENTS, POSITIONS, VALUES, float("nan")),
    ("blocks_scatter", torch.zeros(16).half(), SEGMENTS, POSITIONS, VALUES.double()),
    ("blocks_add", torch.zeros(16).double(), SEGMENTS, POSITIONS, VALUES),
    ("bitmap_unite", torch.zeros(8, 2, dtype=torch.uint8).t(), SEGMENTS, BITMAP, ONE),
    ("blocks_sum", [], SEGMENTS, [], VALUES),
    ("blocks_sum", [torch.zeros(16)], SEGMENTS, [], VALUES),
    ("blocks_sum", [torch.zeros(16).half()], SEGMENTS, [POSITIONS], VALUES),
    ("blocks_sum", [torch.zeros(16)], SEGMENTS, [POSITIONS], VALUES, VALUES[:9]),
    ("blocks_sum", [torch.zeros(16)], SEGMENTS, [POSITIONS], VALUES, None, -1.0),
    ("blocks_clear_dead", BITMAP[:0], SEGMENTS, VALUES),
    ("values_convert", VALUES, VALUES[:8]),
    ("values_convert", VALUES.double(), VALUES.half()),
    ("values_finite", VALUES, POSITIONS),
    ("list_encode", POSITIONS, 1, BITMAP),
    ("list_encode", POSITIONS, 64, BITMAP[:0]),
    ("plan_owners", RANKS, SEGMENTS, POSITIONS, 1, OWNERS[:1]),
    ("plan_owners", RANKS[:, :0].contiguous(), SEGMENTS, POSITIONS, 1, OWNERS),
    ("plan_exchanges", RANKS, SEGMENTS, POSITIONS, OWNERS, 2, torch.zeros(2, 6).long()),
    ("plan_exchanges", RANKS, SEGMENTS, POSITIONS, OWNERS, 0, torch.zeros(2, 5).long()),
    ("coo_sum", VALUES.view(4, 10), IDS, ONE, VALUES[:0].view(0, 10)),
    ("coo_sum", VALUES.view(2, 20), IDS, IDS[:0], VALUES[:0].view(0, 20)),
    ("coo_sum", VALUES.view(2, 20), IDS, IDS, VALUES[:20].view(1, 20).half()),
    ("coo_bitmaps", IDS, -1, RANKS),
    ("coo_bitmaps", IDS, 65, RANKS),
    ("sketch_insert", TABLE[0], 1, IDS, torch.zeros(2, 4)),
    ("sketch_insert", TABLE, 1, IDS, torch.zeros(2, 5)),
    ("sketch_subtract", torch.zeros(9, 9, 4), 1, IDS, torch.zeros(2, 4)),
    ("sketch_weigh", torch.zeros(9, 9), 1, IDS, torch.zeros(2, 4)),
    ("sketch_weigh", torch.zeros(3, 9), 1, IDS, torch.zeros(3, 4)),
    ("sketch_merge", TABLE, 1, TABLE, 2),
    ("sketch_merge", TABLE, 1, TABLE[:2], 1),
    ("sketch_peel", TABLE, 1, IDS, 0, None, 1, torch.zeros(2, 4), *PEELED, BITMAP, POSITIONS),
    ("sketch_peel", TABLE, 1, IDS, 1, TABLE[0], 1, torch.zeros(2, 4), *PEELED, BITMAP, POSITIONS),
    ("sketch_peel", TABLE, 1, IDS, 1, None, 1, torch.zeros(2, 4), *PEELED, BITMAP, ONE),
    ("select_top", VALUES, 41, BITMAP, VALUES[:1], BITMAP),
    ("select_top", VALUES, 4, BITMAP[:0], VALUES[:1], BITMAP),
    ("select_above", VALUES, -1.0, BITMAP, ONE),
    ("select_above", VALUES.double(), 1.0, BITMAP, ONE),
    ("select_random", 1, 40, -1, BITMAP),
    ("owed_add", VALUES, VALUES[:9], VALUES, ONE),
    ("owed_add", VALUES, None, VALUES, ONE, 0.0),
    ("owed_energies", VALUES, 0, VALUES[:1]),
    ("owed_energies", VALUES, 8, VALUES[:4]),
    ("owed_deliver", VALUES, 8, BITMAP[:0], VALUES),
    ("owed_deliver", VALUES, 8, None, VALUES, 1e-60),
]


@pytest.mark.parametrize("call", WRONG, ids=[f"{i}-{call[0]}" for i, call in enumerate(WRONG)])
def test_wrong_arguments_have_the_same_sentences(device: Device, call: Any) -> None:
    name, *arguments = call
    with pytest.raises(RuntimeError, match=f"s2reducer::{name}: ") as on_cpu:
        getattr(OPERATORS, name).default(*copied(arguments))
    with pytest.raises(RuntimeError) as on_device:
        device.call(name, *arguments)
    assert sentence_of(on_device.value) == sentence_of(on_cpu.value)


def test_a_device_has_rounds_that_are_counted(device: Device) -> None:
    peeled = (torch.zeros(2, 4), *PEELED, BITMAP, POSITIONS)
    with pytest.raises(RuntimeError, match="max_rounds must be 1 or more on a device, but is 0"):
        device.call("sketch_peel", TABLE, 1, IDS, 1, None, 0, *peeled)


# ------------------------------------------------------------------------------------------------
# The real object
# ------------------------------------------------------------------------------------------------


def name_of(source: Path) -> str:
    return source.name


@pytest.mark.parametrize("source", sorted((ROOT / "csrc/torch/cuda").glob("*.cpp")), ids=name_of)
def test_sources_compile_for_cuda(source: Path, tmp_path: Path) -> None:
    """Where there is none, too; and what they want of libtorch is its C interface alone."""
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    flags = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    flags += ["-DUSE_CUDA", *includes]
    compiled = tmp_path / "operators.o"
    subprocess.run(["g++", *flags, "-c", "-o", compiled, source], check=True)
    names = subprocess.run(["nm", "-C", "-u", compiled], capture_output=True, text=True, check=True)
    wanted = {line.split()[-1] for line in names.stdout.splitlines()}
    assert "aoti_torch_get_current_cuda_stream" in wanted
    assert not [name for name in wanted if name.startswith(("at::", "c10::", "torch::", "cuda"))]
