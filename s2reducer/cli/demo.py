# SPDX-License-Identifier: MIT
"""``python -m s2reducer demo``: the same training with plain DDP and with s2reducer, compared.

Everything that can be wrong with the request is found before a process starts: those errors end
with exit code 2. A rank that fails ends the demo with 1, Ctrl-C with 130.
"""

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from s2reducer.cli import corpus
from s2reducer.cli.processes import Event, RankError, run_ranks
from s2reducer.cli.results import Compute, summarise
from s2reducer.cli.training import PLAIN, REDUCED, Settings
from s2reducer.config import PLANS

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = (
    "Trains a word-level language model (embedding, LSTM, sampled softmax) on local processes, "
    "first with plain DDP, then with s2reducer, from the same start and on the same batches. Shows "
    "losses, bytes, gradient densities and step times of both, and draws the curves."
)
DEFAULT_VOCABULARY = 10_000
DEFAULT_TEXT_VOCABULARY = 20_000
# Not auto: over loopback an AllReduce of everything is soon done, so auto would take that, and
# nothing would be seen of what another network is spared.
DEFAULT_PLAN = "owner"
# What the figures need beyond torch, as the names to import and to install.
_REQUIRED = ("matplotlib", "rich")


class RequestError(Exception):
    """What was asked for cannot be done; the message is one sentence for the user."""


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} is not in the range {least} to {most}")
        return value

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def number(name: str, default: int | None, least: int, most: int, text: str) -> None:
        parser.add_argument(
            name, type=_integer(least, most), default=default, metavar="N", help=text
        )

    number("--ranks", 2, 2, 64, "local processes (default: %(default)s)")
    number("--steps", 500, 10, 1_000_000, "steps of each run (default: %(default)s)")
    number(
        "--vocabulary",
        None,
        corpus.LEAST_VOCABULARY,
        10_000_000,
        f"words the model knows (default: {DEFAULT_VOCABULARY}, with --text "
        f"{DEFAULT_TEXT_VOCABULARY})",
    )
    number("--width", 128, 8, 8192, "numbers a word is embedded in (default: %(default)s)")
    number("--batch", 16, 1, 4096, "windows of text per rank and step (default: %(default)s)")
    number("--length", 32, 2, 1024, "words of a window (default: %(default)s)")
    number("--negatives", 512, 1, 65536, "sampled words per rank and step (default: %(default)s)")
    number("--seed", 0, 0, 2**31 - 1, "of the start and the batches (default: %(default)s)")
    parser.add_argument(
        "--text", type=Path, nargs="+", metavar="FILE", help="your own UTF-8 text files to train on"
    )
    parser.add_argument(
        "--plan",
        choices=PLANS,
        default=DEFAULT_PLAN,
        help="how s2reducer sends a bucket (default: %(default)s; auto takes what is faster here, "
        "where the network is this machine's memory)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("s2reducer-demo.png"),
        metavar="PNG",
        help="the picture to write (default: %(default)s)",
    )


def main(options: argparse.Namespace) -> int:
    # Also when the shell started the demo in the background, which sets SIGINT to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _ending_by_exception(signal.SIGTERM, signal.SIGHUP):
            _check(options)
            return _run(options)
    except (RequestError, corpus.CorpusError) as error:
        return _fail(str(error), 2)
    except RankError as error:
        return _fail(f"{error}; no process is left", 1)
    except KeyboardInterrupt:
        return _fail("interrupted; no process is left", 130)


def _fail(sentence: str, code: int) -> int:
    print(f"demo: {sentence}", file=sys.stderr)
    return code


@contextmanager
def _ending_by_exception(*signals: signal.Signals) -> Iterator[None]:
    """So that processes and the temporary folder are cleared away, as on Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(options: argparse.Namespace) -> None:
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(
            f"the demo needs {' and '.join(missing)}: python -m pip install {' '.join(missing)}"
        )
    output: Path = options.output
    if output.is_dir():
        raise RequestError(f"--output {output} is a directory: give the name of a PNG file")
    if not output.parent.is_dir():
        raise RequestError(f"--output {output}: the directory {output.parent} does not exist")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise RequestError(f"--output {output} cannot be written: permission denied")


@dataclass(frozen=True)
class _Words:
    vocabulary: int
    train: "array[int]"
    held_out: "array[int]"
    description: str


def _read_words(options: argparse.Namespace) -> _Words:
    text = corpus.read_files(options.text) if options.text else corpus.read_default()
    default = DEFAULT_TEXT_VOCABULARY if options.text else DEFAULT_VOCABULARY
    vocabulary = corpus.Vocabulary.from_words(
        corpus.iterate_words(text), options.vocabulary or default
    )
    ids = vocabulary.encode(corpus.iterate_words(text))
    # A window is one word longer than its inputs; one place more gives the random start a choice.
    train, held_out = corpus.split_held_out(ids, options.length + 2)
    known = 1 - ids.count(0) / len(ids)
    description = (
        f"text: {text.source}; {text.nbytes / 1e6:.2f} MB, {len(ids):,} words, of which the "
        f"vocabulary of {len(vocabulary):,} covers {known:.1%}"
    )
    return _Words(len(vocabulary), train, held_out, description)


def _run(options: argparse.Namespace) -> int:
    # Not before _check: this needs rich.
    from rich.console import Console

    began = time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else 100)
    with console.status("reading the text"):
        words = _read_words(options)
    console.print(words.description, style="dim", highlight=False)
    with tempfile.TemporaryDirectory(prefix="s2reducer-demo-") as name:
        folder = Path(name)
        settings = Settings(
            ranks=options.ranks,
            steps=options.steps,
            vocabulary=words.vocabulary,
            width=options.width,
            batch=options.batch,
            length=options.length,
            negatives=options.negatives,
            plan=options.plan,
            seed=options.seed,
            words=_save(words.train, folder / "words"),
            held_out=_save(words.held_out, folder / "held-out"),
        )
        console.print(_describe_model(settings), style="dim", highlight=False)
        runs = _train(settings, folder, console)
    _show(runs, settings, options.output, console)
    console.print(f"took {time.monotonic() - began:.0f} s", style="dim", highlight=False)
    return 0


def _train(settings: Settings, folder: Path, console: "Console") -> list[list[dict[str, Any]]]:
    """The results of plain DDP and of s2reducer, of each the ranks' in order."""
    from s2reducer.cli.progress import Progress

    of_run: dict[str, dict[int, dict[str, Any]]] = {PLAIN: {}, REDUCED: {}}
    with Progress(console, list(of_run), settings.steps) as progress:

        def listen(rank: int, event: Event) -> None:
            if event["event"] == "result":
                of_run[event["run"]][rank] = event["result"]
            elif rank == 0:
                progress.step(event["run"], event["step"], event["loss"])

        run_ranks(settings.ranks, settings.as_dict(), folder, listen)
    return [[by_rank[rank] for rank in sorted(by_rank)] for by_rank in of_run.values()]


def _show(
    runs: list[list[dict[str, Any]]], settings: Settings, output: Path, console: "Console"
) -> None:
    from s2reducer.cli import plot, tables

    compute = Compute.of_runs(runs)
    plain, reduced = (summarise(results, settings, compute) for results in runs)
    tables.comparison(plain, reduced, settings).print(console)
    tables.densities(reduced).print(console)
    tables.predictions(plain, reduced).print(console)
    title = f"Language model, {settings.vocabulary:,} words, {settings.ranks} ranks"
    plot.write(output, plain, reduced, title)
    # On one line, however long, so that it can be copied.
    console.print(f"\ncurves and bytes: {output.resolve()}", highlight=False, soft_wrap=True)


def _save(ids: "array[int]", path: Path) -> str:
    with path.open("wb") as file:
        ids.tofile(file)
    return str(path)


def _describe_model(settings: Settings) -> str:
    return (
        f"model: embedding {settings.vocabulary:,} x {settings.width}, LSTM, sampled softmax "
        f"({settings.negatives} random words a step); {settings.ranks} ranks, each "
        f"{settings.batch} x {settings.length} words a step; Adagrad; same start and same batches "
        "in both runs"
    )
