# SPDX-License-Identifier: MIT
"""Which plan takes the least time: a function of what all ranks know.

The cost of a plan is in seconds: the bytes of the rank that sends most, the rounds that wait for
one another, and the work on the rows, each by a constant that all ranks share (``Constants``).
"""

from dataclasses import dataclass

import torch

from s2reducer.constants import Constants
from s2reducer.exchange import Index
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.segments import Layout

# No rank owns more than this share of the union's elements times P; see s2.h.
_CAP = 1.05

# Another plan has to be so much cheaper than the present one, or the choice would flicker.
_MARGIN = 0.9


@dataclass(frozen=True)
class Cost:
    """What a plan should take.

    Attributes:
        seconds: in all.
        nbytes: sent by the rank that sends most, beside the index.
        rounds: that wait for one another, beside those of the index.
        touched: bytes of rows that are gathered, added and scattered.
    """

    seconds: float
    nbytes: float
    rounds: int
    touched: float


@dataclass(frozen=True)
class Choice:
    """A plan, a phrase that says why, and its cost."""

    plan: str
    reason: str
    cost: Cost


def dense_cost(numel: int, dtype: torch.dtype, nranks: int, constants: Constants) -> Cost:
    """Of an AllReduce of so many elements."""
    nbytes = 2 * (nranks - 1) / nranks * numel * dtype.itemsize
    return Cost(constants.round + constants.dense * nbytes, nbytes, rounds=1, touched=0.0)


def costs(
    layout: Layout, index: Index, dtype: torch.dtype, constants: Constants
) -> dict[str, Cost]:
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

    index_seconds = constants.wire * index.nbytes + constants.scan * layout.numel * width

    def cost(rounds: int, nbytes: float, wire: float, touched: float) -> Cost:
        seconds = (1 + rounds) * constants.round + index_seconds
        seconds += wire * nbytes + constants.work * touched * width
        return Cost(seconds * constants.sparse_penalty, nbytes, rounds, touched * width)

    sent_by_owner = (rows + (nranks - 1) * owned) * width
    return {  # among equals the first is taken
        "owner": cost(2, sent_by_owner, constants.wire, most + total / nranks + union),
        "gather": cost(1, (nranks - 1) * most * width, constants.wire, most + total + union),
        "union": cost(1, reduced, constants.dense, 2 * union),
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


def choose(candidates: dict[str, Cost], dense: Cost, before: str) -> Choice:
    """The cheapest candidate, but the plan of ``before`` until another is better by a margin.

    ``dense`` is what an AllReduce of everything costs, whether or not it is a candidate.
    """
    if len(candidates) == 1:
        ((plan, cost),) = candidates.items()
        return Choice(plan, "as set", cost)
    best = min(candidates, key=lambda name: candidates[name].seconds)
    present = candidates.get(before)
    if present is not None and candidates[best].seconds > _MARGIN * present.seconds:
        best = before
    if best == "dense":
        return Choice(best, "no plan is faster", dense)
    share = 100 * candidates[best].nbytes / dense.nbytes
    return Choice(best, f"{share:.3g} % of dense bytes", candidates[best])
