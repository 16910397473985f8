# SPDX-License-Identifier: MIT
"""A bitmap and a count sketch, summed by AllReduce at the same time and decoded on the union.

1. Every rank adds its live blocks, divided by the number of ranks, into the cells of a table that a
   hash picks, with a sign that it picks too (``s2.h``).
2. Tables are summed by one AllReduce while the ranks learn the union of their blocks.
3. All ranks take the union's blocks out of the summed table (``sketch_decoder.py``).

Blocks of one length share a table; all tables are one message.  A segment most of whose blocks are
expected to be live lies in the message as it is, which is shorter than its table would be.

Bytes a rank sends: 2 (P-1)/P times the message's, and those of the bitmaps or lists.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.plans.contribution import Contribution
from s2reducer.segments import Layout, derive_seed
from s2reducer.sketch_config import SketchConfig

# A table with fewer cells for each block is not decoded.  So a segment of which a share of blocks
# is live travels as it is where a table of that many cells would not be shorter.
_LEAST_CELLS = 1.3

# A few cells more for each row: of few blocks, two often share all their cells.  In rows of w cells
# n blocks have n (n - 1) / (2 w^3) such pairs: of 10 blocks in rows of 5 cells every third time, in
# rows of 13 one time in fifty.
_SPARE_WIDTH = 8


@dataclass(frozen=True)
class Table:
    """Cells for blocks of one length.

    Attributes:
        segments: whose blocks go there, by number.
        block: elements of a block and of a cell.
        width: cells in a row.
        begin: where its cells begin in the message.
        magnitudes: where, behind them, what says how large the blocks in each cell are.
        end: where those end.
        seed: of its hashes.
    """

    segments: tuple[int, ...]
    block: int
    width: int
    begin: int
    magnitudes: int
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


def are_whole(layout: Layout, expected: Sequence[int], config: SketchConfig) -> list[bool]:
    """Whether each segment travels as it is, with so many live blocks in the union."""
    cells = max(config.cells, _LEAST_CELLS)
    pairs = zip(layout.records, expected, strict=True)
    return [cells * union >= record.nblocks > 0 for record, union in pairs]


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
        ncells = config.rows * width
        magnitudes, end = begin + ncells * block, begin + ncells * (block + 1)
        own = derive_seed(seed, block)
        tables.append(Table(tuple(numbers), block, width, begin, magnitudes, end, own))
        begin = end
    return Message(places, tables, begin)


def _width(expected: int, config: SketchConfig) -> int:
    width = math.ceil(config.cells * expected / config.rows)
    return max(1, width) if config.on_overflow == "estimate" else width + _SPARE_WIDTH


def fill(message: Message, own: Contribution, config: SketchConfig) -> Tensor:
    """This rank's summand.

    A segment with a non-finite value is left out of its table, where it would spread.
    """
    flat = torch.zeros(message.numel)
    for number, (begin, end) in message.whole.items():
        own.write_whole(number, flat[begin:end])
    for table in message.tables:
        cells, magnitudes = cells_of(table, flat, config), magnitudes_of(table, flat, config)
        for number in table.segments:
            if own.finite[number]:
                places, rows = own.places[number], own.rows(number)
                ops.sketch_insert(cells, table.seed, places, rows)
                ops.sketch_weigh(magnitudes, table.seed, places, rows)
    return flat


def cells_of(table: Table, flat: Tensor, config: SketchConfig) -> Tensor:
    """[rows, width, block], the table in a message."""
    return flat[table.begin : table.magnitudes].view(config.rows, table.width, table.block)


def magnitudes_of(table: Table, flat: Tensor, config: SketchConfig) -> Tensor:
    """[rows, width], the sums of the largest magnitudes of all ranks' blocks in each cell."""
    return flat[table.magnitudes : table.end].view(config.rows, table.width)
