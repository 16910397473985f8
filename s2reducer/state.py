# SPDX-License-Identifier: MIT
"""The state of one rank's hook: from a DDP bucket to a job, and back."""

import itertools
import threading
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from s2reducer.bucket_order import BucketOrder
from s2reducer.chooser import Chooser
from s2reducer.config import Config, first_difference
from s2reducer.constants import FLOOR_NBYTES, Cost
from s2reducer.ddp_module import DdpModule
from s2reducer.engine import Engine, engine_of
from s2reducer.errors import S2Error
from s2reducer.exchange import Header, compare, identity
from s2reducer.job import Job, Part
from s2reducer.ledger import Ledger
from s2reducer.plans.choice import dense_cost
from s2reducer.plans.dense import begin_dense, begin_sparse_tensor
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.replicas import ReplicaCheck
from s2reducer.report import Report, dtype_name
from s2reducer.rows import table_of
from s2reducer.segments import Layout, LayoutCache
from s2reducer.stages import scan
from s2reducer.transport import SPARSE_DEVICES, Transport
from s2reducer.worker import Outcome


class S2State:
    """Settings, counters and layouts of one rank's hook, for one DDP module.

    Args:
        process_group: the group that DDP reduces over; None for the default group.  A DDP module
            with a group of its own needs that group here, or its first step is an S2Error;
            ``register`` takes it from the module.
        plan: how buckets cross the network.  ``"owner"``: each non-zero block is summed by one of
            the ranks that have it; ``"gather"``: every rank gets all ranks' blocks; ``"union"``:
            an AllReduce of the blocks that any rank has; ``"dense"``: DDP's own AllReduce.
            ``"auto"`` takes, for each bucket and step, the one that should take the least time.
        block: elements of a block of every parameter; None for one row of a matrix or table (if it
            has 8 to 8192 elements), else 64 consecutive elements.
        seed: of every hash, 0 to 2**64 - 1.
        deterministic: keeps to ``owner`` and ``gather``, which sum in rank order and round once, so
            that the bits of a result depend on nothing but the gradients.
        check_every: steps between comparisons of the ranks' results, by checksums; 0 for none.  A
            difference is an S2Error in the next step, which names the parameter.

    All but ``process_group`` must be the same on all ranks, which is checked in the first step.
    A state can be pickled and copied, without its group and its report.

    Attributes:
        config: the settings.
        process_group: as given; an unpickled state has None.
        step: backward passes reduced so far.
        last_error: the exception behind the first S2Error, or None.  After it the state refuses to
            work: ranks may have gone different ways.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or not among the accepted values.

    Example::

        >>> state = s2reducer.S2State()
        >>> ddp_model.register_comm_hook(state, s2reducer.s2_hook)
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        plan: str = "auto",
        block: int | None = None,
        seed: int = 0,
        deterministic: bool = False,
        check_every: int = 0,
    ) -> None:
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a group that this rank belongs to, or None for the default "
                f"group, but is {process_group!r}"
            )
        self.process_group = process_group
        self.config = Config(plan, block, seed, deterministic, check_every)
        self.step = 0
        self._begin()

    def _begin(self) -> None:
        """What belongs to a process and its model, and is not kept across pickling."""
        config = self.config
        self.last_error: BaseException | None = None
        self._refusal: str | None = None
        self._refused_from = 0  # the first step that is refused
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._engine: Engine | None = None
        self._layouts = LayoutCache(config.block)
        self._module = DdpModule()
        self._order = BucketOrder()
        self._place = 0  # of the bucket in its step
        adapts = config.plan == "auto" and not config.deterministic
        self._chooser = Chooser(adapts, learns=not config.deterministic)
        self._ledger = Ledger(self._chooser)
        self._replicas = ReplicaCheck(config.check_every)

    def report(self) -> Report:
        """What this rank has sent since construction, and why."""
        transport = self._transport
        return self._ledger.report(
            steps=self.step,
            world_size=transport.world_size if transport else 0,
            nbytes=transport.bytes_sent if transport else 0,
            records=self._layouts.records(),
        )

    def __getstate__(self) -> dict[str, Any]:
        warnings.warn(
            "an S2State is saved and copied without its process group and its report", stacklevel=2
        )
        return {"config": self.config, "step": self.step}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.process_group = None
        self.config = saved["config"]
        self.step = saved["step"]
        self._begin()

    # --------------------------------------------------------------------------------------------
    # One bucket
    # --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _reduce(self, bucket: Any) -> Future[Tensor]:
        self._refuse_if_failed()
        job: Job | None = None
        try:
            layout = self._admit(bucket)
        except Exception as error:
            raise self._fail(error, None) from error
        self._refuse_if_failed()  # again: the bucket may have begun the first step that is refused
        try:
            job = self._job(bucket.buffer(), layout)
            self._compare_with_others(job)
            return self._send(job)
        except Exception as error:
            if self._engine is not None:
                self._engine.give_up(error)
            raise self._fail(error, job) from error

    def _refuse_if_failed(self) -> None:
        if self._refusal is not None and self.step >= self._refused_from:
            raise S2Error(f"this S2State has failed before: {self._refusal}")

    def _admit(self, bucket: Any) -> Layout:
        """Checks what DDP handed over, counts the step, and gives the bucket's layout."""
        if isinstance(bucket, tuple):
            raise TypeError(
                "s2_hook needs the buckets of DDP's C++ reducer, but was given a single gradient: "
                'set torch._dynamo.config.optimize_ddp to something other than "python_reducer"'
            )
        parameters = bucket.parameters()
        known = all(map(self._layouts.knows, parameters))
        for parameter in parameters:
            if parameter.is_complex():
                raise TypeError(complex_sentence(self._layouts.record(parameter).label()))
        self._place += 1
        if self._order.begins_step(parameters, bucket.index(), bucket.is_last(), known):
            self._ledger.step_begins(previous=self.step)
            self.step += 1
            self._place = 0
            self._module.check_join()
        layout = self._layouts.layout(parameters)
        self._ledger.bucket_begins(new_layout=not layout.memory.compared)
        if bucket.buffer().numel() != layout.numel:
            raise ValueError(
                f"the {layout.describe()} has {bucket.buffer().numel()} elements, but its "
                f"parameters have {layout.numel}: gradients must lie one behind the other"
            )
        return layout

    def _job(self, buffer: Tensor, layout: Layout) -> Job:
        transport = self._transport or self._connect(buffer.device)
        return Job(
            buffer=buffer,
            layout=layout,
            compared=layout,
            config=self.config,
            transport=transport,
            chooser=self._chooser,
            step=self.step,
            divisor=float(transport.world_size),
        )

    def _connect(self, device: torch.device) -> Transport:
        group = self.process_group or dist.group.WORLD
        if group is None:
            raise RuntimeError("there is no default process group: call init_process_group() first")
        self._module.check_group(self, group)
        return Transport(group, device)

    def _compare_with_others(self, job: Job) -> None:
        """Rounds of the first step, of new buckets, and of ``check_every``.

        Ranks that are set differently, or reduce different models, all raise the same.
        """
        transport, device = job.transport, job.buffer.device
        if transport.world_size == 1:
            self._transport = transport
            return
        if self._transport is None:
            records = transport.all_gather_records(self.config.record(), device)
            difference = first_difference(records)
            if difference is not None:
                raise ValueError(difference)
            self._transport = transport
        if self._place == 0:
            job.round = "comparison of the ranks' results"
            self._replicas.compare(transport, device)
        if not job.layout.memory.compared:
            job.round = "comparison of the ranks' buckets"
            compare(transport, Header(identity(job.layout, job.buffer.dtype), job.step), device)
            job.layout.memory.compared = True

    def _send(self, job: Job) -> Future[Tensor]:
        begun = time.perf_counter()
        self._ledger.bucket_begun(job)
        reason = self._dense_reason(job)
        if reason is None:
            return self._send_through_lanes(job, begun)
        return self._send_from_hook(job, reason, begun)

    # --------------------------------------------------------------------------------------------
    # Which way a bucket goes: by what all ranks share, its kind, the settings and the step
    # --------------------------------------------------------------------------------------------

    def _dense_reason(self, job: Job) -> str | None:
        """Why the bucket does not go through the lanes; else sets what is compared there."""
        buffer, config = job.buffer, self.config
        if job.transport.world_size == 1:
            return "one rank"
        if buffer.numel() == 0:
            return "no elements"
        if buffer.device.type not in SPARSE_DEVICES:
            return f"on {buffer.device.type}, where only dense is supported"
        if buffer.dtype not in WIRE_DTYPES:
            return f"{dtype_name(buffer.dtype)}, for which only dense is supported"
        if config.plan == "dense":
            return "as set"
        if buffer.is_sparse:
            return None
        if not self._chooser.adapts:
            return None
        if self._chooser.is_dense(job.step):
            return "a step that shows what dense takes"
        kept = [True] * len(job.layout.records)
        if not self._chooser.probes(job.step):
            kept = [not record.stays_dense for record in job.layout.records]
        numels = zip(job.layout.segments[:, 1].tolist(), kept, strict=True)
        nbytes = buffer.element_size() * sum(numel for numel, keep in numels if keep)
        if buffer.nbytes < FLOOR_NBYTES:
            return f"bucket below {FLOOR_NBYTES // 1024} KiB"
        if nbytes < FLOOR_NBYTES:
            return "stays dense"
        job.compared = job.layout.part(kept)
        return None

    def _send_from_hook(self, job: Job, reason: str, begun: float) -> Future[Tensor]:
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
        return self._finish_later(job, [pending] if pending else [], [job.plan], begun)

    def _send_through_lanes(self, job: Job, begun: float) -> Future[Tensor]:
        """Scans the bucket here, while it is still in the caches, and leaves the rest to others."""

        def done(job: Job, error: Exception | None) -> Exception | None:
            if error is not None:
                # As in _finish_later(), what travels outside the lanes goes on to the step's end.
                return self._fail(error, job, refused_from=job.step + 1)
            self._ledger.sent_from_lanes(job)
            return None

        if self._engine is None:
            job.round = "making process groups"
            self._engine = engine_of(job.transport.group, job.buffer.device)
        job.plan = self.config.plan
        if job.buffer.is_sparse:
            table = table_of(job.buffer)
            job.layout.records[0].set_blocks(table.width, table.nrows)
        else:
            scan(job)
        begun_here = self._begin_segments_that_stay_dense(job)
        from_lanes = self._engine.submit(job, done)
        plans = ["dense"] if begun_here else []
        return self._finish_later(job, [from_lanes, *begun_here], plans, begun)

    def _begin_segments_that_stay_dense(self, job: Job) -> list[Future[Any]]:
        """Their AllReduces, on the user's group, beside what the lanes do."""
        if job.compared is job.layout:
            return []
        compared = set(map(id, job.compared.records))
        dense = [id(record) not in compared for record in job.layout.records]
        sent_before = job.transport.bytes_sent
        futures = [
            begin_dense(job.buffer[begin:end], job.transport, job.divisor)
            for begin, end in job.layout.ranges(dense)
        ]
        numel = job.layout.numel - job.compared.numel
        cost = dense_cost(numel, job.buffer.dtype, job.transport.world_size)
        records = list(itertools.compress(job.layout.records, dense))
        nbytes = job.transport.bytes_sent - sent_before
        self._ledger.sent_from_hook(job, Part("dense", "stays dense", records, nbytes, cost))
        return futures

    def _finish_later(
        self, job: Job, pending: list[Future[Any]], plans: list[str], begun: float
    ) -> Future[Tensor]:
        """The bucket's result, once all that is pending is done; it waits for nothing.

        What comes from the lanes is the bucket's result; AllReduces work in place.
        """
        place = self._place

        def finish(futures: list[Future[Any]]) -> Tensor:
            try:
                result = job.buffer
                for future in futures:
                    value = future.value()  # raises what a collective raised
                    if isinstance(value, Outcome):
                        result = value.unwrap()
                if self._replicas.wants(job.step):
                    self._replicas.take(job.step, place, job.layout, result)
            except S2Error:
                raise
            except Exception as error:
                # The rest of this step goes on, and DDP raises at its end: whether this comes
                # before or after the next bucket's collectives differs between ranks, and who left
                # them out would leave the others waiting.
                raise self._fail(error, job, refused_from=job.step + 1) from error
            used = dict.fromkeys([*plans, *(part.plan for part in job.parts)])
            self._ledger.bucket_done(used, begun)
            if job.warm and job.dense_nbytes:
                self._chooser.meter.dense(job.dense_nbytes, begun, time.perf_counter())
            return result

        if len(pending) == 1:
            return pending[0].then(lambda future: finish([future]))
        if pending:
            return torch.futures.collect_all(pending).then(lambda all_: finish(all_.value()))
        result = finish([])
        # A future of a CUDA tensor has to know the device, or DDP would not wait for its stream.
        done: Future[Tensor] = Future(devices=[result.device] if result.is_cuda else None)
        done.set_result(result)
        return done

    def _fail(self, error: Exception, job: Job | None, refused_from: int = 0) -> S2Error:
        """The error to raise; from step ``refused_from`` on the state refuses to work."""
        where = f"step {self.step}"
        if job is not None:
            where = f"step {job.step}, {job.layout.describe()}, plan {job.plan}, {job.round}"
        raised = S2Error(f"{where}: {error}")
        with self._lock:
            if self._refusal is None:
                self._refusal, self.last_error = str(raised), error
                self._refused_from = refused_from
        return raised


def complex_sentence(label: str) -> str:
    """Why the parameter ``label`` is refused."""
    return (
        f"parameter {label} is complex, but gradients must be float32, float64, float16 or "
        "bfloat16: keep its real and imaginary parts as a float parameter (torch.view_as_real)"
    )
