# SPDX-License-Identifier: MIT
"""Each block is summed by one of the ranks that have it, which sends the sum to all.

1. All ranks know all indices (``exchange.py``), so each computes the same plan (``s2.h``): who owns
   which block, and so who sends which rows where.  Neither positions nor sizes travel.
2. Rows go to their owners, by an all-to-all.
3. Owners add them in rank order, divide, and round once (``ops.blocks_sum``).
4. An all-gather brings the means to all ranks.

Bytes a rank sends beside the index, for K elements in the union, k of them live on this rank and b
bytes an element: in the mean over ranks [(sum k - K) + (P-1) K] b / P.  A rank that has much more
than the others owns less, so that it does not send twice as much.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.block_ops import ops_for
from s2reducer.exchange import Index
from s2reducer.segments import Layout, derive_seed, segments_of
from s2reducer.transport import Transport

# Is told what means lost when they were rounded: the segments and positions of the blocks, and
# float32 with what their elements lost.
Rounded = Callable[[Tensor, Tensor, Tensor], None]

# Columns of the exchanges.
_SENT, _RECEIVED, _OWNED = 0, 2, 4


@dataclass(frozen=True)
class OwnerPlan:
    """Who sends what where, as seen from one rank.

    ``sent``, ``received`` and ``owned`` are positions, a part for each rank; ``*_numel`` the
    elements of those parts.
    """

    sent: tuple[Tensor, ...]
    sent_numel: list[int]
    received: tuple[Tensor, ...]
    received_numel: list[int]
    owned: tuple[Tensor, ...]
    owned_numel: list[int]
    compact: Tensor


def make_plan(layout: Layout, index: Index, owners: Tensor, rank: int) -> OwnerPlan:
    """The lists that follow from ``owners`` (int16, one for each block of the union)."""
    exchanges = torch.empty(len(index.bitmaps), 6, dtype=torch.int64)
    shared = (index.bitmaps, layout.segments, index.positions, owners, rank, exchanges)
    ops.plan_exchanges(*shared)
    columns = exchanges.t().tolist()
    sent = torch.empty(sum(columns[_SENT]), dtype=torch.int64)
    received = torch.empty(sum(columns[_RECEIVED]), dtype=torch.int64)
    owned = torch.empty_like(index.positions)
    compact = torch.empty_like(layout.segments)
    ops.plan_lists(*shared, sent, received, owned, compact)
    return OwnerPlan(
        torch.split_with_sizes(sent, columns[_SENT]),
        columns[_SENT + 1],
        torch.split_with_sizes(received, columns[_RECEIVED]),
        columns[_RECEIVED + 1],
        torch.split_with_sizes(owned, columns[_OWNED]),
        columns[_OWNED + 1],
        compact,
    )


def choose_owners(layout: Layout, index: Index, seed: int) -> Tensor:
    """int16, the owner of each block of the union."""
    owners = torch.empty(index.positions.numel(), dtype=torch.int16)
    ops.plan_owners(index.bitmaps, layout.segments, index.positions, seed, owners)
    return owners


def choose_owners_apart(layout: Layout, index: Index, seed: int) -> Tensor:
    """The same, but parameter by parameter: the choice does not depend on the buckets.

    What owners round away they owe (``narrow.py``), and a training that goes on from a checkpoint
    begins with DDP's first buckets again.
    """
    owners = torch.empty(index.positions.numel(), dtype=torch.int16)
    rows = zip(layout.records, layout.rows, layout.spans, index.union_counts, strict=True)
    begin = 0
    for record, (_, numel, block, bit), span, count in rows:
        part = slice(begin, begin + count)
        begin += count
        if count:
            bitmaps = index.bitmaps[:, span].contiguous()
            alone, positions = segments_of([numel], [block]), index.positions[part] - bit
            own_seed = derive_seed(seed, record.identity)
            ops.plan_owners(bitmaps, alone, positions, own_seed, owners[part])
    return owners


def reduce_owner(
    buffer: Tensor,
    layout: Layout,
    plan: OwnerPlan,
    transport: Transport,
    divisor: float,
    rounded: Rounded | None = None,
) -> None:
    """Replaces the union's blocks in ``buffer`` by their sums over the ranks, divided."""
    rank = transport.rank
    rows = _exchange_rows(buffer, layout, plan, transport)
    results = buffer.new_empty(max(plan.owned_numel))
    own = results[: plan.owned_numel[rank]]
    lost = sum_owned(rows, plan, divisor, own, rounded is not None)
    del rows
    if rounded is not None and lost is not None:
        rounded(layout.segments, plan.owned[rank], lost)
    del lost
    gathered = transport.all_gather_uneven(results, plan.owned_numel)
    for means, where in zip(gathered, plan.owned, strict=True):
        ops_for(buffer.device).blocks_scatter(means, layout.segments, where, buffer, parallel=False)


def sum_owned(
    rows: list[Tensor], plan: OwnerPlan, divisor: float, out: Tensor, rounded: bool
) -> Tensor | None:
    """Writes the sums of this rank's blocks, divided, one behind the other.

    ``rows`` are what the ranks have of them.  Returns what the sums have lost by being rounded,
    float32, where that is wanted.
    """
    lost = torch.empty(out.numel(), device=out.device) if rounded else None
    blocks_sum = ops_for(out.device).blocks_sum
    blocks_sum(rows, plan.compact, plan.received, out, lost, divisor, parallel=False)
    return lost


def _exchange_rows(
    buffer: Tensor, layout: Layout, plan: OwnerPlan, transport: Transport
) -> list[Tensor]:
    """All ranks' rows of the blocks of this rank."""
    rank = transport.rank
    away = [0 if peer == rank else numel for peer, numel in enumerate(plan.sent_numel)]
    home = [0 if peer == rank else numel for peer, numel in enumerate(plan.received_numel)]
    outgoing = buffer.new_empty(sum(away))
    own_rows = buffer.new_empty(plan.sent_numel[rank])
    for peer, part in enumerate(torch.split_with_sizes(outgoing, away)):
        rows = own_rows if peer == rank else part
        ops_for(buffer.device).blocks_gather(
            buffer, layout.segments, plan.sent[peer], rows, parallel=False
        )
    incoming = buffer.new_empty(sum(home))
    transport.all_to_all(incoming, outgoing, home, away)
    parts = list(torch.split_with_sizes(incoming, home))
    parts[rank] = own_rows
    return parts
