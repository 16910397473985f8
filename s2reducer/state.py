# SPDX-License-Identifier: MIT
"""The state of one rank's hook: from a DDP bucket to a job, and back."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from s2reducer.bucket_order import BucketOrder
from s2reducer.capture import refusal
from s2reducer.chooser import Chooser
from s2reducer.comparison import compare_bucket, compare_settings
from s2reducer.config import Config
from s2reducer.constants import ON_DEVICES
from s2reducer.ddp_module import (
    DdpModule,
    complex_sentence,
    module_with,
    reduced_parameters,
    tables_of,
)
from s2reducer.device import is_capturing
from s2reducer.errors import S2Error
from s2reducer.failure import Failure
from s2reducer.job import Job
from s2reducer.ledger import Ledger
from s2reducer.replicas import ReplicaCheck
from s2reducer.report import Report
from s2reducer.residuals import Residual, Residuals
from s2reducer.saved import Resumption, save
from s2reducer.segments import Layout, LayoutCache
from s2reducer.selection import Selection
from s2reducer.sender import Sender
from s2reducer.sketch_config import SketchConfig
from s2reducer.transport import ORDERED, Transport


class S2State:
    """Settings, counters and layouts of one rank's hook, for one DDP module.

    Args:
        process_group: the group that DDP reduces over; None for the default group.  A DDP module
            with a group of its own needs that group here, or its first step is an S2Error;
            ``register`` takes it from the module.
        plan: how buckets cross the network.  ``"owner"``: each non-zero block is summed by one of
            the ranks that have it; ``"gather"``: every rank gets all ranks' blocks; ``"union"``:
            an AllReduce of the blocks that any rank has; ``"dense"``: DDP's own AllReduce.
            ``"auto"`` takes, for each bucket and step, the one of these that should take the least
            time.  ``"sketch"``: a bitmap and a count sketch, summed by AllReduce at the same time
            (S2 Reducer, arXiv 2110.02140); ``sketch`` decides what it may lose.
        block: elements of a block of every parameter; None for one row of a matrix or table (if it
            has 8 to 8192 elements), else 64 consecutive elements.
        seed: of every hash, 0 to 2**64 - 1.
        deterministic: keeps to ``owner`` and ``gather``, which sum in rank order and round once, so
            that the bits of a result depend on nothing but the ranks' gradients.
        check_every: steps between comparisons of the ranks' results, by checksums; 0 for none.  A
            difference is an S2Error in the next step, which names the parameter.
        sketch: the tables of the plan ``"sketch"``; None for the defaults of ``SketchConfig``.
        select: ``TopK``, ``SharedTopK``, ``RandomK`` or ``Threshold``: only these blocks of dense
            gradients are sent; None for all that are not zero.
        wire: ``"bf16"``: dense float32 gradients travel as bfloat16, and are summed in float32;
            None: as they are.
        error_feedback: what ``select`` and ``wire`` keep back is added to the next gradient, in
            float32, so that it arrives later; ``docs/lossy.md`` says what memory that takes.
        scaler: the ``torch.amp.GradScaler`` of a training that has one, so that what is kept is in
            the units of the unscaled gradient.

    All but ``process_group`` must be the same on all ranks, which is checked in the first step; of
    ``scaler``, whether it is given, where something may be owed.  A state can be pickled and
    copied, without its group, its scaler and its report.  COO and float64 gradients are neither
    selected from nor rounded.

    Attributes:
        config: the settings.
        process_group, scaler: as given; an unpickled state has None.
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
        sketch: SketchConfig | None = None,
        select: Selection | None = None,
        wire: str | None = None,
        error_feedback: bool = True,
        scaler: GradScaler | None = None,
    ) -> None:
        if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
            raise TypeError(
                "process_group must be a group that this rank belongs to, or None for the default "
                f"group, but is {process_group!r}"
            )
        if scaler is not None and not isinstance(scaler, GradScaler):
            raise TypeError(f"scaler must be a torch.amp.GradScaler or None, but is {scaler!r}")
        self.process_group = process_group
        self.scaler = scaler
        self.config = Config(
            plan=plan,
            block=block,
            seed=seed,
            deterministic=deterministic,
            check_every=check_every,
            sketch=SketchConfig() if sketch is None else sketch,
            select=select,
            wire=wire,
            error_feedback=error_feedback,
        )
        self.step = 0
        self._begin()

    def _belong_to(self, module: DistributedDataParallel) -> None:
        """Takes the parameters' names from their module, and their order: that of DDP's buckets
        changes with its settings, and in the first step."""
        self._module.set(module)
        tables = tables_of(module)
        for name, parameter in reduced_parameters(module):
            record = self._layouts.record(parameter, name)
            record.is_table = id(parameter) in tables

    def _begin(self) -> None:
        """What belongs to a process and its model, and is not kept across pickling."""
        config = self.config
        self._transport: Transport | None = None
        self._layouts = LayoutCache(config.block, config.select)
        self._module = DdpModule()
        self._order = BucketOrder()
        self._place = 0  # of the bucket in its step
        adapts = config.plan == "auto" and not config.deterministic and not config.lossy
        self._chooser = Chooser(adapts, learns=not config.deterministic)
        self._ledger = Ledger(self._chooser)
        self._replicas = ReplicaCheck(config.check_every)
        self._residuals = Residuals()
        self._resumption: Resumption | None = None
        self._failure = Failure(self._residuals)
        self._sender = Sender(self._layouts, self._ledger, self._replicas, self._failure)
        self._previous: Layout | None = None  # of the bucket before

    @property
    def last_error(self) -> Exception | None:
        return self._failure.error

    def report(self) -> Report:
        """What this rank has sent since construction, and why."""
        transport = self._transport
        return self._ledger.report(
            steps=self.step,
            world_size=transport.world_size if transport else 0,
            nbytes=transport.bytes_sent if transport else 0,
            records=self._layouts.records(),
            settings=self.config.changed(),
        )

    @classmethod
    def paper(
        cls,
        process_group: dist.ProcessGroup | None = None,
        *,
        compression: float = 0.25,
        rows: int = 1,
        error_feedback: bool = False,
        seed: int = 0,
    ) -> "S2State":
        """A state as in the paper (S2 Reducer, arXiv 2110.02140): a table of fixed size, estimates.

        Args:
            process_group: as in ``S2State``.
            compression: cells of the table for each live block of the first step's union.
            rows: hashes of a block.
            error_feedback: whether ranks keep what estimates miss for their next gradients.
            seed: as in ``S2State``.

        At its operating point, a quarter of a cell for each block and one row, the error of an
        estimate is about twice the gradient: a method to study, not one to train by.  Parameters
        most of whose blocks are live are sent as they are.
        """
        sketch = SketchConfig(
            rows=rows,
            cells=compression,
            margin=1.0,
            on_overflow="estimate",
            fixed=True,
            error_feedback=error_feedback,
        )
        return cls(process_group, plan="sketch", seed=seed, sketch=sketch)

    def residual(self, parameter: Tensor) -> Residual | None:
        """What this rank's gradient of ``parameter`` still owes, between two steps; None if
        nothing, as before the first step.

        ``select`` and ``wire`` leave something with ``error_feedback``, and so does the plan
        ``sketch`` with ``on_overflow="defer"`` or an ``error_feedback`` of its own.
        """
        if not self._layouts.knows(parameter):
            return None
        return self._residuals.of(self._layouts.record(parameter))

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on after a restart: plain types and tensors, to be saved on
        every rank, between two steps.

        That is the step, what is owed and, for the plan ``sketch``, how large unions were.  What
        ``auto`` has measured is not kept: it measures anew.  After an S2Error it is what there was
        before the step that failed.
        """
        if self._transport is None and self._resumption is not None:
            return self._resumption.saved
        records = self._layouts.records()
        place = (0, 0)
        if self._transport is not None:
            place = (self._transport.rank, self._transport.world_size)
        step = self.step if self._failure.error is None else max(0, self._failure.step - 1)
        return save(step, place, records, self._residuals, self.config)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on where ``state_dict`` was called; to be called before the first step.

        On another rank, or with another number of ranks, what was owed is dropped, with a warning.

        Raises:
            RuntimeError: this state has reduced something already.
            ValueError: ``saved`` is no such state, or that of a model with other parameters.
        """
        if self._transport is not None:
            raise RuntimeError(
                f"load_state_dict() must come before the first step, but this is step {self.step}"
            )
        resumption = Resumption(saved)
        resumption.check(self._layouts.records())
        self._resumption = resumption
        self.step = saved["step"]

    def __getstate__(self) -> dict[str, Any]:
        warnings.warn(
            "an S2State is saved and copied without its process group, its scaler and its report",
            stacklevel=2,
        )
        return {"config": self.config, "saved": self.state_dict()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.process_group = self.scaler = None
        self.config = saved["config"]
        self.step = 0
        self._begin()
        self.load_state_dict(saved["saved"])

    # --------------------------------------------------------------------------------------------
    # One bucket
    # --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _reduce(self, bucket: Any) -> Future[Tensor]:
        self._failure.refuse(self.step)
        self._refuse_capture(bucket)
        job: Job | None = None
        try:
            layout = self._admit(bucket)
        except Exception as error:
            raise self._failed(error, self.step) from error
        # Again: the bucket may have begun the first step that is refused.
        self._failure.refuse(self.step)
        try:
            job = self._job(bucket.buffer(), layout)
            self._compare_with_others(job)
            # Where a bucket that waits is sent can depend on how a rank's backward pass is made,
            # and one that has joined has none.
            waits = layout.memory.followed and not bucket.is_last() and not self._module.joins
            return self._sender.send(job, self._place, waits)
        except Exception as error:
            raise self._failed(error, job or self.step) from error

    def _failed(self, error: Exception, where: Job | int) -> S2Error:
        """The error to raise; other ranks are told, as this rank may have failed alone."""
        self._sender.give_up(error)
        return self._failure.report(error, where)

    def _refuse_capture(self, bucket: Any) -> None:
        """Before anything has been done for the bucket, so that the state stays as it is."""
        if isinstance(bucket, tuple) or not is_capturing(bucket.buffer()):
            return
        layout = self._layouts.layout(bucket.parameters())
        reason = refusal(self.config, self.scaler, bucket.buffer(), layout)
        if reason is not None:
            raise S2Error(reason)

    def _admit(self, bucket: Any) -> Layout:
        """Checks what DDP handed over, counts the step, and gives the bucket's layout."""
        if isinstance(bucket, tuple):
            raise TypeError(
                "s2_hook needs the buckets of DDP's C++ reducer, but was given a single gradient: "
                'set torch._dynamo.config.optimize_ddp to something other than "python_reducer"'
            )
        if self._transport is None and not self._module.is_known:
            self._look_for_module()
        parameters = bucket.parameters()
        known = all(map(self._layouts.knows, parameters))
        for parameter in parameters:
            if parameter.is_complex():
                raise TypeError(complex_sentence(self._layouts.record(parameter).label()))
        begins = self._order.begins_step(parameters, bucket.index(), bucket.is_last(), known)
        if begins:
            self._sender.flush()
            self._ledger.step_begins(previous=self.step)
            self.step += 1
            self._module.check_join(self.scaler is not None and self.config.owes)
            self._begin_residuals()
            if self._resumption is not None and self._resumption.done:
                self._resumption = None  # and what it holds
        self._place = 0 if begins else self._place + 1
        layout = self._layouts.layout(parameters)
        if self._resumption is not None and not layout.memory.compared:
            transport = self._transport or self._connect(bucket.buffer().device)
            place = (transport.rank, transport.world_size)
            records, exact = self._layouts.records(), transport.way == ORDERED
            self._resumption.give(records, self._residuals, place, self.config, exact)
        if self._previous is not None:
            self._previous.memory.followed = not begins
        self._previous = layout
        self._ledger.bucket_begins(new_layout=not layout.memory.compared)
        if bucket.buffer().numel() != layout.numel:
            raise ValueError(
                f"the {layout.describe()} has {bucket.buffer().numel()} elements, but its "
                f"parameters have {layout.numel}: gradients must lie one behind the other"
            )
        return layout

    def _look_for_module(self) -> None:
        """Where the hook has been registered by hand."""
        module = module_with(self)
        if module is not None:
            self._belong_to(module)

    def _begin_residuals(self) -> None:
        """What is owed is taken at the scale of this step.

        A step whose gradients were not finite changes parameters to what is not finite either,
        unless somebody skipped it, who is most likely a GradScaler that then changed its scale.
        """
        scaler, residuals = self.scaler, self._residuals
        residuals.begin_step(1.0 if scaler is None else scaler.get_scale())
        if scaler is not None or not residuals.rejected or not residuals.in_use:
            return
        if self._module.joins:
            return  # a rank that has no inputs left changes no parameters
        if all(bool(parameter.isfinite().all()) for parameter in self._layouts.parameters()):
            raise ValueError(
                "the step before was skipped, as its gradients were not finite, so that a "
                "GradScaler may have changed its scale, in which this rank keeps what it owes: "
                "give it as S2State(scaler=...), or GradScaler(enabled=False) if there is none"
            )

    def _job(self, buffer: Tensor, layout: Layout) -> Job:
        transport = self._transport or self._connect(buffer.device)
        if transport.way is not None and buffer.device != transport.device:
            raise ValueError(
                f"the {layout.describe()} is on {buffer.device}, but those before were on "
                f"{transport.device}: all gradients of a module must be on one device"
            )
        return Job(
            buffer=buffer,
            layout=layout,
            compared=layout,
            config=self.config,
            transport=transport,
            chooser=self._chooser,
            step=self.step,
            divisor=float(transport.world_size),
            residuals=self._residuals,
        )

    def _connect(self, device: torch.device) -> Transport:
        group = self.process_group or dist.group.WORLD
        if group is None:
            raise RuntimeError("there is no default process group: call init_process_group() first")
        self._module.check_group(group)
        transport = Transport(group, device)
        self.config.check_world_size(transport.world_size)
        if transport.way == ORDERED:
            self._chooser.keep_to(ON_DEVICES)
        return transport

    def _compare_with_others(self, job: Job) -> None:
        """Rounds of the first step, of new buckets, and of ``check_every``."""
        transport, layout = job.transport, job.layout
        if transport.world_size == 1:
            self._transport = transport
            layout.memory.compared = True
            return
        if self._transport is None:
            compare_settings(transport, self.config, self.scaler is not None)
            self._transport = transport
        if self._place == 0:
            job.round = "comparison of the ranks' results"
            self._replicas.compare(transport, transport.device)
        if not layout.memory.compared:
            job.round = "comparison of the ranks' buckets"
            compare_bucket(transport, layout, job.dtype, job.step)
