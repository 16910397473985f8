# SPDX-License-Identifier: MIT
"""float32 gradients on a wire of bfloat16, where which blocks are live stays on the device.

The same as ``narrow.py``, but that whole segments are gone through, with a bit for each block, and
that what they owe next is written to where it stays.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.device import to_device
from s2reducer.device_lists import bits_of, missing
from s2reducer.job import Job
from s2reducer.narrow import Narrow
from s2reducer.ordered_stages import Live, live_on_device
from s2reducer.plans.contribution import positions_of
from s2reducer.segments import segments_of

_ops: Any = torch.ops.s2reducer


class OrderedNarrow(Narrow):
    """The narrow form of one bucket in one step, on a device."""

    def fill(self, bitmap: Tensor) -> None:
        """Rounds the live blocks of ``part``, whose bits are given."""
        self._live, device = bitmap, self._source.device
        rows = zip(self.part.records, self.part.rows, self.part.spans, strict=True)
        for record, (offset, numel, block, _), span in rows:
            if numel == 0:
                continue
            elements = slice(offset, offset + numel)
            before, owed = None, None
            if self._residuals is not None:
                before = self._residuals.array_on(record, device)
                owed = self._residuals.next_array_on(record)
            if owed is None:
                owed = torch.empty(numel, device=device)
            values, narrow = self._source[elements], self.buffer[elements]
            round_live(values, before, owed, block, bitmap[span], narrow, self._scale)

    def _send_debts(self, bitmap: Tensor) -> None:
        """The same, with bits of ``part``: only the device knows which have been sent already."""
        assert self._residuals is not None
        on_device = ops_for(self._source.device)
        positions, counts = positions_of(bitmap, self.part)
        places = torch.split_with_sizes(positions, counts)
        rows = zip(self.part.records, self.part.rows, self.part.spans, places, strict=True)
        for record, (offset, numel, block, bit), span, where in rows:
            if where.numel() == 0:
                continue
            alone, blocks = segments_of([numel], [block]), where - bit
            narrow = self.buffer[offset : offset + numel]
            owed = self._residuals.next_array_on(record)
            before = owed.new_empty(where.numel() * block)
            present = torch.empty_like(before, dtype=narrow.dtype)
            on_device.blocks_gather(owed, alone, blocks, before, parallel=False)
            on_device.blocks_gather(narrow, alone, blocks, present, parallel=False)

            live = bits_of(self._live[span])
            kept = live[to_device(blocks, live.device)]
            if self._used_only:
                kept |= ~live.any()
            kept = kept.unsqueeze(1).expand(-1, block).reshape(-1)
            values = (before * self._scale).to(narrow.dtype)
            sent = values.float().mul_(1.0 / self._scale)
            sent.masked_fill_(kept | ~sent.isfinite(), 0.0)  # what is too large stays owed
            values = torch.where(kept, present, values)
            on_device.blocks_scatter(values, alone, blocks, narrow, parallel=False)
            on_device.blocks_scatter(before - sent, alone, blocks, owed, parallel=False)


def travel_narrow(job: Job, which: Sequence[bool]) -> tuple[OrderedNarrow, Live | None]:
    """Makes the narrow form what travels; segments that are selected from are still zero in it.

    Gives it, and where nothing is selected the live blocks.
    """
    residuals = job.residuals if job.config.error_feedback else None
    narrow = OrderedNarrow(job.buffer, job.layout, which, residuals, job.residuals.scale)
    live: Live | None = None
    if not all(which):
        live = live_on_device(job.buffer, narrow.part)
        narrow.fill(live[0])
    narrow.travel(job)
    return narrow, None if any(which) else live


def round_live(
    values: Tensor,
    before: Tensor | None,
    owed: Tensor,
    block: int,
    bitmap: Tensor,
    narrow: Tensor,
    scale: float,
) -> None:
    """``narrow = before * scale + values`` in the live blocks of one parameter, 0.0 in the others.

    ``owed`` becomes what rounding has left, or ``before`` where that is not live: there all values
    are zeros.  By kernels where they are built, else by torch's own operators, to the same bits.

    Args:
        values: float32 [n], ``scale`` times too large.
        before, owed: float32 [n], what is owed before and after; None for zeros.
        bitmap: uint8, a bit for each block.
        narrow: bfloat16 [n].
    """
    if missing(values.device, "owed_deliver") is not None:
        _round_live(values, before, owed, block, bitmap, narrow, scale)
        return
    touched = torch.empty(1, dtype=torch.int64, device=values.device)
    _ops.owed_add.default(values, before, owed, touched, 1.0 / scale, False)
    _ops.owed_deliver.default(owed, block, bitmap, narrow, scale, False)


def _round_live(
    values: Tensor,
    before: Tensor | None,
    owed: Tensor,
    block: int,
    bitmap: Tensor,
    narrow: Tensor,
    scale: float,
) -> None:
    numel = values.numel()
    live = bits_of(bitmap)[: -(-numel // block)]
    dead = ~live.unsqueeze(1).expand(-1, block).reshape(-1)[:numel]
    torch.mul(values, 1.0 / scale, out=owed)
    owed += 0.0 if before is None else before
    narrow.copy_((owed * scale).masked_fill_(dead, 0.0))
    delivered = narrow.float().mul_(1.0 / scale)
    owed -= delivered.masked_fill_(~delivered.isfinite(), 0.0)  # what was too large stays owed
