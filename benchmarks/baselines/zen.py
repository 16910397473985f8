# SPDX-License-Identifier: MIT
"""The balanced scheme of ZEN (arXiv 2309.13254): a hash spreads the owners of rows over all ranks.

A row belongs to rank hash(row) mod P, whoever has it; the rows of one owner are its *slice*, and a
row's place in it its *slot*.

1. An all-to-all tells every owner how many rows each rank has for it.
2. Push: rows go to their owners, with their slots (int32), or a bitmap of the slice where that is
   shorter.
3. The owner adds them up in rank order.
4. Pull: an all-gather of the bitmaps of what each owner has, then of the rows, filled up to the
   owner that has most.

Bytes a rank sends in the mean, for k rows of its own and K in the union: (P-1)/P [k (b + 4) + K b +
rows of the table / 8], b bytes a row, beside the numbers, the filling and what is pushed as bitmap.
"""

import torch
from torch import Tensor

from .rows import INDEX_NBYTES, Rows, Source, bitmap_nbytes, bitmap_of, mean_of, numbers_of
from .wire import Wire


def owner_of(numbers: Tensor, world_size: int) -> Tensor:
    """int64, the owner of each row: a multiplicative hash, of which the high bits are good."""
    mixed = numbers * -7046029254386353131  # 2**64 over the golden ratio, odd; wraps around
    return ((mixed >> 32) & 0x7FFFFFFF) % world_size


class _Slices:
    """Who owns which rows of a table, and in which slots."""

    def __init__(self, nrows: int, world_size: int) -> None:
        self.owners = owner_of(torch.arange(nrows), world_size)
        self.members = [(self.owners == rank).nonzero().view(-1) for rank in range(world_size)]
        self.slots = torch.empty(nrows, dtype=torch.int64)
        for members in self.members:
            self.slots[members] = torch.arange(members.numel())

    def index_nbytes(self, owner: int, count: int) -> int:
        """Of so many slots of one slice, in the shorter form."""
        return min(INDEX_NBYTES * count, bitmap_nbytes(self.members[owner].numel()))

    def encode(self, owner: int, slots: Tensor) -> Tensor:
        """float32 in which the bytes of the index stand."""
        if INDEX_NBYTES * slots.numel() <= bitmap_nbytes(self.members[owner].numel()):
            return slots.int().view(torch.float32)
        return bitmap_of(slots, self.members[owner].numel()).view(torch.float32)

    def decode(self, owner: int, count: int, index: Tensor) -> Tensor:
        if INDEX_NBYTES * count <= bitmap_nbytes(self.members[owner].numel()):
            return index.view(torch.int32).long()
        return numbers_of(index.view(torch.uint8).clone())


class ZenExchange:
    """The exchange, with the slices of the tables that it has met."""

    def __init__(self) -> None:
        self._slices: dict[int, _Slices] = {}

    def __call__(self, source: Source, wire: Wire) -> list[Rows]:
        """The means of the rows that any rank has, a part for each owner."""
        slices = self._slices.get(source.nrows)
        if slices is None:
            slices = self._slices[source.nrows] = _Slices(source.nrows, wire.world_size)
        parts = _push(source, slices, wire)
        own = mean_of(parts, slices.members[wire.rank].numel(), source.width)
        return _pull(own, source.width, slices, wire)


def _push(source: Source, slices: _Slices, wire: Wire) -> list[Rows]:
    """The ranks' rows of this rank's slice, by slot."""
    rank, width = wire.rank, source.width
    owners = slices.owners[source.numbers]
    mine = [source.numbers[owners == owner] for owner in range(wire.world_size)]
    counts = wire.exchange_counts([numbers.numel() for numbers in mine])

    messages, kept = [], Rows(torch.empty(0), torch.empty(0))
    for owner, numbers in enumerate(mine):
        rows = torch.empty(numbers.numel() * width)
        source.read(numbers, rows)
        if owner == rank:
            kept = Rows(slices.slots[numbers], rows)
            messages.append(torch.empty(0))
        else:
            messages.append(torch.cat([slices.encode(owner, slices.slots[numbers]), rows]))

    heads = [slices.index_nbytes(rank, count) // 4 for count in counts]
    sizes = [head + count * width for head, count in zip(heads, counts, strict=True)]
    sizes[rank] = 0
    arrived = wire.all_to_all(messages, sizes)
    return [
        kept
        if peer == rank
        else Rows(slices.decode(rank, counts[peer], part[: heads[peer]]), part[heads[peer] :])
        for peer, part in enumerate(arrived)
    ]


def _pull(own: Rows, width: int, slices: _Slices, wire: Wire) -> list[Rows]:
    """Every owner's rows, by number."""
    longest = max(members.numel() for members in slices.members)
    bitmaps = wire.all_gather(bitmap_of(own.numbers, longest))
    slots = [numbers_of(bitmap) for bitmap in bitmaps]
    padded = torch.zeros(max(part.numel() for part in slots) * width)
    padded[: own.values.numel()] = own.values
    return [
        Rows(members[part], rows[: part.numel() * width])
        for members, part, rows in zip(slices.members, slots, wire.all_gather(padded), strict=True)
    ]
