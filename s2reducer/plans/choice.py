# SPDX-License-Identifier: MIT
"""Which plan takes the least time: a function of what all ranks know.

A plan costs the bytes of the rank that sends most, the rounds that wait for one another, and the
work on the rows; each has its price, a constant that all ranks share (``constants.py``).
"""

from dataclasses import dataclass

import torch

from s2reducer.constants import Constants, Cost
from s2reducer.exchange import Index
from s2reducer.plans.gather import chunk_numel
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.segments import Layout

# The caps on what a rank owns; see s2.h.
_CAP = 1.05
_UNEVEN = 1.1

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


def narrow_cost(numel: int, dtype: torch.dtype, nranks: int) -> Cost:
    """Of so many elements that owners sum, all of them from all ranks."""
    return _owner_cost(numel, nranks * numel, numel, nranks, dtype.itemsize)


def _owner_cost(most: float, total: float, union: float, nranks: int, width: int) -> Cost:
    """Of the rounds of ``owner``, for elements live on the rank that has most, on all, on any."""
    touched = most + total / nranks + union
    level = max(most, _level(most, total, union, nranks))
    owned = _CAP * union / nranks  # of the rank that owns most
    if nranks >= 3 and most + (nranks - 2) * owned > _UNEVEN * level:
        # Results go to one peer after another, as they differ in length.
        return Cost(rounds=nranks, wire=level * width, work=touched * width)
    # In the mean a rank sends what it has of blocks that others own; the one that has most owns no
    # more than the rest.
    rows = max((total - union) / nranks, most - owned)
    sent = rows + (nranks - 1) * owned
    return Cost(rounds=2, wire=sent * width, work=touched * width)


def _level(most: float, total: float, union: float, nranks: int) -> float:
    """What all ranks send where each sends as much as the others, or all but the heaviest."""
    even = (total + (nranks - 1) * union) / nranks
    if even >= most or nranks == 1:
        return even
    return (total - most) / (nranks - 1) + union


def costs(layout: Layout, index: Index, dtype: torch.dtype) -> dict[str, Cost]:
    """The cost of each sparse plan, with the index that dense can do without."""
    nranks = index.world_size
    width, wire_width = dtype.itemsize, WIRE_DTYPES[dtype].itemsize
    each = [layout.packed_numel(counts) for counts in index.counts]
    most, total = max(each), sum(each)
    union = layout.packed_numel(index.union_counts)
    reduced = 2 * (nranks - 1) / nranks * union * wire_width
    found = Cost(rounds=index.rounds, wire=index.nbytes, scan=layout.numel * width)
    chunks = max(1, -(-union // chunk_numel(union, dtype, nranks)))
    gathered, touched = (nranks - 1) * most * width, (most + total + union) * width
    return {  # among equals the first is taken
        "owner": found + _owner_cost(most, total, union, nranks, width),
        "gather": found + Cost(rounds=chunks, wire=gathered, work=touched),
        # An AllReduce, but in the lane that carries the rows of the others: what shares the link
        # with it shares it with them.  So its bytes have their price, and fewer bytes are better.
        "union": found + Cost(rounds=1, wire=reduced, work=2 * union * width),
    }


def stay_sparse(
    layout: Layout, index: Index, dtype: torch.dtype, constants: Constants
) -> list[bool]:
    """For each segment, whether its rows take less time by ``owner`` than by an AllReduce.

    It has to be less by a margin, since rows are not as cheap as whole arrays in what no constant
    tells; and AllReduces beside the sparse rounds have to save what they take themselves.
    """
    nranks, width = index.world_size, dtype.itemsize
    kept, saved = [], 0.0
    of_ranks = zip(*index.counts, strict=True)
    segments = zip(layout.rows, of_ranks, index.union_counts, strict=True)
    for (_, numel, block, _), counts, union in segments:
        most, total = block * max(counts), block * sum(counts)
        owner = _owner_cost(most, total, block * union, nranks, width)
        sparse = constants.wire * owner.wire + constants.work * owner.work
        sparse *= constants.sparse_penalty
        dense = constants.dense * dense_cost(numel, dtype, nranks).dense
        kept.append(sparse <= _MARGIN * dense)
        saved += 0.0 if kept[-1] else sparse - dense
    rounds = len(list(layout.ranges([not keep for keep in kept])))
    return kept if saved > constants.round * rounds else [True] * len(kept)


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
    if dense.nbytes == 0:  # of no elements, or at one rank
        return Choice(best, "nothing to send", candidates[best])
    share = 100 * candidates[best].nbytes / dense.nbytes
    return Choice(best, f"{share:.3g} % of dense bytes", candidates[best])
