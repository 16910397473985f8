# SPDX-License-Identifier: MIT
"""COO gradients: their rows are known, so that no scan finds them and no bitmap holds them.

The ranks gather lists of their rows.  From there on the rows of the union, numbered from 0, are a
problem like any bucket: blocks of one row each, and a bitmap for each rank of those that it has.
Nothing has the length of the table, and the collectives are all-gathers and all-to-alls of dense
tensors, which every backend has.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops
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


def coalesced(tensor: Tensor, table: Table) -> tuple[Tensor, Tensor]:
    """Rows, int64 [k], which ascend, and their values [k, width].

    Values of a row that comes more than once are summed in the order in which they come, in the
    wider type, and rounded once.
    """
    indices = table.flat(tensor._indices())
    values = tensor._values().contiguous().view(-1, table.width)
    n = indices.numel()
    order, rows = torch.empty_like(indices), torch.empty_like(indices)
    starts = torch.empty(n + 1, dtype=torch.int64)
    k = ops.coo_sort(indices, table.nrows, order, rows, starts)
    sums = values.new_empty(k, table.width)
    ops.coo_sum(values, order, starts[: k + 1], sums, parallel=False)
    return rows[:k], sums


def gather_rows(
    transport: Transport, rows: Tensor, nrows: int, header: Header
) -> tuple[Tensor, Index, Headers]:
    """The union of all ranks' rows, int64 [K], and the index of a bucket of K blocks.

    Args:
        rows: int64 [k], this rank's, which ascend.
        nrows: of the table.
        header: this rank's; ``live`` is k.

    Raises:
        Disagreement: on the bucket; the same sentence on every rank.
    """
    sent_before = transport.bytes_sent
    headers = compare(transport, header, rows.device)
    lives = headers.lives
    lists = torch.cat(gather_lists(transport, rows, nrows, lives))
    lengths = torch.tensor(lives, dtype=torch.int64)
    union, entries = torch.empty_like(lists), torch.empty_like(lists)
    count = ops.coo_unite(lists, lengths, nrows, union, entries)
    bitmaps = torch.empty(len(lives), (count + 63) // 64 * 8, dtype=torch.uint8)
    ops.coo_bitmaps(entries, count, bitmaps)
    every = torch.empty(bitmaps.shape[1], dtype=torch.uint8)
    ops.bitmap_from_positions(torch.arange(count), every)
    index = Index(
        bitmaps=bitmaps,
        union=every,
        counts=lengths.view(-1, 1),
        union_counts=torch.tensor([count]),
        world_size=len(lives),
        nbytes=transport.bytes_sent - sent_before,
        rounds=2,
    )
    return union[:count], index, headers


def spread(values: Tensor, index: Index, rank: int) -> tuple[Tensor, Tensor]:
    """This rank's ``values`` [k, width] where they are in the union, and the segments of that.

    The first is flat, and undefined in the rows that this rank does not have.
    """
    count, width = int(index.union_counts), values.shape[1]
    segments = segments_of([count * width], [width])
    own = torch.empty(len(values), dtype=torch.int64)
    ops.bitmap_positions(index.bitmaps[rank], own)
    buffer = values.new_empty(count * width)
    ops.blocks_scatter(values.view(-1), segments, own, buffer, parallel=False)
    return buffer, segments


def sum_of_integers(tensor: Tensor, transport: Transport) -> Tensor:
    """The sum over the ranks of a COO tensor of whole numbers, which wrap around as torch's do.

    Every rank gets all rows, and adds them itself.
    """
    table, own = table_of(tensor), tensor.coalesce()
    rows, values = table.flat(own.indices()), own.values().view(-1, table.width)
    header = Header(0, 0, live=rows.numel())
    union, index, headers = gather_rows(transport, rows, table.nrows, header)
    most = max(headers.lives)
    padded = values.new_zeros(most * table.width)
    padded[: values.numel()] = values.reshape(-1)
    total = values.new_zeros(union.numel(), table.width)
    for rank, gathered in enumerate(transport.all_gather(padded)):
        positions = torch.empty(headers.lives[rank], dtype=torch.int64)
        ops.bitmap_positions(index.bitmaps[rank], positions)
        total.index_add_(0, positions, gathered.view(most, table.width)[: positions.numel()])
    return table.tensor(union, total)
