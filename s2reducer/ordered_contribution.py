# SPDX-License-Identifier: MIT
"""What a rank adds to the sketch, on a device: ``plans/contribution.py`` without a host that knows.

Every block of a segment has its row, also those that are zero, and a bit says which of them count.
"""

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.device import to_device
from s2reducer.device_lists import Chosen, bitmap_of, bits_of, choose
from s2reducer.job import Job
from s2reducer.segments import Layout


@dataclass(frozen=True)
class Places:
    """All blocks of some segments, one segment behind the other.

    Attributes:
        numbers: of the segments.
        sizes: blocks of each.
        bits: int64 [N], the blocks' bits, which ascend.
        segments: int64 [N], in which segment each is.
    """

    numbers: tuple[int, ...]
    sizes: list[int]
    bits: Tensor
    segments: Tensor


# A copy to the device for each bucket would be another launch, and one that a CUDA graph repeats
# from memory that is long gone.
_places: "weakref.WeakKeyDictionary[Layout, dict[tuple[int, ...], Places]]" = (
    weakref.WeakKeyDictionary()
)

# Which segments share a table may change from step to step; so many choices are kept.
_MOST_CHOICES = 16


def places_of(layout: Layout, numbers: tuple[int, ...], device: torch.device) -> Places:
    """The blocks of these segments; a layout's tensors lie on one device."""
    known = _places.setdefault(layout, {})
    if numbers not in known:
        if len(known) == _MOST_CHOICES:
            known.clear()
        rows = [layout.rows[number] for number in numbers]
        sizes = [-(-numel // block) for _, numel, block, _ in rows]
        pairs = zip(rows, sizes, strict=True)
        spans = [torch.arange(bit, bit + size) for (*_, bit), size in pairs]
        segments = torch.repeat_interleave(torch.tensor(numbers), torch.tensor(sizes))
        bits = to_device(torch.cat(spans), device)
        known[numbers] = Places(numbers, sizes, bits, to_device(segments, device))
    return known[numbers]


class Own:
    """This rank's gradients, with what it owes of steps before.

    Attributes:
        live: bool, a bit for each block: not all zero, or owed.
        bitmap: the same packed.
        rows: for each segment float32 [nblocks, block], a short last block filled up with zeros.
        finite: bool [S], whether all of a segment is.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        layout, buffer = job.compared, job.buffer
        bitmap = buffer.new_empty(layout.bitmap_nbytes, dtype=torch.uint8)
        zeros = buffer.new_empty(1, dtype=torch.int64)  # of the sign that nobody asks for here
        ops_for(buffer.device).bitmap_from_nonzero(buffer, layout.segments, bitmap, zeros)
        self.live = bits_of(bitmap)
        self.rows = [self._segment(number) for number in range(len(layout.records))]
        self.bitmap = bitmap_of(self.live) if job.config.sketch.owes else bitmap
        self.finite = torch.stack([rows.isfinite().all() for rows in self.rows])

    def _segment(self, number: int) -> Tensor:
        job, layout = self._job, self._job.compared
        offset, numel, block, bit = layout.rows[number]
        nblocks, device = -(-numel // block), job.buffer.device
        rows = torch.zeros(nblocks, block, device=device)
        rows.view(-1)[:numel].copy_(job.buffer[offset : offset + numel])
        if not job.config.sketch.owes:
            return rows
        mask, owed = job.residuals.take_grid(layout.records[number], device)
        self.live[bit : bit + nblocks] |= mask
        return torch.where(mask.unsqueeze(1), rows + owed, rows)  # others keep the sign of a zero

    def divided(self, rows: Tensor) -> Tensor:
        """What is summed of them."""
        if self._job.divisor == 1.0:
            return rows
        quotient = torch.empty_like(rows)
        ops_for(rows.device).values_convert(rows, quotient, self._job.divisor)
        return quotient

    def part(self, numbers: tuple[int, ...]) -> "Part":
        """What goes into a table; a segment with a value that is not finite is left out."""
        places = places_of(self._job.compared, numbers, self.live.device)
        rows = torch.cat([self.rows[number] for number in numbers])
        live = self.live[places.bits]
        chosen = choose(live & self.finite[places.segments])
        return Part(places, rows, self.divided(rows), live, chosen, places.bits[chosen.order])


@dataclass(frozen=True)
class Part:
    """A rank's blocks in one table.

    Attributes:
        places: of all blocks that could be there.
        rows, divided: float32 [N, block], each of them.
        live: bool [N], those that this rank has.
        chosen: those that it inserts.
        ids: int64 [N], their bits, in that order.
    """

    places: Places
    rows: Tensor
    divided: Tensor
    live: Tensor
    chosen: Chosen
    ids: Tensor

    def by_segment(self, each: Tensor) -> list[tuple[int, Tensor]]:
        """[N, ...] cut into what belongs to each segment, by its number."""
        parts = torch.split_with_sizes(each, self.places.sizes)
        return list(zip(self.places.numbers, parts, strict=True))
