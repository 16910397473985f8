# SPDX-License-Identifier: MIT
"""The first rounds of a bucket: ranks make sure that they mean the same, and learn who has what.

A header is sixteen int64: magic number, identity of the bucket (its segments, dtype and settings),
step, form of the index, live blocks, flags, figures that this rank has measured
(``constants.py``), and zeros.  It shows ranks that disagree before they send each other arrays that
do not fit, and gives all of them the sizes of what follows.

The index of a rank's live blocks has one of two forms:

bitmap
    all of the bucket's bits.  The size is fixed, so the header travels as its prefix: one round.
list
    the positions, packed (Elias-Fano), filled up to the longest of the ranks'.  Sizes follow from
    the headers, which travel before: two rounds, but fewer bytes where few blocks are live.

Which form it will be must be known before the header is sent, so it follows from the headers of the
bucket's last step; the first time a bucket comes, it is a bitmap.
"""

import functools
import operator
import zlib
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.constants import NFIGURES
from s2reducer.device import to_device
from s2reducer.errors import Disagreement
from s2reducer.segments import Layout
from s2reducer.transport import Transport

HEADER_WORDS = 16
HEADER_NBYTES = 8 * HEADER_WORDS
_MAGIC = int.from_bytes(b"s2reduc2", "little")
_FIELDS = ("magic number", "segments, dtype or settings", "step", "form of the index")
_LIVE, _FLAGS, _FIGURES = range(len(_FIELDS), len(_FIELDS) + 3)
_NO_INDEX, _BITMAP, _LIST = 0, 1, 2

# A list costs a round of its own.  It has to save more than a small round takes: some 100
# microseconds, in which 1 Gbit/s carries this much.
_LIST_MUST_SAVE_NBYTES = 16 * 1024


@dataclass(frozen=True)
class Header:
    """What a rank says of its bucket: the first four fields have to be the same on all ranks.

    ``flags`` are up to 64 bits, ``figures`` are ``NFIGURES`` words.
    """

    identity: int
    step: int
    form: int = _NO_INDEX
    live: int = 0
    figures: tuple[int, ...] = (0,) * NFIGURES
    flags: int = 0

    def tensor(self) -> Tensor:
        """uint8 [HEADER_NBYTES]."""
        flags = self.flags - ((self.flags >> 63) << 64)  # the same bits with a sign
        words = [_MAGIC, self.identity, self.step, self.form, self.live, flags, *self.figures]
        words += [0] * (HEADER_WORDS - len(words))
        return torch.tensor(words, dtype=torch.int64).view(torch.uint8)


@dataclass(frozen=True)
class Headers:
    """Of all ranks, which agree: the live blocks of each, its figures, and the OR of the flags."""

    lives: list[int]
    figures: list[list[int]]
    flags: int


@dataclass(frozen=True, eq=False)
class Index:
    """What all ranks know of a bucket after these rounds: the same on each of them.

    Attributes:
        bitmaps: uint8 [P, bytes], each rank's live blocks.
        union: uint8 [bytes], their OR.
        counts: P lists, live blocks of each rank in each segment.
        union_counts: the same of the union.
        world_size: P.
        nbytes: what this rank has sent for it.
        rounds: that it took.
    """

    bitmaps: Tensor
    union: Tensor
    counts: list[list[int]]
    union_counts: list[int]
    world_size: int
    nbytes: int
    rounds: int

    @cached_property
    def positions(self) -> Tensor:
        """int64, of the union's set bits."""
        positions = torch.empty(sum(self.union_counts), dtype=torch.int64)
        ops.bitmap_positions(self.union, positions)
        return positions

    def part(self, layout: Layout, kept: list[bool]) -> "Index":
        """The index of ``layout.part(kept)``; ``layout`` is the one that this is for."""
        if all(kept):
            return self
        spans = list(compress(layout.spans, kept))
        return Index(
            torch.cat([self.bitmaps[:, span] for span in spans], dim=1),
            torch.cat([self.union[span] for span in spans]),
            [list(compress(counts, kept)) for counts in self.counts],
            list(compress(self.union_counts, kept)),
            self.world_size,
            self.nbytes,
            self.rounds,
        )


def identity(layout: Layout, dtype: torch.dtype, settings: str = "") -> int:
    """A number that buckets share if they have the same segments, dtype and settings."""
    return zlib.crc32(f"{layout.rows} {dtype} {settings}".encode())


def shared_index(layout: Layout, bitmap: Tensor, world_size: int, nbytes: int = 0) -> Index:
    """Of blocks that all ranks have alike, which took ``nbytes`` and a round to know, or none."""
    counts = torch.empty(len(layout.records), dtype=torch.int64)
    ops.bitmap_count(bitmap, layout.segments, counts)
    own = counts.tolist()
    return Index(
        bitmap.expand(world_size, -1).contiguous(),
        bitmap,
        [own] * world_size,
        own,
        world_size,
        nbytes,
        rounds=int(nbytes > 0),
    )


def compare(transport: Transport, header: Header, device: torch.device) -> Headers:
    """A round for the header alone.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    return agreed(transport.all_gather(header.tensor().to(device)).cpu())


def message_of(header: Header, index: Tensor, live: Tensor | None = None) -> Tensor:
    """uint8, where ``index`` is, which are the bytes of a bitmap or a list behind the header.

    ``live``, int64 [1], is the header's where only the device knows it.
    """
    message = torch.cat([to_device(header.tensor(), index.device), index])
    if live is not None:
        message[8 * _LIVE : 8 * (_LIVE + 1)] = live.view(torch.uint8)
    return message


def index_of_messages(layout: Layout, messages: Tensor, nbytes: int) -> tuple[Index, Headers]:
    """From the messages of all ranks, uint8 [P, bytes], of which this rank has sent ``nbytes``.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    headers, bitmaps = agreed(messages), messages[:, HEADER_NBYTES:].contiguous()
    return _index(layout, bitmaps, nbytes, rounds=1), headers


def uses_lists(layout: Layout, world_size: int) -> bool:
    """Whether the bucket's next index will be lists; bitmaps if not."""
    most_live = layout.memory.most_live
    if most_live is None:
        return False
    list_nbytes = ops.list_nbytes(8 * layout.bitmap_nbytes, most_live)
    return (world_size - 1) * (layout.bitmap_nbytes - list_nbytes) > _LIST_MUST_SAVE_NBYTES


def gather_index(
    transport: Transport,
    layout: Layout,
    dtype: torch.dtype,
    step: int,
    bitmap: Tensor,
    figures: list[int],
) -> tuple[Index, Headers]:
    """The index of all ranks; ``bitmap`` is this rank's, ``figures`` are for its header.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    sent_before = transport.bytes_sent
    own = torch.empty(len(layout.rows), dtype=torch.int64)
    ops.bitmap_count(bitmap, layout.segments, own)
    form = _LIST if uses_lists(layout, transport.world_size) else _BITMAP
    header = Header(identity(layout, dtype), step, form, sum(own.tolist()), tuple(figures))

    if form == _BITMAP:
        messages = transport.all_gather(message_of(header, bitmap))
        nbytes = transport.bytes_sent - sent_before
        index, headers = index_of_messages(layout, messages, nbytes)
    else:
        headers = compare(transport, header, bitmap.device)
        bitmaps = _gather_lists(transport, layout, bitmap, headers.lives)
        nbytes = transport.bytes_sent - sent_before
        index = _index(layout, bitmaps, nbytes, rounds=2)
    layout.memory.most_live = max(headers.lives)
    return index, headers


def gather_union(
    transport: Transport, layout: Layout, dtype: torch.dtype, step: int, bitmap: Tensor
) -> Index:
    """An index without the other ranks' bitmaps, from an AllReduce by OR: for ``union`` alone.

    ``bitmaps`` and ``counts`` have one row, which is this rank's.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    sent_before = transport.bytes_sent
    compare(transport, Header(identity(layout, dtype), step), bitmap.device)
    union = bitmap.clone()
    transport.or_bitmap(union)
    counts = torch.empty(2, len(layout.records), dtype=torch.int64)
    ops.bitmap_count(bitmap, layout.segments, counts[0])
    ops.bitmap_count(union, layout.segments, counts[1])
    own, of_union = counts.tolist()
    nbytes = transport.bytes_sent - sent_before
    world_size = transport.world_size
    return Index(bitmap.view(1, -1), union, [own], of_union, world_size, nbytes, rounds=2)


def gather_lists(
    transport: Transport, positions: Tensor, nbits: int, lives: list[int]
) -> list[Tensor]:
    """Every rank's positions (int64, ascending below ``nbits``), of which it has ``lives``."""
    sizes = [ops.list_nbytes(nbits, live) for live in lives]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    ops.list_encode(positions, nbits, padded[: sizes[transport.rank]])
    lists = []
    for row, live, size in zip(transport.all_gather(padded), lives, sizes, strict=True):
        lists.append(torch.empty(live, dtype=torch.int64))
        ops.list_decode(row[:size], nbits, lists[-1])
    return lists


def _gather_lists(transport: Transport, layout: Layout, bitmap: Tensor, lives: list[int]) -> Tensor:
    own = torch.empty(lives[transport.rank], dtype=torch.int64)
    ops.bitmap_positions(bitmap, own)
    lists = gather_lists(transport, own, 8 * layout.bitmap_nbytes, lives)
    bitmaps = torch.empty(len(lives), layout.bitmap_nbytes, dtype=torch.uint8)
    for rank, positions in enumerate(lists):
        ops.bitmap_from_positions(positions, bitmaps[rank])
    return bitmaps


def agreed(headers: Tensor) -> Headers:
    """What each rank says at the beginning of its message (uint8 [P, bytes]).

    Raises:
        Disagreement: the fields that must be the same are not.
    """
    rows = headers[:, :HEADER_NBYTES].contiguous().view(torch.int64).tolist()
    for column, name in enumerate(_FIELDS):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            listed = ", ".join(f"rank {rank} has {value}" for rank, value in enumerate(values[:8]))
            raise Disagreement(
                f"the ranks reduce different buckets: the {name} must be the same, but {listed}"
            )
    return Headers(
        [row[_LIVE] for row in rows],
        [row[_FIGURES : _FIGURES + NFIGURES] for row in rows],
        functools.reduce(operator.or_, (row[_FLAGS] for row in rows)),
    )


def united(layout: Layout, bitmaps: Tensor) -> tuple[Tensor, list[list[int]], list[int]]:
    """The union of the ranks' bitmaps, and the live blocks of each rank and of the union in each
    segment."""
    union = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    counts = torch.empty(len(bitmaps) + 1, len(layout.rows), dtype=torch.int64)
    ops.bitmap_unite(bitmaps, layout.segments, union, counts)
    *of_ranks, of_union = counts.tolist()
    return union, of_ranks, of_union


def _index(layout: Layout, bitmaps: Tensor, nbytes: int, rounds: int) -> Index:
    return Index(bitmaps, *united(layout, bitmaps), len(bitmaps), nbytes, rounds)
