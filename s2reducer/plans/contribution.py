# SPDX-License-Identifier: MIT
"""What a rank adds to the sketch: its live blocks, and what it owes of steps before.

Blocks are known by their *places*, int64, which no two blocks of a message share: bits of a bucket,
or rows of several tables, numbered one behind the other.  A segment's places ascend from its first.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.residuals import Residual
from s2reducer.segments import Layout, segments_of


class Contribution(ABC):
    """The blocks of one rank, in one bucket or in several tables of rows, by segments.

    Attributes:
        firsts: the first place of each segment.
        blocks: the block length of each.
        places: of this rank's blocks, for each segment, int64, ascending.
        finite: whether their values are, for each segment that will be in a table.
        divisor: of the sums.
    """

    firsts: list[int]
    blocks: list[int]
    places: Sequence[Tensor]
    finite: list[bool]
    divisor: float

    @abstractmethod
    def rows(self, number: int) -> Tensor:
        """float32 [n, block], this rank's blocks of a segment, divided."""

    @abstractmethod
    def gather(self, number: int, places: Tensor, divisor: float) -> Tensor:
        """float32 [n, block], any blocks of a segment, divided; zero where this rank has none."""

    @abstractmethod
    def write_whole(self, number: int, out: Tensor) -> None:
        """Writes a segment as it is, divided, to ``out``, float32."""

    def numbers(self, number: int, places: Tensor) -> Tensor:
        """Blocks of a segment by their numbers in it."""
        return places - self.firsts[number]


class Blocks(Contribution):
    """Of a flat bucket.

    Args:
        buffer: zero in blocks that are not in ``bitmap``.
        bitmap: uint8, this rank's live blocks.
        owed: for each segment what is added to its gradient, or None.
        whole: for each segment whether it will travel as it is.
        divisor: of the sums.

    Attributes:
        bitmap: of the blocks that are live or owed.
    """

    def __init__(
        self,
        buffer: Tensor,
        layout: Layout,
        bitmap: Tensor,
        owed: Sequence[Residual | None],
        whole: Sequence[bool],
        divisor: float,
    ) -> None:
        self.buffer = buffer
        self.layout = layout
        self.firsts = layout.segments[:, 3].tolist()
        self.blocks = layout.blocks.tolist()
        self.divisor = divisor
        self._owed = [
            Residual(residual.blocks + first, residual.rows) if residual else None
            for residual, first in zip(owed, self.firsts, strict=True)
        ]
        self.bitmap = self._with_owed(bitmap)
        self.places = split_positions(self.bitmap, layout)
        self._rows = [
            None if is_whole else self.gather(number, self.places[number], divisor)
            for number, is_whole in enumerate(whole)
        ]
        self.finite = [
            rows is None or ops.values_finite(rows.view(-1), parallel=False) for rows in self._rows
        ]

    def rows(self, number: int) -> Tensor:
        rows, self._rows[number] = self._rows[number], None
        return self.gather(number, self.places[number], self.divisor) if rows is None else rows

    def gather(self, number: int, places: Tensor, divisor: float) -> Tensor:
        segments, owed = self.layout.segments, self._owed[number]
        rows = torch.empty(places.numel(), self.blocks[number])
        flat = rows.view(-1)
        if owed is None:
            ops.blocks_gather(self.buffer, segments, places, flat, divisor, parallel=False)
            return rows
        ops.blocks_gather(self.buffer, segments, places, flat, parallel=False)
        where, hit = find(owed.blocks, places)
        rows.index_add_(0, where[hit], owed.rows[hit])
        ops.values_convert(flat, flat, divisor, parallel=False)
        return rows

    def write_whole(self, number: int, out: Tensor) -> None:
        offset, numel, block, _ = self.layout.segments[number].tolist()
        source, owed = self.buffer[offset : offset + numel], self._owed[number]
        if owed is None:
            ops.values_convert(source, out, self.divisor, parallel=False)
            return
        ops.values_convert(source, out, parallel=False)
        alone, numbers = segments_of([numel], [block]), self.numbers(number, owed.blocks)
        ops.blocks_add(owed.rows.view(-1), alone, numbers, out, parallel=False)
        ops.values_convert(out, out, self.divisor, parallel=False)

    def _with_owed(self, bitmap: Tensor) -> Tensor:
        owed = [residual.blocks for residual in self._owed if residual is not None]
        if not owed:
            return bitmap
        both = torch.empty_like(bitmap)
        ops.bitmap_from_positions(torch.cat(owed), both)
        ops.bitmap_or(both, bitmap)
        return both


class Rows(Contribution):
    """Of COO gradients, with what is owed of them.

    Args:
        rows: of each table, int64 [k], which ascend.
        values: of each, float32 [k, width].
        firsts: the number of each table's first row, one behind the other.
        divisor: of the sums.
    """

    def __init__(
        self, rows: Sequence[Tensor], values: Sequence[Tensor], firsts: list[int], divisor: float
    ) -> None:
        self.firsts = firsts
        self.blocks = [part.shape[1] for part in values]
        self.divisor = divisor
        self._values = values
        self.places = [part + first for part, first in zip(rows, firsts, strict=True)]
        self.finite = [ops.values_finite(part.view(-1), parallel=False) for part in values]

    def rows(self, number: int) -> Tensor:
        return self._divided(self._values[number].clone(), self.divisor)

    def gather(self, number: int, places: Tensor, divisor: float) -> Tensor:
        rows = torch.zeros(places.numel(), self.blocks[number])
        where, hit = find(places, self.places[number])
        rows[hit] = self._values[number][where[hit]]
        return self._divided(rows, divisor)

    def write_whole(self, number: int, out: Tensor) -> None:
        raise AssertionError("nothing of a table's length is written")

    @staticmethod
    def _divided(rows: Tensor, divisor: float) -> Tensor:
        ops.values_convert(rows.view(-1), rows.view(-1), divisor, parallel=False)
        return rows


def find(wanted: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Where each of ``wanted`` is among the ascending ``places``, and whether it is there."""
    where = torch.searchsorted(places, wanted)
    if places.numel() == 0:
        return where, torch.zeros(wanted.numel(), dtype=torch.bool)
    where.clamp_(max=places.numel() - 1)
    return where, places[where] == wanted


def positions_of(bitmap: Tensor, layout: Layout) -> tuple[Tensor, list[int]]:
    """The set bits, int64, and how many of them each segment has."""
    counts = torch.empty(len(layout.rows), dtype=torch.int64)
    ops.bitmap_count(bitmap, layout.segments, counts)
    positions = torch.empty(int(counts.sum()), dtype=torch.int64)
    ops.bitmap_positions(bitmap, positions)
    return positions, counts.tolist()


def split_positions(bitmap: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """The set bits of each segment, int64."""
    return torch.split_with_sizes(*positions_of(bitmap, layout))
