# SPDX-License-Identifier: MIT
"""From a bucket to its mean without threads, where collectives are only enqueued: NCCL.

All collectives are issued from the hook's calls, on DDP's own group, in the order of the buckets:
several communicators, or several threads on one, would have to be in one order on all ranks, which
nothing but an environment variable of NCCL's gives.

The host has to know the index of a bucket before it can issue the rounds of its values, and would
wait for the device and the network, with nothing enqueued behind.  So a bucket may be left open
until the next one's index has been enqueued:

    call of the hook    enqueues                        waits for
    1                   index 1
    2                   index 2, values 1               index 1
    3                   index 3, values 2, values 3     index 2, index 3

Whether a bucket is left open is decided by the caller, from what all ranks share, as it changes the
order of the collectives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from s2reducer.device import SideStream, future_on
from s2reducer.errors import Disagreement
from s2reducer.job import Job
from s2reducer.ordered_stages import Planner
from s2reducer.transport import Transport
from s2reducer.worker import Outcome, Result, attempt


@dataclass(frozen=True)
class _Open:
    """A bucket whose index is on its way, or the error in its place."""

    begun: Outcome[Planner[Any]]
    end: Callable[[Outcome[Any]], None]


class OrderedEngine:
    """For the buckets of one state, on its process group."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._device = device
        self._transport = Transport(group, device)
        self._stream = SideStream(device)
        self._open: list[_Open] = []
        self._failure: Exception | None = None

    @torch.no_grad()
    def submit(
        self,
        job: Job,
        begin: Callable[[Transport], Planner[Result]],
        done: Callable[[Job, Exception | None], Exception | None],
        stays_open: bool = False,
    ) -> Future[Outcome[Result]]:
        """Begins a reduction, finishes those that were open, and this one unless it stays open.

        ``done`` is called with the job, when all of it has been enqueued, and the error or None; it
        gives the error to raise.  The future is then done; it has the error or the result, on which
        the device may still be at work.
        """
        future: Future[Outcome[Result]] = future_on(self._device)

        def end(outcome: Outcome[Result]) -> None:
            error = done(job, outcome.error)
            if outcome.error is not None:
                self.give_up(outcome.error)
            future.set_result(outcome if error is None else Outcome(error=error))

        with self._stream.after(*_memory(job)):
            begun = self._attempt(lambda: begin(self._transport))
        self.finish()
        self._open.append(_Open(begun, end))
        if not stays_open or begun.error is not None:
            self.finish()
        return future

    @torch.no_grad()
    def finish(self) -> None:
        """Enqueues what the open buckets still take, and gives their futures results.

        It does not raise: what fails is the result of its bucket.
        """
        while self._open:
            bucket = self._open.pop(0)
            with self._stream.current():
                bucket.end(self._attempt(partial(self._plan_and_enqueue, bucket.begun)))

    def _plan_and_enqueue(self, begun: Outcome[Planner[Any]]) -> Any:
        plan = begun.unwrap()
        enqueue_values = plan()
        return enqueue_values(self._transport)

    def give_up(self, error: Exception) -> None:
        """After an error of this rank: nothing more is tried.

        What all ranks raise alike leaves them in step, and changes nothing.  Peers of a rank that
        gives up wait until the group's own timeout, as the group is not the engine's to end.
        """
        if self._failure is None and not isinstance(error, Disagreement):
            self._failure = error

    def _attempt(self, action: Callable[[], Result]) -> Outcome[Result]:
        if self._failure is not None:
            return Outcome(error=self._failure)
        return attempt(action)


def _memory(job: Job) -> list[Tensor]:
    """What the bucket's tensors keep their elements in."""
    tables = [part for table in job.tables for part in (table._indices(), table._values())]
    return tables or [job.buffer]
