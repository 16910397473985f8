# SPDX-License-Identifier: MIT
"""The kernels on one thread, beside a plain read and plain copies of the same bytes.

    python benchmarks/bench_kernels.py

Each line sets a kernel beside yardsticks that move the same bytes.  For a scan that is a read by
`torch.sum`.  For a gather and a scatter of rows it is the C library's memcpy, twice: of contiguous
memory, and of the very same scattered rows one by one, which is what a copy of these bytes can be;
rows of 2 KB end before a processor's prefetchers are under way.  `Tensor.copy_` stands beside them.
GB/s counts the bytes that a kernel has to read (scan) or that it moves from one place to another
(gather, scatter), 1 GB = 1e9 bytes; a copy's bytes are counted once.  `of a ...` is the kernel's
speed over the yardstick's, the median over all turns and the quartiles.

Rows come from memory, as they do behind a backward pass, not from a cache: every turn names other
rows, and together the turns touch all of the bucket before any row comes again.  The copies go
through the bucket in the same way, at another place of it.

The row sums are what an owner of blocks does: the rows of four ranks, of which each has a random
half of the blocks, are summed in rank order in a wider type, divided and rounded once.  GB/s counts
the rows, which are read, and the results, which are written.  A read of as many bytes and a copy
that reads half as many and writes the other half stand beside it.

Selections and energies read the bucket, of random numbers from a normal distribution, beside a read
of it.  GB/s of error feedback counts all bytes that it reads or writes; a copy of as many, half of
them read and half written, stands beside it.  Values of 2 bytes are bfloat16.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from copies import RowCopies, memcpy
from paired import Pair, Spread, machine, measure, seconds, write_json

from s2reducer import _C, select_ops

OPS = torch.ops.s2reducer
FLOAT_NBYTES = 4
DENSITIES = (0.01, 0.1)
SUMMED_RANKS = 4
SUMMED_ROWS = (64, 512)
ENERGY_BLOCKS = (8, 64, 512)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=256, help="size of the bucket")
    parser.add_argument("--turns", type=int, default=25, help="turns that are timed for each line")
    parser.add_argument("--row", type=int, default=512, help="floats of a gathered row")
    parser.add_argument("--calls", type=int, default=2000, help="calls timed together")
    parser.add_argument("--variant", choices=_C.cpu_variants(), help="default: the best one")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error(f"argument --turns: {arguments.turns} is less than 2")
    fewest = round(1 / min(DENSITIES))
    if numel_of(arguments.megabytes) < fewest * arguments.row:
        parser.error(f"argument --megabytes: the bucket has less than {fewest} rows")
    return arguments


def numel_of(megabytes: float) -> int:
    return int(megabytes * 1e6) // FLOAT_NBYTES // 4096 * 4096


def one_segment(numel: int, block: int) -> torch.Tensor:
    return torch.tensor([[0, numel, block, 0]])


def scan(values: torch.Tensor, block: int, turns: int) -> dict[str, Pair]:
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
        lambda _: OPS.bitmap_from_nonzero(values, segments, bitmap, negative_zeros),
        turns,
        read=lambda _: values.sum(),
    )


def rows_of_turns(nblocks: int, density: float) -> list[torch.Tensor]:
    """Ascending positions for each turn, random and disjoint, that together name every block."""
    order = torch.randperm(nblocks, generator=torch.Generator().manual_seed(0))
    count = int(nblocks * density)
    return [order[i : i + count].sort().values for i in range(0, nblocks - count + 1, count)]


def move_rows(
    values: torch.Tensor, block: int, density: float, turns: int, copies: RowCopies
) -> tuple[int, dict[str, dict[str, Pair]]]:
    """Gather and scatter of a share of the blocks, against copies of as many bytes."""
    values.copy_(torch.arange(values.numel()).remainder_(1 << 20))
    table = values[: values.numel() // block * block].view(-1, block)
    segments = one_segment(values.numel(), block)
    positions = rows_of_turns(len(table), density)
    packed = torch.empty(positions[0].numel() * block)
    views = values.split(packed.numel())[: len(positions)]

    def rows(turn: int) -> torch.Tensor:
        return positions[turn % len(positions)]

    def rows_elsewhere(turn: int) -> torch.Tensor:
        return positions[(turn + len(positions) // 2) % len(positions)]

    def gather(turn: int) -> None:
        OPS.blocks_gather(values, segments, rows(turn), packed)

    def scatter(turn: int) -> None:
        OPS.blocks_scatter(packed, segments, rows(turn), values)

    def copy_rows_from(turn: int) -> None:
        copies.gather(packed, table, rows_elsewhere(turn))

    def copy_rows_to(turn: int) -> None:
        copies.scatter(packed, table, rows_elsewhere(turn))

    def copy_from(turn: int) -> None:
        memcpy(packed, views[turn % len(views)])

    def copy_to(turn: int) -> None:
        memcpy(views[turn % len(views)], packed)

    for call, moved in ((gather, rows(3)), (copy_rows_from, rows_elsewhere(3))):
        call(3)
        assert torch.equal(packed.view(-1, block), table[moved]), "the gathered rows are wrong"
    result = {
        "Tensor.copy_": measure(
            lambda turn: packed.copy_(views[(turn + len(views) // 2) % len(views)]),
            turns,
            copy=copy_from,
        ),
        "gather": measure(gather, turns, copy=copy_from, rows=copy_rows_from),
        "scatter": measure(scatter, turns, copy=copy_to, rows=copy_rows_to),
    }
    for call, moved in ((scatter, rows(3)), (copy_rows_to, rows_elsewhere(3))):
        packed.add_(1.0)
        call(3)
        assert torch.equal(packed.view(-1, block), table[moved]), "the scattered rows are wrong"
    return packed.nbytes, result


def sum_rows(values: torch.Tensor, block: int, turns: int) -> tuple[int, dict[str, Pair]]:
    """Sums of as many rows as the bucket holds, and the bytes that they touch."""
    count = values.numel() // SUMMED_RANKS // block
    nblocks = 2 * count
    values.copy_(torch.arange(values.numel()).remainder_(1 << 20))
    bucket = values[: SUMMED_RANKS * count * block]
    rows = bucket.split(count * block)
    generator = torch.Generator().manual_seed(0)
    where = [torch.randperm(nblocks, generator=generator)[:count].sort().values for _ in rows]
    result, copied = torch.empty(nblocks * block), torch.empty(bucket.numel())
    segments = one_segment(result.numel(), block)
    nbytes = bucket.nbytes + result.nbytes

    def sums(_: int) -> None:
        OPS.blocks_sum(rows, segments, where, result, None, float(SUMMED_RANKS))

    def in_pieces(call: Callable[[torch.Tensor], object], numel: int) -> None:
        for begin in range(0, numel, bucket.numel()):
            call(bucket[: numel - begin])

    sums(0)
    expected = torch.zeros(nblocks, block, dtype=torch.float64)
    for packed, positions in zip(rows, where, strict=True):
        expected.index_add_(0, positions, packed.view(-1, block).double())
    expected /= SUMMED_RANKS
    assert torch.equal(result.view(-1, block), expected.float()), "the sums are wrong"
    del expected
    numel = nbytes // FLOAT_NBYTES
    return nbytes, measure(
        sums,
        turns,
        read=lambda _: in_pieces(torch.Tensor.sum, numel),
        copy=lambda _: in_pieces(lambda piece: memcpy(copied[: len(piece)], piece), numel // 2),
    )


def selections(values: torch.Tensor, turns: int) -> dict[str, dict[str, Pair]]:
    """Selections from the bucket's elements, and the energies of its blocks."""
    values.normal_(generator=torch.Generator().manual_seed(0))
    numel = values.numel()
    bitmap = torch.empty(select_ops.selected_nbytes(numel), dtype=torch.uint8)
    scratch = torch.empty(select_ops.select_scratch_nbytes(numel), dtype=torch.uint8)
    energies = torch.empty(numel)
    ordered = values.abs().sort(descending=True).values

    def top(keep: int) -> float:
        return select_ops.select_top(values, keep, bitmap, scratch)

    calls: dict[str, Callable[[], object]] = {}
    for density in DENSITIES:
        keep = int(numel * density)
        threshold = float(ordered[keep - 1])
        assert top(keep) == threshold, "the threshold is wrong"
        assert select_ops.select_above(values, threshold, bitmap) >= keep, "the count is wrong"
        calls[f"top {density:.0%}"] = lambda keep=keep: top(keep)
        calls[f"above the top {density:.0%}"] = lambda threshold=threshold: select_ops.select_above(
            values, threshold, bitmap
        )
    for block in ENERGY_BLOCKS:
        out = energies[: -(-numel // block)]
        select_ops.owed_energies(values, block, out)
        exact = values[:block].double().square().sum()
        assert abs(float(out[0] / exact) - 1) < 1e-6, "the energy is wrong"
        calls[f"energies, blocks of {block}"] = lambda block=block, out=out: (
            select_ops.owed_energies(values, block, out)
        )
    return {
        name: measure(lambda _, call=call: call(), turns, read=lambda _: values.sum())
        for name, call in calls.items()
    }


def feedback(values: torch.Tensor, turns: int) -> dict[str, tuple[int, dict[str, Pair]]]:
    """Adding to what is owed, and delivering all of it or a tenth, and the bytes of each."""
    values.copy_(torch.arange(values.numel()).remainder_(128))  # integers that bfloat16 has, too
    numel = values.numel()
    owed, other, copied = torch.zeros(numel), torch.zeros(numel), torch.empty(numel)
    tenth = torch.empty(select_ops.selected_nbytes(numel), dtype=torch.uint8)
    select_ops.select_random(0, numel, numel // 10, tenth)

    def copy(nbytes: int) -> None:
        for begin in range(0, nbytes // 8, numel):
            memcpy(copied[: nbytes // 8 - begin], values[: nbytes // 8 - begin])

    result = {}
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        gradient = values.to(dtype)
        nbytes = (8 + gradient.element_size()) * numel
        select_ops.owed_add(gradient, other, owed)
        assert torch.equal(owed, values), "what is owed is wrong"
        calls: dict[str, Callable[[], object]] = {
            f"add {name}": lambda gradient=gradient: select_ops.owed_add(gradient, other, owed),
            f"deliver all as {name}": lambda gradient=gradient: select_ops.owed_deliver(
                owed, 1, None, gradient
            ),
            f"deliver 10% as {name}": lambda gradient=gradient: select_ops.owed_deliver(
                owed, 1, tenth, gradient
            ),
        }
        for what, call in calls.items():
            pairs = measure(
                lambda _, call=call: call(), turns, copy=lambda _, nbytes=nbytes: copy(nbytes)
            )
            result[what] = (nbytes, pairs)
        assert not owed.any(), "what was delivered is owed still"
    return result


def overhead(call: Callable[[], object], calls: int, turns: int) -> Spread:
    """Seconds of an operator call that has next to nothing to do."""

    def many() -> None:
        for _ in range(calls):
            call()

    many()
    return Spread.of([seconds(many) / calls for _ in range(turns)])


def small_calls() -> dict[str, Callable[[], object]]:
    """An OR of 8 bytes, and an operator with four tensors that gathers a row of eight floats."""
    bitmap, other = torch.zeros(8, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    values, packed = torch.ones(64), torch.empty(8)
    segments, positions = one_segment(64, 8), torch.tensor([3])
    return {
        "bitmap_or": lambda: OPS.bitmap_or.default(bitmap, other),
        "blocks_gather": lambda: OPS.blocks_gather.default(values, segments, positions, packed),
    }


class Table:
    """Lines on the screen, and the same figures for a file."""

    def __init__(self, yardsticks: dict[str, str]) -> None:
        """``yardsticks``: how the kernel's share of each is called, by the yardstick's name."""
        self._yardsticks = yardsticks
        self.rows: list[dict[str, object]] = []
        columns = (f"{name:>8}  {share:<18}" for name, share in yardsticks.items())
        print(f"\n{'GB/s':<32}{'kernel':>8}{''.join(columns)}".rstrip())

    def show(self, name: str, nbytes: int, pairs: dict[str, Pair]) -> None:
        (subject, *_) = (pair.subject for pair in pairs.values())
        row: dict[str, object] = {
            "kernel": name,
            "gigabytes_per_second": gigabytes(nbytes, subject),
        }
        line = f"{name:<32}{gigabytes(nbytes, subject):>8.1f}"
        for yardstick, pair in pairs.items():
            line += f"{gigabytes(nbytes, pair.yardstick):>8.1f}  {pair.speed!s:<18}"
            row[yardstick] = {
                "gigabytes_per_second": gigabytes(nbytes, pair.yardstick),
                "kernel_over_it": pair.speed.as_dict(),
            }
        print(line.rstrip(), flush=True)
        self.rows.append(row)


def gigabytes(nbytes: int, spread: Spread) -> float:
    return nbytes / spread.median / 1e9


def main() -> None:
    arguments = parse_arguments()
    copies = RowCopies()
    torch.set_num_threads(1)
    if arguments.variant:
        _C.cpu_variant_force(arguments.variant)
    values = torch.zeros(numel_of(arguments.megabytes))

    print(f"{machine()}; one thread, variant {_C.cpu_variant_current()}, torch {torch.__version__}")
    print(f"bucket of {values.nbytes / 1e6:.3g} MB of float32")
    scans = Table({"read": "of a read"})
    for block in (1, 8, 64, 512):
        pairs = scan(values, block, arguments.turns)
        scans.show(f"bitmap, blocks of {block}", values.nbytes, pairs)

    moves = Table({"copy": "of a copy", "rows": "of the rows' copy"})
    for density in DENSITIES:
        nbytes, kernels = move_rows(values, arguments.row, density, arguments.turns, copies)
        for name, pairs in kernels.items():
            moves.show(f"{name}, {density:.0%} of rows of {arguments.row}", nbytes, pairs)

    sums = Table({"read": "of a read", "copy": "of a copy"})
    for block in SUMMED_ROWS:
        nbytes, pairs = sum_rows(values, block, arguments.turns)
        sums.show(f"row sums, {SUMMED_RANKS} ranks, rows of {block}", nbytes, pairs)

    selected = Table({"read": "of a read"})
    for name, pairs in selections(values, arguments.turns).items():
        selected.show(name, values.nbytes, pairs)

    owed = Table({"copy": "of a copy"})
    for name, (nbytes, pairs) in feedback(values, arguments.turns).items():
        owed.show(name, nbytes, pairs)

    print()
    overheads = {}
    for name, call in small_calls().items():
        spread = overhead(call, arguments.calls, arguments.turns)
        overheads[name] = spread.median * 1e6
        print(f"a call of {name}: {overheads[name]:.2f} microseconds")
    if arguments.json:
        tables = {"scans": scans.rows, "moves": moves.rows, "sums": sums.rows}
        tables |= {"selections": selected.rows, "feedback": owed.rows}
        write_json(arguments.json, {"machine": machine(), **tables, "call_microseconds": overheads})


if __name__ == "__main__":
    main()
