# SPDX-License-Identifier: MIT
"""Threads that run rounds in order, so that communication overlaps with the backward pass.

A bucket takes several rounds, each of which needs what the one before brought.  They cannot be
issued from callbacks: ranks would issue them in different orders.  Nor can a callback wait for one:
with two in flight on gloo's two threads, nothing would be left to run them.  So every rank has two
lanes, each with a process group of its own, and passes its buckets through the first and then the
second, in the order of the hook's calls, which DDP makes the same on all ranks.  Small rounds pass
large ones: headers and indices of a bucket travel while the values of earlier ones do.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from s2reducer.transport import Transport

Result = TypeVar("Result")
Rest = TypeVar("Rest")


class Lane:
    """A thread that runs tasks one after the other, in the order in which they were put.

    It is a daemon: neither an idle lane nor one that waits for a dead peer keeps the process from
    exiting.  It ends with the object ``until``, or by ``end``.
    """

    def __init__(self, name: str, until: object) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=_run, args=(self._tasks,), name=name, daemon=True)
        weakref.finalize(until, self._tasks.put, None)
        self.thread.start()

    def put(self, task: Callable[[], None]) -> None:
        """``task`` must not raise.  After the end it is run here and now."""
        with self._lock:
            if not self._ended:
                self._tasks.put(task)
                return
        task()

    def end(self) -> None:
        """Ends the thread once it has run what was put before."""
        with self._lock:
            self._ended = True
            self._tasks.put(None)


def _run(tasks: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        with torch.no_grad():
            task()
        del task  # or a bucket would stay alive until the next one comes


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """A result, or the error in its place.

    An exception that is set on a future loses its type and its text inside DDP.  So a future gets
    one of these, and a callback that only unwraps it raises.
    """

    result: Result | None = None
    error: Exception | None = None

    def unwrap(self) -> Result:
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


@dataclass(frozen=True)
class Begun(Generic[Result, Rest]):
    """What the first stage gives that lets the second begin before it has ended.

    Attributes:
        stage: the second; it is given the transport, and a function that waits for what ``rest``
            gives and returns it, or raises what it raised.
        rest: of the first, in its lane.
    """

    stage: Callable[[Transport, Callable[[], Rest]], Result]
    rest: Callable[[Transport], Rest]


def attempt(action: Callable[[], Result]) -> Outcome[Result]:
    """What ``action`` returned or raised."""
    try:
        return Outcome(result=action())
    except Exception as error:
        return Outcome(error=error)
