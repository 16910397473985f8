# SPDX-License-Identifier: MIT
"""The stages of a bucket where collectives are enqueued, in the order of the hook's calls.

The first enqueues all that the index takes, and its way to the host, for which nothing waits yet.
What it gives waits for that, makes the plan on the host, and gives the second stage, which enqueues
the rounds of the values.  That is one wait for each bucket.

So the index has one form: a bitmap with the header before it, or for COO gradients a list with room
for as many rows as the ranks are likely to have.  If a rank has more, the lists come in a second
round, with a second wait: in the first step, and where a table is touched by a quarter more rows
than the last time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer import ops
from s2reducer.block_ops import ops_for
from s2reducer.device import HostCopy
from s2reducer.device_rows import coalesced_on_device, numbered_on_device
from s2reducer.exchange import (
    HEADER_NBYTES,
    Header,
    Index,
    agreed,
    identity,
    index_of_messages,
    message_of,
)
from s2reducer.job import Job
from s2reducer.row_stages import plan_rows
from s2reducer.rows import table_of, unite_rows
from s2reducer.segments import Layout, LayoutMemory
from s2reducer.stages import plan_blocks
from s2reducer.transport import Transport
from s2reducer.worker import Result

Second = Callable[[Transport], Result]  # enqueues the rounds of the values
Planner = Callable[[], Second[Result]]  # waits for the index

# The bits of the blocks that are not zero, and how many -0.0 there are in the others, int64 [1].
Live = tuple[Tensor, Tensor]

# A list has room for a quarter more rows than the last time, and for a multiple of so many.
_ROWS = 64


def begin_blocks(
    job: Job,
    beside: Sequence[Future[list[Tensor]]],
    transport: Transport,
    found: Live | None = None,
) -> Planner[Tensor]:
    """The first stage of a flat bucket; ``beside`` are AllReduces of its other segments.

    ``found`` are its live blocks, where they are not those of ``job.buffer``.
    """
    job.plan, job.round = job.config.plan, "index"
    layout, buffer = job.compared, job.buffer
    sent_before = transport.bytes_sent
    bitmap, negative_zeros = found or live_on_device(buffer, layout)
    figures = tuple(job.chooser.words(job.step))
    message = message_of(Header(identity(layout, job.dtype), job.step, figures=figures), bitmap)
    # With two ranks, the other's bitmap is no more than an OR takes.
    by_or = job.config.plan == "union" and transport.world_size > 2
    if by_or:
        headers = transport.all_gather(message[:HEADER_NBYTES])
        union = bitmap.clone()
        transport.or_bitmap(union)
        arriving = HostCopy(negative_zeros, headers, bitmap, union)
    else:
        arriving = HostCopy(negative_zeros, transport.all_gather(message))
    nbytes = transport.bytes_sent - sent_before

    def plan() -> Second[Tensor]:
        negative, messages, *bitmaps = arriving.wait()
        job.has_negative_zeros = bool(negative)
        if by_or:
            agreed(messages)
            index = _index_of_union(job, bitmaps, transport.world_size, nbytes)
        else:
            index, headers = index_of_messages(layout, messages, nbytes)
            job.chooser.learn(job.step, headers.figures)
        enqueue_values = plan_blocks(job, transport.rank, index)

        def second(transport: Transport) -> Tensor:
            result = enqueue_values(transport)
            for future in beside:
                future.wait()  # makes the stream wait
            return result

        return second

    return plan


def live_on_device(buffer: Tensor, layout: Layout) -> Live:
    """``stages.live_blocks`` where nothing is read."""
    bitmap = buffer.new_empty(layout.bitmap_nbytes, dtype=torch.uint8)
    negative_zeros = buffer.new_empty(1, dtype=torch.int64)
    ops_for(buffer.device).bitmap_from_nonzero(buffer, layout.segments, bitmap, negative_zeros)
    return bitmap, negative_zeros


def _index_of_union(job: Job, bitmaps: list[Tensor], world_size: int, nbytes: int) -> Index:
    """An index without the other ranks' bitmaps; given are this rank's and the union."""
    own, union = bitmaps
    counts = torch.empty(2, len(job.compared.records), dtype=torch.int64)
    for bitmap, row in zip(bitmaps, counts, strict=True):
        ops.bitmap_count(bitmap, job.compared.segments, row)
    of_own, of_union = counts.tolist()
    return Index(own.view(1, -1), union, [of_own], of_union, world_size, nbytes, rounds=3)


def begin_rows(job: Job, transport: Transport) -> Planner[list[Tensor]]:
    """The first stage of ``job.tables``."""
    job.plan, job.round = job.config.plan, "index"
    memory, sent_before = job.layout.memory, transport.bytes_sent
    tables = [table_of(tensor) for tensor in job.tables]
    pairs = zip(job.tables, tables, strict=True)
    own = [coalesced_on_device(tensor, table) for tensor, table in pairs]
    numbered, live, nrows = numbered_on_device(tables, own)
    numbered = numbered.to(torch.int32 if nrows < 1 << 31 else torch.int64)

    room = _room(memory)
    header = Header(
        identity(job.layout, own[0].values.dtype),
        job.step,
        figures=tuple(job.chooser.words(job.step)),
    )
    message = message_of(header, _padded(numbered, room), live)
    counts = torch.cat([part.count for part in own])
    arriving = HostCopy(transport.all_gather(message), counts)

    def plan() -> Second[list[Tensor]]:
        messages, counts = arriving.wait()
        headers = agreed(messages)
        job.chooser.learn(job.step, headers.figures)
        _check_rows(headers.lives)
        lists = messages[:, HEADER_NBYTES:]
        memory.most_live = max(headers.lives)
        if memory.most_live > room:
            everything = transport.all_gather(_padded(numbered, memory.most_live))
            (lists,) = HostCopy(everything).wait()
        positions = lists.contiguous().view(numbered.dtype).to(torch.int64)
        of_ranks = [row[:live] for row, live in zip(positions, headers.lives, strict=True)]
        unions, index = unite_rows(tables, of_ranks, transport.bytes_sent - sent_before)
        values = [part.values[:count] for part, count in zip(own, counts.tolist(), strict=True)]
        return plan_rows(job, transport.rank, tables, values, unions, index)

    return plan


def _check_rows(lives: list[int]) -> None:
    wrong = [str(rank) for rank, live in enumerate(lives) if live < 0]
    if wrong:
        raise ValueError(
            "the row numbers of a COO gradient must lie between 0 and the number of the table's "
            f"rows - 1, but on rank {', '.join(wrong)} some do not"
        )


def _room(memory: LayoutMemory) -> int:
    """Rows for which a list has room; from what all ranks share."""
    if memory.most_live is None:
        return 0
    return -(-(memory.most_live * 5 // 4) // _ROWS) * _ROWS


def _padded(numbers: Tensor, size: int) -> Tensor:
    """uint8, the bytes of so many numbers; where there are fewer, of zeros."""
    padded = numbers.new_zeros(size)
    count = min(size, numbers.numel())
    padded[:count] = numbers[:count]
    return padded.view(torch.uint8)
