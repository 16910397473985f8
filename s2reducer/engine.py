# SPDX-License-Identifier: MIT
"""From a bucket to its mean through two lanes: indices in one, values in the other."""

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
from s2reducer.worker import Lane, Outcome, attempt, unwrapped

# Waiting for a lane that has nothing to do before the values: what a stage returns is the next one.
_Stage = Callable[[], Tensor]


class Engine:
    """The lanes of one state, and their private process groups.

    Args:
        group: the one that DDP reduces over; all its ranks make an engine at the same time.
        device: of the buckets.
        owner: the lanes end with this object.
        done: called with every job that ends, on the thread of a lane, with the error or None; it
            gives the error to raise.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, owner: object) -> None:
        ranks = dist.get_process_group_ranks(group)
        timeout = _timeout_of(group, device)
        self.index = Transport(_private_group(ranks, timeout), device)
        self.values = Transport(_private_group(ranks, timeout), device)
        self._exchange = IndexExchange(self.index)
        self._index_lane = Lane("s2reducer-index", owner)
        self._values_lane = Lane("s2reducer-values", owner)
        self._failure: Exception | None = None

    @property
    def bytes_sent(self) -> int:
        return self.index.bytes_sent + self.values.bytes_sent

    def submit(
        self, job: Job, done: Callable[[Job, Exception | None], Exception | None]
    ) -> Future[Tensor]:
        """Begins the reduction of a bucket that has been scanned; its future is not done yet."""
        future: Future[Outcome[Tensor]] = Future()

        def end(outcome: Outcome[Tensor]) -> None:
            error = done(job, outcome.error)
            future.set_result(outcome if error is None else Outcome(error=error))

        def first() -> None:
            stage = attempt(lambda: self._first_stage(job))
            if stage.error is not None:
                end(Outcome(error=self._fail(stage.error)))
            else:
                self._values_lane.put(lambda: second(stage.unwrap()))

        def second(stage: _Stage) -> None:
            outcome = attempt(lambda: self._second_stage(job, stage))
            if outcome.error is not None:
                outcome = Outcome(error=self._fail(outcome.error))
            end(outcome)

        self._index_lane.put(first)
        return unwrapped(future)

    def _fail(self, error: Exception) -> Exception:
        """After an error no further collective is issued: ranks may have gone different ways."""
        self._failure = self._failure or error
        return error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _first_stage(self, job: Job) -> _Stage:
        """The rounds of the index, the choice of the plan, and the plan."""
        self._check()
        layout, buffer, config = job.layout, job.buffer, job.config
        sent_before = self.index.bytes_sent
        job.round = "index"
        index = self._exchange.gather(layout, buffer.dtype, job.step, job.bitmap)
        rank = self.index.rank
        job.counts = (index.counts[rank], index.union_counts)
        choice = choose(layout, index, buffer.dtype, config.plan, config.deterministic)
        job.plan, job.reason = choice.plan, choice.reason
        job.round = "planning"
        job.nbytes += self.index.bytes_sent - sent_before

        if index.positions.numel() == 0:
            reduce: Callable[[], None] = _nothing
        elif choice.plan == "owner":
            owners = choose_owners(layout, index, config.seed)
            plan = make_plan(layout, index, owners, rank)
            reduce = lambda: reduce_owner(buffer, layout, plan, self.values)  # noqa: E731
        elif choice.plan == "gather":
            reduce = lambda: reduce_gather(buffer, layout, index, self.values)  # noqa: E731
        elif choice.plan == "union":
            reduce = lambda: reduce_union(buffer, layout, index, self.values)  # noqa: E731
        else:
            return lambda: _dense_mean(buffer, self.values)

        def stage() -> Tensor:
            reduce()
            if job.has_negative_zeros:
                ops.blocks_clear_dead(index.union, layout.segments, buffer, parallel=False)
            return buffer

        return stage

    def _second_stage(self, job: Job, stage: _Stage) -> Tensor:
        self._check()
        sent_before = self.values.bytes_sent
        job.round = "values"
        result = stage()
        job.nbytes += self.values.bytes_sent - sent_before
        return result


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
