# SPDX-License-Identifier: MIT
"""Progress bars with the loss on a terminal; elsewhere one plain line at the end of each run."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    def __init__(self, console: Console, runs: list[str], steps: int) -> None:
        self._console, self._steps = console, steps
        self._bars = RichProgress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks = {run: self._bars.add_task(run, total=steps, loss="-") for run in runs}

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def step(self, run: str, step: int, loss: float) -> None:
        self._bars.update(self._tasks[run], completed=step + 1, loss=f"{loss:.4f}")
        if step + 1 == self._steps and not self._console.is_terminal:
            self._console.print(f"{run}: {self._steps} steps, loss {loss:.4f}", highlight=False)
