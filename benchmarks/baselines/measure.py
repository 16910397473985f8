# SPDX-License-Identifier: MIT
"""Measuring on ranks: steps of several methods in turn, their times, and their bytes."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from netlab import Counters, Meter, Traffic

from .wire import ALL_GATHER, Wire

Step = Callable[[], object]


@dataclass(frozen=True)
class Sample:
    """One step.

    Attributes:
        seconds: of the rank that took longest.
        wire: seconds in which at least one collective was under way, of the rank for which that was
            shortest: the other ranks' time includes waiting for it.
    """

    seconds: float
    wire: float


class CollectiveClock:
    """When collectives that Python issued were under way on this rank, on any thread."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def take(self) -> float:
        """Seconds with at least one of them under way, since the last call."""
        with self._lock:
            spans, self._spans = sorted(self._spans), []
        total, reached = 0.0, 0.0
        for start, end in spans:
            total += max(0.0, end - max(start, reached))
            reached = max(reached, end)
        return total

    @contextmanager
    def running(self) -> Iterator[None]:
        names = ("all_reduce", "all_gather", "all_to_all_single", ALL_GATHER)
        places: list[tuple[Any, str]] = [(dist, name) for name in names]
        places.append((Wire, "swap"))  # which waits for what it has begun
        originals = [getattr(*place) for place in places]
        try:
            for place, function in zip(places, originals, strict=True):
                setattr(*place, self._timed(function))
            yield
        finally:
            for place, function in zip(places, originals, strict=True):
                setattr(*place, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            work = function(*arguments, **options)
            if options.get("async_op"):
                work.get_future().then(lambda _: self._add(start))
            else:
                self._add(start)
            return work

        return timed

    def _add(self, start: float) -> None:
        with self._lock:
            self._spans.append((start, time.perf_counter()))


def interleave(steps: Mapping[str, Step], turns: int, warm_up: int = 3) -> dict[str, list[Sample]]:
    """Every method's samples, one a turn; the same on all ranks.

    A turn is a step of each; who is first moves on from turn to turn.  ``warm_up`` turns, in which
    DDP rebuilds its buckets and memory is touched for the first time, are not counted.
    """
    names, clock = list(steps), CollectiveClock()
    figures = torch.zeros(turns, len(names), 2, dtype=torch.float64)
    with clock.running():
        for turn in range(-warm_up, turns):
            for place in range(len(names)):
                number = (place + turn) % len(names)
                dist.barrier()
                clock.take()
                start = time.perf_counter()
                steps[names[number]]()
                seconds = time.perf_counter() - start
                if turn >= 0:
                    figures[turn, number] = torch.tensor([seconds, clock.take()])
    longest, shortest = figures[..., 0].contiguous(), figures[..., 1].contiguous()
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    dist.all_reduce(shortest, dist.ReduceOp.MIN)
    both = torch.stack([longest, shortest], 2)
    return {
        name: [Sample(*pair) for pair in both[:, number].tolist()]
        for number, name in enumerate(names)
    }


def traffic_of(step: Step, kind: str, steps: int = 2) -> Traffic:
    """What all ranks send in one step, the mean over some; the same on all ranks."""
    meter = Meter(dist.barrier)
    meter.start()
    for _ in range(steps):
        step()
    own = meter.stop()
    figures = torch.tensor([own.sent, own.received, own.sent_as_frames])
    everyone = [torch.empty_like(figures) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, figures)
    return Traffic.of([Counters(*(rank // steps).tolist()) for rank in everyone], kind)
