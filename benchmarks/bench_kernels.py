# SPDX-License-Identifier: MIT
"""The kernels on one thread, beside a plain read and a plain copy of the same bytes.

    python benchmarks/bench_kernels.py

Each row pairs a kernel with a yardstick that moves the same bytes: `torch.sum` for a read, the C
library's `memcpy` of contiguous memory for a copy; `Tensor.copy_` stands beside it as another.
GB/s counts the bytes that a kernel has to read (scan) or that it moves from one place to another
(gather, scatter), 1 GB = 1e9 bytes; a copy's bytes are counted once.  `of yardstick` is the
kernel's speed over the yardstick's, the median over all turns and the quartiles.

Rows of a gather and a scatter come from memory, as they do behind a backward pass, not from a
cache: every turn names other rows, and together the turns touch all of the bucket before any row
comes again.  The copy walks through the bucket in the same way.
"""

import argparse
import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from paired import Pair, Spread, machine, measure, seconds, write_json

from s2reducer import _C

OPS = torch.ops.s2reducer
FLOAT_NBYTES = 4


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=256, help="size of the bucket")
    parser.add_argument("--turns", type=int, default=25, help="pairs that are timed for each row")
    parser.add_argument("--row", type=int, default=512, help="floats of a gathered row")
    parser.add_argument("--variant", choices=_C.cpu_variants(), help="default: the best one")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


_libc = ctypes.CDLL(None)
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def memcpy(to: torch.Tensor, source: torch.Tensor) -> None:
    _libc.memcpy(to.data_ptr(), source.data_ptr(), source.nbytes)


def one_segment(numel: int, block: int) -> torch.Tensor:
    return torch.tensor([[0, numel, block, 0]])


def scan(values: torch.Tensor, block: int, turns: int) -> Pair:
    """A bucket of zeros is the slowest to scan: nothing lets the scan leave a block early."""
    nblocks = -(-values.numel() // block)
    bitmap = torch.empty(-(-nblocks // 64) * 8, dtype=torch.uint8)
    negative_zeros = torch.empty(1, dtype=torch.int64)
    segments = one_segment(values.numel(), block)

    values.zero_()[-1] = 1.0
    OPS.bitmap_from_nonzero(values, segments, bitmap, negative_zeros)
    last = torch.zeros_like(bitmap)
    last[(nblocks - 1) // 8] = 1 << (nblocks - 1) % 8
    assert torch.equal(bitmap, last), "the bitmap is wrong"
    values[-1] = 0.0
    return measure(
        lambda _: values.sum(),
        lambda _: OPS.bitmap_from_nonzero(values, segments, bitmap, negative_zeros),
        turns,
    )


def rows_of_turns(nblocks: int, density: float) -> list[torch.Tensor]:
    """Ascending positions for each turn, random and disjoint, that together name every block."""
    order = torch.randperm(nblocks, generator=torch.Generator().manual_seed(0))
    count = int(nblocks * density)
    return [order[i : i + count].sort().values for i in range(0, nblocks - count + 1, count)]


def move_rows(values: torch.Tensor, block: int, density: float, turns: int) -> dict[str, Pair]:
    """Gather and scatter of a share of the blocks, against a copy of as many bytes."""
    values.copy_(torch.arange(values.numel()).remainder_(1 << 20))
    segments = one_segment(values.numel(), block)
    positions = rows_of_turns(values.numel() // block, density)
    packed = torch.empty(positions[0].numel() * block)
    views = values.split(packed.numel())[: len(positions)]

    def gather(turn: int) -> None:
        OPS.blocks_gather(values, segments, positions[turn % len(positions)], packed)

    def scatter(turn: int) -> None:
        OPS.blocks_scatter(packed, segments, positions[turn % len(positions)], values)

    gather(3)
    expected = values.view(-1, block)[positions[3 % len(positions)]].view(-1)
    assert torch.equal(packed, expected), "the gathered rows are wrong"

    def copy_from(turn: int) -> None:
        memcpy(packed, views[turn % len(views)])

    def copy_to(turn: int) -> None:
        memcpy(views[turn % len(views)], packed)

    result = {
        "Tensor.copy_": measure(
            copy_from,
            lambda turn: packed.copy_(views[(turn + len(views) // 2) % len(views)]),
            turns,
        ),
        "gather": measure(copy_from, gather, turns),
        "scatter": measure(copy_to, scatter, turns),
    }
    rows = values.view(-1, block)[positions[turns % len(positions)]].view(-1)
    assert torch.equal(packed, rows), "the scattered rows are wrong"
    return result


def call_overhead(turns: int) -> Spread:
    """Seconds of an operator call that has next to nothing to do."""
    bitmap, other = torch.zeros(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    calls = 2000

    def many() -> None:
        for _ in range(calls):
            OPS.bitmap_or.default(bitmap, other)

    many()
    return Spread.of([seconds(many) / calls for _ in range(turns)])


def gather_overhead(turns: int) -> Spread:
    """The same for an operator with four tensors: one row of eight floats is gathered."""
    values, packed = torch.ones(64), torch.empty(8)
    segments, positions = one_segment(64, 8), torch.tensor([3])
    calls = 2000

    def many() -> None:
        for _ in range(calls):
            OPS.blocks_gather.default(values, segments, positions, packed)

    many()
    return Spread.of([seconds(many) / calls for _ in range(turns)])


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    if arguments.variant:
        _C.cpu_variant_force(arguments.variant)
    numel = arguments.megabytes * 1_000_000 // FLOAT_NBYTES // 4096 * 4096
    values = torch.zeros(numel)

    header = f"{'kernel':<34}{'GB/s':>7}{'yardstick':>11}   of yardstick"
    print(f"{machine()}; one thread, variant {_C.cpu_variant_current()}, torch {torch.__version__}")
    print(f"bucket of {numel * FLOAT_NBYTES / 1e6:.0f} MB of float32\n\n{header}")
    rows: list[dict[str, object]] = []

    def show(name: str, nbytes: float, pair: Pair, yardstick: str) -> None:
        speed, limit = nbytes / pair.subject.median / 1e9, nbytes / pair.yardstick.median / 1e9
        print(f"{name:<34}{speed:>7.1f}{limit:>11.1f}   {pair.speed} of a {yardstick}")
        rows.append(
            {
                "kernel": name,
                "gigabytes_per_second": speed,
                "yardstick": yardstick,
                "yardstick_gigabytes_per_second": limit,
                "of_yardstick": pair.speed.as_dict(),
            }
        )

    for block in (1, 8, 64, 512):
        pair = scan(values, block, arguments.turns)
        show(f"bitmap, blocks of {block}", numel * FLOAT_NBYTES, pair, "read")
    for density in (0.01, 0.1):
        moved = numel // arguments.row * density * arguments.row * FLOAT_NBYTES
        pairs = move_rows(values, arguments.row, density, arguments.turns)
        for name, pair in pairs.items():
            show(f"{name}, {density:.0%} of rows of {arguments.row}", moved, pair, "copy")

    overheads: dict[str, Callable[[int], Spread]] = {
        "bitmap_or": call_overhead,
        "blocks_gather": gather_overhead,
    }
    print()
    for name, overhead in overheads.items():
        spread = overhead(arguments.turns)
        print(f"a call of {name}: {spread.median * 1e6:.2f} microseconds")
        rows.append({"kernel": f"call of {name}", "microseconds": spread.median * 1e6})
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
