# SPDX-License-Identifier: MIT
"""From a bucket to its mean through two lanes: indices in one, values in the other."""

import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from s2reducer import ops
from s2reducer.exchange import IndexExchange
from s2reducer.plans import Job
from s2reducer.plans.choice import choose
from s2reducer.plans.gather import reduce_gather
from s2reducer.plans.owner import choose_owners, make_plan, reduce_owner
from s2reducer.plans.union import reduce_union
from s2reducer.transport import Transport
from s2reducer.worker import Lane, Outcome, Result, attempt, unwrapped

# What the first stage of a bucket leaves to be done in the second.
_Stage = Callable[[], Tensor]


class Engine:
    """Two lanes and their private process groups, for all states on one process group.

    They are shared, since all hooks of a process group are called in one order on all its ranks,
    and because torch cannot make a group of the same ranks again once one has been destroyed: it
    would find the old one's addresses under the same name.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        ranks = dist.get_process_group_ranks(group)
        timeout = _timeout_of(group, device)
        self._index = Transport(_private_group(ranks, timeout), device)
        self._values = Transport(_private_group(ranks, timeout), device)
        self._index_lane = Lane("s2reducer-index", self)
        self._values_lane = Lane("s2reducer-values", self)
        self._failure: Exception | None = None

    def submit(
        self,
        job: Job,
        exchange: IndexExchange,
        done: Callable[[Job, Exception | None], Exception | None],
    ) -> Future[Tensor]:
        """Begins the reduction of a bucket that has been scanned; its future is not done yet.

        ``done`` is called on a lane's thread with the job, when it has ended, and the error or
        None; it gives the error to raise.
        """
        future: Future[Outcome[Tensor]] = Future()

        def end(outcome: Outcome[Tensor]) -> None:
            error = done(job, outcome.error)
            future.set_result(outcome if error is None else Outcome(error=error))
            if outcome.error is not None:
                self._give_up(outcome.error)

        def first() -> None:
            stage = self._attempt(lambda: self._first_stage(job, exchange))
            if stage.error is not None:
                end(Outcome(error=stage.error))
            else:
                self._values_lane.put(lambda: second(stage.unwrap()))

        def second(stage: _Stage) -> None:
            end(self._attempt(lambda: self._second_stage(job, stage)))

        self._index_lane.put(first)
        return unwrapped(future)

    def close(self) -> None:
        """Ends the private groups, so that peers that wait for this rank fail at once."""
        self._index.close()
        self._values.close()

    def _attempt(self, action: Callable[[], Result]) -> Outcome[Result]:
        """Nothing is tried after a failure: ranks may have gone different ways."""
        outcome = attempt(action) if self._failure is None else Outcome[Result]()
        # An error may come of the groups that the other lane has closed, after its own.
        if self._failed():
            return Outcome(error=self._failure)
        return outcome

    def _failed(self) -> bool:
        """Asked anew each time: the other lane may fail at any moment."""
        return self._failure is not None

    def _give_up(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
            traceback.clear_frames(error.__traceback__)  # they refer to the group that is to go
            self.close()

    def _first_stage(self, job: Job, exchange: IndexExchange) -> _Stage:
        """The rounds of the index, the choice of the plan, and the plan."""
        layout, buffer, config = job.layout, job.buffer, job.config
        sent_before = self._index.bytes_sent
        job.round = "index"
        index = exchange.gather(self._index, layout, buffer.dtype, job.step, job.bitmap)
        rank = self._index.rank
        job.counts = (index.counts[rank], index.union_counts)
        choice = choose(layout, index, buffer.dtype, config.plan, config.deterministic)
        job.plan, job.reason = choice.plan, choice.reason
        job.round = "planning"
        job.lanes_nbytes += self._index.bytes_sent - sent_before

        if index.positions.numel() == 0:
            reduce: Callable[[], None] = _nothing
        elif choice.plan == "owner":
            owners = choose_owners(layout, index, config.seed)
            plan = make_plan(layout, index, owners, rank)
            reduce = lambda: reduce_owner(buffer, layout, plan, self._values)  # noqa: E731
        elif choice.plan == "gather":
            reduce = lambda: reduce_gather(buffer, layout, index, self._values)  # noqa: E731
        elif choice.plan == "union":
            reduce = lambda: reduce_union(buffer, layout, index, self._values)  # noqa: E731
        else:
            return lambda: _dense_mean(buffer, self._values)

        def stage() -> Tensor:
            reduce()
            if job.has_negative_zeros:
                ops.blocks_clear_dead(index.union, layout.segments, buffer, parallel=False)
            return buffer

        return stage

    def _second_stage(self, job: Job, stage: _Stage) -> Tensor:
        sent_before = self._values.bytes_sent
        job.round = "values"
        result = stage()
        job.lanes_nbytes += self._values.bytes_sent - sent_before
        return result


# The engines of the process groups that are in use.  A process group belongs to a process as this
# module does, and goes with the last that refers to it.
_engines: "weakref.WeakKeyDictionary[dist.ProcessGroup, Engine]" = weakref.WeakKeyDictionary()


def engine_of(group: dist.ProcessGroup, device: torch.device) -> Engine:
    """The engine for ``group``; the first call makes it, on all its ranks at the same time."""
    engine = _engines.get(group)
    if engine is None:
        engine = _engines[group] = Engine(group, device)
    return engine


def _nothing() -> None:
    """Where all ranks are all zero they all know it, and none sends anything."""


def _dense_mean(buffer: Tensor, transport: Transport) -> Tensor:
    """By DDP's own arithmetic; see plans/dense.py."""
    buffer.mul_(1.0 / transport.world_size)
    transport.all_reduce(buffer).wait()
    return buffer


def _private_group(ranks: list[int], timeout: timedelta | None) -> dist.ProcessGroup:
    """A group of the same ranks, whose traffic is the engine's alone."""
    group = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)  # this rank is among them
    return group


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """The group's own timeout, where the backend says it."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None
