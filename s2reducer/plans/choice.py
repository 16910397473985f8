# SPDX-License-Identifier: MIT
"""Which plan sends the fewest bytes: a function of what all ranks know.

The cost of a plan is what the rank that sends most has to send, and for each round that waits for
another a small constant.  Nothing is measured here, so nothing can differ between ranks.
"""

from dataclasses import dataclass

import torch

from s2reducer.exchange import Index
from s2reducer.plans.union import WIRE_DTYPES
from s2reducer.segments import Layout

# What 1 Gbit/s carries in the 131 microseconds or so that a round takes before its first byte.
ROUND_NBYTES = 16 * 1024


@dataclass(frozen=True)
class Choice:
    """A plan and a phrase that says why."""

    plan: str
    reason: str


def costs(layout: Layout, index: Index, dtype: torch.dtype) -> dict[str, float]:
    """Bytes of the heaviest rank under each plan, with its rounds; the index has been sent."""
    nranks = len(index.bitmaps)
    width, wire = dtype.itemsize, WIRE_DTYPES[dtype].itemsize
    each = (index.counts * layout.blocks).sum(1)
    most, total = int(each.max()), int(each.sum())
    union = layout.packed_numel(index.union_counts)

    ring = 2 * (nranks - 1) / nranks
    owned = 1.05 * union / nranks  # of the rank that owns most
    # In the mean a rank sends what it has of blocks that others own; the one that has most owns no
    # more than the rest.
    rows = max((total - union) / nranks, most - owned)
    return {  # among equals the first is taken
        "dense": ring * layout.numel * width + ROUND_NBYTES,
        "owner": (rows + (nranks - 1) * owned) * width + 2 * ROUND_NBYTES,
        "gather": (nranks - 1) * most * width + ROUND_NBYTES,
        "union": ring * union * wire + ROUND_NBYTES,
    }


def choose(layout: Layout, index: Index, dtype: torch.dtype, plan: str, exact: bool) -> Choice:
    """The plan for a bucket: the one that was set, or under ``"auto"`` the cheapest.

    ``exact`` leaves ``owner`` and ``gather``, whose sums have one order, to choose from.
    """
    if plan != "auto":
        return Choice(plan, "as set")
    candidates = costs(layout, index, dtype)
    dense = candidates["dense"]
    if exact:
        candidates = {name: candidates[name] for name in ("owner", "gather")}
    cheapest = min(candidates, key=lambda name: candidates[name])
    if cheapest == "dense":
        return Choice("dense", "no plan sends fewer bytes")
    return Choice(cheapest, f"{100 * candidates[cheapest] / dense:.3g} % of dense bytes")
