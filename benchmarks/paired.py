# SPDX-License-Identifier: MIT
"""Timing in pairs: yardstick and subject take turns, and ratios are taken turn by turn.

A shared machine drifts by tens of percent within seconds, so a time by itself says little.  Calls
that follow one another see nearly the same machine, and the median of their ratios holds.
"""

import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@dataclass(frozen=True)
class Spread:
    """The median of some figures, with the quartiles around it."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        low, median, high = statistics.quantiles(figures, n=4)
        return cls(low, median, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"

    def as_dict(self) -> dict[str, float]:
        return {"low": self.low, "median": self.median, "high": self.high}


@dataclass(frozen=True)
class Pair:
    """Seconds of the yardstick and of the subject, and the yardstick's time over the subject's."""

    yardstick: Spread
    subject: Spread
    speed: Spread


def measure(
    subject: Callable[[int], object], turns: int, **yardsticks: Callable[[int], object]
) -> dict[str, Pair]:
    """The subject beside each yardstick; all are called once in every turn, with its number.

    One turn before the first is not counted.  Who comes first changes from turn to turn: it finds
    the caches as another left them.
    """
    calls = [subject, *yardsticks.values()]
    for call in calls:
        call(0)
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(1, turns + 1):
        for place in range(turn, turn + len(calls)):
            who = place % len(calls)
            times[who].append(seconds(lambda: calls[who](turn)))  # noqa: B023
    own, *others = times
    return {
        name: Pair(
            Spread.of(theirs),
            Spread.of(own),
            Spread.of([a / b for a, b in zip(theirs, own, strict=True)]),
        )
        for name, theirs in zip(yardsticks, others, strict=True)
    }


def machine() -> str:
    """The processor's name and the number of cores that this process may use."""

    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


# A list with nothing but figures in it, as json.dumps writes it: no string has a line break.
_FIGURES = re.compile(r"\[\n(?:[-+.\deE]|null|[,\s])+\]")


def write_json(path: Path, result: dict[str, object]) -> None:
    """Indented, with a line for each list of figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    path.write_text(_FIGURES.sub(lambda found: " ".join(found[0].split()), text) + "\n")
