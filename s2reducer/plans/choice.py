# SPDX-License-Identifier: MIT
"""Which plan takes the least time: a function of what all ranks know.

A plan costs the bytes of the rank that sends most, the rounds that wait for one another, and the
work on the rows; each has its price, a constant that all ranks share (``constants.py``).
"""

from dataclasses import dataclass

import torch

from s2reducer.constants import Constants, Cost
from s2reducer.exchange import Index
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.segments import Layout

# No rank owns more than this share of the union's elements times P; see s2.h.
_CAP = 1.05

# Another plan has to be so much cheaper than the present one, or the choice would flicker.
_MARGIN = 0.9


@dataclass(frozen=True)
class Choice:
    """A plan, a phrase that says why, and its cost."""

    plan: str
    reason: str
    cost: Cost


def dense_cost(numel: int, dtype: torch.dtype, nranks: int) -> Cost:
    """Of an AllReduce of so many elements."""
    return Cost(rounds=1, dense=2 * (nranks - 1) / nranks * numel * dtype.itemsize)


def costs(layout: Layout, index: Index, dtype: torch.dtype) -> dict[str, Cost]:
    """The cost of each sparse plan, with the index that dense can do without."""
    nranks = index.world_size
    width, wire_width = dtype.itemsize, WIRE_DTYPES[dtype].itemsize
    each = (index.counts * layout.blocks).sum(1)
    most, total = int(each.max()), int(each.sum())
    union = layout.packed_numel(index.union_counts)

    owned = min(_CAP * union / nranks, union)  # of the rank that owns most
    # In the mean a rank sends what it has of blocks that others own; the one that has most owns no
    # more than the rest.
    rows = max((total - union) / nranks, most - owned)
    reduced = 2 * (nranks - 1) / nranks * union * wire_width
    found = Cost(rounds=index.rounds, wire=index.nbytes, scan=layout.numel * width)

    def rows_cost(rounds: int, sent: float, touched: float) -> Cost:
        return found + Cost(rounds=rounds, wire=sent * width, work=touched * width)

    return {  # among equals the first is taken
        "owner": rows_cost(2, rows + (nranks - 1) * owned, most + total / nranks + union),
        "gather": rows_cost(1, (nranks - 1) * most, most + total + union),
        "union": found + Cost(rounds=1, dense=reduced, work=2 * union * width),
    }


def stay_sparse(
    layout: Layout, index: Index, dtype: torch.dtype, constants: Constants
) -> list[bool]:
    """For each segment, whether its rows take less time by ``owner`` than by an AllReduce.

    One that went dense when it was compared last has to save a margin more; and AllReduces beside
    the sparse rounds have to save what they take themselves.
    """
    nranks = index.world_size
    blocks, width = layout.blocks, dtype.itemsize
    union = index.union_counts * blocks
    total = index.counts.sum(0) * blocks
    most = index.counts.amax(0) * blocks
    rows = torch.maximum((total - union) / nranks, most - _CAP * union / nranks)
    sent = (rows + (nranks - 1) * _CAP * union / nranks) * width
    touched = (most + total / nranks + union) * width
    sparse = (constants.wire * sent + constants.work * touched) * constants.sparse_penalty
    dense = constants.dense * 2 * (nranks - 1) / nranks * width * layout.segments[:, 1].double()
    margins = torch.tensor([_MARGIN if r.dense_in_a_row else 1.0 for r in layout.records])
    kept = sparse <= margins * dense
    saved = float((sparse - dense)[~kept].sum())
    if saved <= constants.round * len(list(layout.ranges((~kept).tolist()))):
        return [True] * len(layout.records)
    return [bool(keep) for keep in kept]


def choose(candidates: dict[str, Cost], dense: Cost, before: str, constants: Constants) -> Choice:
    """The candidate that takes the least time, but ``before`` until another is better by a margin.

    ``dense`` is what an AllReduce of everything costs, whether or not it is a candidate.
    """
    if len(candidates) == 1:
        ((plan, cost),) = candidates.items()
        return Choice(plan, "as set", cost)

    def seconds(plan: str) -> float:
        penalty = 1.0 if plan == "dense" else constants.sparse_penalty
        if plan == "union":  # has to be better by a margin, as its sums are less exact
            penalty /= _MARGIN
        return penalty * constants.seconds(candidates[plan])

    best = min(candidates, key=seconds)
    if before in candidates and seconds(best) > _MARGIN * seconds(before):
        best = before
    if best == "dense":
        return Choice(best, "no plan is faster", candidates[best])
    share = 100 * candidates[best].nbytes / dense.nbytes
    return Choice(best, f"{share:.3g} % of dense bytes", candidates[best])
