# SPDX-License-Identifier: MIT
"""An AllReduce of the blocks that are live on any rank.

All ranks know the union, from an OR of their bitmaps or from all their indices.  They pack its
blocks, divided by the number of ranks, in the wire's dtype, AllReduce them, and round once.  The
division comes first, since a sum can overflow where the mean does not.

Bytes a rank sends beside the index: 2 (P-1)/P w K for K elements in the union's blocks and w bytes
an element on the wire.
"""

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.exchange import Index
from s2reducer.segments import Layout
from s2reducer.transport import Transport

# On the wire, and in the sum: half types would round at every addition.
WIRE_DTYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}


def reduce_union(
    buffer: Tensor, layout: Layout, index: Index, transport: Transport, divisor: float
) -> None:
    """Replaces the union's blocks in ``buffer`` by their sums over the ranks, divided."""
    positions, numel = index.positions, layout.packed_numel(index.union_counts)
    packed = buffer.new_empty(numel, dtype=WIRE_DTYPES[buffer.dtype])
    ops = ops_for(buffer.device)
    ops.blocks_gather(buffer, layout.segments, positions, packed, divisor, parallel=False)
    transport.sum(packed)
    ops.blocks_scatter(packed, layout.segments, positions, buffer, parallel=False)
