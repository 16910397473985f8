# SPDX-License-Identifier: MIT
"""Timing in pairs: yardstick and subject take turns, and ratios are taken turn by turn.

A shared machine drifts by tens of percent within seconds, so a time by itself says little.  Two
calls that follow one another see nearly the same machine, and the median of their ratios holds.
"""

import json
import os
import platform
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
    yardstick: Callable[[int], object], subject: Callable[[int], object], turns: int
) -> Pair:
    """Calls both with the number of the turn, after one turn that is not counted."""
    yardstick(0)
    subject(0)
    times = [
        (seconds(lambda: yardstick(turn)), seconds(lambda: subject(turn)))  # noqa: B023
        for turn in range(1, turns + 1)
    ]
    return Pair(
        Spread.of([a for a, _ in times]),
        Spread.of([b for _, b in times]),
        Spread.of([a / b for a, b in times]),
    )


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


def write_json(path: Path, result: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
