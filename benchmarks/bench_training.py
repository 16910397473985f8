# SPDX-License-Identifier: MIT
"""Training steps: every method beside dense DDP, in turn, on the hosts of ``netlab``.

    python benchmarks/bench_training.py            # all models at 4 hosts; about half an hour
    python benchmarks/bench_training.py --quick    # small models, to see it work; two minutes

Models: ``language-50k`` and ``language-200k`` (LSTM of 512 with a table of so many words, 700 words
a rank), ``recommendation`` (26 tables of 64 floats, 1 M rows in all, 2048 samples a rank) and
``resnet18`` (nothing sparse).

Methods: ``ddp`` is DistributedDataParallel without a hook, ``none`` a hook that sends nothing, and
``dense``, ``bf16``, ``coo``, ``zen`` are those of ``baselines``, which has more of them; ``auto``,
``owner``, ``gather``, ``union`` are s2reducer's plans.  With the prefix ``sparse:`` the tables have
COO gradients, and ``sparse:ddp`` is gloo's own sparse AllReduce.

All hooks of a model share its parameters and buckets and take their turns step by step; a model
without a hook, and one with COO gradients, is a copy.  A step is a batch's forward and backward
pass and the optimizer's step (SGD), and its time is that of the slowest rank.  Communication is a
step less the step of ``none`` (or ``sparse:none``) in the same turn, and wire the time in which at
least one collective was under way, on the rank where that is shortest (the hooks' only).  ``dense
over it`` and ``bf16 over it`` are the median communication of those over a method's own.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import models
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
from baselines.measure import Sample, interleave, traffic_of
from baselines.methods import BY_ROWS, METHODS, PLANS, Method, Switch, chosen_plan, make_method
from paired import Spread
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

SPARSE = "sparse:"
# With nothing sparse in a model, the others would be dense AllReduce once more.
FOR_DENSE_MODELS = ("ddp", "none", "dense", "auto", "bf16", "fp16", "omnireduce", "powersgd", "dgc")

WARM_UP = 3  # turns that are not timed
METERED_STEPS = 2  # in which bytes are read from the interfaces

MakeTask = Callable[[bool], models.Task]
Make = Callable[[str, list[Tensor]], Method]

TASKS: dict[str, MakeTask] = {
    "language-50k": lambda sparse: models.language_model(50_000, sparse=sparse),
    "language-200k": lambda sparse: models.language_model(200_000, sparse=sparse),
    "recommendation": lambda sparse: models.recommendation_model(sparse=sparse),
    "resnet18": lambda sparse: models.resnet18(),
    "language-quick": lambda sparse: models.language_model(5_000, 128, sparse=sparse),
    "recommendation-quick": lambda sparse: models.recommendation_model(50_000, sparse=sparse),
    "resnet18-quick": lambda sparse: models.resnet18(images=2, size=16),
}
ALL = ("language-50k", "language-200k", "recommendation", "resnet18")
QUICK = ("language-quick", "recommendation-quick", "resnet18-quick")
ALL_METHODS = (
    *("ddp", *METHODS),
    *(SPARSE + name for name in ("ddp", "none", *BY_ROWS, *PLANS)),
)
DEFAULT_METHODS = (
    *("ddp", "none", "dense", "bf16", "coo", "zen", *PLANS),
    *(SPARSE + name for name in ("ddp", "none", "coo", "zen", *PLANS)),
)


# ------------------------------------------------------------------------------------------------
# On a rank
# ------------------------------------------------------------------------------------------------


class Trainer:
    """A copy of a task in a DDP module, and the steps of its methods."""

    def __init__(self, task: models.Task, hooks: Sequence[str], make: Make) -> None:
        self._task = task
        self._module = DistributedDataParallel(task.module, gradient_as_bucket_view=True)
        self._optimizer = torch.optim.SGD(task.module.parameters(), lr=0.01)
        self._switch = Switch(self._module, hooks, task.tables, make) if hooks else None
        self._steps = 0

    def step_of(self, hook: str | None) -> Callable[[], None]:
        def step() -> None:
            if self._switch is not None and hook is not None:
                self._switch.turn_to(hook)
            batch = self._task.batch(dist.get_rank(), self._steps)
            self._steps += 1
            self._optimizer.zero_grad()
            self._module(*batch).backward()
            self._optimizer.step()

        return step

    def plan_of(self, hook: str) -> str:
        assert self._switch is not None
        return chosen_plan(self._switch.method(hook).state)

    def nbytes(self, hook: str | None) -> int:
        """That this rank has sent by a hook so far; 0 for what is not counted."""
        if self._switch is None or hook in (None, "none"):
            return 0
        return self._switch.method(hook).nbytes


def trainers_of(
    make_task: MakeTask, methods: Sequence[str], make: Make
) -> dict[str, tuple[Trainer, str | None]]:
    """For each method the copy of the model that it trains, and its hook."""
    made: dict[str, tuple[Trainer, str | None]] = {}
    for sparse in (False, True):
        own = [m for m in methods if m.startswith(SPARSE) == sparse]
        if not own:
            continue
        hooks = [m.removeprefix(SPARSE) for m in own if m.removeprefix(SPARSE) != "ddp"]
        if len(hooks) < len(own):
            alone = Trainer(make_task(sparse), [], make)
            made.update({m: (alone, None) for m in own if m.removeprefix(SPARSE) == "ddp"})
        if hooks:
            shared = Trainer(make_task(sparse), hooks, make)
            for method in own:
                hook = method.removeprefix(SPARSE)
                if hook != "ddp":
                    made[method] = (shared, hook)
    return made


def measure_task(
    name: str,
    make_task: MakeTask,
    methods: Sequence[str],
    turns: int,
    learn: int,
    make: Make = make_method,
) -> list[Record]:
    """A record for each method, the same on all ranks.

    Args:
        name: of the model.
        make_task: makes the model and its batches, with COO gradients or without.
        methods: with ``ddp`` and ``none``.
        turns: in each of which every method takes a step that is timed.
        learn: steps of ``auto`` before.
        make: makes a method from its name and the tables.

    ``counted`` is what a rank's method says that it sends in a step, the mean over ranks.
    """
    kind = os.environ["NETLAB_KIND"]
    trainers = trainers_of(make_task, methods, make)
    steps = {method: trainer.step_of(hook) for method, (trainer, hook) in trainers.items()}
    for method, step in steps.items():
        for _ in range(learn if method.endswith("auto") else 0):
            step()
    before = {method: trainer.nbytes(hook) for method, (trainer, hook) in trainers.items()}
    samples = interleave(steps, turns, WARM_UP)
    counted_steps = WARM_UP + turns + METERED_STEPS
    records = []
    for method, step in steps.items():
        trainer, hook = trainers[method]
        traffic = traffic_of(step, kind, METERED_STEPS)
        counted = torch.tensor(trainer.nbytes(hook) - before[method], dtype=torch.float64)
        dist.all_reduce(counted)
        records.append(
            {
                "model": name,
                "ranks": dist.get_world_size(),
                "kind": kind,
                "rate": os.environ["NETLAB_RATE"],
                "method": method,
                "went_by": trainer.plan_of(hook) if hook in PLANS else None,
                **compared(method, samples),
                **asdict(traffic),
                "counted": float(counted) / counted_steps / dist.get_world_size(),
            }
        )
    return records


def compared(method: str, samples: dict[str, list[Sample]]) -> Record:
    """A method's times, and how they compare with others' in the same turns."""
    own = [sample.seconds for sample in samples[method]]
    floor = samples[(SPARSE if method.startswith(SPARSE) else "") + "none"]
    result = {
        "step_seconds": Spread.of(own).as_dict(),
        "communication_seconds": Spread.of(
            [step - none.seconds for step, none in zip(own, floor, strict=True)]
        ).as_dict(),
        "wire_seconds": Spread.of([sample.wire for sample in samples[method]]).as_dict(),
    }
    for name, key in (("ddp", "of_ddp"), (f"{SPARSE}ddp", "of_sparse_ddp")):
        if name in samples:
            ratios = [a / b.seconds for a, b in zip(own, samples[name], strict=True)]
            result[key] = Spread.of(ratios).as_dict()
    return result


def measure(settings: Settings) -> list[Record]:
    records: list[Record] = []
    for name in settings["models"]:
        methods = settings["methods"]
        if name.startswith("resnet"):
            methods = [method for method in methods if method in FOR_DENSE_MODELS]
        records += measure_task(name, TASKS[name], methods, settings["turns"], settings["learn"])
        say(name)
    return records


# ------------------------------------------------------------------------------------------------
# The run and its table
# ------------------------------------------------------------------------------------------------


def _milliseconds(spread: dict[str, float]) -> str:
    low, median, high = (spread[name] * 1e3 for name in ("low", "median", "high"))
    return f"{median:.1f} ({low:.1f}-{high:.1f})"


def _ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    return f"{spread['median']:.3f} ({spread['low']:.3f}-{spread['high']:.3f})"


def _over(yardstick: Record | None, record: Record) -> str:
    """Median communication of one over that of another, which noise may have made nothing."""
    own = record["communication_seconds"]["median"]
    if yardstick is None or own <= 0:
        return "-"
    return f"{yardstick['communication_seconds']['median'] / own:.2f}"


def table_of(records: Sequence[Record]) -> str:
    """Markdown, a row for each method."""
    columns = (
        "model | ranks | rate | method | step, ms | of ddp | of sparse:ddp | communication, ms | "
        "dense over it | bf16 over it | wire, ms | MB, all ranks | MB, heaviest"
    )
    lines = [f"| {columns} |", "|" + " ---: |" * (columns.count("|") + 1)]
    found = {(r["model"], r["ranks"], r["rate"], r["method"]): r for r in records}
    for r in records:
        where = (r["model"], r["ranks"], r["rate"])
        went_by = f" ({r['went_by']})" if r["went_by"] not in (None, r["method"]) else ""
        has_hook = not r["method"].endswith("ddp")
        cells = [
            r["model"],
            str(r["ranks"]),
            r["rate"] or "loopback",
            r["method"] + went_by,
            _milliseconds(r["step_seconds"]),
            _ratio(r["of_ddp"]),
            _ratio(r.get("of_sparse_ddp")),
            _milliseconds(r["communication_seconds"]),
            _over(found.get((*where, "dense"), found[(*where, "ddp")]), r),
            _over(found.get((*where, "bf16")), r),
            _milliseconds(r["wire_seconds"]) if has_hook else "-",
            f"{r['sent'] / 1e6:.2f}",
            "-" if r["heaviest"] is None else f"{r['heaviest'] / 1e6:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small models, to see it work")
    parser.add_argument("--models", nargs="+", choices=TASKS)
    parser.add_argument("--methods", nargs="+", choices=ALL_METHODS, default=list(DEFAULT_METHODS))
    parser.add_argument("--ranks", type=int, nargs="+")
    parser.add_argument("--rates", type=netlab.rate_argument, nargs="+", default=["1gbit"])
    parser.add_argument("--turns", type=int)
    parser.add_argument(
        "--learn", type=int, default=66, help="steps of `auto` before; it learns its costs in 64"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "training", help="without suffix")
    parser.add_argument("--order", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.models = options.models or list(QUICK if options.quick else ALL)
    options.ranks = options.ranks or ([2] if options.quick else [4])
    options.turns = options.turns or (3 if options.quick else 15)
    if options.turns < 2:
        parser.error("argument --turns: a spread takes at least 2")
    # What the others are compared with.
    needed = ["ddp", "none"]
    if any(method.startswith(SPARSE) for method in options.methods):
        needed.append(f"{SPARSE}none")
    options.methods = list(dict.fromkeys([*needed, *options.methods]))
    return options


def main() -> None:
    options = parse_arguments()
    if options.order is not None:
        measure_here(options.order, measure)
    names = ("models", "methods", "turns", "learn")
    settings = {name: getattr(options, name) for name in names}
    records: list[Record] = []
    for rate in options.rates:
        for ranks in options.ranks:
            records += measure_on(__file__, ranks, rate, settings)
    write_results(options.out, "Training", records, table_of)


if __name__ == "__main__":
    main()
