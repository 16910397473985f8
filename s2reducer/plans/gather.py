# SPDX-License-Identifier: MIT
"""Every rank gets all rows and sums them itself: few rounds, for few rows or two ranks.

The same sums as in ``owner``, with every rank the owner of all: the same bits.

Bytes a rank sends beside the index: (P-1) times its rows, or up to a twentieth more.

All rows of all ranks at once would be P times the union, so a large one is cut into chunks, which
follow one another.
"""

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.exchange import Index, united
from s2reducer.plans.contribution import positions_of
from s2reducer.plans.owner import OwnerPlan, Rounded, make_plan, sum_owned
from s2reducer.segments import Layout, layout_of
from s2reducer.transport import Transport

# A chunk costs a round, for which 16 KiB could be sent, and in it an all-gather of uneven pieces
# may fill up by as much for each rank (see ``transport.py``).  That is a sixteenth of a chunk with
# so many bytes for each rank.
_CHUNK_NBYTES_A_RANK = 256 * 1024


def reduce_gather(
    buffer: Tensor,
    layout: Layout,
    index: Index,
    transport: Transport,
    divisor: float,
    rounded: Rounded | None = None,
) -> None:
    """Replaces the union's blocks in ``buffer`` by their sums over the ranks, divided."""
    for part, part_index in _chunks(layout, index, buffer.dtype):
        _reduce_chunk(buffer, part, part_index, transport, divisor, rounded)


# ------------------------------------------------------------------------------------------------
# Chunks
# ------------------------------------------------------------------------------------------------


def chunk_numel(union: int, dtype: torch.dtype, nranks: int) -> int:
    """The elements of a chunk of the union, which has so many.

    For a chunk of u bytes a rank holds at most P u of rows; and beside them its own ones twice, as
    they are and filled up, or later u of results and, on a narrow wire, 2 u of what these have
    lost.  The backend's threads may hold the rows of the chunk before for a moment longer.  So
    P + 2 chunks take less than two unions: (2 P + 3) / (P + 2) of one.
    """
    return max(_CHUNK_NBYTES_A_RANK * nranks // dtype.itemsize, -(-union // (nranks + 2)))


def _chunks(layout: Layout, index: Index, dtype: torch.dtype) -> Iterator[tuple[Layout, Index]]:
    """The bucket in chunks, each a bucket by itself; the same on all ranks."""
    union = layout.packed_numel(index.union_counts)
    numel = chunk_numel(union, dtype, index.world_size)
    if union <= numel:
        yield layout, index
        return
    for first, end in pairwise(_cuts(layout, index, union, numel)):
        yield _cut(layout, index, first, end)


def _cuts(layout: Layout, index: Index, union: int, numel: int) -> list[int]:
    """Words of the bitmap between which the union has about ``numel`` elements each, from 0 on."""
    elements = torch.repeat_interleave(layout.blocks, torch.tensor(index.union_counts)).cumsum(0)
    ends = torch.arange(numel, union + numel, numel).clamp(max=union)
    words = index.positions[torch.searchsorted(elements, ends)] // 64 + 1
    return [0, *sorted(set(words.tolist()))]


def _cut(layout: Layout, index: Index, first: int, end: int) -> tuple[Layout, Index]:
    """The blocks whose bits are in these words of the bitmap."""
    rows = []
    for offset, numel, block, bit in layout.rows:
        begin, stop = max(0, (64 * first - bit) * block), min(numel, (64 * end - bit) * block)
        if begin < stop:
            rows.append((offset + begin, stop - begin, block, max(0, bit - 64 * first)))
    part = layout_of(torch.tensor(rows), ())

    bitmaps = index.bitmaps[:, 8 * first : 8 * end].contiguous()
    return part, Index(bitmaps, *united(part, bitmaps), index.world_size, nbytes=0, rounds=0)


# ------------------------------------------------------------------------------------------------
# One chunk
# ------------------------------------------------------------------------------------------------


def _reduce_chunk(
    buffer: Tensor,
    layout: Layout,
    index: Index,
    transport: Transport,
    divisor: float,
    rounded: Rounded | None,
) -> None:
    rank = transport.rank
    mine = torch.full((index.positions.numel(),), rank, dtype=torch.int16)
    plan = make_plan(layout, index, mine, rank)

    rows = _gather_rows(buffer, layout, plan, transport)
    results = buffer.new_empty(plan.owned_numel[rank])
    lost = sum_owned(rows, plan, divisor, results, rounded is not None)
    del rows
    if rounded is not None and lost is not None:
        rounded(layout.segments, *_to_owe(layout, index, plan, rank, lost))
    ops_for(buffer.device).blocks_scatter(
        results, layout.segments, plan.owned[rank], buffer, parallel=False
    )


def _to_owe(
    layout: Layout, index: Index, plan: OwnerPlan, rank: int, lost: Tensor
) -> tuple[Tensor, Tensor]:
    """The blocks of which this rank owes what the means have lost, and what that is.

    All ranks know it; the first that has the block owes it.  One that has not might never have it,
    and so never send it.
    """
    before = torch.zeros_like(index.union)
    for bitmap in index.bitmaps[:rank]:
        before |= bitmap
    where, counts = positions_of(index.bitmaps[rank] & ~before, layout)
    in_compact = plan.received[rank][torch.isin(plan.sent[rank], where, assume_unique=True)]
    rows = lost.new_empty(layout.packed_numel(counts))
    ops_for(lost.device).blocks_gather(lost, plan.compact, in_compact, rows, parallel=False)
    return where, rows


def _gather_rows(
    buffer: Tensor, layout: Layout, plan: OwnerPlan, transport: Transport
) -> list[Tensor]:
    own_rows = buffer.new_empty(plan.sent_numel[transport.rank])
    sent = plan.sent[transport.rank]
    ops_for(buffer.device).blocks_gather(buffer, layout.segments, sent, own_rows, parallel=False)
    return transport.all_gather_uneven(own_rows, plan.received_numel)
