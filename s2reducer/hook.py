# SPDX-License-Identifier: MIT
"""The state and the hook: from a DDP bucket to a job, and back.

No postponed annotations here: DDP looks at the hook's annotations as objects.
"""

import copy
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from s2reducer import ops
from s2reducer.bucket_order import BucketOrder
from s2reducer.config import Config, first_difference
from s2reducer.engine import Engine, engine_of
from s2reducer.errors import S2Error
from s2reducer.exchange import IndexExchange
from s2reducer.plans import Job, Pending, keep
from s2reducer.plans.dense import reduce_dense, reduce_sparse_tensor
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.report import PlanTotals, Report, dtype_name
from s2reducer.segments import Layout, LayoutCache
from s2reducer.transport import SPARSE_DEVICES, Transport

# Below this size a bucket goes dense under "auto", without an index.  The index takes the latency
# of one more small collective, some 100 microseconds on Ethernet.  No plan can save more than the
# whole dense message, and of 16 KiB that is 131 microseconds at 1 Gbit/s, the slowest link worth a
# thought, and a tenth of it at 10 Gbit/s.
FLOOR_NBYTES = 16 * 1024


class S2State:
    """Settings, counters and layouts of one rank's hook, for one DDP module.

    Args:
        process_group: the group that DDP reduces over; None for the default group.  A DDP module
            with a group of its own needs that group here; ``register`` takes it from the module.
        plan: how buckets cross the network.  ``"owner"``: each non-zero block is summed by one of
            the ranks that have it; ``"gather"``: every rank gets all ranks' blocks; ``"union"``:
            an AllReduce of the blocks that any rank has; ``"dense"``: DDP's own AllReduce.
            ``"auto"`` takes, for each bucket and step, the one that sends the fewest bytes.
        block: elements of a block of every parameter; None for one row of a matrix or table (if it
            has 8 to 8192 elements), else 64 consecutive elements.
        seed: of every hash, 0 to 2**64 - 1.
        deterministic: keeps to ``owner`` and ``gather``, which sum in rank order and round once, so
            that the bits of a result depend on nothing but the gradients.

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
    ) -> None:
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a group that this rank belongs to, or None for the default "
                f"group, but is {process_group!r}"
            )
        self.process_group = process_group
        self.config = Config(plan, block, seed, deterministic)
        self.step = 0
        self._begin()

    def _begin(self) -> None:
        """What belongs to a process and its model, and is not kept across pickling."""
        self.last_error: BaseException | None = None
        self._refusal: str | None = None
        self._refused_from = 0  # the first step that is refused
        self._transport: Transport | None = None
        self._engine: Engine | None = None
        self._exchange = IndexExchange()
        self._lanes_nbytes = 0  # sent in the lanes
        self._layouts = LayoutCache(self.config.block)
        self._order = BucketOrder()
        self._lock = threading.Lock()  # callbacks add to the totals, on the backend's threads
        self._bytes_dense = 0
        self._plans: dict[str, PlanTotals] = {}

    def report(self) -> Report:
        """What this rank has sent since construction, and why."""
        with self._lock:
            return Report(
                steps=self.step,
                world_size=self._transport.world_size if self._transport else 0,
                bytes_sent=(self._transport.bytes_sent if self._transport else 0)
                + self._lanes_nbytes,
                bytes_dense=self._bytes_dense,
                parameters=copy.deepcopy(self._layouts.records()),
                plans=copy.deepcopy(self._plans),
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
        started = time.perf_counter()
        job: Job | None = None
        try:
            layout = self._admit(bucket)
        except Exception as error:
            raise self._fail(error, None) from error
        self._refuse_if_failed()  # again: the bucket may have begun the first step that is refused
        try:
            buffer = bucket.buffer()
            transport = self._transport or self._connect(buffer.device)
            job = Job(buffer, layout, self.config, transport, self.step)
            sent_before = transport.bytes_sent
            if self._transport is None:
                self._compare_settings(job)
            job.nbytes = transport.bytes_sent - sent_before
            plan = self._choose_plan(job)
            if plan is None:
                return self._reduce_in_lanes(job, started)
            pending = plan(job)
            job.nbytes = transport.bytes_sent - sent_before
            self._record(job)
        except Exception as error:
            raise self._fail(error, job) from error
        return self._finish_later(job, pending, started)

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
                raise TypeError(_complex_sentence(self._layouts.record(parameter).label()))
        self.step += self._order.begins_step(parameters, bucket.index(), bucket.is_last(), known)
        layout = self._layouts.layout(parameters)
        if bucket.buffer().numel() != layout.numel:
            raise ValueError(
                f"the {layout.describe()} has {bucket.buffer().numel()} elements, but its "
                f"parameters have {layout.numel}: gradients must lie one behind the other"
            )
        return layout

    def _connect(self, device: torch.device) -> Transport:
        group = self.process_group or dist.group.WORLD
        if group is None:
            raise RuntimeError("there is no default process group: call init_process_group() first")
        return Transport(group, device)

    def _compare_settings(self, job: Job) -> None:
        """The first collective of a state: ranks that are set differently all raise the same."""
        transport = job.transport
        if transport.world_size > 1:
            records = transport.all_gather_records(self.config.record(), job.buffer.device)
            difference = first_difference(records)
            if difference is not None:
                raise ValueError(difference)
        self._transport = transport

    def _choose_plan(self, job: Job) -> Callable[[Job], Pending] | None:
        """By what all ranks share: the settings, and the kind of the bucket.

        None for a bucket that may travel sparsely: its ranks have to compare their blocks first.
        """
        buffer = job.buffer
        if job.transport.world_size == 1:
            job.reason = "one rank"
            return keep
        if buffer.is_sparse:
            job.reason = "COO gradient"
            return reduce_sparse_tensor
        if buffer.numel() == 0:
            job.reason = "no elements"
            return keep
        if buffer.device.type not in SPARSE_DEVICES:
            job.reason = f"on {buffer.device.type}, where only dense is supported"
        elif buffer.dtype not in WIRE_DTYPES:
            job.reason = f"{dtype_name(buffer.dtype)}, for which only dense is supported"
        elif self.config.plan == "dense":
            job.reason = "as set"
        elif self._below_floor(buffer):
            job.reason = f"bucket below {FLOOR_NBYTES // 1024} KiB"
        else:
            return None
        return reduce_dense

    def _below_floor(self, buffer: Tensor) -> bool:
        auto = self.config.plan == "auto" and not self.config.deterministic
        return auto and buffer.nbytes < FLOOR_NBYTES

    def _reduce_in_lanes(self, job: Job, started: float) -> Future[Tensor]:
        """Scans the bucket here, while it is still in the caches, and leaves the rest to others."""

        def done(job: Job, error: Exception | None) -> Exception | None:
            if error is not None:
                # As in _finish_later(), what travels outside the lanes goes on to the step's end.
                return self._fail(error, job, refused_from=job.step + 1)
            self._record(job)
            with self._lock:
                self._lanes_nbytes += job.lanes_nbytes
                self._plans[job.plan].seconds += time.perf_counter() - started
            return None

        if self._engine is None:
            job.round = "making process groups"
            self._engine = engine_of(job.transport.group, job.buffer.device)
        job.plan, job.round = self.config.plan, "scan"
        job.bitmap = torch.empty(job.layout.bitmap_nbytes, dtype=torch.uint8)
        negative_zeros = torch.empty(1, dtype=torch.int64)
        ops.bitmap_from_nonzero(job.buffer, job.layout.segments, job.bitmap, negative_zeros)
        job.has_negative_zeros = bool(negative_zeros.item())
        return self._engine.submit(job, self._exchange, done)

    def _finish_later(self, job: Job, pending: Pending, started: float) -> Future[Tensor]:
        def finish(future: Future[Any] | None) -> Tensor:
            try:
                if future is not None:
                    future.value()  # raises what the collective raised
                result = pending.finish()
            except Exception as error:
                # The rest of this step goes on, and DDP raises at its end: whether this comes
                # before or after the next bucket's collectives differs between ranks, and who left
                # them out would leave the others waiting.
                raise self._fail(error, job, refused_from=job.step + 1) from error
            with self._lock:
                self._plans[job.plan].seconds += time.perf_counter() - started
            return result

        if pending.future is not None:
            return pending.future.then(finish)
        result = finish(None)
        # A future of a CUDA tensor has to know the device, or DDP would not wait for its stream.
        done: Future[Tensor] = Future(devices=[result.device] if result.is_cuda else None)
        done.set_result(result)
        return done

    def _record(self, job: Job) -> None:
        """Adds a bucket to what report() will show."""
        dense_nbytes = job.buffer.numel() * job.buffer.element_size()  # of a COO tensor: its table
        with self._lock:
            self._bytes_dense += job.transport.ring_nbytes(dense_nbytes)
            totals = self._plans.setdefault(job.plan, PlanTotals())
            totals.buckets += 1
            totals.bytes += job.nbytes + job.lanes_nbytes
            for record in job.layout.records:
                record.plan, record.reason = job.plan, job.reason
            if job.counts is not None:
                counts = zip(*(count.tolist() for count in job.counts), strict=True)
                for record, (live, union) in zip(job.layout.records, counts, strict=True):
                    record.steps += 1
                    record.live += live
                    record.union_live += union

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


# ------------------------------------------------------------------------------------------------
# Public functions
# ------------------------------------------------------------------------------------------------


def s2_hook(
    state: S2State,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # not among what torch exports by name
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: gives every rank the mean of the ranks' gradients.

    1. Find the bucket's live blocks, and tell all ranks which they are.
    2. Sum those blocks by the plan that sends the fewest bytes, on other threads, while the
       backward pass goes on.

    Args:
        state: this rank's ``S2State``.
        bucket: the gradients that DDP hands over: float32, float64, float16 or bfloat16 may travel
            sparsely, other dtypes travel as they would without a hook.

    Returns:
        A future of the bucket's buffer, which has been written in place.

    Raises:
        S2Error: from ``backward()``, with what failed, for which bucket, in which round and step.

    Example::

        >>> ddp_model.register_comm_hook(s2reducer.S2State(), s2reducer.s2_hook)
    """
    return state._reduce(bucket)


def register(ddp: DistributedDataParallel, **settings: Any) -> S2State:
    """Registers ``s2_hook`` with a new state on a DDP module, and returns the state.

    The process group and the parameters' names come from the module.

    Args:
        ddp: a module that has no communication hook yet.
        **settings: those of ``S2State``, but for ``process_group``.

    Raises:
        TypeError: ``ddp`` is no DistributedDataParallel, a parameter is complex, or a setting is
            unknown or of the wrong kind.
        ValueError: the module has a hook already, or a setting is not among the accepted values.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"register() takes a DistributedDataParallel module, but got {type(ddp).__name__}"
        )
    if "process_group" in settings:
        raise TypeError("register() takes the process group from the module: leave it out")
    if ddp._comm_hooks:
        raise ValueError("this module has a communication hook already, and can have only one")
    reduced = {
        name: parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }
    for name, parameter in reduced.items():
        if parameter.is_complex():
            raise TypeError(_complex_sentence(name))
    state = S2State(ddp.process_group, **settings)
    for name, parameter in reduced.items():
        state._layouts.record(parameter, name)
    ddp.register_comm_hook(state, s2_hook)
    return state


def _complex_sentence(label: str) -> str:
    return (
        f"parameter {label} is complex, but gradients must be float32, float64, float16 or "
        "bfloat16: keep its real and imaginary parts as a float parameter (torch.view_as_real)"
    )
