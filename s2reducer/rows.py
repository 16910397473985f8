# SPDX-License-Identifier: MIT
"""COO gradients: their rows are known, so that no scan finds them and no bitmap holds them.

The ranks gather lists of their rows.  From there on the rows of the union, numbered from 0, are a
problem like any bucket: blocks of one row each, and a bitmap for each rank of those that it has.
Several tables travel as one, so that they take no more rounds than one does.  Nothing has the
length of a table, and the collectives are all-gathers and all-to-alls of dense tensors, which every
backend has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.block_ops import ops_for
from s2reducer.exchange import Header, Headers, Index, compare, gather_lists
from s2reducer.segments import segments_of
from s2reducer.transport import Transport


@dataclass(frozen=True)
class Table:
    """The shape of a COO tensor, seen as rows.

    Attributes:
        size: the tensor's.
        sparse_dims: leading dimensions, which together number the rows.
        nrows: of the table.
        width: elements of a row.
    """

    size: torch.Size
    sparse_dims: int
    nrows: int
    width: int

    def flat(self, indices: Tensor) -> Tensor:
        """int64 [n], the rows that ``indices``, int64 [sparse_dims, n], stand for."""
        rows = indices[0]
        for extent, index in zip(self.size[1 : self.sparse_dims], indices[1:], strict=True):
            rows = rows * extent + index
        return rows.contiguous()

    def tensor(self, rows: Tensor, values: Tensor) -> Tensor:
        """The coalesced COO tensor of these rows, which ascend, and their elements, flat."""
        indices = []
        for extent in reversed(self.size[1 : self.sparse_dims]):
            indices.append(rows % extent)
            rows = rows.div(extent, rounding_mode="floor")
        return torch.sparse_coo_tensor(
            torch.stack([rows, *reversed(indices)]),
            values.view(rows.numel(), *self.size[self.sparse_dims :]),
            self.size,
            is_coalesced=True,
            check_invariants=False,
        )


def table_of(tensor: Tensor) -> Table:
    """The table of a COO tensor."""
    dims = tensor.sparse_dim()
    size = tensor.size()
    return Table(size, dims, math.prod(size[:dims]), math.prod(size[dims:]))


def has_rows(tensor: Tensor) -> bool:
    """Whether a COO tensor is a table at all: not if it has one cell, or rows of no elements."""
    return tensor.sparse_dim() > 0 and math.prod(tensor.size()[tensor.sparse_dim() :]) > 0


def rows_of(tensor: Tensor, table: Table) -> tuple[Tensor, Tensor]:
    """The numbers of a COO tensor's rows, int64 [n], and their values [n, width], as they stand."""
    values = tensor._values().contiguous().view(-1, table.width)
    return table.flat(tensor._indices()), values


def coalesced(indices: Tensor, values: Tensor, nrows: int) -> tuple[Tensor, Tensor]:
    """Rows, int64 [k], which ascend, and their values [k, width].

    Values of a row that comes more than once are summed in the order in which they come, in the
    wider type, and rounded once.
    """
    n, width = values.shape
    order, rows = torch.empty_like(indices), torch.empty_like(indices)
    starts = torch.empty(n + 1, dtype=torch.int64)
    k = ops.coo_sort(indices, nrows, order, rows, starts)
    sums = values.new_empty(k, width)
    ops.coo_sum(values, order, starts[: k + 1], sums, parallel=False)
    return rows[:k], sums


def gather_rows(
    transport: Transport, tables: Sequence[Table], rows: Sequence[Tensor], header: Header
) -> tuple[list[Tensor], Index, Headers]:
    """The unions of all ranks' rows, and the index of a bucket with a block for each of them.

    Args:
        tables: at least one.
        rows: of each table, int64 [k], this rank's, which ascend.
        header: this rank's; ``live`` is the number of all rows.

    Returns:
        For each table the union, int64 [K]; an index of as many segments; all ranks' headers.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    sent_before = transport.bytes_sent
    headers = compare(transport, header, rows[0].device)
    numbered, nrows = number_rows(tables, rows)
    lists = gather_lists(transport, numbered, nrows, headers.lives)
    return *unite_rows(tables, lists, transport.bytes_sent - sent_before), headers


def number_rows(tables: Sequence[Table], rows: Sequence[Tensor]) -> tuple[Tensor, int]:
    """One list for all tables, whose rows are numbered one behind the other, and of how many."""
    *firsts, nrows = accumulate((table.nrows for table in tables), initial=0)
    return torch.cat([part + first for part, first in zip(rows, firsts, strict=True)]), nrows


def unite_rows(
    tables: Sequence[Table], lists: Sequence[Tensor], nbytes: int
) -> tuple[list[Tensor], Index]:
    """The unions of the ranks' lists, and the index, for which this rank has sent ``nbytes``."""
    firsts = list(accumulate((table.nrows for table in tables), initial=0))
    cuts = torch.tensor(firsts[1:])
    lengths = torch.stack([torch.searchsorted(one, cuts) for one in lists])
    lengths[:, 1:] -= lengths[:, :-1].clone()
    parts = [torch.split_with_sizes(o, n) for o, n in zip(lists, lengths.tolist(), strict=True)]

    unions, bitmaps, every = [], [], []
    for number, table in enumerate(tables):
        of_ranks = torch.cat([part[number] for part in parts]) - firsts[number]
        union, entries = torch.empty_like(of_ranks), torch.empty_like(of_ranks)
        counts = lengths[:, number].contiguous()
        count = ops.coo_unite(of_ranks, counts, table.nrows, union, entries)
        unions.append(union[:count])
        bitmaps.append(torch.empty(len(lists), (count + 63) // 64 * 8, dtype=torch.uint8))
        ops.coo_bitmaps(entries, count, bitmaps[-1])
        every.append(torch.empty(bitmaps[-1].shape[1], dtype=torch.uint8))
        ops.bitmap_from_positions(torch.arange(count), every[-1])
    index = Index(
        bitmaps=torch.cat(bitmaps, dim=1),
        union=torch.cat(every),
        counts=lengths.tolist(),
        union_counts=[union.numel() for union in unions],
        world_size=len(lists),
        nbytes=nbytes,
        rounds=2,
    )
    return unions, index


def spread(values: Sequence[Tensor], index: Index, rank: int) -> tuple[Tensor, Tensor]:
    """This rank's ``values``, [k, width] for each table, where they are in the unions.

    Returns:
        A flat tensor, undefined in the rows that this rank does not have, and its segments.
    """
    widths = [part.shape[1] for part in values]
    numels = [n * width for n, width in zip(index.union_counts, widths, strict=True)]
    segments = segments_of(numels, widths)
    own = torch.empty(sum(map(len, values)), dtype=torch.int64)
    ops.bitmap_positions(index.bitmaps[rank], own)
    buffer = values[0].new_empty(sum(numels))
    packed = torch.cat([part.view(-1) for part in values])
    ops_for(buffer.device).blocks_scatter(packed, segments, own, buffer, parallel=False)
    return buffer, segments


def sum_of_integers(tensor: Tensor, transport: Transport) -> Tensor:
    """The sum over the ranks of a COO tensor of whole numbers, which wrap around as torch's do.

    Every rank gets all rows, and adds them itself.
    """
    table, own = table_of(tensor), tensor.coalesce()
    rows, values = table.flat(own.indices()), own.values().view(-1, table.width)
    header = Header(0, 0, live=rows.numel())
    (union,), index, headers = gather_rows(transport, [table], [rows], header)
    sizes = [live * table.width for live in headers.lives]
    total = values.new_zeros(union.numel(), table.width)
    for rank, part in enumerate(transport.all_gather_uneven(values.reshape(-1), sizes)):
        positions = torch.empty(headers.lives[rank], dtype=torch.int64)
        ops.bitmap_positions(index.bitmaps[rank], positions)
        total.index_add_(0, positions, part.view(-1, table.width))
    return table.tensor(union, total)
