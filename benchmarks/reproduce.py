# SPDX-License-Identifier: MIT
"""The paper's experiments: accuracy, bytes and step times of every method, in one table.

    python benchmarks/reproduce.py --quick    # two models, five methods, one seed; some minutes
    python benchmarks/reproduce.py            # the same with three seeds; half an hour
    python benchmarks/reproduce.py --full     # five models and all methods that apply; hours
    python benchmarks/reproduce.py --full --out benchmarks/results/reproduce

The models are those of ``examples``, trained there on two real ranks by the scripts' own ``main``
(in the place of their hook is the method's), and then for some steps on four hosts with links of
1 Gbit/s, as in ``bench_training.py``.  What the columns mean is said by the page itself.

Every finished training is a file in FOLDER, so that a run that was interrupted goes on where it was
when the same command is given again, and a table of another choice needs only what is new.  The
scripts' output is beside it.  Written at the end: OUT.json, OUT.md, OUT-losses.png, OUT-bytes.png,
and OUT-logs.txt with all output; ``--page README.md`` also puts the summary into that page, between
its marks.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netlab
import pages
import torch
from baselines.bench import measure_here, measure_on
from paired import machine, write_json
from reproducing import accuracy, page, plots, shaped, summary
from reproducing.resuming import Kept
from reproducing.rows import Row, has_diverged, rows_of
from reproducing.settings import (
    HOSTS,
    METHODS,
    MODELS,
    PROFILES,
    RANKS,
    RATE,
    TEXT,
    Profile,
    applies,
)
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from s2reducer.cli.corpus import CorpusError

Record = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    for name in ("quick", "full", "smoke"):
        size.add_argument(f"--{name}", dest="profile", action="store_const", const=name)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="others than its own")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="the same; always with dense")
    parser.add_argument("--seeds", type=int, help="trainings of each, from 0 on")
    parser.add_argument("--text", type=Path, nargs="+", metavar="FILE", help="not dict-gcide")
    parser.add_argument("--no-links", action="store_true", help="no steps on hosts with links")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build/reproduce", help="default: build/reproduce"
    )
    parser.add_argument("--out", type=Path, help="without suffix; default: FOLDER/reproduce")
    parser.add_argument("--page", type=Path, help="a page whose summary is renewed, as README.md")
    parser.add_argument("--budget", action="store_true", help="says how long it would take")
    parser.add_argument("--order", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.profile = chosen(PROFILES[options.profile or "default"], options)
    options.out = options.out or options.folder / "reproduce"
    options.text = [str(path.resolve()) for path in options.text or ()]
    if not options.profile.models:
        parser.error("arguments --models and --methods: of these, nothing would be trained")
    if options.profile.seeds < 1:
        parser.error(f"argument --seeds: {options.profile.seeds} is less than 1")
    return options


def chosen(profile: Profile, options: argparse.Namespace) -> Profile:
    """The profile with what the command line says instead."""
    models = {}
    for model in options.models or profile.models:
        methods = profile.models.get(model, PROFILES["full"].models[model])
        if options.methods:
            methods = [m for m in options.methods if applies(m, model) and m != "dense"]
            methods = ["dense", *methods] if methods or options.methods == ["dense"] else []
        if methods:
            models[model] = methods
    seeds = profile.seeds if options.seeds is None else options.seeds
    turns = 0 if options.no_links else profile.turns
    return dataclasses.replace(profile, models=models, seeds=seeds, turns=turns)


# ------------------------------------------------------------------------------------------------
# Jobs
# ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Job:
    """A training, or a model's steps on the links.

    Attributes:
        name: of its file.
        order: what its ranks need to know, and all that its result depends on.
        ranks, rate: of its network.
        seconds: that it should take.
    """

    name: str
    order: Record
    ranks: int
    rate: str
    seconds: float

    @property
    def kind(self) -> str:
        return str(self.order["kind"])


def trainings(profile: Profile, text: list[str]) -> Iterator[Job]:
    """Seed by seed, so that what an interrupted run has done makes a table with fewer seeds."""
    for seed in range(profile.seeds):
        for model, methods in profile.models.items():
            known, sizes = MODELS[model], profile.sizes_of(model)
            steps = profile.steps_of(model)
            flags = [f"--{name}={size}" for name, size in sizes.items()]
            flags += ["--text", *text] if text and known.data == TEXT else []
            seconds = known.start_seconds + steps * known.step_seconds
            for method in methods:
                order = accuracy.order_of(model, flags, steps, method, seed)
                order = {"kind": "training", **order}
                yield Job(f"{model}-{method}-{seed}", order, RANKS, "loopback", seconds)


def timings(profile: Profile, text: list[str], rate: str) -> Iterator[Job]:
    for model, methods in profile.models.items():
        turns = profile.turns + shaped.UNTIMED_TURNS
        steps = shaped.LEARN + turns * (len(methods) + len(shaped.YARDSTICKS))
        steady = {name: dict(METHODS[name].steady) for name in methods if METHODS[name].steady}
        order = {
            "kind": "timing",
            "model": model,
            "sizes": profile.sizes_of(model),
            "methods": [method for method in methods if method != "dense"],
            "steady": steady,
            "turns": profile.turns,
            "text": text,
        }
        # All hosts compute on the same cores.
        seconds = 15 + steps * MODELS[model].step_seconds * HOSTS / 2
        yield Job(f"{model}-{rate}", order, HOSTS, rate, seconds)


def do(job: Job, kept: Kept) -> list[Record]:
    """Its records, from its ranks or from the folder."""
    settings = {**job.order, "log": str(kept.log(job.name))}
    return kept.get_or_do(
        job.name, job.order, lambda: measure_on(__file__, job.ranks, job.rate, settings)
    )


def measure(settings: Record) -> list[Record]:
    """A rank's part of a job."""
    try:
        if settings["kind"] == "timing":
            return shaped.measure(settings)
        order = {name: value for name, value in settings.items() if name != "log"}
        return [accuracy.train(order, settings["log"])]
    except CorpusError as error:
        sys.exit(f"{error}")


# ------------------------------------------------------------------------------------------------
# The run
# ------------------------------------------------------------------------------------------------


def run(jobs: list[Job], kept: Kept, console: Console) -> tuple[list[Record], list[Record]]:
    """Records of trainings and of timings."""
    found: dict[str, list[Record]] = {"training": [], "timing": []}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("", total=sum(job.seconds for job in jobs))
        for number, job in enumerate(jobs, 1):
            progress.update(bar, description=job.name)
            began = time.monotonic()
            is_new = kept.get(job.name, job.order) is None
            records = do(job, kept)
            found[job.kind] += records
            progress.advance(bar, job.seconds)
            took = f"{time.monotonic() - began:.0f} s" if is_new else "kept"
            what = _outcome(records[0]) if job.kind == "training" else "steps on links"
            console.print(
                f"{number} of {len(jobs)}  {job.name}: {what}  ({took})",
                highlight=False,
                soft_wrap=True,
            )
    return found["training"], found["timing"]


def _outcome(record: Record) -> str:
    if has_diverged(record):
        return "diverged"
    return f"{record['metric']} {record['value']:.4g}"


def say_budget(jobs: list[Job], kept: Kept, console: Console) -> None:
    left = [job for job in jobs if kept.get(job.name, job.order) is None]
    minutes = sum(job.seconds for job in left) / 60
    console.print(
        f"{len(jobs)} jobs, {len(jobs) - len(left)} of them done before; the others should take "
        f"{minutes:.0f} minutes on two cores that do nothing else.",
        highlight=False,
        soft_wrap=True,
    )


def main() -> None:
    options = parse_arguments()
    if options.order is not None:
        measure_here(options.order, measure)
    began, console, profile = time.monotonic(), Console(), options.profile
    missing = accuracy.missing_data(profile.models, options.text)
    if missing:
        sys.exit(f"These packages of Debian's have what is trained on: apt install {missing}")
    why_no_times = (
        "they were not asked for." if not profile.turns else _sentence(netlab.why_no_lab())
    )
    jobs = []
    if profile.turns:
        # First, while the machine is as quiet as when the command was given.
        rate = "loopback" if why_no_times else RATE
        jobs += timings(profile, options.text, rate)
    jobs += trainings(profile, options.text)
    kept = Kept(options.folder)
    say_budget(jobs, kept, console)
    if options.budget:
        return
    try:
        trained, timed = run(jobs, kept, console)
    except netlab.RankError as error:
        sys.exit(f"{error}; what has finished is kept in {options.folder}, for the same command.")
    rows = rows_of(trained, timed)
    tables = summary.tables_of(rows)
    write(options.out, rows, trained, timed, why_no_times, tables["verdict"])
    logs = options.out.with_name(f"{options.out.name}-logs.txt")
    logs.write_text(kept.logs(job.name for job in jobs))
    if options.page:
        pages.renew(options.page, tables)
    console.print(f"{(time.monotonic() - began) / 60:.1f} minutes", highlight=False, soft_wrap=True)


def _sentence(reason: str | None) -> str | None:
    return None if reason is None else f"{reason}. Bytes on 4 hosts were counted over loopback."


def write(
    out: Path,
    rows: list[Row],
    trained: list[Record],
    timed: list[Record],
    why_no_times: str | None,
    verdict: str,
) -> None:
    """All four files; the table is printed as well."""
    command = f"python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
    where = f"{machine()}; torch {torch.__version__}, one thread a rank"
    write_json(
        out.with_suffix(".json"),
        {
            "command": command,
            "machine": where,
            "rows": [dataclasses.asdict(row) for row in rows],
            "trainings": [{**one, "losses": _in_six_digits(one["losses"])} for one in trained],
            "timings": timed,
        },
    )
    text = page.page_of(rows, command, where, why_no_times, verdict)
    out.with_suffix(".md").write_text(text)
    print(text)
    for path in plots.write(out, trained, rows):
        print(path)


def _in_six_digits(losses: list[float | None]) -> list[float | None]:
    """As the files in FOLDER have them all: in the table of a whole run they are most of it."""
    return [None if loss is None else float(f"{loss:.6g}") for loss in losses]


if __name__ == "__main__":
    main()
