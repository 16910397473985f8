# SPDX-License-Identifier: MIT
"""The engine for a single tensor, without DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch import Tensor

from s2reducer.chooser import Chooser
from s2reducer.config import Config
from s2reducer.constants import FLOOR_NBYTES, ON_DEVICES
from s2reducer.device_lists import missing
from s2reducer.engine import engine_of
from s2reducer.errors import S2Error
from s2reducer.exchange import Header, compare, identity
from s2reducer.job import Job
from s2reducer.ordered_engine import OrderedEngine
from s2reducer.ordered_sketch import begin_sketch
from s2reducer.ordered_stages import Planner, Second, begin_blocks, begin_rows
from s2reducer.plans.dense import begin_dense, begin_sparse_tensor
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.report import dtype_name
from s2reducer.row_stages import rows_stage
from s2reducer.rows import has_rows, sum_of_integers
from s2reducer.segments import layout_of, new_record, segments_of
from s2reducer.sketch_stages import Union, sketch_rows_stage, sketch_stage
from s2reducer.stages import Stage, blocks_stage, dense_stage, scan
from s2reducer.transport import ORDERED, Transport
from s2reducer.worker import Begun

_INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)


def all_reduce(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    op: str = "mean",
    plan: str = "auto",
    block: int | None = None,
    seed: int = 0,
    deterministic: bool = False,
) -> Tensor:
    """The sum or mean of a tensor over the ranks of a group, as ``s2_hook`` would reduce it.

    Every rank calls this in the same order relative to other calls, and to the backward passes of
    modules on the same group, with the same arguments; it returns when the result is there (over
    NCCL, when the current stream will wait for it).

    Args:
        tensor: float32, float64, float16 or bfloat16, dense or COO; or uint8, int8, int32 or int64
            for a sum, which is not compressed where it is dense.  It has the same shape on all
            ranks; the indices of a COO tensor may be any, sorted or not, repeated or not.  It lies
            on the CPU and the group is of gloo, or on a CUDA device and the group is of NCCL, over
            which a COO tensor must be of floating point and have rows.  Elsewhere (CUDA over gloo)
            a dense tensor takes the group's own AllReduce, and a COO tensor is refused.
        group: the process group; None for the default one.
        op: ``"mean"`` or ``"sum"``.
        plan, block, seed, deterministic: as in ``S2State``.

    Returns:
        ``tensor``, which has been written in place; of a COO tensor a new, coalesced one.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind, or not among the accepted values.
        RuntimeError: there is no process group, or its backend is not known.
        S2Error: ranks called it differently, or a peer is gone.  Where the tensor takes the group's
            own AllReduce because of its device, these come as a ValueError, and as what torch
            raises.

    Example::

        >>> rows = torch.sparse_coo_tensor([[3, 1, 3]], torch.ones(3, 64), (1_000_000, 64))
        >>> total = s2reducer.all_reduce(rows, op="sum")
    """
    config = Config(plan, block, seed, deterministic)
    _check(tensor, op)
    group = group or dist.group.WORLD
    if group is None:
        raise RuntimeError("there is no default process group: call init_process_group() first")
    transport = Transport(group, tensor.device)
    if tensor.is_sparse:
        _check_coo(tensor, transport)
    config.check_world_size(transport.world_size)
    if config.deterministic and transport.way is None and transport.world_size > 1:
        raise ValueError(
            "deterministic=True is for a tensor on the CPU of a gloo group, or on a CUDA device of "
            f"an NCCL group, but this one is on {tensor.device.type} over {transport.backend}"
        )
    with torch.no_grad():
        if transport.world_size == 1:
            return tensor.coalesce() if tensor.is_sparse else tensor
        if tensor.is_sparse:
            return _reduce(tensor, tensor.shape, transport, op, config)
        flat = tensor.detach().contiguous().view(-1)
        _reduce(flat, tensor.shape, transport, op, config)
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))
        return tensor


def _check(tensor: Tensor, op: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, but is {type(tensor).__name__}")
    if op not in ("mean", "sum"):
        raise ValueError(f'op must be "mean" or "sum", but is {op!r}')
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(f"tensor must be dense or COO, but its layout is {tensor.layout}")
    if tensor.dtype in _INTEGERS:
        if op == "mean":
            raise ValueError(
                f'op must be "sum" for whole numbers, but is "mean" for {dtype_name(tensor.dtype)}'
            )
    elif tensor.dtype not in WIRE_DTYPES:
        accepted = ", ".join(map(dtype_name, (*WIRE_DTYPES, *_INTEGERS)))
        raise TypeError(f"tensor must be one of {accepted}, but is {dtype_name(tensor.dtype)}")


def _check_coo(tensor: Tensor, transport: Transport) -> None:
    place = f"{tensor.device.type} over {transport.backend}"
    if transport.way is None:
        raise ValueError(
            "a COO tensor must lie on the CPU of a gloo group, or on a CUDA device of an NCCL "
            f"group, but is on {place}"
        )
    if transport.way == ORDERED and (tensor.dtype in _INTEGERS or not has_rows(tensor)):
        raise ValueError(
            f"a COO tensor on {place} must be of floating point and have rows: make it dense, or "
            "reduce it on the CPU"
        )


def _reduce(
    buffer: Tensor, shape: torch.Size, transport: Transport, op: str, config: Config
) -> Tensor:
    """``buffer`` is COO, or flat where the tensor of this shape is dense."""
    sketch = config.plan == "sketch"
    lacks = missing(buffer.device, "sketch_peel") if sketch else None
    record = new_record(torch.empty(shape, device="meta"), block=config.block)
    segments = segments_of([buffer.numel()], [record.block])
    layout = layout_of(segments, (record,), buffer.device)
    settings = f"all_reduce {op} {config} {tuple(shape)} {buffer.layout}"
    header = Header(identity(layout, buffer.dtype, f"{settings} {lacks is None}"), step=0)
    chooser = Chooser(config.plan == "auto" and not config.deterministic, learns=False)
    if transport.way == ORDERED:
        chooser.keep_to(ON_DEVICES)
    job = Job(
        buffer=buffer,
        layout=layout,
        compared=layout,
        config=config,
        transport=transport,
        chooser=chooser,
        step=0,
        divisor=float(transport.world_size) if op == "mean" else 1.0,
        tables=[buffer] if buffer.is_sparse else [],
    )

    def first(index: Transport) -> Stage | Begun[Tensor, Union]:
        """The header goes alone: nothing says that ranks have tensors of the same size."""
        job.round = "comparison of the ranks' tensors"
        compare(index, header, buffer.device)
        if buffer.is_sparse and not has_rows(buffer):
            return lambda values: _as_the_backend_does(buffer, values, job.divisor)
        if buffer.is_sparse and buffer.dtype in _INTEGERS:
            return lambda values: sum_of_integers(buffer, values)
        reason = _dense_reason(buffer, config, transport.world_size)
        if buffer.is_sparse and reason is not None:
            return lambda values: _as_the_backend_does(buffer, values, job.divisor)
        if reason is not None:
            return dense_stage(job, reason)
        if not buffer.is_sparse:
            scan(job)
            return sketch_stage(job, index) if sketch else blocks_stage(job, index)
        if sketch:
            begun = sketch_rows_stage(job, index)
            return Begun(lambda values, rest: begun.stage(values, rest)[0], begun.rest)
        stage = rows_stage(job, index)
        return lambda values: stage(values)[0]

    def begin(index: Transport) -> Planner[Tensor]:
        """The same where collectives are enqueued."""
        job.round = "comparison of the ranks' tensors"
        compare(index, header, buffer.device)
        if buffer.is_sparse:
            plan = begin_rows(job, index)
            return lambda: _the_only(plan())
        reason = _dense_reason(buffer, config, transport.world_size)
        if reason is None and lacks is not None:
            reason = f"sketch, for which {lacks}"
        if reason is not None:
            return lambda: dense_stage(job, reason)
        if sketch:
            return begin_sketch(job, index)
        return begin_blocks(job, [], index)

    def done(job: Job, error: Exception | None) -> Exception | None:
        return error and _failed(job, error)

    if transport.way is None:
        compare(transport, header, buffer.device)
        begin_dense(buffer, transport, job.divisor).wait()
        return buffer
    if transport.way == ORDERED:
        ordered = OrderedEngine(transport.group, buffer.device)
        return ordered.submit(job, begin, done).wait().unwrap()
    return engine_of(transport.group, buffer.device).submit(job, first, done).wait().unwrap()


def _the_only(second: Second[list[Tensor]]) -> Second[Tensor]:
    return lambda values: second(values)[0]


def _failed(job: Job, error: Exception) -> S2Error:
    failure = S2Error(f"all_reduce, plan {job.plan}, {job.round}: {error}")
    failure.__cause__ = error
    return failure


def _as_the_backend_does(tensor: Tensor, transport: Transport, divisor: float) -> Tensor:
    coalesced = tensor.coalesce().clone()  # for it is written, and may be the tensor itself
    begin_sparse_tensor(coalesced, transport, divisor).wait()
    return coalesced.coalesce()


def _dense_reason(buffer: Tensor, config: Config, world_size: int) -> str | None:
    if buffer.dtype in _INTEGERS:
        return "whole numbers"
    reason = config.too_many(world_size, buffer.is_sparse) or config.dense_reason(buffer.dtype)
    if reason is not None or buffer.is_sparse:
        return reason
    if config.plan == "auto" and not config.deterministic and buffer.nbytes < FLOOR_NBYTES:
        return f"tensor below {FLOOR_NBYTES // 1024} KiB"
    return None
