# SPDX-License-Identifier: MIT
"""The plan that DDP itself follows: one AllReduce of everything, in the bucket's own dtype.

Without a hook DDP multiplies by the reciprocal of the world size while it copies gradients into the
bucket, before the AllReduce.  The same here gives the same bits.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from s2reducer.transport import Transport


def begin_dense(
    buffer: Tensor, transport: Transport, divisor: float
) -> "torch.futures.Future[list[Tensor]]":
    """Begins to replace ``buffer`` by its sum over the ranks, divided."""
    if divisor != 1.0:
        buffer.mul_(1.0 / divisor)
    return transport.begin_sum(buffer)


def begin_ranges(
    buffer: Tensor, ranges: Iterable[tuple[int, int]], transport: Transport, divisor: float
) -> "list[torch.futures.Future[list[Tensor]]]":
    """The same for parts of a flat ``buffer``, each from a begin to an end."""
    return [begin_dense(buffer[begin:end], transport, divisor) for begin, end in ranges]


def begin_sparse_tensor(
    coalesced: Tensor, transport: Transport, divisor: float
) -> "torch.futures.Future[list[Tensor]]":
    """The same for a coalesced COO tensor, by the backend's own sparse AllReduce, as DDP does."""
    if divisor != 1.0:
        coalesced.div_(divisor)
    return transport.begin_sum_of_sparse(coalesced)
