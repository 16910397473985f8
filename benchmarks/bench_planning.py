# SPDX-License-Identifier: MIT
"""Owner plans without a network: how long they take to find, and what they would send.

    python benchmarks/bench_planning.py

First the planning of 8 ranks with 1 M blocks, on one thread: `owners`, `exchanges` and `lists` are
the three operators, from the ranks' bitmaps and the union's positions to the lists of one rank.

Then the same at scale.  Every rank draws tokens by Zipf's law from a table of rows, and what all
ranks would send follows from their plans:

    index    (P-1) (H + I): H bytes of header, I of a bitmap or of the longest packed list
    rows     what a rank has of rows that others own
    means    (P-1) times the rows of the rank that owns most

`mean` and `heaviest` are of all ranks.  The formula is that of the mean without the index, for an
even share of rows: [(sum k - K) + (P-1) K] b / P, for k rows live on a rank, K in the union and b
bytes a row.  `of formula` is the mean, less the index, over it: what an even share does not know is
that the means are filled up to the rank that owns most.

Each plan is checked before it is timed: what ranks send is what others receive, and each row of the
union has one owner.  Times are medians.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from paired import machine, seconds, write_json
from torch import Tensor

from s2reducer import ops
from s2reducer.exchange import HEADER_NBYTES, uses_lists
from s2reducer.segments import Layout, layout_of, segments_of

FLOAT_NBYTES = 4
NRANKS, NBLOCKS, BLOCK, NLIVE = 8, 1_000_000, 64, 150_000  # of the first table
SENT, SENT_NUMEL, RECEIVED, RECEIVED_NUMEL, OWNED, OWNED_NUMEL = range(6)  # columns of exchanges


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256], help="at scale")
    parser.add_argument("--tokens", type=int, default=4096, help="that a rank draws")
    parser.add_argument("--rows", type=int, default=200_000, help="of the table")
    parser.add_argument("--width", type=int, default=64, help="floats of a row")
    parser.add_argument("--exponent", type=float, default=1.05, help="of Zipf's law")
    parser.add_argument("--turns", type=int, default=15, help="times that a plan is timed")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


@dataclass(frozen=True)
class Problem:
    """The live blocks of all ranks in a bucket of one segment, as every rank knows them."""

    layout: Layout
    bitmaps: Tensor
    lives: list[int]
    positions: Tensor  # of the union

    @classmethod
    def of(cls, nblocks: int, block: int, rows: Sequence[Tensor]) -> "Problem":
        """From the rows of each rank, ascending."""
        layout = layout_of(segments_of([nblocks * block], [block]), ())
        layout.memory.most_live = max(map(len, rows))
        bitmaps = torch.empty(len(rows), layout.bitmap_nbytes, dtype=torch.uint8)
        for bitmap, where in zip(bitmaps, rows, strict=True):
            ops.bitmap_from_positions(where, bitmap)
        union = bitmaps[0].clone()
        for bitmap in bitmaps:
            ops.bitmap_or(union, bitmap)
        count = torch.empty(1, dtype=torch.int64)
        ops.bitmap_count(union, layout.segments, count)
        positions = torch.empty(int(count), dtype=torch.int64)
        ops.bitmap_positions(union, positions)
        return cls(layout, bitmaps, list(map(len, rows)), positions)

    def owners(self, out: Tensor) -> Tensor:
        ops.plan_owners(self.bitmaps, self.layout.segments, self.positions, 0, out)
        return out

    def exchanges(self, owners: Tensor, rank: int) -> Tensor:
        out = torch.empty(len(self.lives), 6, dtype=torch.int64)
        ops.plan_exchanges(self.bitmaps, self.layout.segments, self.positions, owners, rank, out)
        return out

    def index_nbytes(self) -> tuple[str, int]:
        """The form of the index, and what a rank sends of it."""
        nranks, layout = len(self.lives), self.layout
        nbytes = layout.bitmap_nbytes
        lists = uses_lists(layout, nranks)
        if lists:
            nbytes = ops.list_nbytes(8 * layout.bitmap_nbytes, max(self.lives))
        return ("list" if lists else "bitmap"), (nranks - 1) * (HEADER_NBYTES + nbytes)


# ------------------------------------------------------------------------------------------------
# Times
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Times:
    """Milliseconds of a rank's planning."""

    owners: float
    exchanges: float
    lists: float

    @property
    def together(self) -> float:
        return self.owners + self.exchanges + self.lists


def time_plan(problem: Problem, turns: int) -> Times:
    """Of rank 1, or 0 where it is alone."""
    nunion = len(problem.positions)
    owners = problem.owners(torch.empty(nunion, dtype=torch.int16))
    rank = min(1, len(problem.lives) - 1)
    exchanges = problem.exchanges(owners, rank)
    lists = (
        torch.empty(int(exchanges[:, SENT].sum()), dtype=torch.int64),
        torch.empty(int(exchanges[:, RECEIVED].sum()), dtype=torch.int64),
        torch.empty(nunion, dtype=torch.int64),
        torch.empty_like(problem.layout.segments),
    )
    bucket = (problem.bitmaps, problem.layout.segments, problem.positions)

    def median(call: Callable[[], object]) -> float:
        call()
        return 1e3 * statistics.median(seconds(call) for _ in range(turns))

    return Times(
        median(lambda: problem.owners(owners)),
        median(lambda: problem.exchanges(owners, rank)),
        median(lambda: ops.plan_lists(*bucket, owners, rank, exchanges, *lists)),
    )


def show_times(turns: int, seed: int) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(seed)
    print(f"{NRANKS} ranks, {NBLOCKS} blocks; milliseconds")
    print(
        f"{'live blocks':<32}{'union':>9}{'owners':>9}{'exchanges':>11}{'lists':>8}{'together':>10}"
    )
    rows: list[dict[str, object]] = []
    for name, live in (("in all", NLIVE // NRANKS), ("on each rank", NLIVE)):
        draws = [torch.randperm(NBLOCKS, generator=generator)[:live] for _ in range(NRANKS)]
        problem = Problem.of(NBLOCKS, BLOCK, [draw.sort().values for draw in draws])
        check(problem)
        times, nunion = time_plan(problem, turns), len(problem.positions)
        label = f"{NLIVE} {name}, uniform"
        print(
            f"{label:<32}{nunion:>9}{times.owners:>9.2f}{times.exchanges:>11.2f}"
            f"{times.lists:>8.2f}{times.together:>10.2f}"
        )
        rows.append({"live": label, "union": nunion, **asdict(times), "together": times.together})
    return rows


# ------------------------------------------------------------------------------------------------
# Scale
# ------------------------------------------------------------------------------------------------


def draw_rows(
    nrows: int, exponent: float, tokens: int, nranks: int, generator: torch.Generator
) -> list[Tensor]:
    """The distinct rows that each rank draws, ascending; row i by weight (i + 1)^-exponent."""
    weights = torch.arange(1, nrows + 1, dtype=torch.float64).pow_(-exponent)
    bounds = weights.cumsum(0).div_(weights.sum())
    uniform = torch.rand(nranks, tokens, generator=generator, dtype=torch.float64)
    return [torch.searchsorted(bounds, row).clamp_(max=nrows - 1).unique() for row in uniform]


def check(problem: Problem) -> tuple[list[int], list[int]]:
    """Elements of the rows that each rank sends away, and of those that it owns."""
    owners = problem.owners(torch.empty(len(problem.positions), dtype=torch.int16))
    nranks = len(problem.lives)
    all_exchanges = torch.stack([problem.exchanges(owners, rank) for rank in range(nranks)])
    sent, owned = all_exchanges[:, :, SENT_NUMEL], all_exchanges[0, :, OWNED_NUMEL]
    assert torch.equal(sent, all_exchanges[:, :, RECEIVED_NUMEL].t()), "ranks disagree on rows"
    block = int(problem.layout.blocks)
    assert sent.sum(1).tolist() == [live * block for live in problem.lives], "rows are missing"
    assert int(owned.sum()) == len(problem.positions) * block, "a row has not one owner"
    return (sent.sum(1) - sent.diagonal()).tolist(), owned.tolist()


def at_scale(problem: Problem, turns: int) -> dict[str, object]:
    """What the ranks would send, in bytes, and how long one of them plans."""
    nranks = len(problem.lives)
    away, owned = check(problem)
    form, index = problem.index_nbytes()
    means = (nranks - 1) * max(owned) * FLOAT_NBYTES
    sent = [numel * FLOAT_NBYTES + means + index for numel in away]
    mean, row_nbytes = statistics.mean(sent), int(problem.layout.blocks) * FLOAT_NBYTES
    nunion, total = len(problem.positions), sum(problem.lives)
    formula = (total - nunion + (nranks - 1) * nunion) * row_nbytes / nranks
    times = time_plan(problem, turns)
    return {
        "ranks": nranks,
        "rows_of_a_rank": statistics.mean(problem.lives),
        "union": nunion,
        "index": form,
        "mean_bytes": mean,
        "heaviest_bytes": max(sent),
        "heaviest_of_mean": max(sent) / mean,
        "index_share": index / mean,
        "of_formula": (mean - index) / formula,
        "planning_ms": times.together,
        **{f"{name}_ms": value for name, value in asdict(times).items()},
    }


def show_scale(arguments: argparse.Namespace) -> list[dict[str, object]]:
    print(
        f"\n{arguments.tokens} tokens a rank, Zipf({arguments.exponent}), "
        f"{arguments.rows} rows of {arguments.width} floats"
    )
    print(
        f"{'ranks':>5}{'rows each':>11}{'union':>8}{'MB mean':>9}{'heaviest':>10}{'of mean':>9}"
        f"{'index':>8}{'share':>8}{'of formula':>12}{'planning ms':>13}"
    )
    rows = []
    for nranks in arguments.ranks:
        generator = torch.Generator().manual_seed(arguments.seed)
        draws = draw_rows(arguments.rows, arguments.exponent, arguments.tokens, nranks, generator)
        row = at_scale(Problem.of(arguments.rows, arguments.width, draws), arguments.turns)
        print(
            "{ranks:>5}{rows_of_a_rank:>11.0f}{union:>8}{megabytes:>9.2f}{heaviest:>10.2f}"
            "{heaviest_of_mean:>9.3f}{index:>8}{index_share:>8.1%}{of_formula:>12.3f}"
            "{planning_ms:>13.2f}".format(
                megabytes=row["mean_bytes"] / 1e6, heaviest=row["heaviest_bytes"] / 1e6, **row
            )
        )
        rows.append(row)
    return rows


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    print(f"{machine()}; one thread, torch {torch.__version__}, seed {arguments.seed}\n")
    result: dict[str, object] = {
        "machine": machine(),
        "seed": arguments.seed,
        "planning": show_times(arguments.turns, arguments.seed),
        "scale": show_scale(arguments),
    }
    if arguments.json:
        write_json(arguments.json, result)


if __name__ == "__main__":
    main()
