# SPDX-License-Identifier: MIT
"""The hooks: DDP buckets in, means out.

No postponed annotations here: DDP looks at the hooks' annotations as objects.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer import ops

from .rows import Rows, Source, bitmap_nbytes, bitmap_of, numbers_of
from .wire import Wire

Exchange = Callable[[Source, Wire], list[Rows]]


class WireState:
    """The state of the AllReduce hooks: the group, and what has been sent."""

    def __init__(self, group=None) -> None:
        self.wire = Wire(group)


class RowsState(WireState):
    """The state of ``rows_hook``.

    Args:
        exchange: a function such as ``exchange_coo``, or an object such as ``ZenExchange()``.
        tables: parameters of shape [rows, width] whose gradients are mostly zero rows, all of one
            width and of float32; the others are reduced densely.  A COO gradient needs no mention.
        block: instead of tables, whole buckets in rows of so many elements, whatever they hold.

    Raises:
        ValueError: a table has another shape or dtype.
    """

    def __init__(
        self,
        exchange: Exchange,
        tables: Iterable[Tensor] = (),
        block: int | None = None,
        group=None,
    ) -> None:
        super().__init__(group)
        tables = list(tables)
        shapes = {tuple(table.shape[1:]) for table in tables}
        if len(shapes) > 1 or any(
            table.dim() != 2 or table.dtype != torch.float32 for table in tables
        ):
            raise ValueError("tables must be float32 [rows, width], all of one width")
        self.exchange = exchange
        self._block = block
        self._tables = {id(table) for table in tables}
        self._layouts: dict[tuple[int, ...], _Layout] = {}

    def layout(self, parameters: list[Tensor]) -> "_Layout":
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            self._layouts[key] = (
                _Layout.of_tables(parameters, self._tables)
                if self._block is None
                else _Layout.of_blocks(parameters, self._block)
            )
        return self._layouts[key]


@dataclass(frozen=True)
class _Layout:
    """Where in a bucket the tables are (as ``ops`` wants it), and where the rest is."""

    segments: Tensor
    nrows: int
    width: int
    rest: list[tuple[int, int]]

    @classmethod
    def of_tables(cls, parameters: list[Tensor], tables: set[int]) -> "_Layout":
        segments, rest = [], []
        offset = first_bit = width = 0
        for parameter in parameters:
            if id(parameter) in tables:
                width = parameter.shape[1]
                segments.append((offset, parameter.numel(), width, first_bit))
                first_bit += 8 * bitmap_nbytes(parameter.shape[0])
            else:
                rest.append((offset, parameter.numel()))
            offset += parameter.numel()
        return cls(torch.tensor(segments).view(-1, 4), first_bit, width, rest)

    @classmethod
    def of_blocks(cls, parameters: list[Tensor], block: int) -> "_Layout":
        numel = sum(parameter.numel() for parameter in parameters)
        nblocks = 8 * bitmap_nbytes(-(-numel // block))
        return cls(torch.tensor([[0, numel, block, 0]]), nblocks, block, [])


class DenseRest:
    """The mean of what a hook does not send in its own way: pieces of a bucket, in one AllReduce.

    It is under way from the start, and is written to the pieces by ``finish``.
    """

    def __init__(self, pieces: list[Tensor], wire: Wire) -> None:
        self._pieces = pieces
        if pieces:
            self._flat = torch.cat(pieces).mul_(1.0 / wire.world_size)
            self._future = wire.begin_all_reduce(self._flat)

    def finish(self) -> None:
        if self._pieces:
            self._future.wait()
            parts = self._flat.split_with_sizes([piece.numel() for piece in self._pieces])
            for piece, part in zip(self._pieces, parts, strict=True):
                piece.copy_(part)


def pieces_of(bucket) -> list[tuple[Tensor, int, Tensor]]:
    """Each parameter of a bucket, its offset, and its gradient: flat, in memory's order."""
    buffer, pieces, offset = bucket.buffer(), [], 0
    for parameter in bucket.parameters():
        end = offset + parameter.numel()
        pieces.append((parameter, offset, buffer[offset:end]))
        offset = end
    return pieces


def none_hook(state, bucket) -> Future[Tensor]:
    """Sends nothing: every rank keeps its own gradient."""
    return done(bucket.buffer())


def dense_hook(state: WireState, bucket) -> Future[Tensor]:
    """DDP's own arithmetic."""
    buffer = bucket.buffer().mul_(1.0 / state.wire.world_size)
    return state.wire.begin_all_reduce(buffer).then(lambda _: buffer)


def bf16_hook(state: WireState, bucket) -> Future[Tensor]:
    """The mean of gradients that were rounded to bfloat16."""
    return _reduce_as(torch.bfloat16, state, bucket)


def fp16_hook(state: WireState, bucket) -> Future[Tensor]:
    """The mean of gradients that were rounded to float16."""
    return _reduce_as(torch.float16, state, bucket)


def _reduce_as(dtype: torch.dtype, state: WireState, bucket) -> Future[Tensor]:
    """As torch's own hooks do it, of which the one for bfloat16 refuses gloo by its name."""
    buffer = bucket.buffer()
    rounded = buffer.to(dtype).div_(state.wire.world_size)
    return state.wire.begin_all_reduce(rounded).then(lambda _: buffer.copy_(rounded))


def rows_hook(state: RowsState, bucket) -> Future[Tensor]:
    """Tables by the state's exchange, everything else densely."""
    buffer = bucket.buffer()
    if buffer.is_sparse:
        return done(_reduce_coo(buffer, state))
    layout = state.layout(bucket.parameters())
    if not layout.segments.numel():
        return dense_hook(state, bucket)
    rest = DenseRest([buffer[start : start + numel] for start, numel in layout.rest], state.wire)
    source = _scan(buffer, layout)
    parts = state.exchange(source, state.wire)
    _clear_lost(source, parts, layout, buffer)
    for part in parts:
        ops.blocks_scatter(part.values, layout.segments, part.numbers, buffer)
    rest.finish()
    return done(buffer)


def _clear_lost(source: Source, parts: list[Rows], layout: _Layout, buffer: Tensor) -> None:
    """Rows of this rank that an exchange did not give back, as the ranks' sum of them is zero."""
    lost = bitmap_of(source.numbers, source.nrows)
    for part in parts:
        ops.bitmap_andnot(lost, bitmap_of(part.numbers, source.nrows))
    numbers = numbers_of(lost)
    zeros = torch.zeros(numbers.numel() * layout.width)
    ops.blocks_scatter(zeros, layout.segments, numbers, buffer)


def _scan(buffer: Tensor, layout: _Layout) -> Source:
    bitmap = torch.empty(layout.nrows // 8, dtype=torch.uint8)
    ops.bitmap_from_nonzero(buffer, layout.segments, bitmap, torch.empty(1, dtype=torch.int64))
    counts = torch.empty(len(layout.segments), dtype=torch.int64)
    ops.bitmap_count(bitmap, layout.segments, counts)
    numbers = torch.empty(int(counts.sum()), dtype=torch.int64)
    ops.bitmap_positions(bitmap, numbers)

    def read(some: Tensor, out: Tensor) -> None:
        ops.blocks_gather(buffer, layout.segments, some, out)

    return Source(numbers, layout.nrows, layout.width, read)


def _reduce_coo(gradient: Tensor, state: RowsState) -> Tensor:
    """A COO gradient of [rows, width]; its rows may come in any order."""
    gradient = gradient.coalesce()
    numbers, values = gradient.indices()[0], gradient.values()
    nrows, width = gradient.shape

    def read(some: Tensor, out: Tensor) -> None:
        where = torch.searchsorted(numbers, some)
        torch.index_select(values, 0, where, out=out.view(-1, width))

    parts = state.exchange(Source(numbers, nrows, width, read), state.wire)
    everything = torch.cat([part.numbers for part in parts]).unsqueeze(0)
    rows = torch.cat([part.values for part in parts]).view(-1, width)
    return torch.sparse_coo_tensor(everything, rows, gradient.shape, check_invariants=False)


def refuse_coo(gradient: Tensor, method: str) -> None:
    if gradient.is_sparse:
        raise ValueError(f"{method} takes dense gradients only, but a parameter has a COO gradient")


def done(tensor: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(tensor)
    return future
