# SPDX-License-Identifier: MIT
"""Back from the sum of the ranks' sketches to the sums of their blocks.

All ranks hold the same bits, so they agree on which blocks stay stuck, on which are too inexact,
and on what becomes of those.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.peeling import peel
from s2reducer.plans.contribution import Contribution
from s2reducer.plans.sketch import Message, Table, cells_of, magnitudes_of
from s2reducer.sketch_config import SketchConfig
from s2reducer.transport import Transport

# Rows are repaired whose error may be above this share of their largest element.  Largest elements
# are found alike on every machine, as sums of squares might not be.
POOR = 2.0**-16


@dataclass
class Tally:
    """What became of the union's blocks that were in tables, in one bucket and step."""

    blocks: int = 0
    repaired: int = 0
    deferred: int = 0
    estimated: int = 0

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in ("repaired", "deferred", "estimated")}
        listed = [f"{count} {name}" for name, count in counts.items() if count]
        return ", ".join([f"{self.blocks} blocks", *listed])


@dataclass
class Decoded:
    """The union's blocks of one table.

    Attributes:
        table: which.
        cells: float32 [rows, width, block], what peeling left.
        places: int64 [K], ascending.
        sizes: how many of them each of the table's segments has.
        rows: float32 [K, block], their sums, divided.
        exactly: bool [K], those to be summed by an AllReduce of their own.
        stuck: bool [K], those of the others that peeling did not give back, or not exactly enough
            where that counts.
    """

    table: Table
    cells: Tensor
    places: Tensor
    sizes: list[int]
    rows: Tensor
    exactly: Tensor
    stuck: Tensor

    def chosen(self, mask: Tensor) -> list[tuple[int, Tensor]]:
        """The places in ``mask`` of each segment, by its number."""
        pieces = zip(
            self.table.segments,
            torch.split_with_sizes(self.places, self.sizes),
            torch.split_with_sizes(mask, self.sizes),
            strict=True,
        )
        return [(number, places[part]) for number, places, part in pieces]


def _damping(one: Decoded) -> float:
    """What estimates are divided by, so that what they miss is less than all of it.

    An estimate by one row is off by the other blocks in its cell.  If K blocks fall into c cells, a
    block meets K / c others in the mean, and one of the S that meet any K / c times K / S.  Were
    all of one size, dividing by one and that much would leave the least.
    """
    blocks, stuck = one.places.numel(), int(one.stuck.sum())
    return 1.0 + blocks / one.table.width * blocks / stuck


@dataclass
class Decoder:
    """From a summed message to the sums of the union's blocks.

    Args:
        own: this rank's contribution.
        message: how the sum is laid out.
        config: the settings.
        union: the places of each segment's blocks that any rank has.
        finite: for each segment, whether all ranks' values are.

    Attributes:
        tally: what became of the blocks.
        owed: what this rank has to add to its next gradient: numbers of segments, blocks in them,
            and rows.
    """

    own: Contribution
    message: Message
    config: SketchConfig
    union: Sequence[Tensor]
    finite: Sequence[bool]
    tally: Tally = field(default_factory=Tally)
    owed: list[tuple[int, Tensor, Tensor]] = field(default_factory=list)

    def decode(self, total: Tensor, transport: Transport) -> list[Decoded]:
        """Of each table; ``total`` is written.  One more round where something is to be exact."""
        nranks = transport.world_size
        tables = [self._peel(table, total, nranks) for table in self.message.tables]
        for one in tables:
            self.tally.blocks += one.places.numel()
            if self.config.on_overflow == "estimate":
                self._estimate(one)
            elif self.config.on_overflow == "defer":
                self._defer(one)
        self._sum_exactly(tables, transport)
        return tables

    def _peel(self, table: Table, total: Tensor, nranks: int) -> Decoded:
        cells = cells_of(table, total, self.config)
        sizes = [self.union[number].numel() for number in table.segments]
        places = torch.cat([self.union[number] for number in table.segments])
        finite = torch.tensor([self.finite[number] for number in table.segments])
        exactly = torch.repeat_interleave(~finite, torch.tensor(sizes))
        everything = torch.ones_like(exactly)
        if not ops.values_finite(total[table.begin : table.end], parallel=False):
            rows = torch.zeros(places.numel(), table.block)
            return Decoded(table, cells, places, sizes, rows, everything, ~everything)
        magnitudes = magnitudes_of(table, total, self.config)
        max_rounds = self.config.peel_rounds or 0
        peeled = peel(cells, table.seed, places, nranks, magnitudes, max_rounds)
        rows, stuck = peeled.values, ~peeled.decoded
        poor = peeled.bounds > POOR * peeled.norms  # stuck ones have infinite bounds
        if not ops.values_finite(rows.view(-1), parallel=False):
            # The sum of a cell may be finite although a part of it is not.
            return Decoded(table, cells, places, sizes, rows, everything, ~everything)
        if self.config.on_overflow == "repair":
            exactly |= poor
        elif self.config.on_overflow == "defer":
            stuck = poor & ~exactly
            rows[stuck] = 0.0
        return Decoded(table, cells, places, sizes, rows, exactly, stuck & ~exactly)

    def _estimate(self, one: Decoded) -> None:
        places = one.places[one.stuck]
        if places.numel() == 0:
            return
        rows = torch.empty(places.numel(), one.table.block)
        ops.sketch_estimate(one.cells, one.table.seed, places, rows)
        self.tally.estimated += places.numel()
        if self.config.error_feedback:
            damping = _damping(one)
            ops.values_convert(rows.view(-1), rows.view(-1), damping, parallel=False)
            self._owe_what_is_missed(one, places, damping)
        one.rows[one.stuck] = rows

    def _owe_what_is_missed(self, one: Decoded, places: Tensor, damping: float) -> None:
        """What this rank has, less its share of the estimates.

        With one row, estimates are sums of cells: that of the sum is the sum of those of the ranks'
        own tables.  A rank that owed what it has less the *mean* of the estimates would owe more
        and more of a block that it alone has, and others less and less than nothing.
        """
        cells = torch.zeros_like(one.cells)
        for number in one.table.segments:
            if self.own.finite[number]:
                own = self.own.gather(number, self.own.places[number], 1.0)
                ops.sketch_insert(cells, one.table.seed, self.own.places[number], own)
        share = torch.empty(places.numel(), one.table.block)
        ops.sketch_estimate(cells, one.table.seed, places, share)
        ops.values_convert(share.view(-1), share.view(-1), damping, parallel=False)
        chosen = one.chosen(one.stuck)
        shares = torch.split_with_sizes(share, [part.numel() for _, part in chosen])
        for (number, part), applied in zip(chosen, shares, strict=True):
            self._owe(number, part, self.own.gather(number, part, 1.0).sub_(applied))

    def _defer(self, one: Decoded) -> None:
        self.tally.deferred += int(one.stuck.sum())
        for number, stuck in one.chosen(one.stuck):
            own = stuck[torch.isin(stuck, self.own.places[number])]
            self._owe(number, own, self.own.gather(number, own, 1.0))

    def _owe(self, number: int, places: Tensor, rows: Tensor) -> None:
        self.owed.append((number, self.own.numbers(number, places), rows))

    def _sum_exactly(self, tables: Sequence[Decoded], transport: Transport) -> None:
        parts = [
            self.own.gather(number, places, self.own.divisor).view(-1)
            for one in tables
            for number, places in one.chosen(one.exactly)
        ]
        packed = torch.cat(parts) if parts else torch.empty(0)
        if packed.numel() == 0:
            return
        transport.sum(packed)
        begin = 0
        for one in tables:
            count = int(one.exactly.sum())
            end = begin + count * one.table.block
            one.rows[one.exactly] = packed[begin:end].view(-1, one.table.block)
            self.tally.repaired += count
            begin = end
