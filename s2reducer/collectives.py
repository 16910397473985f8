# SPDX-License-Identifier: MIT
"""The backend's collectives, by the methods of a process group.

The functions of ``torch.distributed`` end in these.  Before that they look at what cannot be here
(complex tensors, coalescing contexts, a rank outside of the group) and make their options anew,
which is a third to a half of the processor's time in a small collective.

They return when the result is there or, over NCCL, when the current stream will wait for it.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, AllToAllOptions

# torch 2.13 renamed them, and the old names are to go.
_ALL_GATHER, _ALL_TO_ALL = (
    new if hasattr(dist.ProcessGroup, new) else old
    for new, old in (
        ("all_gather_single", "_allgather_base"),
        ("all_to_all_single", "alltoall_base"),
    )
)

_SUM, _OR = dist.ReduceOp.SUM, dist.ReduceOp.BOR


def _options(kind: Any, async_op: bool = False, op: Any = None) -> Any:
    """Backends only read them, so that all calls share them."""
    options = kind()
    options.asyncOp = async_op
    if op is not None:
        options.reduceOp = op
    return options


_GATHER, _EXCHANGE = _options(AllgatherOptions), _options(AllToAllOptions)
_REDUCE = {
    (op, async_op): _options(AllreduceOptions, async_op, op)
    for op in (_SUM, _OR)
    for async_op in (False, True)
}


def all_gather(gathered: Tensor, piece: Tensor, *, group: dist.ProcessGroup) -> None:
    """``gathered`` becomes the ranks' pieces, flat, one behind the other."""
    _finish(getattr(group, _ALL_GATHER)(gathered, piece, _GATHER))


def all_to_all(
    incoming: Tensor,
    outgoing: Tensor,
    incoming_sizes: list[int],
    outgoing_sizes: list[int],
    *,
    group: dist.ProcessGroup,
) -> None:
    """Sends each rank its part of ``outgoing``; sizes are elements, one for each rank."""
    sizes = incoming_sizes, outgoing_sizes
    _finish(getattr(group, _ALL_TO_ALL)(incoming, outgoing, *sizes, _EXCHANGE))


def all_reduce(
    tensor: Tensor, op: Any = _SUM, *, group: dist.ProcessGroup, async_op: bool = False
) -> Any:
    """``tensor`` becomes its sum or, by ``ReduceOp.BOR``, the OR of its bits.

    With ``async_op`` this only begins, and the work is returned.
    """
    work = group.allreduce([tensor], _REDUCE[op, async_op])
    return work if async_op else _finish(work)


def _finish(work: Any) -> None:
    if work is not None:  # or the backend has seen to it
        work.wait()
