# SPDX-License-Identifier: MIT
"""float32 gradients on a wire of bfloat16, and what rounding leaves.

A gradient is rounded twice: before it is sent, and when the sum, which is in float32, is divided
and sent back.  What the first loses this rank owes; what the second loses is owed by the rank that
made the sum or, where all did, by the first that has the block.

What is owed of a block waits until this rank has the block again, or sums it, which may be one that
it never has.  Were it sent without waiting, every row of an embedding that was ever looked up would
be sent in every step.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.block_ops import ops_for
from s2reducer.job import Job
from s2reducer.plans.contribution import positions_of
from s2reducer.residuals import Residuals
from s2reducer.segments import Layout, segments_of
from s2reducer.select_ops import owed_add, owed_round

WIRE_DTYPE = torch.bfloat16


class Narrow:
    """The narrow form of one bucket in one step.

    Args:
        source: float32, the gradients.
        layout: of the bucket.
        which: the segments that are selected from; they are not filled here.
        residuals: to take from and put into; None without error feedback.
        scale: of the gradients.

    Attributes:
        buffer: bfloat16, what travels; zero in blocks that are not live.
    """

    def __init__(
        self,
        source: Tensor,
        layout: Layout,
        which: Sequence[bool],
        residuals: Residuals | None,
        scale: float,
    ) -> None:
        self._source = source
        self._layout = layout
        self._filled = [not is_selected for is_selected in which]
        self._residuals = residuals
        self._scale = scale
        self.buffer = torch.zeros(layout.numel, dtype=WIRE_DTYPE, device=source.device)

    @cached_property
    def part(self) -> Layout:
        """The layout of the segments that are filled, of which there must be some."""
        return self._layout.part(self._filled)

    def travel(self, job: Job) -> None:
        """Makes it what a job sends."""
        # Without an index, a segment that is all zero on this rank may be so on all of them, and
        # then DDP would not write what is added to it.
        self._used_only = job.config.knows_index
        self._divisor = job.divisor
        job.buffer, job.narrow = self.buffer, True
        if self._residuals is not None:
            job.rounded, job.debts = self.rounded, self.add_debts

    def fill(self, bitmap: Tensor) -> None:
        """Rounds the live blocks of ``part``, whose bits are given."""
        self._live = bitmap
        self._round(bitmap)

    def add_debts(self, owned: Tensor) -> None:
        """Adds what is owed of the blocks that this rank sums, to those that it has not.

        ``owned`` are their bits in the whole layout, of blocks that some rank has.
        """
        if any(self._filled):
            spans = itertools.compress(self._layout.spans, self._filled)
            self._send_debts(torch.cat([owned[span] for span in spans]))

    def _send_debts(self, bitmap: Tensor) -> None:
        """The same, with bits of ``part``."""
        bitmap &= ~self._live
        for span in self.part.spans if self._used_only else []:
            if not self._live[span].any():
                bitmap[span] = 0
        self._round(bitmap)

    def _round(self, bitmap: Tensor) -> None:
        part = self.part
        positions, counts = positions_of(bitmap, part)
        places = torch.split_with_sizes(positions, counts)
        numels = [count * block for count, (_, _, block, _) in zip(counts, part.rows, strict=True)]
        rows = torch.empty(sum(numels))
        ops.blocks_gather(self._source, part.segments, positions, rows, parallel=False)

        owed, narrow = torch.empty_like(rows), rows.new_empty(rows.numel(), dtype=WIRE_DTYPE)
        before = None if self._residuals is None else self._before(places, numels)
        owed_add(rows, before, owed, 1.0 / self._scale, parallel=False)
        owed_round(owed, narrow, self._scale, parallel=False)
        ops.blocks_scatter(narrow, part.segments, positions, self.buffer, parallel=False)
        if self._residuals is None:
            return
        lost = torch.split_with_sizes(owed, numels)
        firsts = part.segments[:, 3].tolist()
        for record, where, first, rest in zip(part.records, places, firsts, lost, strict=True):
            if where.numel():
                self._residuals.replace(record, where - first, rest.view(where.numel(), -1))

    def _before(self, places: tuple[Tensor, ...], numels: list[int]) -> Tensor:
        """What these blocks owe, one behind the other."""
        assert self._residuals is not None
        part = self.part
        before = torch.empty(sum(numels))
        pieces = torch.split_with_sizes(before, numels)
        firsts = part.segments[:, 3].tolist()
        for record, where, first, out in zip(part.records, places, firsts, pieces, strict=True):
            if where.numel():
                array = self._residuals.array(record)
                alone = segments_of([record.numel], [record.block])
                ops.blocks_gather(array, alone, where - first, out, parallel=False)
        return before

    def rounded(self, segments: Tensor, positions: Tensor, lost: Tensor) -> None:
        """Means that were rounded: blocks of the bucket, or of segments cut out of it.

        Args:
            segments: int64 [S, 4], in which ``positions`` are bits.
            lost: float32, what the blocks' elements have lost; it is overwritten.  This rank owes
                it for all ranks.
        """
        if self._residuals is None or positions.numel() == 0:
            return
        convert = ops_for(lost.device).values_convert
        convert(lost, lost, self._scale / self._divisor, parallel=False)
        whole = self._layout.segments[:, 0].tolist()
        ends = torch.searchsorted(positions, segments[1:, 3].contiguous()).tolist()
        at = begin = 0
        for row, end in zip(segments.tolist(), [*ends, positions.numel()], strict=True):
            offset, _, block, bit = row
            numel = (end - begin) * block
            if numel:
                number = bisect_right(whole, offset) - 1
                blocks = positions[begin:end] - (bit - (offset - whole[number]) // block)
                rows = lost[at : at + numel].view(-1, block)
                self._residuals.add(self._layout.records[number], blocks, rows)
            at, begin = at + numel, end

    def widen(self, target: Tensor, union: Tensor | None) -> None:
        """Writes ``buffer`` to ``target``, float32.

        ``union`` are the bits outside of which the target is zero already, None for all.
        """
        on_device = ops_for(target.device)
        if union is None:
            on_device.values_convert(self.buffer, target, parallel=False)
            return
        segments = self._layout.segments
        positions, counts = positions_of(union, self._layout)
        rows = self.buffer.new_empty(self._layout.packed_numel(counts))
        on_device.blocks_gather(self.buffer, segments, positions, rows, parallel=False)
        on_device.blocks_scatter(rows, segments, positions, target, parallel=False)
