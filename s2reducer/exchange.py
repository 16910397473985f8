# SPDX-License-Identifier: MIT
"""The first rounds of a bucket: the ranks compare headers and learn each other's live blocks.

A header is eight int64: magic number, identity of the bucket (its segments and dtype), step, form
of the index, live blocks, and three that are zero.  It shows ranks that disagree before they send
each other arrays that do not fit, and gives all of them the sizes of what follows.

The index of a rank's live blocks has one of two forms:

bitmap
    all of the bucket's bits.  The size is fixed, so the header travels as its prefix: one round.
list
    the positions, packed (Elias-Fano), filled up to the longest of the ranks'.  Sizes follow from
    the headers, which travel before: two rounds, but fewer bytes where few blocks are live.

Which form it will be must be known before the header is sent, so it follows from the headers of the
bucket's last step; the first time a bucket comes, its header travels alone.
"""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.segments import Layout
from s2reducer.transport import Transport

HEADER_WORDS = 8
HEADER_NBYTES = 8 * HEADER_WORDS
_MAGIC = int.from_bytes(b"s2reduc1", "little")
_FIELDS = ("magic number", "segments or dtype", "step", "form of the index")
_BITMAP, _LIST = 0, 1

# A list costs a round of its own.  It has to save more than a small round takes: some 100
# microseconds, in which 1 Gbit/s carries this much.
_LIST_MUST_SAVE_NBYTES = 16 * 1024


@dataclass(frozen=True)
class Index:
    """What all ranks know of a bucket after these rounds: the same on each of them.

    Attributes:
        bitmaps: uint8 [P, bytes], each rank's live blocks.
        union: uint8 [bytes], their OR.
        positions: int64, of the union's set bits.
        counts: int64 [P, S], live blocks of each rank in each segment.
        union_counts: int64 [S].
    """

    bitmaps: Tensor
    union: Tensor
    positions: Tensor
    counts: Tensor
    union_counts: Tensor


def identity(layout: Layout, dtype: torch.dtype) -> int:
    """A number that buckets share if they have the same segments and dtype."""
    return zlib.crc32(f"{layout.segments.tolist()} {dtype}".encode())


class IndexExchange:
    """Gathers the indices of one state's buckets, and remembers what all ranks know of them."""

    def __init__(self) -> None:
        self._most_live: dict[int, int] = {}  # by identity: the most that a rank had, last time

    def gather(
        self,
        transport: Transport,
        layout: Layout,
        dtype: torch.dtype,
        step: int,
        bitmap: Tensor,
    ) -> Index:
        """The index of all ranks; ``bitmap`` is this rank's.

        Raises:
            ValueError: the ranks disagree on the bucket; the same sentence on every rank.
        """
        key = identity(layout, dtype)
        counts = torch.empty(len(layout.records), dtype=torch.int64)
        ops.bitmap_count(bitmap, layout.segments, counts)
        live = int(counts.sum())
        most_live = self._most_live.get(key)
        form = _form(layout, most_live, transport.world_size)
        header = torch.tensor([_MAGIC, key, step, form, live, 0, 0, 0], dtype=torch.int64)

        if form == _BITMAP and most_live is not None:
            message = torch.cat([header.view(torch.uint8), bitmap])
            gathered = transport.all_gather(message)
            lives = _compare(gathered[:, :HEADER_NBYTES])
            bitmaps = gathered[:, HEADER_NBYTES:].contiguous()
        else:
            gathered = transport.all_gather(header.view(torch.uint8))
            lives = _compare(gathered)
            bitmaps = (
                transport.all_gather(bitmap)
                if form == _BITMAP
                else _gather_lists(transport, layout, bitmap, lives)
            )
        self._most_live[key] = max(lives)
        return _index(layout, bitmaps)


def _form(layout: Layout, most_live: int | None, world_size: int) -> int:
    if most_live is None:
        return _BITMAP
    lists = ops.list_nbytes(8 * layout.bitmap_nbytes, most_live)
    saved = (world_size - 1) * (layout.bitmap_nbytes - lists)
    return _LIST if saved > _LIST_MUST_SAVE_NBYTES else _BITMAP


def _gather_lists(transport: Transport, layout: Layout, bitmap: Tensor, lives: list[int]) -> Tensor:
    nbits = 8 * layout.bitmap_nbytes
    sizes = [ops.list_nbytes(nbits, live) for live in lives]
    own = torch.empty(lives[transport.rank], dtype=torch.int64)
    ops.bitmap_positions(bitmap, own)
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    ops.list_encode(own, nbits, padded[: sizes[transport.rank]])

    gathered = transport.all_gather(padded)
    bitmaps = torch.empty(len(lives), layout.bitmap_nbytes, dtype=torch.uint8)
    for rank, (live, size) in enumerate(zip(lives, sizes, strict=True)):
        positions = torch.empty(live, dtype=torch.int64)
        ops.list_decode(gathered[rank, :size], nbits, positions)
        ops.bitmap_from_positions(positions, bitmaps[rank])
    return bitmaps


def _compare(headers: Tensor) -> list[int]:
    """Each rank's live blocks, once all else in the headers (uint8 [P, 64]) is the same."""
    rows = headers.contiguous().view(torch.int64).tolist()
    for column, name in enumerate(_FIELDS):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values[:8]))
            raise ValueError(
                f"the ranks reduce different buckets: the {name} must be the same, but {listed}"
            )
    return [row[4] for row in rows]


def _index(layout: Layout, bitmaps: Tensor) -> Index:
    union = bitmaps[0].clone()
    counts = torch.empty(len(bitmaps), len(layout.records), dtype=torch.int64)
    for rank, bitmap in enumerate(bitmaps):
        ops.bitmap_or(union, bitmap)
        ops.bitmap_count(bitmap, layout.segments, counts[rank])
    union_counts = torch.empty(len(layout.records), dtype=torch.int64)
    ops.bitmap_count(union, layout.segments, union_counts)
    positions = torch.empty(int(union_counts.sum()), dtype=torch.int64)
    ops.bitmap_positions(union, positions)
    return Index(bitmaps, union, positions, counts, union_counts)
