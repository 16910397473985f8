# SPDX-License-Identifier: MIT
"""What becomes of a dense gradient before it travels: selection, and a narrow wire.

What then travels is a gradient like any other.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from s2reducer.config import Config
from s2reducer.exchange import Header, Index, compare, identity, shared_index
from s2reducer.job import Job
from s2reducer.narrow import Narrow
from s2reducer.segments import ParameterRecord, all_blocks
from s2reducer.selection import SharedTopK
from s2reducer.selector import Selector
from s2reducer.sketch_stages import sketch_stage
from s2reducer.stages import Stage, blocks_stage, live_blocks, scan
from s2reducer.transport import Transport
from s2reducer.worker import Begun

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_lossy(job: Job) -> bool:
    """Whether ``select`` or ``wire`` concern a bucket."""
    if job.buffer.is_sparse or job.buffer.dtype not in _DTYPES:
        return False
    return narrows(job.config, job.dtype) or any(selected(job))


def narrows(config: Config, dtype: torch.dtype) -> bool:
    """Whether gradients of this dtype travel in fewer bits."""
    return config.wire is not None and dtype == torch.float32


def _selects_from(config: Config, record: ParameterRecord) -> bool:
    return config.select is not None and config.select.selects_from(record.shape)


def selected(job: Job) -> list[bool]:
    """For each segment, whether it is selected from."""
    return [_selects_from(job.config, record) for record in job.layout.records]


def owes_array(config: Config, record: ParameterRecord) -> bool:
    """Whether these settings may leave an array of a parameter (``residuals.py``)."""
    if not config.error_feedback or record.is_table or record.dtype not in _DTYPES:
        return False
    return narrows(config, record.dtype) or _selects_from(config, record)


def lossy_stage(job: Job, transport: Transport) -> Stage | Begun[Tensor, Any]:
    """The first stage of a bucket that these settings concern."""
    job.plan, job.round = job.config.plan, "selection"
    target, which = job.buffer, selected(job)
    sent_before = transport.bytes_sent
    if isinstance(job.config.select, SharedTopK):
        compare(transport, Header(identity(job.layout, job.dtype), job.step), target.device)
    narrow = _narrow(job, which) if narrows(job.config, job.dtype) else None
    chosen = _select(job, which, target, transport)
    index = _known_index(job, which, chosen, transport, sent_before)
    if index is None and any(which):
        scan(job)
    if job.config.plan == "sketch":
        return sketch_stage(job, transport)
    stage = blocks_stage(job, transport, index)
    if narrow is None:
        return stage

    def widened(values: Transport) -> Tensor:
        stage(values)
        # Outside of the union narrow and wide are zero, but for what was not selected, and for the
        # sign of a -0.0.
        whole = any(which) or job.has_negative_zeros
        narrow.widen(target, None if whole else job.union)
        return target

    return widened


def _narrow(job: Job, which: Sequence[bool]) -> Narrow:
    """Makes the narrow form what travels; segments that are selected from are still zero in it."""
    residuals = job.residuals if job.config.error_feedback else None
    narrow = Narrow(job.buffer, job.layout, which, residuals, job.residuals.scale)
    if not all(which):
        bitmap, job.has_negative_zeros = live_blocks(job.buffer, narrow.part)
        narrow.fill(bitmap)
        job.bitmap = bitmap  # of all blocks, where nothing is selected
    narrow.travel(job)
    return narrow


def _select(job: Job, which: Sequence[bool], source: Tensor, transport: Transport) -> Tensor | None:
    """Writes to the buffer what is sent of ``source``; the bits of those blocks."""
    if job.config.select is None or not any(which):
        return None
    selector = Selector(job, source, job.config.select, which)
    if isinstance(job.config.select, SharedTopK):
        selector.share_scores(transport)
    selector.choose()
    selector.deliver(job.buffer)
    return selector.bitmap


def _known_index(
    job: Job, which: Sequence[bool], chosen: Tensor | None, transport: Transport, sent_before: int
) -> Index | None:
    """The index of what travels, where all ranks know it already."""
    if not job.config.knows_index:
        return None
    shared = isinstance(job.config.select, SharedTopK)
    bitmap = all_blocks(job.layout)
    if shared and chosen is not None:
        for span in itertools.compress(job.layout.spans, which):
            bitmap[span] = chosen[span]
    job.bitmap = bitmap
    nbytes = transport.bytes_sent - sent_before
    return shared_index(job.layout, bitmap, transport.world_size, nbytes)
