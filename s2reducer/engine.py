# SPDX-License-Identifier: MIT
"""From a bucket to its mean through two lanes: indices in one, values in the other."""

import atexit
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from s2reducer.errors import Disagreement
from s2reducer.job import Job
from s2reducer.transport import Transport, wait_until_released
from s2reducer.worker import Begun, Lane, Outcome, Result, attempt


class Engine:
    """Two lanes and their private process groups, for all states on one process group.

    They are shared, since all hooks of a process group are called in one order on all its ranks,
    and because torch cannot make a group of the same ranks again once one has been destroyed: it
    would find the old one's addresses under the same name.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        _even_out_groups(group, device)
        ranks = dist.get_process_group_ranks(group)
        timeout = _timeout_of(group, device)
        self._index = Transport(_private_group(ranks, timeout), device)
        self._values = Transport(_private_group(ranks, timeout), device)
        self._index_lane = Lane("s2reducer-index", self)
        self._values_lane = Lane("s2reducer-values", self)
        self._failure: Exception | None = None
        _at_work.add(self)

    def submit(
        self,
        job: Job,
        first: Callable[[Transport], Callable[[Transport], Result] | Begun[Result, Any]],
        done: Callable[[Job, Exception | None], Exception | None],
    ) -> Future[Outcome[Result]]:
        """Begins a reduction; its future is not done yet.

        ``first`` is the stage in the lane of the index, and gives that in the lane of the values,
        or that and the rest of itself.

        ``done`` is called on a lane's thread with the job, when it has ended, and the error or
        None; it gives the error to raise.
        """
        future: Future[Outcome[Result]] = Future()

        def end(outcome: Outcome[Result]) -> None:
            error = done(job, outcome.error)
            future.set_result(outcome if error is None else Outcome(error=error))
            if outcome.error is not None:
                self.give_up(outcome.error)

        def run_first() -> None:
            stage = self._attempt(lambda: first(self._index))
            if stage.error is not None:
                end(Outcome(error=stage.error))
                return
            begun = stage.unwrap()
            if not isinstance(begun, Begun):
                self._values_lane.put(lambda: run_second(begun))
                return
            rest: Future[Outcome[Any]] = Future()
            self._values_lane.put(
                lambda: run_second(lambda values: begun.stage(values, lambda: rest.wait().unwrap()))
            )
            outcome = self._attempt(lambda: begun.rest(self._index))
            rest.set_result(outcome)
            if outcome.error is not None:
                self.give_up(outcome.error)

        def run_second(stage: Callable[[Transport], Result]) -> None:
            end(self._attempt(lambda: stage(self._values)))

        self._index_lane.put(run_first)
        return future

    @property
    def threads(self) -> list[threading.Thread]:
        """Of the lanes."""
        return [self._index_lane.thread, self._values_lane.thread]

    def close(self) -> None:
        """Ends the private groups, so that peers that wait for this rank fail at once."""
        self._index.close()
        self._values.close()

    def give_up(self, error: Exception) -> None:
        """After an error of this rank: nothing more is tried, and peers fail at once.

        What all ranks raise alike leaves them in step, and changes nothing.
        """
        if self._failure is None and not isinstance(error, Disagreement):
            self._failure = error
            traceback.clear_frames(error.__traceback__)  # they refer to the group that is to go
            self.close()
            for lane in (self._index_lane, self._values_lane):
                lane.end()  # what is put from now on fails at once

    def finish(self, deadline: float) -> bool:
        """Ends the lanes once they are idle; False if not by this time of ``time.monotonic()``."""
        for lane in (self._index_lane, self._values_lane):
            lane.end()
            lane.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)

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


# The engines of the process groups that are in use.  A process group belongs to a process as this
# module does, and goes with the last that refers to it.
_engines: "weakref.WeakKeyDictionary[dist.ProcessGroup, Engine]" = weakref.WeakKeyDictionary()

# All engines, also those whose process group is gone.
_at_work: "weakref.WeakSet[Engine]" = weakref.WeakSet()

# How long an exit waits for lanes and gloo: more than what they do takes, unless they wait for a
# peer.
_EXIT_SECONDS = 2.0


@atexit.register
def _finish_all() -> None:
    """Before the interpreter ends: a thread that comes back from torch after that aborts.

    gloo's threads come back, too, to release callbacks and tensors of collectives that are done.
    Those of the private groups are joined with their groups; those of the user's group stay, but
    have nothing left to release.

    A thread that waits for a peer which never comes does not come back, and ends with the process.
    """
    deadline = time.monotonic() + _EXIT_SECONDS
    idle = [engine for engine in list(_at_work) if engine.finish(deadline)]
    if wait_until_released(deadline):  # or a group would wait for what is on its way
        for engine in idle:
            engine.close()


def engine_of(group: dist.ProcessGroup, device: torch.device) -> Engine:
    """The engine for ``group``; the first call makes it, on all its ranks at the same time."""
    engine = _engines.get(group)
    if engine is None:
        engine = _engines[group] = Engine(group, device)
    return engine


def _even_out_groups(group: dist.ProcessGroup, device: torch.device) -> None:
    """Brings the ranks to the same number of process groups.

    torch names a group that only its members make by its ranks and the number of groups that the
    process has.  Where one rank has a group that another is not in, they would wait for each other
    under different names; so that other makes one for itself alone.
    """
    names = dist.distributed_c10d._world.pg_names
    numbers = Transport(group, device).all_gather(torch.tensor([len(names)], device=device))
    while len(names) < int(numbers.max()):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def _private_group(ranks: list[int], timeout: timedelta | None) -> dist.ProcessGroup:
    """A group of the same ranks, whose traffic is the engine's alone.

    The default group, whose backend it would else be, may have another.
    """
    group = dist.new_group(ranks, timeout, backend="gloo", use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)  # this rank is among them
    return group


def _timeout_of(group: dist.ProcessGroup, device: torch.device) -> timedelta | None:
    """The group's own timeout, where the backend says it."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None
