# SPDX-License-Identifier: MIT
"""What becomes of a dense gradient before it travels, where collectives are only enqueued.

The same as ``lossy.py`` and ``selector.py``, but that whether a gradient is all zero, and which
blocks are live or chosen, stays on the device.  What then travels is a gradient like any other, by
the plan that is set; where all ranks have chosen the same, the host reads which blocks these are.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from s2reducer.device import HostCopy, to_device
from s2reducer.exchange import Header, agreed, identity, shared_index
from s2reducer.job import Job
from s2reducer.lossy import narrows, selected
from s2reducer.ordered_narrow import OrderedNarrow, travel_narrow
from s2reducer.ordered_sketch import begin_sketch
from s2reducer.ordered_stages import Planner, Second, begin_blocks
from s2reducer.segments import ParameterRecord, all_blocks, derive_seed
from s2reducer.select_ops import select_random, select_scratch_nbytes, selected_nbytes
from s2reducer.selection import RandomK, Selection, SharedTopK, Threshold, TopK
from s2reducer.selector import share_scores
from s2reducer.stages import plan_blocks
from s2reducer.transport import Transport

_ops: Any = torch.ops.s2reducer


def begin_lossy(job: Job, transport: Transport) -> Planner[Tensor]:
    """The first stage of a bucket that these settings concern."""
    job.plan, job.round = job.config.plan, "selection"
    target, which = job.buffer, selected(job)
    sent_before = transport.bytes_sent
    narrow, live = travel_narrow(job, which) if narrows(job.config, job.dtype) else (None, None)
    chosen = _select(job, which, target, transport)
    if job.config.plan == "sketch":
        return begin_sketch(job, transport)
    if job.config.knows_index:
        begun = _begin_known(job, which, chosen, transport, sent_before)
    else:
        begun = begin_blocks(job, [], transport, live)
    if narrow is None:
        return begun
    return partial(_plan_and_widen, job, begun, narrow, target, any(which))


def _plan_and_widen(
    job: Job, begun: Planner[Tensor], narrow: OrderedNarrow, target: Tensor, whole: bool
) -> Second[Tensor]:
    enqueue_values = begun()

    def widened(transport: Transport) -> Tensor:
        enqueue_values(transport)
        # As in lossy.py; where no scan has told of a -0.0, all blocks are in the union.
        narrow.widen(target, None if whole or job.has_negative_zeros else job.union)
        return target

    return widened


def _select(job: Job, which: Sequence[bool], source: Tensor, transport: Transport) -> list[Tensor]:
    """Writes to the buffer what is sent of ``source``; the bits of those blocks, uint8, for each
    segment that is selected from, touched or not."""
    if job.config.select is None or not any(which):
        return []
    selector = _Selector(job, source, job.config.select, which)
    if isinstance(job.config.select, SharedTopK):
        selector.share_scores(transport)
    selector.choose()
    selector.deliver(job.buffer)
    return selector.bitmaps


def _begin_known(
    job: Job,
    which: Sequence[bool],
    chosen: Sequence[Tensor],
    transport: Transport,
    sent_before: int,
) -> Planner[Tensor]:
    """Of a bucket whose index all ranks have: everything, or what they have chosen together."""
    job.round = "index"
    arriving: HostCopy | None = None
    if isinstance(job.config.select, SharedTopK):
        header = Header(identity(job.layout, job.dtype), job.step).tensor()
        headers = transport.all_gather(to_device(header, job.buffer.device))
        arriving = HostCopy(headers, *chosen)
    nbytes = transport.bytes_sent - sent_before

    def plan() -> Second[Tensor]:
        bitmap = all_blocks(job.layout)
        if arriving is not None:
            headers, *bitmaps = arriving.wait()
            agreed(headers)
            spans = itertools.compress(job.layout.spans, which)
            for span, bits in zip(spans, bitmaps, strict=True):
                bitmap[span] = bits
        job.bitmap = bitmap
        index = shared_index(job.layout, bitmap, transport.world_size, nbytes)
        return plan_blocks(job, transport.rank, index)

    return plan


@dataclass
class _Segment:
    """As in ``selector.py``; ``touched`` is bool [1] on the device, ``before`` what was owed."""

    record: ParameterRecord
    elements: slice
    before: Tensor | None
    owed: Tensor
    touched: Tensor
    scores: Tensor
    bitmap: Tensor


class _Selector:
    """One bucket in one step: ``selector.Selector`` on a device."""

    def __init__(self, job: Job, source: Tensor, select: Selection, which: Sequence[bool]) -> None:
        self._job = job
        self._source = source
        self._select = select
        self._scale = job.residuals.scale
        numbers = itertools.compress(range(len(which)), which)
        self._segments = [self._score(number) for number in numbers]

    @property
    def bitmaps(self) -> list[Tensor]:
        """uint8, the chosen blocks of each segment that is selected from, touched or not."""
        return [segment.bitmap for segment in self._segments]

    def _score(self, number: int) -> _Segment:
        job, record = self._job, self._job.layout.records[number]
        offset, numel, block, _ = job.layout.rows[number]
        elements, device = slice(offset, offset + numel), job.buffer.device
        before = None
        if job.config.error_feedback:
            before = job.residuals.array_on(record, device)
        owed = torch.empty(numel, device=device)
        count = torch.empty(1, dtype=torch.int64, device=device)
        values, factor = self._source[elements], 1.0 / self._scale
        _ops.owed_add.default(values, before, owed, count, factor, False)
        touched = count != 0
        nblocks = -(-numel // block)
        scores = owed
        if block > 1:
            scores = torch.empty(nblocks, device=device)
            _ops.owed_energies.default(owed, block, scores, False)
            scores.masked_fill_(~touched, 0.0)
        bitmap = torch.zeros(selected_nbytes(nblocks), dtype=torch.uint8, device=device)
        return _Segment(record, elements, before, owed, touched, scores, bitmap)

    def share_scores(self, transport: Transport) -> None:
        """Sums the scores over the ranks, so that all of them choose the same."""
        share_scores(self._segments, transport, self._job.config.deterministic)

    def choose(self) -> None:
        """Sets the bits of the blocks that are to be sent."""
        for segment in self._segments:
            self._choose(segment)

    def _choose(self, segment: _Segment) -> None:
        select, step, record = self._select, self._job.step, segment.record
        scores, bitmap, device = segment.scores, segment.bitmap, segment.scores.device
        count = torch.empty(1, dtype=torch.int64, device=device)
        if isinstance(select, Threshold):
            bound = select.least_score(record.block)
            _ops.select_above.default(scores, bound, bitmap, count, False)
            return
        assert isinstance(select, TopK | SharedTopK | RandomK)
        keep = select.keep(scores.numel(), step)
        if isinstance(select, RandomK):
            # What is not finite has to arrive, as it would without a selection.
            drawn = torch.empty(bitmap.numel(), dtype=torch.uint8)
            seed = derive_seed(self._job.config.seed, step, record.identity)
            select_random(seed, scores.numel(), keep, drawn)
            _ops.select_above.default(scores, torch.inf, bitmap, count, False)
            bitmap |= to_device(drawn, device)
            return
        least = torch.empty(1, device=device)
        # On a device the operator has a scratch of its own.
        nbytes = select_scratch_nbytes(scores.numel()) if device.type == "cpu" else 0
        scratch = torch.empty(nbytes, dtype=torch.uint8, device=device)
        _ops.select_top.default(scores, keep, bitmap, least, scratch, False)

    def deliver(self, out: Tensor) -> None:
        """Writes the chosen blocks to ``out``, a bucket of any dtype, and zeros beside them."""
        for segment in self._segments:
            # What is not touched is delivered as zeros, of the sign that other ranks have.
            bits = segment.bitmap * segment.touched
            block, values = segment.record.block, out[segment.elements]
            _ops.owed_deliver.default(segment.owed, block, bits, values, self._scale, False)
            if segment.before is not None:
                owed = self._job.residuals.next_array_on(segment.record)
                torch.where(segment.touched, segment.owed, segment.before, out=owed)
