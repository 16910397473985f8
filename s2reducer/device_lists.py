# SPDX-License-Identifier: MIT
"""Blocks of which only the device knows how many there are, and sketches of them.

A list has room for all blocks that may come, and a count of those that did.  What lies behind these
means nothing.  So nothing waits for the device, and the same kernels run on whatever comes, as a
CUDA graph asks for.

The operators of ``ops.py`` want to know the length.  On the CPU that is no matter.  On CUDA devices
they have twins that take the count, int64 [1], from the device, where ``cuda.py`` loads them:

    sketch_insert_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, Tensor values) -> ()
    sketch_weigh_counted(Tensor(a!) magnitudes, int seed, Tensor ids, Tensor count, Tensor values)
        -> ()
    sketch_estimate_counted(Tensor table, int seed, Tensor ids, Tensor count, Tensor(a!) values)
        -> ()
    sketch_peel_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, int nranks,
        Tensor? magnitudes, int max_rounds, Tensor(b!) values, Tensor(c!) decoded,
        Tensor(d!) bounds, Tensor(e!) norms) -> ()

Where these are not there, the host waits for the length of every list.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from s2reducer import cuda, ops
from s2reducer.device import HostCopy

_ops: Any = torch.ops.s2reducer


def missing(device: torch.device, operator: str) -> str | None:
    """Why an operator cannot work there, in a sentence; None if it can."""
    if device.type != "cuda":
        return None
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"s2reducer::{operator}", "CUDA"):
        return cuda.missing() or f"the CUDA kernels of s2reducer lack {operator}"
    return cuda.missing(device.index)


def waits_for_lengths(device: torch.device) -> bool:
    """Whether sketches make the host wait for the lengths of lists."""
    return device.type != "cpu" and not cuda.has_for(device, _ops, "sketch_peel_counted")


@dataclass(frozen=True)
class Chosen:
    """Those of N things that a mask chooses, before the others.

    Attributes:
        order: int64 [N], the numbers of the chosen ones, which ascend, and behind them the rest.
        count: int64 [1], of the chosen ones.
    """

    order: Tensor
    count: Tensor

    @cached_property
    def length(self) -> int:
        """The count; the host waits for it."""
        (count,) = (self.count,) if self.count.device.type == "cpu" else HostCopy(self.count).wait()
        return int(count)

    def valid(self) -> Tensor:
        """bool [N], which places in the order have a chosen one."""
        return torch.arange(len(self.order), device=self.order.device) < self.count

    def restored(self, listed: Tensor) -> Tensor:
        """What was listed in this order, [N, ...], where it belongs."""
        return torch.empty_like(listed).index_copy_(0, self.order, listed)


def choose(mask: Tensor) -> Chosen:
    """By ``mask``, bool [N]."""
    others = (~mask).to(torch.uint8)
    return Chosen(torch.sort(others, stable=True).indices, mask.sum(dtype=torch.int64).view(1))


def bits_of(bitmap: Tensor) -> Tensor:
    """bool, the bits of a bitmap on any device."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bitmap.device)
    return ((bitmap.unsqueeze(1) >> shifts) & 1).view(-1) != 0


def bitmap_of(bits: Tensor) -> Tensor:
    """uint8, the way back."""
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return torch.sum(bits.view(-1, 8).to(torch.uint8) << shifts, 1, dtype=torch.uint8)


# ------------------------------------------------------------------------------------------------
# Sketches
# ------------------------------------------------------------------------------------------------


def _takes_counts(table: Tensor) -> bool:
    return cuda.has_for(table.device, _ops, "sketch_peel_counted")


def sketch_insert(table: Tensor, seed: int, ids: Tensor, chosen: Chosen, values: Tensor) -> None:
    """``ops.sketch_insert`` of the chosen ones, which ``ids`` and ``values`` begin with."""
    if _takes_counts(table):
        _ops.sketch_insert_counted.default(table, ops.signed(seed), ids, chosen.count, values)
    else:
        ops.sketch_insert(table, seed, ids[: chosen.length], values[: chosen.length])


def sketch_weigh(
    magnitudes: Tensor, seed: int, ids: Tensor, chosen: Chosen, values: Tensor
) -> None:
    """``ops.sketch_weigh`` of the chosen ones."""
    if _takes_counts(magnitudes):
        _ops.sketch_weigh_counted.default(magnitudes, ops.signed(seed), ids, chosen.count, values)
    else:
        ops.sketch_weigh(magnitudes, seed, ids[: chosen.length], values[: chosen.length])


def sketch_estimate(table: Tensor, seed: int, ids: Tensor, chosen: Chosen) -> Tensor:
    """float32 [N, block]: ``ops.sketch_estimate`` of the chosen ones."""
    values = table.new_zeros(len(ids), table.shape[2])
    if _takes_counts(table):
        _ops.sketch_estimate_counted.default(table, ops.signed(seed), ids, chosen.count, values)
    else:
        ops.sketch_estimate(table, seed, ids[: chosen.length], values[: chosen.length])
    return values


@dataclass(frozen=True)
class Peeled:
    """What ``ops.sketch_peel`` writes, of N blocks; zeros behind the chosen ones."""

    values: Tensor
    decoded: Tensor
    bounds: Tensor
    norms: Tensor


def sketch_peel(
    table: Tensor,
    seed: int,
    ids: Tensor,
    chosen: Chosen,
    nranks: int,
    magnitudes: Tensor,
    max_rounds: int,
) -> Peeled:
    """``ops.sketch_peel`` of the chosen ones, in 1 to ``max_rounds`` rounds."""
    n = len(ids)
    peeled = Peeled(
        table.new_zeros(n, table.shape[2]),
        table.new_zeros(n, dtype=torch.bool),
        table.new_zeros(n),
        table.new_zeros(n),
    )
    outputs = list(vars(peeled).values())
    given = (nranks, magnitudes, max_rounds)
    if _takes_counts(table):
        count = chosen.count
        _ops.sketch_peel_counted.default(table, ops.signed(seed), ids, count, *given, *outputs)
        return peeled
    length = chosen.length
    # On a device the operator has a scratch of its own.
    nbytes = ops.sketch_scratch_nbytes(table, length) if table.device.type == "cpu" else 0
    scratch = table.new_empty(nbytes, dtype=torch.uint8)
    counts = table.new_empty(2, dtype=torch.int64)
    outputs = [output[:length] for output in outputs]
    _ops.sketch_peel.default(
        table, ops.signed(seed), ids[:length], *given, *outputs, scratch, counts
    )
    return peeled
