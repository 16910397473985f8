# SPDX-License-Identifier: MIT
"""The operators of ``ops.py`` that touch a bucket's elements, in torch's own, for any device.

The same bits as the C core's, but for which NaN a NaN is.  Nothing waits for the device: sizes
follow from ``segments`` and ``positions``, which are on the CPU, and no result is read.  So there
is no boolean mask that selects, no ``nonzero`` and no ``item``.

A block is a row of its segment; only the last may be short, and is seen to by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from s2reducer.device import to_device

# Integers of an element's size: all its bits are zero where it is +0.0, and nowhere else.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class _Segment:
    """A segment with elements.

    Attributes:
        rows: [n, block], its whole blocks.
        last: the elements of the short last block; none where the last one is whole.
        block: elements of a block.
        bit: of the first block.
    """

    rows: Tensor
    last: Tensor
    block: int
    bit: int

    @property
    def bits(self) -> slice:
        return slice(self.bit, self.bit + len(self.rows) + bool(len(self.last)))


def _segments(values: Tensor, segments: Tensor) -> Iterator[_Segment]:
    for offset, numel, block, bit in segments.tolist():
        whole = offset + numel // block * block
        rows = values[offset:whole].view(-1, block)
        yield _Segment(rows, values[whole : offset + numel], block, bit)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


@dataclass(frozen=True)
class _Chosen:
    """Blocks of one segment.

    Attributes:
        rows, last: of the segment; ``last`` is None where it is not among them.
        where: int64 [n], on the device: the chosen rows.
        packed: [n, block], their packed form.
        packed_last: that of ``last``, without what fills it up.
        filling: what does.
    """

    rows: Tensor
    last: Tensor | None
    where: Tensor
    packed: Tensor
    packed_last: Tensor
    filling: Tensor


def _chosen(
    values: Tensor, segments: Tensor, positions: Tensor, packed: Tensor
) -> Iterator[_Chosen]:
    firsts = segments[:, 3].contiguous()
    cuts = [*torch.searchsorted(positions, firsts).tolist(), len(positions)]
    on_device = to_device(positions, values.device)
    at = 0
    for segment, (begin, end) in zip(_segments(values, segments), pairwise(cuts), strict=True):
        if begin == end:
            continue
        short = segment.last.numel()
        has_last = bool(short) and int(positions[end - 1]) == segment.bits.stop - 1
        n = end - begin - has_last
        rows_end = at + n * segment.block
        part_end = at + (end - begin) * segment.block
        yield _Chosen(
            rows=segment.rows,
            last=segment.last if has_last else None,
            where=on_device[begin : begin + n] - segment.bit,
            packed=packed[at:rows_end].view(n, segment.block),
            packed_last=packed[rows_end : min(rows_end + short, part_end)],
            filling=packed[min(rows_end + short, part_end) : part_end],
        )
        at = part_end


def bitmap_from_nonzero(
    values: Tensor, segments: Tensor, bitmap: Tensor, negative_zeros: Tensor, parallel: bool = True
) -> None:
    """Sets the bit of each block with an element that is not a zero, clears all others.

    ``bitmap`` and ``negative_zeros`` are on the device of ``values``.
    """
    live = torch.zeros(8 * bitmap.numel(), dtype=torch.bool, device=values.device)
    written = torch.zeros_like(live)  # blocks with any bit set at all: that of a -0.0, too
    patterns = values.view(_BITS[values.element_size()])
    for result, source in ((live, values), (written, patterns)):
        for segment in _segments(source, segments):
            bits = result[segment.bits]
            torch.any(segment.rows, 1, out=bits[: len(segment.rows)])
            if len(segment.last):
                torch.any(segment.last, 0, out=bits[-1])
    negative_zeros.copy_((written & ~live).sum())
    bits = live.view(-1, 8).to(torch.uint8) << _shifts(values.device)
    torch.sum(bits, 1, dtype=torch.uint8, out=bitmap)


def blocks_gather(
    values: Tensor,
    segments: Tensor,
    positions: Tensor,
    packed: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``packed = values / divisor`` in the blocks at ``positions``."""
    for part in _chosen(values, segments, positions, packed):
        values_convert(part.rows.index_select(0, part.where), part.packed, divisor)
        if part.last is not None:
            values_convert(part.last, part.packed_last, divisor)
            part.filling.zero_()


def blocks_scatter(
    packed: Tensor,
    segments: Tensor,
    positions: Tensor,
    values: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``values = packed / divisor`` in the blocks at ``positions``; other blocks are left alone."""
    for part in _chosen(values, segments, positions, packed):
        rows = part.packed
        if divisor != 1.0 or rows.dtype != values.dtype:
            rows = torch.empty_like(rows, dtype=values.dtype)
            values_convert(part.packed, rows, divisor)
        part.rows.index_copy_(0, part.where, rows)
        if part.last is not None:
            values_convert(part.packed_last, part.last, divisor)


def blocks_add(
    packed: Tensor, segments: Tensor, positions: Tensor, accumulator: Tensor, parallel: bool = True
) -> None:
    """``accumulator += packed`` in the blocks at ``positions``, in the accumulator's arithmetic.

    Not by ``index_add_``: its atomic additions take subnormal float32 for zeros on CUDA devices.
    """
    for part in _chosen(accumulator, segments, positions, packed):
        sums = part.rows.index_select(0, part.where).add_(part.packed)
        part.rows.index_copy_(0, part.where, sums)
        if part.last is not None:
            part.last.add_(part.packed_last)


def blocks_sum(
    packed: Sequence[Tensor],
    segments: Tensor,
    positions: Sequence[Tensor],
    sums: Tensor,
    lost: Tensor | None = None,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``sums = (the sum of the ranks' blocks) / divisor``, through an accumulator of all sums.

    What rounding loses is told from the means as float32; where a mean is too large for its dtype,
    ``lost`` is all of it.
    """
    dtype, before, after = _arithmetic(sums.dtype, divisor)
    total = torch.zeros(sums.numel(), dtype=dtype, device=sums.device)
    for rows, where in zip(packed, positions, strict=True):
        if before != 1.0:
            scaled = total.new_empty(rows.numel())
            values_convert(rows, scaled, before)
            rows = scaled
        blocks_add(rows, segments, where, total)
    if lost is None:
        values_convert(total, sums, after)
        return
    values_convert(total, lost, after)
    sums.copy_(lost)
    delivered = sums.float()
    lost -= delivered.masked_fill(~delivered.isfinite(), 0.0)


def _arithmetic(dtype: torch.dtype, divisor: float) -> tuple[torch.dtype, float, float]:
    """The dtype of the sums, and what values are divided by before and after they are added, so
    that no sum overflows where the mean does not: see ``s2_blocks_sum`` in ``s2.h``."""
    return {
        torch.float32: (torch.float64, 1.0, divisor),
        torch.float64: (torch.float64, divisor, 1.0),
        torch.float16: (torch.float32, 1.0, divisor),
        torch.bfloat16: (torch.float32, 256.0, divisor / 256.0),
    }[dtype]


def blocks_clear_dead(
    bitmap: Tensor, segments: Tensor, values: Tensor, parallel: bool = True
) -> None:
    """Sets to +0.0 every element of every block whose bit is clear; ``bitmap`` is anywhere."""
    on_device = to_device(bitmap, values.device)
    dead = ((on_device.unsqueeze(1) >> _shifts(values.device)) & 1).view(-1) == 0
    for segment in _segments(values, segments):
        bits = dead[segment.bits]
        segment.rows.masked_fill_(bits[: len(segment.rows)].unsqueeze(1), 0.0)
        if len(segment.last):
            segment.last.masked_fill_(bits[-1], 0.0)


def values_convert(src: Tensor, dst: Tensor, divisor: float = 1.0, parallel: bool = True) -> None:
    """``dst = src / divisor``, divided in the wider of the two dtypes and rounded once."""
    if divisor == 1.0:
        dst.copy_(src)
        return
    wide = torch.promote_types(src.dtype, dst.dtype)
    # Not by a number: on CUDA devices torch would multiply by its reciprocal.
    dst.copy_(src.to(wide) / torch.full((), divisor, dtype=wide, device=src.device))


def values_finite(values: Tensor) -> Tensor:
    """bool, whether no element is infinite or a NaN; it stays on the device."""
    return values.isfinite().all()
