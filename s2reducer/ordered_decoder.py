# SPDX-License-Identifier: MIT
"""Back from a summed table to the sums of its blocks, on a device.

The same as ``plans/sketch_decoder.py``, with masks in place of lists, so that nothing differs from
step to step but values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer.device_lists import Chosen, choose, sketch_estimate, sketch_insert, sketch_peel
from s2reducer.ordered_contribution import Part
from s2reducer.plans.sketch import Table, cells_of, magnitudes_of
from s2reducer.plans.sketch_decoder import POOR
from s2reducer.sketch_config import SketchConfig

# Rounds of peeling that are enqueued where the settings do not say: tables with 1.3 cells for each
# block take about 20.
ROUNDS = 32


@dataclass
class Decoded:
    """The union's blocks of one table, in the order of ``chosen``, and zeros behind them.

    Attributes:
        part: what this rank has put there.
        chosen: the union's, of the places of the part.
        rows: float32 [N, block], their sums, divided.
        exactly: bool [N], those to be summed by an AllReduce of their own.
        stuck: bool [N], those of the others that are deferred or estimated.
        owed: bool [N] and float32 [N, block], what this rank has to add to its next gradient.
    """

    part: Part
    chosen: Chosen
    rows: Tensor
    exactly: Tensor
    stuck: Tensor
    owed: tuple[Tensor, Tensor] | None = None

    def tally(self) -> Tensor:
        """int64 [3]: of the blocks, how many are to be summed exactly, and how many are stuck."""
        sums = [mask.sum(dtype=torch.int64).view(1) for mask in (self.exactly, self.stuck)]
        return torch.cat([self.chosen.count, *sums])

    def exact_places(self, count: int) -> tuple[Tensor, Tensor]:
        """Of so many that are to be summed exactly, where they are in ``rows``, and their rows of
        this rank."""
        order = choose(self.exactly).order[:count]
        return order, self.part.divided[self.chosen.order[order]]


def decode(
    part: Part,
    table: Table,
    total: Tensor,
    live: Tensor,
    finite: Tensor,
    config: SketchConfig,
    nranks: int,
) -> Decoded:
    """Uses up the table.

    Args:
        part: this rank's blocks of it.
        total: the summed message.
        live: bool, the bits of the union.
        finite: bool [S], for each segment, whether all ranks' values are.
    """
    cells, magnitudes = cells_of(table, total, config), magnitudes_of(table, total, config)
    chosen = choose(live[part.places.bits])
    ids = part.places.bits[chosen.order]
    summed = total[table.begin : table.end]
    is_finite = summed.isfinite().all()
    summed.masked_fill_(~is_finite, 0.0)  # what is not would go round among the cells
    rounds = config.peel_rounds or ROUNDS
    peeled = sketch_peel(cells, table.seed, ids, chosen, nranks, magnitudes, rounds)
    # The sum of a cell may be finite although a part of it is not.
    is_finite &= peeled.values.isfinite().all()
    rows = peeled.values.masked_fill_(~is_finite, 0.0)

    valid = chosen.valid()
    exactly = valid & ~(finite[part.places.segments][chosen.order] & is_finite)
    poor = peeled.bounds > POOR * peeled.norms  # stuck ones have infinite bounds
    stuck = poor if config.on_overflow == "defer" else ~peeled.decoded
    if config.on_overflow == "repair":
        exactly |= poor & valid
    one = Decoded(part, chosen, rows, exactly, stuck & valid & ~exactly)
    if config.on_overflow == "estimate":
        _estimate(one, table, cells, ids, config)
    elif config.on_overflow == "defer":
        _defer(one)
    return one


def _defer(one: Decoded) -> None:
    one.rows.masked_fill_(one.stuck.unsqueeze(1), 0.0)
    order = one.chosen.order
    one.owed = one.stuck & one.part.live[order], one.part.rows[order]


def _estimate(one: Decoded, table: Table, cells: Tensor, ids: Tensor, config: SketchConfig) -> None:
    estimates = sketch_estimate(cells, table.seed, ids, one.chosen)
    if config.error_feedback:
        damping = _damping(one, table)
        estimates /= damping
        part = one.part
        own = torch.zeros_like(cells)
        values = part.rows[part.chosen.order]
        sketch_insert(own, table.seed, part.ids, part.chosen, values)
        shares = sketch_estimate(own, table.seed, ids, one.chosen) / damping
        one.owed = one.stuck, part.rows[one.chosen.order] - shares
    one.rows = torch.where(one.stuck.unsqueeze(1), estimates, one.rows)


def _damping(one: Decoded, table: Table) -> Tensor:
    """As in the lanes, in the same order of operations."""
    blocks, stuck = one.chosen.count.double(), one.stuck.sum().double()
    return (1.0 + blocks / table.width * blocks / stuck).float()
