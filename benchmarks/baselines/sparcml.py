# SPDX-License-Identifier: MIT
"""SparCML's AllReduce of sparse streams (arXiv 1802.08021), by recursive doubling or by a split.

A *stream* is some rows with their numbers (int32), or the whole table.  Of a table of n rows of b
bytes it becomes the latter as soon as that is shorter, beyond n b / (b + 4) rows, and stays it.

``exchange_recursive`` is SSAR_Recursive_double: in round t every rank swaps the sum that it has
with the rank whose number differs in bit t, and adds what it gets.  Bytes a rank sends: the sum
over t of K_t (b + 4), K_t the rows of the 2^t ranks whose sum it has, and 8 a round for how many
they are.  Where P is no power of two, the ranks from the largest one below P on fold in, as usual
in MPI libraries: each gives its stream to the rank of its number less that power before the first
round, and gets the sum from it after the last, which adds K (b + 4) to what that rank sends.  All
ranks have the same bits, as a sum of two does not depend on their order.

``exchange_split`` is SSAR_Split_allgather: a rank owns 1/P of the table, one range of rows, gets
all ranks' rows of it, adds them up, and sends the sums to all.  Bytes in the mean: (P-1)/P (k + K)
(b + 4), and 16 (P-1) for how many they are; what is dense by then travels as DSAR_Split_allgather
has it, (P-1)/P n b.

Left out: QSGD's quantization of the dense part, non-blocking calls, and the choice between the two
by the size of the data.  In the paper a row is one number with its index; here it is a table's row,
so the index is shared by its numbers.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from s2reducer import ops

from .owners import push
from .rows import (
    Rows,
    Source,
    add_up,
    mean_of,
    nonzero_rows,
    one_segment,
    packed,
    packed_numel,
    union_of,
    unpacked,
)
from .wire import Wire

Stream = Rows | Tensor  # the latter is the whole table, flat


class _Table:
    """Its size, which decides on the form of streams of it."""

    def __init__(self, nrows: int, width: int) -> None:
        self.nrows, self.width = nrows, width
        self.segment = one_segment(nrows * width, width)

    def message_numel(self, count: int) -> int:
        """Of a stream of so many rows, in the shorter form."""
        return min(packed_numel(count, self.width), self.nrows * self.width)

    def is_sparse(self, count: int) -> bool:
        return packed_numel(count, self.width) <= self.nrows * self.width

    def decode(self, message: Tensor, count: int) -> Stream:
        return unpacked(message, count) if self.is_sparse(count) else message

    def add(self, parts: Sequence[Rows | Tensor]) -> Stream:
        """In float32, as the paper's streams are."""
        sparse = [part for part in parts if isinstance(part, Rows)]
        if len(sparse) == len(parts):
            numbers = union_of(sparse, self.nrows)
            if self.is_sparse(numbers.numel()):
                return Rows(numbers, add_up(sparse, numbers, self.width, torch.float32))
        total = torch.zeros(self.nrows * self.width)
        for part in parts:
            if isinstance(part, Rows):
                ops.blocks_add(part.values, self.segment, part.numbers, total)
            else:
                total += part
        return total

    def mean(self, total: Stream, ranks: int) -> Rows:
        """Of a dense stream the rows that are not zero."""
        if isinstance(total, Rows):
            means = torch.empty_like(total.values)
            ops.values_convert(total.values, means, float(ranks))
            return Rows(total.numbers, means)
        numbers = nonzero_rows(total, self.width)
        means = torch.empty(numbers.numel() * self.width)
        ops.blocks_gather(total, self.segment, numbers, means, float(ranks))
        return Rows(numbers, means)


def exchange_recursive(source: Source, wire: Wire) -> list[Rows]:
    """The means of the rows that any rank has, in one part."""
    table = _Table(source.nrows, source.width)
    rows = torch.empty(source.numbers.numel() * source.width)
    source.read(source.numbers, rows)
    total = table.add([Rows(source.numbers, rows)])

    power = 1 << (wire.world_size.bit_length() - 1)  # the largest that is no more than P
    extra = wire.rank + power
    if wire.rank >= power:
        _send(total, table, wire.rank - power, wire)
        total = _receive(table, wire.rank - power, wire)
        return [table.mean(total, wire.world_size)]
    if extra < wire.world_size:
        total = table.add([total, _receive(table, extra, wire)])
    distance = 1
    while distance < power:
        total = table.add([total, _swap(total, table, wire.rank ^ distance, wire)])
        distance *= 2
    if extra < wire.world_size:
        _send(total, table, extra, wire)
    return [table.mean(total, wire.world_size)]


def exchange_split(source: Source, wire: Wire) -> list[Rows]:
    """The means of the rows that any rank has, a part for each owner."""
    ranks, nrows, width = wire.world_size, source.nrows, source.width
    own = mean_of(push(source, source.numbers * ranks // nrows, wire), nrows, width)
    counts = wire.all_gather(torch.tensor([own.numbers.numel()])).view(-1).tolist()

    firsts = [-(-owner * nrows // ranks) for owner in range(ranks + 1)]
    slices = [_Table(end - first, width) for first, end in pairwise(firsts)]
    first = firsts[wire.rank]
    message = _encode(slices[wire.rank].add([Rows(own.numbers - first, own.values)]))
    sizes = [part.message_numel(count) for part, count in zip(slices, counts, strict=True)]
    results = []
    for owner, arrived in enumerate(wire.all_gather_uneven(message, sizes)):
        mean = slices[owner].mean(slices[owner].decode(arrived, counts[owner]), 1)
        results.append(Rows(mean.numbers + firsts[owner], mean.values))
    return results


def _encode(stream: Stream) -> Tensor:
    return packed(stream.numbers, stream.values) if isinstance(stream, Rows) else stream


def _count(stream: Stream, table: _Table) -> Tensor:
    """Rows of a stream, from which its form follows."""
    return torch.tensor([stream.numbers.numel() if isinstance(stream, Rows) else table.nrows])


def _send(stream: Stream, table: _Table, peer: int, wire: Wire) -> None:
    wire.swap(peer, _count(stream, table), 0)
    wire.swap(peer, _encode(stream), 0)


def _receive(table: _Table, peer: int, wire: Wire) -> Stream:
    count = int(wire.swap(peer, torch.empty(0, dtype=torch.int64), 1))
    return table.decode(wire.swap(peer, torch.empty(0), table.message_numel(count)), count)


def _swap(stream: Stream, table: _Table, peer: int, wire: Wire) -> Stream:
    count = int(wire.swap(peer, _count(stream, table), 1))
    return table.decode(wire.swap(peer, _encode(stream), table.message_numel(count)), count)
