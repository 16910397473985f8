# SPDX-License-Identifier: MIT
"""Every rank gets all rows and sums them itself: one round, for few rows or two ranks.

The same sums as in ``owner``, with every rank the owner of all: the same bits.

Bytes a rank sends beside the index: (P-1) times its rows, or up to a twentieth more.
"""

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.exchange import Index
from s2reducer.plans.owner import OwnerPlan, make_plan
from s2reducer.plans.sums import Sum
from s2reducer.segments import Layout
from s2reducer.transport import Transport


def reduce_gather(
    buffer: Tensor, layout: Layout, index: Index, transport: Transport, divisor: float
) -> None:
    """Replaces the union's blocks in ``buffer`` by their sums over the ranks, divided."""
    rank = transport.rank
    mine = torch.full((index.positions.numel(),), rank, dtype=torch.int16)
    plan = make_plan(layout, index, mine, rank)

    total = Sum(plan.compact, buffer.dtype, divisor)
    _add_all_rows(total, buffer, layout, plan, transport)
    results = buffer.new_empty(plan.owned_numel[rank])
    total.result(results)
    ops.blocks_scatter(results, layout.segments, plan.owned[rank], buffer, parallel=False)


def _add_all_rows(
    total: Sum, buffer: Tensor, layout: Layout, plan: OwnerPlan, transport: Transport
) -> None:
    own_rows = buffer.new_empty(plan.sent_numel[transport.rank])
    sent = plan.sent[transport.rank]
    ops.blocks_gather(buffer, layout.segments, sent, own_rows, parallel=False)
    gathered = transport.all_gather_uneven(own_rows, plan.received_numel)
    del own_rows
    for rows, where in zip(gathered, plan.received, strict=True):
        total.add(rows, where)
