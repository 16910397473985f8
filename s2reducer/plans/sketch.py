# SPDX-License-Identifier: MIT
"""A bitmap and a count sketch, summed by AllReduce at the same time and decoded on the union.

1. Every rank adds its live blocks, divided by the number of ranks, into the cells of a table that a
   hash picks, with a sign that it picks too (``s2.h``).
2. Tables are summed by one AllReduce while the ranks learn the union of their blocks.
3. All ranks take the union's blocks out of the summed table, by peeling.  They hold the same bits,
   so they agree on which blocks stay stuck, and on what becomes of those.

Blocks of one length share a table; all tables are one message.  A segment most of whose blocks are
expected to be live lies in the message as it is, which is shorter than its table would be.

Bytes a rank sends: 2 (P-1)/P times the message's, and those of the bitmaps or lists.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.plans.contribution import Contribution
from s2reducer.segments import Layout
from s2reducer.sketch_config import SketchConfig
from s2reducer.transport import Transport

# Segments with this share of live blocks are sent as they are: their table would have as many
# cells, at the default of 1.43 cells for a live block.
_WHOLE_SHARE = 0.7

# A few cells more for each row: of few blocks, two often share all their cells.  In rows of w cells
# n blocks have n^2 / (2 w^3) such pairs, which for 10 blocks is one in 40 rather than every second
# time.
_SPARE_WIDTH = 8

# Rows are repaired whose error may be above this share of their largest element.
_POOR = 2.0**-16


@dataclass(frozen=True)
class Table:
    """Cells for blocks of one length.

    Attributes:
        segments: whose blocks go there, by number.
        block: elements of a block and of a cell.
        width: cells in a row.
        begin, end: of its elements in the message.
        seed: of its hashes.
    """

    segments: tuple[int, ...]
    block: int
    width: int
    begin: int
    end: int
    seed: int


@dataclass(frozen=True)
class Message:
    """What the AllReduce carries: float32, ``numel`` of them.

    Attributes:
        whole: where segments lie that travel as they are, by number.
        tables: of the others.
    """

    whole: dict[int, tuple[int, int]]
    tables: list[Table]
    numel: int


def are_whole(layout: Layout, expected: Sequence[int]) -> list[bool]:
    """Whether each segment travels as it is, with so many live blocks in the union."""
    pairs = zip(layout.records, expected, strict=True)
    return [union > _WHOLE_SHARE * record.nblocks for record, union in pairs]


def lay_out(
    blocks: Sequence[int],
    whole: dict[int, int],
    expected: Sequence[int],
    config: SketchConfig,
    seed: int,
) -> Message:
    """The message of a bucket.

    Args:
        blocks: the block length of each segment.
        whole: the elements of those that travel as they are, by number.
        expected: live blocks of the union in each segment.
        config: the settings.
        seed: of the bucket in this step.
    """
    begin = 0
    places: dict[int, tuple[int, int]] = {}
    for number, numel in whole.items():
        places[number] = (begin, begin + numel)
        begin += numel

    by_block: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        if number not in whole:
            by_block.setdefault(block, []).append(number)
    tables = []
    for block, numbers in by_block.items():
        width = _width(sum(expected[number] for number in numbers), config)
        end = begin + config.rows * width * block
        tables.append(Table(tuple(numbers), block, width, begin, end, derive_seed(seed, block)))
        begin = end
    return Message(places, tables, begin)


def _width(expected: int, config: SketchConfig) -> int:
    width = math.ceil(config.cells * expected / config.rows)
    return max(1, width) if config.on_overflow == "estimate" else width + _SPARE_WIDTH


def derive_seed(*numbers: int) -> int:
    """A seed that is another one for other numbers, and the same on all ranks."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def fill(message: Message, own: Contribution, config: SketchConfig) -> Tensor:
    """This rank's summand.

    A segment with a non-finite value is left out of its table, where it would spread.
    """
    flat = torch.zeros(message.numel)
    for number, (begin, end) in message.whole.items():
        own.write_whole(number, flat[begin:end])
    for table in message.tables:
        cells = cells_of(table, flat, config)
        for number in table.segments:
            if own.finite[number]:
                ops.sketch_insert(cells, table.seed, own.places[number], own.rows(number))
    return flat


def cells_of(table: Table, flat: Tensor, config: SketchConfig) -> Tensor:
    """[rows, width, block], the table in a message."""
    return flat[table.begin : table.end].view(config.rows, table.width, table.block)


# ------------------------------------------------------------------------------------------------
# Back from the sum
# ------------------------------------------------------------------------------------------------


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
        stuck: bool [K], those of the others that peeling did not give back.
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
        rows = torch.zeros(places.numel(), table.block)
        finite = torch.tensor([self.finite[number] for number in table.segments])
        exactly = torch.repeat_interleave(~finite, torch.tensor(sizes))
        if not ops.values_finite(cells.view(-1), parallel=False):
            everything = torch.ones_like(exactly)
            return Decoded(table, cells, places, sizes, rows, everything, ~everything)
        decoded = torch.empty(places.numel(), dtype=torch.bool)
        bounds = torch.empty(places.numel())
        scratch = torch.empty(ops.sketch_scratch_nbytes(cells, places.numel()), dtype=torch.uint8)
        ops.sketch_peel(cells, table.seed, places, nranks, rows, decoded, bounds, scratch)
        # Largest elements, which every machine finds alike, as it might not a sum of squares.
        poor = bounds > _POOR * torch.linalg.vector_norm(rows, float("inf"), dim=1)
        # What is within its error of zero is set to zero: optimizers that divide by the size of a
        # gradient would make much of it.
        noise = rows.abs() <= bounds.masked_fill(poor, -1.0).unsqueeze(1)
        rows.masked_fill_(noise, 0.0)
        if self.config.on_overflow == "repair":
            exactly |= poor  # and stuck ones, whose bounds are infinite
        return Decoded(table, cells, places, sizes, rows, exactly, ~decoded & ~exactly)

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
