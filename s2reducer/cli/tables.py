# SPDX-License-Identifier: MIT
"""The demo's three tables, as rows of text first, so that a test can read them."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from s2reducer.cli.network import LINK_GBITS
from s2reducer.cli.results import Summary
from s2reducer.cli.training import PLAIN, REDUCED, Settings


@dataclass(frozen=True)
class Rows:
    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str

    def print(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            # Words to the left, numbers to the right.
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console.print()
        console.print(table)
        console.print(self.note, style="dim", highlight=False)


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:.3f} MB"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def times(plain: float, reduced: float, better: str, worse: str) -> str:
    """``8.10 x less``, or ``1.25 x more`` where s2reducer is the worse one."""
    if plain <= 0 or reduced <= 0:
        return "-"
    if plain >= reduced:
        return f"{plain / reduced:.2f} x {better}"
    return f"{reduced / plain:.2f} x {worse}"


def comparison(plain: Summary, reduced: Summary, settings: Settings) -> Rows:
    rows = [
        _losses("final loss, held-out text", plain.final_loss, reduced.final_loss),
        _losses("training loss, last steps", plain.last_loss, reduced.last_loss),
        _yes("ranks bitwise equal", plain.identical_replicas, reduced.identical_replicas),
        _bytes("bytes sent, counted", plain.bytes_counted, reduced.bytes_counted),
        _bytes("bytes sent, by interface lo", plain.bytes_on_loopback, reduced.bytes_on_loopback),
    ]
    expected = reduced.bytes_from_densities(settings.ranks)
    if expected is not None:
        rows.append(_bytes("bytes of the plan union", plain.bytes_counted, expected))
    rows += [
        _seconds("step here, median", plain.step_seconds, reduced.step_seconds),
        _seconds("compute part of a step", plain.compute_seconds, reduced.compute_seconds),
    ]
    note = (
        "Losses in nats a word, over the whole vocabulary for the held-out text. Bytes per rank "
        "and step: counted for plain DDP by the formula of a ring AllReduce, 2(P-1)/P x "
        f"{plain.parameter_count:,} x 4, for s2reducer by itself; lo's counter has TCP/IP headers "
        "and what other programs sent meanwhile; the plan union, from the densities below: "
        "2(P-1)/P x (bitmaps + live blocks of any rank)."
    )
    return Rows(
        f"Training, {settings.ranks} ranks, {settings.steps} steps",
        ["", PLAIN, REDUCED, ""],
        rows,
        note,
    )


def _losses(name: str, plain: float, reduced: float) -> list[str]:
    return [name, f"{plain:.6f}", f"{reduced:.6f}", f"differ by {abs(plain - reduced):.1g}"]


def _yes(name: str, plain: bool, reduced: bool) -> list[str]:
    return [name, *("yes" if identical else "NO" for identical in (plain, reduced)), ""]


def _bytes(name: str, plain: float | None, reduced: float | None) -> list[str]:
    if plain is None or reduced is None:
        return [name, "not known", "not known", "-"]
    return [name, megabytes(plain), megabytes(reduced), times(plain, reduced, "less", "more")]


def _seconds(name: str, plain: float, reduced: float) -> list[str]:
    factor = times(plain, reduced, "faster", "slower")
    return [name, milliseconds(plain), milliseconds(reduced), factor]


def _share(share: float | None) -> str:
    return "not counted" if share is None else f"{share:.2%}"


def densities(reduced: Summary) -> Rows:
    rows = [
        [
            p.name,
            " x ".join(str(size) for size in p.shape),
            str(p.block),
            _share(p.density),
            _share(p.union_density),
            p.plan,
        ]
        for p in reduced.densities
    ]
    return Rows(
        "Gradient density: blocks that are not zero, mean over the steps",
        ["parameter", "shape", "block", "on a rank", "on any rank", "plan"],
        rows,
        "A block of a matrix is one row; in the two tables that is the values of one word.",
    )


def predictions(plain: Summary, reduced: Summary) -> Rows:
    rows = []
    for gbits in LINK_GBITS:
        before, after = plain.predicted_seconds(gbits), reduced.predicted_seconds(gbits)
        rows.append(_seconds(f"{gbits} Gbit/s", before, after))
    return Rows(
        "Predicted step, each rank on a machine of its own",
        ["link", PLAIN, REDUCED, ""],
        rows,
        "Computed, not measured: compute part + counted bytes / bandwidth; overlap of the two and "
        "latency ignored. The compute part, measured with all ranks on this machine, is a step in "
        "no_sync() and the CPU time that the training thread and s2reducer's threads need on top "
        "(copies, bitmaps, sums), waiting excluded.",
    )
