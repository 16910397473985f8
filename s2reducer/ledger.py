# SPDX-License-Identifier: MIT
"""The books of one state: what it sent, by which plan, and how long ranks waited."""

import copy
import threading
import time
from collections.abc import Iterable
from typing import Any

from s2reducer.chooser import Chooser
from s2reducer.constants import Cost
from s2reducer.job import Job, Part
from s2reducer.report import PlanTotals, Report
from s2reducer.segments import ParameterRecord
from s2reducer.transport import ring_nbytes


class Ledger:
    """Hooks, lanes and callbacks write into it, so it has a lock."""

    def __init__(self, chooser: Chooser) -> None:
        self._lock = threading.Lock()
        self._chooser = chooser
        self._bytes_dense = 0
        self._lanes_nbytes = 0
        self._plans: dict[str, PlanTotals] = {}
        self._begin_step()

    def _begin_step(self) -> None:
        self._called_at = self._done_at = 0.0
        self._cost = Cost()
        self._new_layout = self._sparse = False

    def step_begins(self, previous: int) -> None:
        """Gives the wait of the step before, number ``previous``, to whom it concerns.

        Probes are left out, as they scan what is dense, and so are steps whose buckets are new.
        """
        with self._lock:
            wait = max(0.0, self._done_at - self._called_at)
            sparse, cost = self._sparse, self._cost
            tells = previous > 1 and not self._new_layout and self._called_at > 0
            self._begin_step()
        if tells and not (sparse and self._chooser.probes(previous)):
            self._chooser.meter.step("sparse" if sparse else "dense", wait, cost)

    def bucket_begins(self, new_layout: bool) -> None:
        """A hook's call; ``new_layout`` where this bucket did not come before."""
        with self._lock:
            self._called_at = time.perf_counter()
            self._new_layout |= new_layout
        if new_layout:
            self._chooser.meter.forget_steps()

    def sent_from_hook(self, job: Job, part: Part) -> None:
        """A part of a bucket whose collective was begun in the hook's body."""
        self._add(job, [part])
        with self._lock:
            self._cost += part.cost

    def bucket_begun(self, job: Job) -> None:
        """Counts a bucket, and what an AllReduce would have sent of it."""
        nbytes = job.buffer.numel() * job.buffer.element_size()  # of a COO tensor: its table
        with self._lock:
            self._bytes_dense += ring_nbytes(nbytes, job.transport.world_size)

    def sent_from_lanes(self, job: Job) -> None:
        """The parts of a bucket that has passed the lanes."""
        self._add(job, job.parts)
        with self._lock:
            self._sparse = True
            for part in job.parts:
                self._lanes_nbytes += part.nbytes
                self._cost += part.cost
            if job.counts is not None:
                for record, live, union in zip(job.compared.records, *job.counts, strict=True):
                    record.steps += 1
                    record.live += live
                    record.union_live += union

    def bucket_done(self, plans: Iterable[str], begun: float) -> None:
        """A result is there; ``begun`` is the time of the hook's call."""
        with self._lock:
            self._done_at = now = time.perf_counter()
            for plan in plans:
                self._plans[plan].seconds += now - begun

    def report(
        self,
        steps: int,
        world_size: int,
        nbytes: int,
        records: list[ParameterRecord],
        settings: dict[str, Any],
    ) -> Report:
        """``nbytes`` were sent outside of the lanes."""
        with self._lock:
            return Report(
                steps=steps,
                world_size=world_size,
                bytes_sent=nbytes + self._lanes_nbytes,
                bytes_dense=self._bytes_dense,
                parameters=copy.deepcopy(records),
                plans=copy.deepcopy(self._plans),
                changes=list(self._chooser.changes),
                settings=settings,
            )

    def _add(self, job: Job, parts: Iterable[Part]) -> None:
        with self._lock:
            for part in parts:
                totals = self._plans.setdefault(part.plan, PlanTotals())
                totals.buckets += 1
                totals.bytes += part.nbytes
                totals.predicted_seconds += job.chooser.constants.seconds(part.cost)
                for record in part.records:
                    record.plan, record.reason = part.plan, part.reason
