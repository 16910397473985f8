# SPDX-License-Identifier: MIT
"""The exchange alone: time, bytes and error of every plan on gradients that are given.

    python benchmarks/bench_allreduce.py            # all points; about an hour
    python benchmarks/bench_allreduce.py --quick    # a few small ones; a minute

Ranks run on the hosts of ``netlab``.  A point is one bucket of DDP: a table of rows, of which each
rank has a share (its density) that is not zero.  ``overlap`` is the share of a rank's rows that all
ranks have, and ``skew`` how many times more of them rank 0 has than the others.

Every plan takes its turn at each point, and one of them, ``none``, sends nothing: communication is
a plan's step less the step of ``none`` in the same turn.  Bytes come from the interfaces, the sum
and the heaviest rank, beside the plan's formula:

    dense    2 (P-1)/P N b                                    each rank
    gather   (P-1) (I + k b)                                  each rank, by its own k
    union    2 (P-1)/P (K b + bitmap)                         each rank
    owner    (P-1) I + [(sum k - K) + (P-1) K] b / P          the mean; the heaviest as below
    coo      (P-1) k (b + 4/row)                              each rank, by the largest k
    zen      (P-1)/P [k (b + 4/row) + K b + rows / 8]         each rank, in the mean

(P ranks, N elements, k live on a rank, K on any, b bytes an element, I of an index: bitmap or list,
whichever is shorter); ``baselines/formulas.py`` has the other baselines'.  Under skew a rank may
have more rows than it may own under ``owner``, and sends the rest away: those take the place of
sum k - K where they are more.  It may own 1.05 K/P, or with three ranks and more so much less that
it sends no more than the others.

``ok`` where the sum and the heaviest are within 1.10 x formula + 64 KiB + 1 KiB x P.  ``of mean``
is the heaviest over the mean of the ranks, and ``of capped`` over what the mean would be if every
rank might own 1.05 K/P: at most 1.15, but between two ranks, of which one needs all that the other
has.  The limit is the time that the heaviest rank's bytes take on the link.  The error is that of
the mean against a float64 sum, over the largest element of the latter; it says nothing of
``powersgd`` and ``dgc``, which keep back what they do not send.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import netlab
import torch
import torch.distributed as dist
from baselines.bench import (
    RESULTS,
    Record,
    Settings,
    measure_here,
    measure_on,
    say,
    write_results,
)
from baselines.formulas import Point, formula, is_within
from baselines.measure import Sample, interleave, traffic_of
from baselines.methods import METHODS, PLANS, Switch, chosen_plan
from netlab import Traffic
from paired import Spread
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def rows_of(point: Point, rank: int) -> tuple[Tensor, Tensor]:
    """Numbers (int64, ascending) and values [k, row] of a rank's live rows; any rank knows all."""
    common = round(point.overlap * point.count(1))
    everyone = torch.Generator().manual_seed(1)
    order = torch.randperm(point.nrows, generator=everyone)
    own = torch.Generator().manual_seed(1000 + rank)
    rest = order[common:][torch.randperm(point.nrows - common, generator=own)]
    numbers = torch.cat([order[:common], rest])[: point.count(rank)].sort().values
    return numbers, torch.randn(numbers.numel(), point.row, generator=own)


# ------------------------------------------------------------------------------------------------
# On a rank
# ------------------------------------------------------------------------------------------------


class _Hand(torch.autograd.Function):
    """A gradient from outside, at no cost."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None


class Table(nn.Module):
    """One parameter, whose gradient is what the module is called with."""

    def __init__(self, nrows: int, row: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(nrows, row))

    def forward(self, gradient: Tensor) -> Tensor:
        return _Hand.apply(self.weight, gradient)


def measure_point(point: Point, plans: Sequence[str], turns: int) -> list[Record]:
    """A record for each plan; complete on rank 0."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers, values = rows_of(point, rank)
    gradient = torch.zeros(point.nrows, point.row)
    gradient[numbers] = values
    module = DistributedDataParallel(Table(point.nrows, point.row), gradient_as_bucket_view=True)
    table = module.module.weight
    switch = Switch(module, plans, [table])

    def step(plan: str) -> None:
        switch.turn_to(plan)
        table.grad = None
        module(gradient).backward()

    steps = {plan: partial(step, plan) for plan in plans}
    samples = interleave(steps, turns, warm_up=2)
    reference = reference_of(point, ranks) if rank == 0 else None
    union = shared(len(reference[0]) if reference else 0)
    records = []
    for plan in plans:
        traffic = traffic_of(steps[plan], os.environ["NETLAB_KIND"])
        chosen = chosen_plan(switch.method(plan).state) if plan in PLANS else plan
        records.append(
            {
                "ranks": ranks,
                "kind": os.environ["NETLAB_KIND"],
                "rate": os.environ["NETLAB_RATE"],
                **asdict(point),
                "plan": plan,
                "went_by": chosen,
                **times_of(samples[plan], samples["none"]),
                **bytes_of(traffic, chosen, point, ranks, union),
                "error": error_of(table.grad, reference) if reference and plan != "none" else None,
            }
        )
    return records


def times_of(samples: Sequence[Sample], floor: Sequence[Sample]) -> Record:
    pairs = zip(samples, floor, strict=True)
    return {
        "step_seconds": Spread.of([sample.seconds for sample in samples]).as_dict(),
        "floor_seconds": Spread.of([sample.seconds for sample in floor]).as_dict(),
        "communication_seconds": Spread.of([s.seconds - f.seconds for s, f in pairs]).as_dict(),
        "wire_seconds": Spread.of([sample.wire for sample in samples]).as_dict(),
    }


def bytes_of(traffic: Traffic, plan: str, point: Point, ranks: int, union: int) -> Record:
    """What was sent, what the formula says, and the time that the link needs for it."""
    total, heaviest, capped = formula(plan, point, ranks, union)
    within, limit = is_within(traffic.sent, total, ranks), None
    if traffic.heaviest is not None:
        within = within and is_within(traffic.heaviest, heaviest, ranks)
        if ranks >= 3 and plan == "owner":
            within = within and is_within(traffic.heaviest, capped / ranks, ranks, 1.15)
        limit = traffic.heaviest * 8 / netlab.bits_per_second(os.environ["NETLAB_RATE"])
    return {
        **asdict(traffic),
        "formula": total,
        "formula_heaviest": heaviest,
        "formula_capped": capped,
        "is_within": within,
        "limit_seconds": limit,
    }


def shared(number: int) -> int:
    """The number that rank 0 has."""
    tensor = torch.tensor([number])
    dist.broadcast(tensor, 0)
    return int(tensor)


def reference_of(point: Point, ranks: int) -> tuple[Tensor, Tensor]:
    """The union's rows and their means in float64."""
    parts = [rows_of(point, rank) for rank in range(ranks)]
    union = torch.cat([numbers for numbers, _ in parts]).unique()
    mean = torch.zeros(len(union), point.row, dtype=torch.float64)
    for numbers, values in parts:
        mean.index_add_(0, torch.searchsorted(union, numbers), values.double())
    return union, mean.div_(ranks)


def error_of(gradient: Tensor, reference: tuple[Tensor, Tensor]) -> float:
    """Largest difference over the largest element; infinite if a dead row is not zero."""
    union, mean = reference
    dead = torch.ones(len(gradient), dtype=torch.bool)
    dead[union] = False
    if gradient[dead].any():
        return float("inf")
    return float((gradient[union] - mean).abs().max() / mean.abs().max())


def measure(settings: Settings) -> list[Record]:
    records: list[Record] = []
    for values in settings["points"]:
        point = Point(**values)
        records += measure_point(point, settings["plans"], settings["turns"])
        say(str(point))
    return records


# ------------------------------------------------------------------------------------------------
# The run and its table
# ------------------------------------------------------------------------------------------------


def table_of(records: Sequence[Record]) -> str:
    """Markdown, a row for each plan at each point."""
    columns = (
        "ranks | row | density | overlap | skew | plan | communication, ms | wire, ms | "
        "MB, all ranks | MB, heaviest | of mean | of capped | x formula | heaviest x formula | "
        "ok | of limit | error"
    )
    lines = [f"| {columns} |", "|" + " ---: |" * (columns.count("|") + 1)]
    for r in records:
        if r["plan"] == "none":
            continue
        time, limit = r["communication_seconds"], r["limit_seconds"]
        plan = r["plan"] if r["plan"] == r["went_by"] else f"{r['plan']} ({r['went_by']})"
        cells = [
            str(r["ranks"]),
            str(r["row"]),
            f"{r['density']:.2%}",
            f"{r['overlap']:.0%}",
            f"{r['skew']:g}",
            plan,
            f"{time['median'] * 1e3:.1f} ({time['low'] * 1e3:.1f}-{time['high'] * 1e3:.1f})",
            f"{r['wire_seconds']['median'] * 1e3:.1f}",
            f"{r['sent'] / 1e6:.3f}",
            heaviest_over(r, 1e6, 3),
            heaviest_over(r, r["sent"] / r["ranks"], 2),
            heaviest_over(r, r["formula_capped"] / r["ranks"], 2),
            f"{r['sent'] / r['formula']:.3f}",
            heaviest_over(r, r["formula_heaviest"], 3),
            "yes" if r["is_within"] else "NO",
            "-" if limit is None or time["median"] <= 0 else f"{limit / time['median']:.0%}",
            f"{r['error']:.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def heaviest_over(record: Record, nbytes: float, digits: int) -> str:
    """What the heaviest rank has sent, where that could be measured, over so many bytes."""
    heaviest = record["heaviest"]
    return "-" if heaviest is None else f"{heaviest / nbytes:.{digits}f}"


def points_of(options: argparse.Namespace) -> list[Point]:
    points = [
        Point(options.megabytes, row, density, overlap)
        for row in options.rows
        for density in options.densities
        for overlap in options.overlaps
    ]
    if options.skew > 1:
        density = min(0.002, 0.5 / options.skew)
        points += [
            Point(options.megabytes, row, density, 0.0, options.skew) for row in options.rows
        ]
    return points


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small defaults, to see it work")
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--rate", type=netlab.rate_argument, default="1gbit")
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--rows", type=int, nargs="+", help="floats of a row")
    parser.add_argument("--densities", type=float, nargs="+")
    parser.add_argument("--overlaps", type=float, nargs="+", default=[0.0])
    parser.add_argument("--skew", type=float, default=50.0, help="1 leaves these points out")
    parser.add_argument("--plans", nargs="+", choices=METHODS)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS / "allreduce", help="without suffix")
    parser.add_argument("--order", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    quick, full = (
        {"ranks": [2, 4], "megabytes": 4.0, "rows": [64], "densities": [0.01, 0.1], "turns": 3},
        {
            "ranks": [2, 3, 4, 8],
            "megabytes": 100.0,
            "rows": [8, 64, 512],
            "densities": [0.001, 0.01, 0.1, 0.5],
            "turns": 5,
        },
    )
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.turns < 2:
        parser.error("argument --turns: a spread takes at least 2")
    plans = options.plans or ["dense", *PLANS]
    options.plans = ["none", *(plan for plan in plans if plan != "none")]
    return options


def main() -> None:
    options = parse_arguments()
    if options.order is not None:
        measure_here(options.order, measure)
    settings = {
        "points": [asdict(point) for point in points_of(options)],
        "plans": options.plans,
        "turns": options.turns,
    }
    records: list[Record] = []
    for ranks in options.ranks:
        records += measure_on(__file__, ranks, options.rate, settings)
    write_results(options.out, "The exchange alone", records, table_of)


if __name__ == "__main__":
    main()
