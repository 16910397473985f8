# SPDX-License-Identifier: MIT
"""Bitmap OR, then an AllReduce of the blocks that are live on any rank.

1. Scan the bucket into a bitmap of its live blocks.
2. OR the bitmaps of all ranks: everybody knows the union, and from it all sizes.
3. Pack the union's blocks, divided by the world size, in the wire's dtype; AllReduce them.
4. Round once into the bucket.

The division comes first, since a sum can overflow where the mean does not.  Blocks outside the
union are zero on every rank and stay so; but a zero has a sign, which bitmaps do not show, and a
rank that had a -0.0 among them makes it +0.0, as all others have.

Bytes a rank sends: 2 (P-1)/P (B/8 + w K) for B blocks, K elements in the union's blocks and w bytes
an element on the wire.
"""

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.plans import Job, Pending
from s2reducer.plans.dense import reduce_dense

# On the wire, and in the sum: half types would round at every addition.
WIRE_DTYPES = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}

# Below this size a bucket goes dense under "auto", without a bitmap.  The bitmap's round costs the
# latency of one more small AllReduce, some 100 microseconds on Ethernet.  No plan can save more
# than the whole dense message, and of 16 KiB that is 131 microseconds at 1 Gbit/s, the slowest link
# worth a thought, and a tenth of it at 10 Gbit/s.
FLOOR_NBYTES = 16 * 1024


def reduce_union(job: Job) -> Pending:
    """The mean over the union of live blocks; under ``plan="auto"`` dense where that is shorter."""
    buffer, layout, transport = job.buffer, job.layout, job.transport
    auto = job.config.plan == "auto"
    if auto and buffer.nbytes < FLOOR_NBYTES:
        job.reason = f"bucket below {FLOOR_NBYTES // 1024} KiB"
        return reduce_dense(job)

    job.plan = "union"
    union, has_negative_zeros = _agree_on_union(job)
    # From here on everything follows from the union, which all ranks share.
    assert job.counts is not None
    counts = job.counts[1]
    wire_dtype = WIRE_DTYPES[buffer.dtype]
    numel = layout.packed_numel(counts)
    if auto:
        wire, dense = numel * wire_dtype.itemsize, buffer.nbytes
        shorter = wire < dense
        share = 100 * wire / dense
        job.reason = f"{share:.3g} % of dense bytes" if shorter else "no fewer bytes sparsely"
        if not shorter:
            return reduce_dense(job)

    job.round = "AllReduce of the union"
    positions = torch.empty(int(counts.sum()), dtype=torch.int64)
    ops.bitmap_positions(union, positions)
    packed = torch.empty(numel, dtype=wire_dtype)
    ops.blocks_gather(buffer, layout.segments, positions, packed, float(transport.world_size))
    # Where all ranks are all zero they all know it, and none sends anything.
    future = transport.all_reduce(packed) if numel else None

    def finish() -> Tensor:
        # One thread: this may run on one of the backend's, and torch would start a second pool of
        # threads there, beside that of the training.
        ops.blocks_scatter(packed, layout.segments, positions, buffer, parallel=False)
        if has_negative_zeros:
            ops.blocks_clear_dead(union, layout.segments, buffer, parallel=False)
        return buffer

    return Pending(future, finish)


def _agree_on_union(job: Job) -> tuple[Tensor, bool]:
    """The union as a bitmap, and whether dead blocks of this rank hold a -0.0.  Sets counts."""
    layout = job.layout
    job.round = "scan"
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    negative_zeros = torch.empty(1, dtype=torch.int64)
    ops.bitmap_from_nonzero(job.buffer, layout.segments, bitmap, negative_zeros)
    local, union = torch.empty_like(layout.blocks), torch.empty_like(layout.blocks)
    ops.bitmap_count(bitmap, layout.segments, local)
    job.round = "OR of the bitmaps"
    job.transport.or_bitmap(bitmap)
    ops.bitmap_count(bitmap, layout.segments, union)
    job.counts = (local, union)
    return bitmap, bool(negative_zeros.item())
