# SPDX-License-Identifier: MIT
"""What the sketch gives back, how exactly, and how fast.

    python benchmarks/bench_sketch.py --page docs/sketch.md

Writes the tables to OUT.md, all figures to OUT.json and pictures to OUT-*.png; `--page` also puts
the tables into a page, between its marks `<!-- NAME -->` and `<!-- end -->`.

    peeling    share of seeds with which three rows give back all blocks, with 1.25 or 1.3 cells a
               block (`all decoded`), and the number of the others (`not`).  `pairs` is how many
               pairs of blocks that share all three cells are expected in all seeds of the row:
               K (K-1) / (2 width^3) of them in each.  `stuck` says how many blocks were stuck, and
               with how many seeds.  `rounds` of peeling are the median, and the `most`.
    plan       the same for tables as large as `plan="sketch"` makes them by default.
    errors     of peeled Gaussian blocks, a quarter of whose elements are zero: of all together
               (`normwise`), and of each relative to its own norm: quantiles, and the share of
               blocks whose error is above a thousandth.  `repaired` is the share of blocks that the
               plan sums again because their bound is too large, and `most after repair` the largest
               error that is left.
    zeros      of those blocks as the plan gives them: the share of zeros that come out as something
               else (`not zero`), although the plan sets to zero what lies within its error of it,
               and the share of other elements that it sets to zero.  `Adam` is how far its first
               step would move a zero in the mean, in learning rates.  `of bound` is the largest
               error in a block over its bound, for blocks that shared a cell.
    estimates  error of Gaussian values, relative to their norm.  Tables with more rows have
               narrower ones, so that their cells are as many.
    bias       one row: the part of the error along the values, its standard error over fresh seeds,
               and the variance.
    feedback   norm of what is owed over that of a gradient, after the last step; theory is the
               limit.
    insert     GB/s of rows x blocks x block floats on one thread, and of a memcpy of as many bytes.
    peel       milliseconds of inserting 100,000 blocks and of peeling them, on one thread.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pages import renew
from paired import machine, write_json
from sketching import decoding, errors, estimates, plots, speed
from torch import Tensor

from s2reducer import _C

RESULTS = Path(__file__).resolve().parent / "results"
Record = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, to see that the script works")
    parser.add_argument("--turns", type=int, default=15, help="turns that are timed for each line")
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS / "sketch",
        help="of the files, without suffix (default: %(default)s)",
    )
    parser.add_argument("--page", type=Path, help="a page in which the tables are renewed")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error(f"argument --turns: {arguments.turns} is less than 2")
    return arguments


# ------------------------------------------------------------------------------------------------
# Tables
# ------------------------------------------------------------------------------------------------

Format = Callable[[Any], str]


def fixed(digits: int) -> Format:
    return lambda value: f"{value:,.{digits}f}"


def scientific(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def percent(value: float) -> str:
    return f"{value:.2%}" if 0 < value < 1 else f"{value:.0%}"


def spread(value: dict[str, float]) -> str:
    return "{median:.2f} ({low:.2f}-{high:.2f})".format(**value)


def histogram(value: dict[int, int]) -> str:
    """Pairs and small groups one by one, all larger ones together."""
    parts = [f"{stuck}: {count} x" for stuck, count in value.items() if stuck < 10]
    large = [stuck for stuck in value if stuck >= 10]
    if large:
        count = sum(value[stuck] for stuck in large)
        parts.append(f"{min(large)} to {max(large)}: {count} x")
    return ", ".join(parts) or "-"


PEELING: dict[str, tuple[str, Format]] = {
    "blocks": ("blocks", fixed(0)),
    "cells a block": ("cells_per_block", fixed(2)),
    "seeds": ("seeds", fixed(0)),
    "all decoded": ("whole", percent),
    "not": ("not_whole", fixed(0)),
    "pairs": ("pairs", fixed(1)),
    "stuck": ("stuck", histogram),
    "rounds": ("rounds", fixed(0)),
    "most": ("most_rounds", fixed(0)),
}
CASE: dict[str, tuple[str, Format]] = {"sizes": ("sizes", str), "ranks": ("ranks", fixed(0))}
COLUMNS: dict[str, dict[str, tuple[str, Format]]] = {
    "peeling": PEELING,
    "plan": PEELING,
    "errors": CASE
    | {
        "normwise": ("normwise", scientific),
        "median": ("median", scientific),
        "99 %": ("p99", scientific),
        "most": ("most", scientific),
        "over 1e-3": ("off_by_a_thousandth", percent),
        "repaired": ("repaired", percent),
        "most after repair": ("most_after_repair", scientific),
    },
    "zeros": CASE
    | {
        "not zero": ("zeros_not_zero", percent),
        "Adam": ("adam_moves_zeros_by", fixed(4)),
        "set to zero": ("set_to_zero", scientific),
        "of bound, median": ("median_of_bound", fixed(3)),
        "of bound, most": ("most_of_bound", fixed(3)),
    },
    "estimates": {
        "rows": ("rows", str),
        "cells a block": ("cells_per_block", "{:g}".format),
        "error": ("error", fixed(3)),
        "sqrt(K / c)": ("theory", fixed(3)),
        "error over it": ("of_theory", fixed(3)),
    },
    "bias": {
        "cells a block": ("cells_per_block", "{:g}".format),
        "seeds": ("seeds", fixed(0)),
        "bias": ("bias", fixed(5)),
        "standard error": ("standard_error", fixed(5)),
        "bias over it": ("in_standard_errors", fixed(2)),
        "variance": ("variance", fixed(3)),
        "K / c": ("theory", fixed(3)),
    },
    "feedback": {
        "cells a block": ("cells_per_block", "{:g}".format),
        "damped": ("damped", lambda value: "yes" if value else "no"),
        "steps": ("steps", fixed(0)),
        "owed": ("owed", "{:.3g}".format),
        "theory": ("theory", "{:.3g}".format),
    },
    "insert": {
        "block": ("block", fixed(0)),
        "blocks": ("blocks", fixed(0)),
        "insert, GB/s": ("insert", fixed(1)),
        "memcpy, GB/s": ("memcpy", fixed(1)),
        "of memcpy": ("of_memcpy", spread),
    },
    "peel": {
        "block": ("block", fixed(0)),
        "blocks": ("blocks", fixed(0)),
        "insert, ms": ("insert_ms", fixed(0)),
        "peel, ms": ("peel_ms", fixed(0)),
        "peel over insert": ("peel_over_insert", spread),
    },
}


def table_of(name: str, records: Sequence[Record]) -> str:
    columns = COLUMNS[name]
    lines = [list(columns), ["---:"] * len(columns)]
    for record in records:
        lines.append([form(record[key]) for key, form in columns.values()])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ------------------------------------------------------------------------------------------------
# Figures
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """The tables' records, those of the picture of peeling, and blocks' errors by case."""

    tables: dict[str, list[Record]]
    curve: list[Record]
    block_errors: dict[str, dict[str, Tensor]]


def measure(quick: bool, turns: int) -> Figures:
    tables: dict[str, list[Record]] = {}
    block_errors: dict[str, dict[str, Tensor]] = {}

    def add(name: str, records: list[Record]) -> None:
        print(f"\n{name}\n\n{table_of(name, records)}", flush=True)
        tables[name] = records

    add("peeling", [case.measure() for case in decoding.cases(quick)])
    add("plan", [case.measure() for case in decoding.plan_cases(quick)])
    curve = [case.measure() for case in decoding.curve_cases(quick)]

    found = []
    for case in errors.cases(quick):
        figures, blocks = case.measure()
        found.append(figures)
        if case.nranks == max(one.nranks for one in errors.cases(quick)):
            block_errors[f"{case.sizes}, {case.nranks} ranks"] = blocks
    add("errors", found)
    add("zeros", found)
    add("estimates", estimates.errors(quick))
    add("bias", estimates.biases(quick))
    feedback = []
    for one in estimates.feedback_cases(quick):
        norms = one.measure()
        feedback.append(
            {
                "cells_per_block": one.cells,
                "damped": one.damped,
                "steps": one.steps,
                "owed": norms[-1],
                "theory": one.limit,
                "norms": norms,
            }
        )
    add("feedback", feedback)
    add("insert", speed.insertions(quick, turns))
    add("peel", speed.peelings(quick, turns))
    return Figures(tables, curve, block_errors)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    start = time.monotonic()
    where = (
        f"{machine()}; one thread, variant {_C.cpu_variant_current()}, torch {torch.__version__}"
    )
    print(where)
    figures = measure(arguments.quick, arguments.turns)

    out = arguments.out
    command = f"python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
    curve = {"curve": figures.curve}
    write_json(
        out.with_suffix(".json"), {"command": command, "machine": where, **figures.tables, **curve}
    )
    tables = {name: table_of(name, records) for name, records in figures.tables.items()}
    text = "".join(f"\n## {name}\n\n{table}\n" for name, table in tables.items())
    header = f"`{command}` on {where}.\nWhat the columns mean is said by `--help`.\n"
    out.with_suffix(".md").write_text(f"# The sketch\n\n{header}{text}")
    plots.write(
        out.parent,
        out.name,
        figures.curve,
        figures.block_errors,
        figures.tables["estimates"],
        figures.tables["feedback"],
    )
    if arguments.page:
        renew(arguments.page, tables)
    print(f"\n{time.monotonic() - start:.0f} seconds")


if __name__ == "__main__":
    main()
