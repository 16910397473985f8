# SPDX-License-Identifier: MIT
"""Selects the blocks of a bucket that are sent, and keeps the rest for the next step.

To a gradient is added what its parameter owes; of the sum some blocks are delivered, and the others
are owed.  A parameter whose gradient is all zero is left out: it may be one that no rank has used,
whose gradient DDP would not write.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.job import Job
from s2reducer.segments import ParameterRecord, derive_seed
from s2reducer.select_ops import (
    owed_add,
    owed_deliver,
    owed_energies,
    select_above,
    select_random,
    select_scratch_nbytes,
    select_top,
)
from s2reducer.selection import RandomK, Selection, SharedTopK, Threshold, TopK
from s2reducer.transport import Transport


@dataclass
class _Segment:
    """A segment that is selected from.

    Attributes:
        elements: its place in the bucket.
        owed: float32 [numel], its gradient with what was owed; what is owed next, once the rest has
            been delivered.
        touched: whether its gradient is not all zero.
        scores: float32, one a block, by which blocks are chosen.
        bitmap: uint8, of the chosen blocks.
    """

    record: ParameterRecord
    elements: slice
    owed: Tensor
    touched: bool
    scores: Tensor
    bitmap: Tensor


class _Scored(Protocol):
    """A segment, and the scores of what may be chosen of it."""

    scores: Tensor


def share_scores(segments: Sequence[_Scored], transport: Transport, in_order: bool) -> None:
    """Sums the scores over the ranks, so that all of them choose the same.

    An AllReduce adds in an order that depends on the place of a score in the bucket; ``in_order``
    is that of the ranks, for P/2 times the bytes.
    """
    total = torch.cat([segment.scores for segment in segments])
    if in_order:
        total, *others = transport.all_gather(total)
        for scores in others:
            total += scores
    else:
        transport.sum(total)
    sizes = [segment.scores.numel() for segment in segments]
    parts = torch.split_with_sizes(total, sizes)
    for segment, scores in zip(segments, parts, strict=True):
        segment.scores = scores


class Selector:
    """One bucket in one step.

    Args:
        job: of the bucket.
        source: its gradients.
        select: how to choose.
        which: the segments that are selected from.

    Attributes:
        bitmap: uint8, the bits of the chosen blocks, in the layout of the bucket.
    """

    def __init__(self, job: Job, source: Tensor, select: Selection, which: Sequence[bool]) -> None:
        self._job = job
        self._source = source
        self._select = select
        self._scale = job.residuals.scale
        self.bitmap = torch.zeros(job.layout.bitmap_nbytes, dtype=torch.uint8)
        numbers = [number for number, is_selected in enumerate(which) if is_selected]
        self._segments = [self._score(number) for number in numbers]

    def _score(self, number: int) -> _Segment:
        job, record = self._job, self._job.layout.records[number]
        offset, numel, block, _ = job.layout.rows[number]
        elements = slice(offset, offset + numel)
        feedback = job.config.error_feedback
        before = job.residuals.array(record) if feedback else None
        owed = job.residuals.next_array(record) if feedback else torch.empty(numel)
        factor = 1.0 / self._scale
        touched = owed_add(self._source[elements], before, owed, factor, parallel=False)
        if not touched and feedback:
            job.residuals.keep(record)
        nblocks = -(-numel // block)
        scores = owed
        if block > 1:
            scores = torch.zeros(nblocks)
            if touched:
                owed_energies(owed, block, scores, parallel=False)
        bitmap = self.bitmap[job.layout.spans[number]]
        return _Segment(record, elements, owed, touched, scores, bitmap)

    def share_scores(self, transport: Transport) -> None:
        """Sums the scores over the ranks, so that all of them choose the same."""
        share_scores(self._segments, transport, self._job.config.deterministic)

    def choose(self) -> None:
        """Sets the bits of the blocks that are to be sent."""
        for segment in self._segments:
            # With shared scores it may be one that other ranks have.
            if segment.touched or isinstance(self._select, SharedTopK):
                self._choose(segment)

    def _choose(self, segment: _Segment) -> None:
        select, step, record = self._select, self._job.step, segment.record
        scores, bitmap = segment.scores, segment.bitmap
        if isinstance(select, Threshold):
            select_above(scores, select.least_score(record.block), bitmap, parallel=False)
            return
        assert isinstance(select, TopK | SharedTopK | RandomK)
        keep = select.keep(scores.numel(), step)
        if isinstance(select, RandomK):
            # What is not finite has to arrive, as it would without a selection.
            drawn = torch.empty_like(bitmap)
            seed = derive_seed(self._job.config.seed, step, record.identity)
            select_random(seed, scores.numel(), keep, drawn)
            select_above(scores, torch.inf, bitmap, parallel=False)
            ops.bitmap_or(bitmap, drawn)
        else:
            nbytes = select_scratch_nbytes(scores.numel())
            scratch = torch.empty(nbytes, dtype=torch.uint8)
            select_top(scores, keep, bitmap, scratch, parallel=False)

    def deliver(self, out: Tensor) -> None:
        """Writes the chosen blocks to ``out``, a bucket of any dtype, and zeros beside them."""
        for segment in self._segments:
            values, block = out[segment.elements], segment.record.block
            if segment.touched:
                bits = segment.bitmap
                owed_deliver(segment.owed, block, bits, values, self._scale, parallel=False)
            else:
                values.zero_()  # of the sign that other ranks have
