# SPDX-License-Identifier: MIT
"""The ways that a bucket can go, and its result, which comes later."""

import itertools
import time
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer import ops
from s2reducer.constants import FLOOR_NBYTES, Cost
from s2reducer.device import future_on
from s2reducer.device_lists import missing
from s2reducer.engine import Engine, engine_of
from s2reducer.errors import S2Error
from s2reducer.failure import Failure
from s2reducer.job import Job, Part
from s2reducer.ledger import Ledger
from s2reducer.lossy import is_lossy, lossy_stage, selected
from s2reducer.ordered_engine import OrderedEngine
from s2reducer.ordered_lossy import begin_lossy
from s2reducer.ordered_sketch import begin_sketch
from s2reducer.ordered_stages import begin_blocks, begin_rows
from s2reducer.plans.choice import dense_cost
from s2reducer.plans.dense import begin_dense, begin_ranges, begin_sparse_tensor
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.replicas import ReplicaCheck
from s2reducer.report import dtype_name
from s2reducer.row_stages import rows_stage
from s2reducer.rows import table_of
from s2reducer.segments import LayoutCache
from s2reducer.sketch_stages import sketch_rows_stage, sketch_stage
from s2reducer.stages import blocks_stage, scan
from s2reducer.transport import LANES, ORDERED
from s2reducer.worker import Outcome

# COO gradients travel together up to this many: enough for the tables of a recommendation model.
_MOST_TABLES = 64


class Sender:
    """Sends the buckets of one state.

    COO gradients come one table a bucket, and each would take all the rounds of one.  So those that
    follow one another wait for the last of them and travel as one.  In an ordered engine a bucket
    waits for the next one's index.  Whether a bucket waits is known on all ranks alike: it may if
    another came after it in its last step.

    Args:
        layouts, ledger, replicas, failure: of the state, which is not referred to itself: a cycle
            would keep threads and process groups until the garbage collector comes by.
    """

    def __init__(
        self,
        layouts: LayoutCache,
        ledger: Ledger,
        replicas: ReplicaCheck,
        failure: Failure,
    ) -> None:
        self._layouts = layouts
        self._ledger = ledger
        self._replicas = replicas
        self._failure = failure
        self._engine: Engine | OrderedEngine | None = None
        self._waiting: list[tuple[Job, Future[Outcome[Tensor]]]] = []

    def send(self, job: Job, place: int, waits: bool) -> Future[Tensor]:
        """Sends the bucket number ``place`` of its step, which may wait for the next or not."""
        begun = time.perf_counter()
        self._ledger.bucket_begun(job)
        lossy = is_lossy(job)
        reason = _dense_reason(job, lossy)
        if reason is not None and job.config.deterministic:
            _refuse_to_vary(job, reason)
        joins = reason is None and job.buffer.is_sparse
        if self._waiting and not (joins and job.buffer.dtype == self._waiting[0][0].buffer.dtype):
            self.flush(more_follows=True)
        if reason is not None:
            result = self._send_from_hook(job, reason, place, begun)
            self._finish_open()
            return result
        if self._engine is None:
            job.round = "making process groups"
            new = OrderedEngine if job.transport.way == ORDERED else engine_of
            self._engine = new(job.transport.group, job.buffer.device)
        job.plan = job.config.plan
        job.residuals.in_use |= _owes(job, lossy)
        if isinstance(self._engine, Engine) and lossy:
            lanes = self._engine.submit(job, partial(lossy_stage, job), self._lanes_done)
            return self._finish_later(job, [lanes], [], place, begun)
        if not joins:
            return self._scan(job, lossy, waits, place, begun)
        return self._send_rows(job, waits, place, begun)

    def give_up(self, error: Exception) -> None:
        """After an error in the hook's body that this rank may have alone."""
        if self._engine is not None:
            self._engine.give_up(error)

    def flush(self, more_follows: bool = False) -> None:
        """Sends the tables that wait, and finishes what is open, unless more follows at once.

        It does not raise, as it may be called for another bucket, in a later step, or by the
        backward pass itself: what fails becomes the result of these tables, as if in the lanes.
        """
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._flush(waiting, more_follows)
        if not more_follows:
            self._finish_open()

    def _flush(
        self, waiting: list[tuple[Job, Future[Outcome[Tensor]]]], more_follows: bool
    ) -> None:
        first = waiting[0][0]
        first.round = "joining with other tables"
        try:
            self._send_together(waiting, more_follows)
        except Exception as error:
            outcome = Outcome[Tensor](error=self._failure.report(error, first, first.step + 1))
            for _, table in waiting:
                table.set_result(outcome)
            self.give_up(error)

    def _send_together(
        self, waiting: list[tuple[Job, Future[Outcome[Tensor]]]], more_follows: bool
    ) -> None:
        """Every table gets a result, unless this raises."""
        assert self._engine is not None
        first = waiting[0][0]
        layout = self._layouts.group([job.layout for job, _ in waiting])
        group = Job(
            buffer=first.buffer,
            tables=[job.buffer for job, _ in waiting],
            layout=layout,
            compared=layout,
            config=first.config,
            transport=first.transport,
            chooser=first.chooser,
            step=first.step,
            divisor=first.divisor,
            residuals=first.residuals,
        )

        def hand_out(future: Future[Outcome[list[Tensor]]]) -> None:
            outcome = future.value()
            for number, (job, table) in enumerate(waiting):
                job.parts = group.parts
                result = outcome.result[number] if outcome.result else None
                table.set_result(Outcome(result, outcome.error))

        done = self._lanes_done
        if isinstance(self._engine, OrderedEngine):
            tables = self._engine.submit(group, partial(begin_rows, group), done, more_follows)
        elif group.config.plan == "sketch":
            tables = self._engine.submit(group, partial(sketch_rows_stage, group), done)
        else:
            tables = self._engine.submit(group, partial(rows_stage, group), done)
        tables.then(hand_out)

    # --------------------------------------------------------------------------------------------
    # The three ways
    # --------------------------------------------------------------------------------------------

    def _send_from_hook(self, job: Job, reason: str, place: int, begun: float) -> Future[Tensor]:
        """One AllReduce on the user's group, or none where nothing can change."""
        buffer, transport = job.buffer, job.transport
        sent_before = transport.bytes_sent
        job.plan, job.round = "dense", "AllReduce"
        pending: Future[Any] | None = None
        if transport.world_size == 1 or buffer.numel() == 0:
            job.plan = "none"
            job.buffer = buffer.coalesce() if buffer.is_sparse else buffer
        elif buffer.is_sparse:
            job.buffer = buffer.coalesce()
            pending = begin_sparse_tensor(job.buffer, transport, job.divisor)
        else:
            pending = begin_dense(buffer, transport, job.divisor)
        cost = Cost()
        if pending:
            job.dense_nbytes = transport.bytes_sent - sent_before
            cost = dense_cost(buffer.numel(), buffer.dtype, transport.world_size)
        part = Part(job.plan, reason, job.layout.records, job.dense_nbytes, cost)
        self._ledger.sent_from_hook(job, part)
        return self._finish_later(job, [pending] if pending else [], [job.plan], place, begun)

    def _scan(self, job: Job, lossy: bool, waits: bool, place: int, begun: float) -> Future[Tensor]:
        """Scans the bucket here, while it is still in the caches, and leaves the rest to others."""
        assert self._engine is not None
        if isinstance(self._engine, OrderedEngine):
            dense = self._begin_segments_that_stay_dense(job)
            begin = partial(begin_blocks, job, dense)
            if lossy:
                begin = partial(begin_lossy, job)
            elif job.config.plan == "sketch":
                begin = partial(begin_sketch, job)
                waits = waits and not job.config.sketch.reads_nothing
            pending = [self._engine.submit(job, begin, self._lanes_done, waits)]
            if waits:
                self._flush_after_backward()
        else:
            scan(job)
            dense = self._begin_segments_that_stay_dense(job)
            stage = sketch_stage if job.config.plan == "sketch" else blocks_stage
            pending = [self._engine.submit(job, partial(stage, job), self._lanes_done), *dense]
        return self._finish_later(job, pending, ["dense"] if dense else [], place, begun)

    def _send_rows(self, job: Job, waits: bool, place: int, begun: float) -> Future[Tensor]:
        table = table_of(job.buffer)
        job.layout.records[0].set_blocks(table.width, table.nrows)
        future: Future[Outcome[Tensor]] = future_on(job.buffer.device)
        result = self._finish_later(job, [future], [], place, begun)
        self._waiting.append((job, future))
        if not waits or len(self._waiting) == _MOST_TABLES:
            self.flush()
        elif len(self._waiting) == 1:
            self._flush_after_backward()
        self._finish_open()
        return result

    def _flush_after_backward(self) -> None:
        """Should this time none follow: before DDP's own callback, which waits for all buckets.

        Outside of a backward pass, where a hook is called by itself, the caller knows the order.
        """
        with suppress(RuntimeError):
            torch.autograd.Variable._execution_engine.queue_callback(self.flush)

    def _finish_open(self) -> None:
        if isinstance(self._engine, OrderedEngine):
            self._engine.finish()

    def _lanes_done(self, job: Job, error: Exception | None) -> Exception | None:
        if error is not None:
            # As in _finish_later(), what travels outside the lanes goes on to the step's end.
            return self._failure.report(error, job, job.step + 1)
        self._ledger.sent_from_lanes(job)
        return None

    def _begin_segments_that_stay_dense(self, job: Job) -> list[Future[Any]]:
        """Their AllReduces, on the user's group, beside what the lanes do."""
        if job.compared is job.layout:
            return []
        compared = set(map(id, job.compared.records))
        dense = [id(record) not in compared for record in job.layout.records]
        sent_before = job.transport.bytes_sent
        ranges = job.layout.ranges(dense)
        futures: list[Future[Any]] = []
        futures += begin_ranges(job.buffer, ranges, job.transport, job.divisor)
        numel = job.layout.numel - job.compared.numel
        cost = dense_cost(numel, job.buffer.dtype, job.transport.world_size)
        records = list(itertools.compress(job.layout.records, dense))
        nbytes = job.transport.bytes_sent - sent_before
        self._ledger.sent_from_hook(job, Part("dense", "stays dense", records, nbytes, cost))
        return futures

    def _finish_later(
        self,
        job: Job,
        pending: list[Future[Any]],
        plans: list[str],
        place: int,
        begun: float,
    ) -> Future[Tensor]:
        """The bucket's result, once all that is pending is done; it waits for nothing.

        What comes from the lanes is the bucket's result; AllReduces work in place.
        """

        def finish(futures: list[Future[Any]]) -> Tensor:
            try:
                result = job.buffer
                for future in futures:
                    value = future.value()  # raises what a collective raised
                    if isinstance(value, Outcome):
                        result = value.unwrap()
                if job.config.owes:
                    _reject_unless_finite(job, result)
                if self._replicas.wants(job.step):
                    self._replicas.take(job.step, place, job.layout, result)
            except S2Error:
                raise
            except Exception as error:
                # The rest of this step goes on, and DDP raises at its end: whether this comes
                # before or after the next bucket's collectives differs between ranks, and who left
                # them out would leave the others waiting.
                raise self._failure.report(error, job, job.step + 1) from error
            used = dict.fromkeys([*plans, *(part.plan for part in job.parts)])
            self._ledger.bucket_done(used, begun)
            if job.warm and job.dense_nbytes:
                job.chooser.meter.dense(job.dense_nbytes, begun, time.perf_counter())
            return result

        if len(pending) == 1:
            return pending[0].then(lambda future: finish([future]))
        if pending:
            return torch.futures.collect_all(pending).then(lambda all_: finish(all_.value()))
        result = finish([])
        done: Future[Tensor] = future_on(result.device)
        done.set_result(result)
        return done


def _owes(job: Job, lossy: bool) -> bool:
    """Whether the bucket may leave something for the next step, on some rank."""
    return job.config.error_feedback if lossy else job.config.owes_blocks


def _reject_unless_finite(job: Job, result: Tensor) -> None:
    values = result._values() if result.is_sparse else result
    if job.transport.way == ORDERED:
        job.residuals.reject_if(id(job.layout), ~values.isfinite().all())
    elif job.transport.way == LANES and not ops.values_finite(values.reshape(-1), parallel=False):
        job.residuals.reject()


def _refuse_to_vary(job: Job, reason: str) -> None:
    """Raises ValueError where an AllReduce would sum in an order that depends on the buckets."""
    if job.transport.world_size > 1 and job.buffer.numel() > 0:
        raise ValueError(f"deterministic=True cannot be kept by an AllReduce: {reason}")


def _dense_reason(job: Job, lossy: bool) -> str | None:
    """Why the bucket does not go through the lanes; else sets what is compared there.

    By what all ranks share: the kind of the bucket, the settings and the step.
    """
    buffer, config, chooser = job.buffer, job.config, job.chooser
    if job.transport.world_size == 1:
        return "one rank"
    if buffer.numel() == 0:
        return "no elements"
    transport = job.transport
    if transport.way is None:
        place = f"{buffer.device.type} over {transport.backend}"
        return f"on {place}, where only dense is supported"
    too_many = config.too_many(transport.world_size, buffer.is_sparse)
    if too_many is not None:
        return too_many
    if buffer.dtype not in WIRE_DTYPES:
        return f"{dtype_name(buffer.dtype)}, for which only dense is supported"
    if transport.way == ORDERED:
        if buffer.is_sparse:
            return None  # there is no sparse AllReduce
        selects = lossy and any(selected(job))
        if selects and (lacks := missing(buffer.device, "select_top")):
            return f"select, for which {lacks}"
        if config.plan == "sketch" and (lacks := missing(buffer.device, "sketch_peel")):
            return f"sketch, for which {lacks}"
    if lossy:
        return None
    reason = config.dense_reason(buffer.dtype)
    if reason is not None or buffer.is_sparse or not chooser.adapts:
        return reason
    if chooser.is_dense(job.step):
        return "a step that shows what dense takes"
    kept = [True] * len(job.layout.records)
    if not chooser.probes(job.step):
        kept = [not record.stays_dense for record in job.layout.records]
    numel = sum(numel for _, numel, _, _ in itertools.compress(job.layout.rows, kept))
    if buffer.nbytes < FLOOR_NBYTES:
        return f"bucket below {FLOOR_NBYTES // 1024} KiB"
    if numel * buffer.element_size() < FLOOR_NBYTES:
        return "stays dense"
    job.compared = job.layout.part(kept)
    return None
