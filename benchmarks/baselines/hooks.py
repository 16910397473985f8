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

from .rows import Rows, Source, bitmap_nbytes
from .wire import Wire

Exchange = Callable[[Source, Wire], list[Rows]]


class WireState:
    """The state of ``dense_hook`` and ``bf16_hook``: the group, and what has been sent."""

    def __init__(self, group=None) -> None:
        self.wire = Wire(group)


class RowsState(WireState):
    """The state of ``rows_hook``.

    Args:
        exchange: ``exchange_coo`` or a ``ZenExchange()``.
        tables: parameters of shape [rows, width] whose gradients are mostly zero rows, all of one
            width and of float32; the others are reduced densely.  A COO gradient needs no mention.

    Raises:
        ValueError: a table has another shape or dtype.
    """

    def __init__(self, exchange: Exchange, tables: Iterable[Tensor] = (), group=None) -> None:
        super().__init__(group)
        tables = list(tables)
        shapes = {tuple(table.shape[1:]) for table in tables}
        if len(shapes) > 1 or any(
            table.dim() != 2 or table.dtype != torch.float32 for table in tables
        ):
            raise ValueError("tables must be float32 [rows, width], all of one width")
        self.exchange = exchange
        self._tables = {id(table) for table in tables}
        self._layouts: dict[tuple[int, ...], _Layout] = {}

    def layout(self, parameters: list[Tensor]) -> "_Layout":
        key = tuple(map(id, parameters))
        if key not in self._layouts:
            self._layouts[key] = _Layout.of(parameters, self._tables)
        return self._layouts[key]


@dataclass(frozen=True)
class _Layout:
    """Where in a bucket the tables are (as ``ops`` wants it), and where the rest is."""

    segments: Tensor
    nrows: int
    width: int
    rest: list[tuple[int, int]]

    @classmethod
    def of(cls, parameters: list[Tensor], tables: set[int]) -> "_Layout":
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


def none_hook(state, bucket) -> Future[Tensor]:
    """Sends nothing: every rank keeps its own gradient."""
    return _done(bucket.buffer())


def dense_hook(state: WireState, bucket) -> Future[Tensor]:
    """DDP's own arithmetic."""
    buffer = bucket.buffer().mul_(1.0 / state.wire.world_size)
    return state.wire.begin_all_reduce(buffer).then(lambda _: buffer)


def bf16_hook(state: WireState, bucket) -> Future[Tensor]:
    """The mean of gradients that were rounded to bfloat16."""
    buffer = bucket.buffer()
    rounded = buffer.to(torch.bfloat16).div_(state.wire.world_size)
    return state.wire.begin_all_reduce(rounded).then(lambda _: buffer.copy_(rounded))


def rows_hook(state: RowsState, bucket) -> Future[Tensor]:
    """Tables by the state's exchange, everything else densely."""
    buffer = bucket.buffer()
    if buffer.is_sparse:
        return _done(_reduce_coo(buffer, state))
    layout = state.layout(bucket.parameters())
    if not layout.segments.numel():
        return dense_hook(state, bucket)
    rest = None
    if layout.rest:
        flat = torch.cat([buffer[start : start + numel] for start, numel in layout.rest])
        flat.mul_(1.0 / state.wire.world_size)
        rest = state.wire.begin_all_reduce(flat)
    for part in state.exchange(_scan(buffer, layout), state.wire):
        ops.blocks_scatter(part.values, layout.segments, part.numbers, buffer)
    if rest is not None:
        rest.wait()
        parts = flat.split_with_sizes([numel for _, numel in layout.rest])
        for (start, numel), part in zip(layout.rest, parts, strict=True):
            buffer[start : start + numel] = part
    return _done(buffer)


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


def _done(tensor: Tensor) -> Future[Tensor]:
    future: Future[Tensor] = Future()
    future.set_result(tensor)
    return future
