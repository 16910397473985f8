# SPDX-License-Identifier: MIT
"""Blocks of which only the device knows how many there are, and sketches of them.

A list has room for all blocks that may come, and ``count``, int64 [1], says how many of them did.
What lies behind these means nothing.  So nothing waits for the device, and the same kernels run on
whatever comes, as a CUDA graph asks for.

On the CPU the operators of ``ops.py`` get what the count says.  On CUDA devices there are twins of
them that take the count themselves, in an object of their own which may not be there:

    sketch_insert_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, Tensor values) -> ()
    sketch_weigh_counted(Tensor(a!) magnitudes, int seed, Tensor ids, Tensor count, Tensor values)
        -> ()
    sketch_estimate_counted(Tensor table, int seed, Tensor ids, Tensor count, Tensor(a!) values)
        -> ()
    sketch_peel_counted(Tensor(a!) table, int seed, Tensor ids, Tensor count, int nranks,
        Tensor? magnitudes, int max_rounds, Tensor(b!) values, Tensor(c!) decoded,
        Tensor(d!) bounds, Tensor(e!) norms) -> ()
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2reducer import ops

_ops: Any = torch.ops.s2reducer


def missing(device: torch.device) -> str | None:
    """What is missing for sketches on a device; None if nothing is."""
    if device.type == "cpu" or hasattr(_ops, "sketch_peel_counted"):
        return None
    return f"s2reducer was built without kernels for {device.type.upper()}"


@dataclass(frozen=True)
class Chosen:
    """Those of N things that a mask chooses, before the others.

    Attributes:
        order: int64 [N], the numbers of the chosen ones, which ascend, and behind them the rest.
        count: int64 [1], of the chosen ones.
    """

    order: Tensor
    count: Tensor

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


def sketch_insert(table: Tensor, seed: int, ids: Tensor, count: Tensor, values: Tensor) -> None:
    """``ops.sketch_insert`` of the first ``count``."""
    if table.device.type != "cpu":
        _ops.sketch_insert_counted.default(table, ops.signed(seed), ids, count, values)
        return
    n = int(count)
    ops.sketch_insert(table, seed, ids[:n], values[:n])


def sketch_weigh(magnitudes: Tensor, seed: int, ids: Tensor, count: Tensor, values: Tensor) -> None:
    """``ops.sketch_weigh`` of the first ``count``."""
    if magnitudes.device.type != "cpu":
        _ops.sketch_weigh_counted.default(magnitudes, ops.signed(seed), ids, count, values)
        return
    n = int(count)
    ops.sketch_weigh(magnitudes, seed, ids[:n], values[:n])


def sketch_estimate(table: Tensor, seed: int, ids: Tensor, count: Tensor) -> Tensor:
    """float32 [N, block]: ``ops.sketch_estimate`` of the first ``count``."""
    values = table.new_zeros(len(ids), table.shape[2])
    if table.device.type != "cpu":
        _ops.sketch_estimate_counted.default(table, ops.signed(seed), ids, count, values)
        return values
    n = int(count)
    ops.sketch_estimate(table, seed, ids[:n], values[:n])
    return values


@dataclass(frozen=True)
class Peeled:
    """What ``ops.sketch_peel`` writes, of N blocks; zeros behind the first ``count``."""

    values: Tensor
    decoded: Tensor
    bounds: Tensor
    norms: Tensor


def sketch_peel(
    table: Tensor,
    seed: int,
    ids: Tensor,
    count: Tensor,
    nranks: int,
    magnitudes: Tensor,
    max_rounds: int,
) -> Peeled:
    """``ops.sketch_peel`` of the first ``count``, in 1 to ``max_rounds`` rounds."""
    n = len(ids)
    peeled = Peeled(
        table.new_zeros(n, table.shape[2]),
        table.new_zeros(n, dtype=torch.bool),
        table.new_zeros(n),
        table.new_zeros(n),
    )
    values, decoded, bounds, norms = vars(peeled).values()
    if table.device.type != "cpu":
        _ops.sketch_peel_counted.default(
            table,
            ops.signed(seed),
            ids,
            count,
            nranks,
            magnitudes,
            max_rounds,
            values,
            decoded,
            bounds,
            norms,
        )
        return peeled
    n = int(count)
    scratch = torch.empty(ops.sketch_scratch_nbytes(table, n), dtype=torch.uint8)
    ops.sketch_peel(
        table,
        seed,
        ids[:n],
        nranks,
        magnitudes,
        values[:n],
        decoded[:n],
        bounds[:n],
        norms[:n],
        scratch,
        max_rounds,
    )
    return peeled
