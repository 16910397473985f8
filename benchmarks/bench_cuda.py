# SPDX-License-Identifier: MIT
"""The kernels on a device, beside its own copy of as many bytes; and the hook on a dense model.

    python benchmarks/bench_cuda.py

Figures are shares of the speed of `Tensor.copy_`: bytes that a kernel must read and write, by its
time, over those of the copy by its own; kernel and copy take turns, and the median of the turns is
given with its quartiles.  Arrays are far larger than the device's caches.

    bitmap    reads the bucket
    gather    reads half of its blocks, drawn at random, and writes them one behind the other
    scatter   the same in the other direction
    add       reads blocks and adds them to a wider sum, which is read and written
    insert    reads each block for each row of the sketch, and reads and writes the whole table

A peel is measured in inserts of the same blocks.  The hook's overhead is that on a training step of
a dense model, over DDP without it.  On one device there is one rank only, which sends nothing: so
the hook is made to work as if there were more, and what is missing is the network.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from paired import Spread, machine, write_json
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import sender

OPS = torch.ops.s2reducer
BLOCK, SKETCH_ROWS, CELLS_PER_BLOCK, PEEL_ROUNDS = 64, 3, 1.3, 40
FAILURES = (AssertionError, RuntimeError)
LEAST_SHARE, MOST_INSERTS, MOST_OVERHEAD = 0.8, 3.0, 0.02


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cpu: to see that the script works")
    parser.add_argument("--megabytes", type=float, default=256, help="what a kernel moves")
    parser.add_argument("--turns", type=int, default=15, help="turns that are timed for each line")
    parser.add_argument("--layers", type=int, default=16, help="of the dense model")
    parser.add_argument("--width", type=int, default=2048, help="of its layers")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="status 1 where a figure is missed")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error(f"argument --turns: {arguments.turns} is less than 2")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("argument --device: torch sees no CUDA device here")
    return arguments


# ------------------------------------------------------------------------------------------------
# Time
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clock:
    """Seconds of the device, or of a CPU that stands for it."""

    device: torch.device
    turns: int

    def seconds(self, call: Callable[[], object], calls: int = 5) -> float:
        """Of one call; several follow one another, lest the device waits for the host."""
        if self.device.type != "cuda":
            begun = time.perf_counter()
            call()
            return time.perf_counter() - begun
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls

    def pairs(
        self, subject: Callable[[], object], yardstick: Callable[[], object]
    ) -> list[tuple[float, float]]:
        """Both in every turn; one turn before the first is not counted."""
        pairs = [(self.seconds(subject), self.seconds(yardstick)) for _ in range(self.turns + 1)]
        return pairs[1:]


@dataclass
class Figures:
    """What is printed and written: name, figure, and whether it is as it should be."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, spread: Spread, unit: str, good: bool, wanted: str) -> None:
        self.found[name] = {**spread.as_dict(), "unit": unit, "wanted": wanted, "good": good}
        print(f"{name:10} {spread} {unit}, wanted {wanted}{'' if good else ': MISSED'}", flush=True)

    def fail(self, name: str, error: Exception) -> None:
        self.found[name] = {"error": str(error), "good": False}
        print(f"{name:10} failed: {error}", flush=True)

    @property
    def good(self) -> bool:
        return all(figure["good"] for figure in self.found.values())


# ------------------------------------------------------------------------------------------------
# Kernels
# ------------------------------------------------------------------------------------------------


class Kernels:
    """The bucket, half of whose blocks are live, and the calls that are timed."""

    def __init__(self, megabytes: float, clock: Clock, figures: Figures) -> None:
        self._clock, self._figures, device = clock, figures, clock.device
        self.nblocks = max(128, int(megabytes * 1e6) // 4 // BLOCK // 64 * 64)
        numel = self.nblocks * BLOCK
        self.segments = self._segments(2 * numel)
        self.values = torch.arange(2 * numel, device=device).remainder_(1021).float().add_(1)
        order = torch.randperm(2 * self.nblocks, generator=torch.Generator().manual_seed(0))
        self.positions = order[: self.nblocks].sort().values.to(device)
        self.packed = torch.empty(numel, device=device)
        source, target = self.values[:numel], self.values[numel:]
        self._copy = lambda: target.copy_(source)
        self._copied = 2 * self.packed.nbytes

    def run(self) -> None:
        copied = Spread.of([self._clock.seconds(self._copy) for _ in range(self._clock.turns)])
        print(f"copy       {self._copied / copied.median / 1e9:.0f} GB/s read and written")
        for measure in (self.bitmap, self.gather_and_scatter, self.add, self.sketch):
            try:
                measure()
            except FAILURES as error:  # the others may well work
                self._figures.fail(measure.__name__, error)

    def _segments(self, numel: int) -> torch.Tensor:
        """One, on the host; pinned, so that nothing waits for its way to the device."""
        segments = torch.tensor([[0, numel, BLOCK, 0]])
        return segments.pin_memory() if self._clock.device.type == "cuda" else segments

    def _share(self, name: str, call: Callable[[], object], nbytes: int) -> float:
        """Seconds of a call."""
        pairs = self._clock.pairs(call, self._copy)
        share = Spread.of([nbytes / own / (self._copied / copy) for own, copy in pairs])
        good = share.median >= LEAST_SHARE
        self._figures.add(name, share, "of the copy", good, f"{LEAST_SHARE} or more")
        return statistics.median(own for own, _ in pairs)

    def bitmap(self) -> None:
        values = self.values[: self.packed.numel()]
        segments = self._segments(values.numel())
        bitmap = torch.empty(self.nblocks // 8, dtype=torch.uint8, device=values.device)
        negative_zeros = torch.empty(1, dtype=torch.int64, device=values.device)
        zeros = torch.zeros_like(values)  # nothing lets the scan leave a block early
        zeros[-1] = 1.0

        def scan() -> None:
            OPS.bitmap_from_nonzero(zeros, segments, bitmap, negative_zeros)

        scan()
        assert bitmap[:-1].count_nonzero() == 0 and bitmap[-1] == 128, "the bitmap is wrong"
        self._share("bitmap", scan, values.nbytes + bitmap.nbytes)

    def gather_and_scatter(self) -> None:
        table = self.values.view(-1, BLOCK)

        def gather() -> None:
            OPS.blocks_gather(self.values, self.segments, self.positions, self.packed)

        def scatter() -> None:
            OPS.blocks_scatter(self.packed, self.segments, self.positions, self.values)

        gather()
        wanted = table[self.positions].view(-1)
        assert torch.equal(self.packed, wanted), "the gathered blocks are wrong"
        nbytes = 2 * self.packed.nbytes + self.positions.nbytes
        self._share("gather", gather, nbytes)
        self.packed.copy_(wanted).add_(1.0)
        scatter()
        assert torch.equal(table[self.positions].view(-1), wanted + 1), "the scatter is wrong"
        self._share("scatter", scatter, nbytes)

    def add(self) -> None:
        total = torch.zeros_like(self.values, dtype=torch.float64)
        self.packed.fill_(3.0)

        def add() -> None:
            OPS.blocks_add(self.packed, self.segments, self.positions, total)

        add()
        live = total.view(-1, BLOCK)[self.positions]
        assert bool((live == 3.0).all()) and total.sum() == live.sum(), "the sums are wrong"
        nbytes = self.packed.nbytes + 2 * live.nbytes + self.positions.nbytes
        self._share("row sums", add, nbytes)

    def sketch(self) -> None:
        """Whole numbers, whose sums and differences are exact: a block comes out as it went in."""
        device, n = self.positions.device, self.nblocks
        width = int(CELLS_PER_BLOCK * n / SKETCH_ROWS) + 1
        shape = (SKETCH_ROWS, width, BLOCK)
        table = torch.zeros(shape, device=device)
        values = self.values[: n * BLOCK].remainder(31).view(n, BLOCK)
        seed = 1

        def insert() -> None:
            OPS.sketch_insert(table, seed, self.positions, values)

        seconds = self._share("insert", insert, SKETCH_ROWS * values.nbytes + 2 * table.nbytes)
        table.zero_()
        insert()
        full = table.clone()
        decoded = torch.empty(n, dtype=torch.bool, device=device)
        outputs = [torch.empty_like(values), decoded]
        outputs += [torch.empty(n, device=device) for _ in range(2)]
        scratch = torch.empty(
            s2reducer.ops.sketch_scratch_nbytes(table, n), dtype=torch.uint8, device=device
        )
        counts = torch.empty(2, dtype=torch.int64, device=device)

        def peel() -> None:
            table.copy_(full)
            OPS.sketch_peel(
                table, seed, self.positions, 1, None, PEEL_ROUNDS, *outputs, scratch, counts
            )

        peel()
        share = float(decoded.float().mean())
        assert share > 0.99 and torch.equal(outputs[0][decoded], values[decoded]), "peeled wrongly"
        restore = statistics.median(
            self._clock.seconds(lambda: table.copy_(full)) for _ in range(self._clock.turns)
        )
        times = [self._clock.seconds(peel) - restore for _ in range(self._clock.turns)]
        inserts = Spread.of([time / seconds for time in times])
        good = inserts.median <= MOST_INSERTS
        self._figures.add("peel", inserts, "inserts", good, f"{MOST_INSERTS:g} or less")


# ------------------------------------------------------------------------------------------------
# The hook on a dense model
# ------------------------------------------------------------------------------------------------


@contextmanager
def group_of_one(device: torch.device) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(os.path.join(folder, "store"), 1),
            rank=0,
            world_size=1,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


@contextmanager
def as_if_there_were_more_ranks() -> Iterator[None]:
    original = sender._dense_reason

    def reason(*arguments: Any) -> str | None:
        found = original(*arguments)
        return None if found == "one rank" else found

    sender._dense_reason = reason
    try:
        yield
    finally:
        sender._dense_reason = original


def hook_overhead(layers: int, width: int, clock: Clock, figures: Figures) -> None:
    device = clock.device
    inputs = torch.randn(4 * width, width, device=device)

    def step_of(hooked: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        ddp = DistributedDataParallel(nn.Sequential(*parts).to(device))
        if hooked:
            s2reducer.register(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            ddp(inputs).square().mean().backward()
            optimizer.step()

        return step

    with group_of_one(device), as_if_there_were_more_ranks():
        hooked, plain = step_of(True), step_of(False)
        for _ in range(8):  # until the hook knows the model
            hooked()
            plain()
        pairs = clock.pairs(hooked, plain)
    overhead = Spread.of([own / other - 1 for own, other in pairs])
    good = overhead.median <= MOST_OVERHEAD
    figures.add("hook", overhead, "of a step", good, f"{MOST_OVERHEAD} or less")


def main() -> int:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else machine()
    print(f"{name}, torch {torch.__version__}", flush=True)
    clock, figures = Clock(device, arguments.turns), Figures()
    Kernels(arguments.megabytes, clock, figures).run()
    try:
        hook_overhead(arguments.layers, arguments.width, clock, figures)
    except FAILURES as error:
        figures.fail("hook", error)
    if arguments.json:
        result = {
            "device": name,
            "torch": torch.__version__,
            "megabytes": arguments.megabytes,
            "figures": figures.found,
        }
        write_json(arguments.json, result)
    return 1 if arguments.strict and not figures.good else 0


if __name__ == "__main__":
    sys.exit(main())
