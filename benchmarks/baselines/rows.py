# SPDX-License-Identifier: MIT
"""Rows of tables, as exchanges take and give them; and sums of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops


@dataclass(frozen=True)
class Source:
    """A rank's non-zero rows, not yet copied anywhere.

    Attributes:
        numbers: int64, ascending, below ``nrows``.
        nrows: of the table, or of all tables one behind the other.
        width: floats of a row.
        read: ``read(some, out)`` copies the rows of ``some``, ascending, to ``out`` (flat).
    """

    numbers: Tensor
    nrows: int
    width: int
    read: Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Rows:
    """Rows and their numbers: int64, ascending, and float32, flat."""

    numbers: Tensor
    values: Tensor


def bitmap_nbytes(nbits: int) -> int:
    """Of a bitmap in whole words of 64 bits."""
    return (nbits + 63) // 64 * 8


def bitmap_of(numbers: Tensor, nbits: int) -> Tensor:
    bitmap = torch.empty(bitmap_nbytes(nbits), dtype=torch.uint8)
    ops.bitmap_from_positions(numbers, bitmap)
    return bitmap


def numbers_of(bitmap: Tensor) -> Tensor:
    """int64, of the bits that are set."""
    count = torch.empty(1, dtype=torch.int64)
    ops.bitmap_count(bitmap, one_segment(8 * bitmap.numel(), 1), count)
    numbers = torch.empty(int(count), dtype=torch.int64)
    ops.bitmap_positions(bitmap, numbers)
    return numbers


def union_of(parts: Sequence[Rows], nrows: int) -> Tensor:
    """The numbers that any part has: int64, ascending."""
    union = bitmap_of(parts[0].numbers, nrows)
    for part in parts[1:]:
        ops.bitmap_or(union, bitmap_of(part.numbers, nrows))
    return numbers_of(union)


def add_up(parts: Sequence[Rows], numbers: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """The sum of the parts' rows, at those numbers, flat; added in the order of parts."""
    total = torch.zeros(numbers.numel() * width, dtype=dtype)
    compact = one_segment(total.numel(), width)
    for part in parts:
        ops.blocks_add(part.values, compact, torch.searchsorted(numbers, part.numbers), total)
    return total


def mean_of(parts: Sequence[Rows], nrows: int, width: int) -> Rows:
    """The union of the parts' rows: summed in float64 in the order of parts, divided, rounded."""
    numbers = union_of(parts, nrows)
    total = add_up(parts, numbers, width, torch.float64)
    means = torch.empty(total.numel())
    ops.values_convert(total, means, float(len(parts)))
    return Rows(numbers, means)


def nonzero_rows(table: Tensor, width: int) -> Tensor:
    """int64, ascending: of a flat table."""
    segments = one_segment(table.numel(), width)
    bitmap = torch.empty(bitmap_nbytes(table.numel() // width), dtype=torch.uint8)
    ops.bitmap_from_nonzero(table, segments, bitmap, torch.empty(1, dtype=torch.int64))
    return numbers_of(bitmap)


def one_segment(numel: int, block: int) -> Tensor:
    """A bucket of nothing but one table, as ``ops`` wants it."""
    return torch.tensor([[0, numel, block, 0]])


INDEX_NBYTES = 4  # of a number in a message


def packed(numbers: Tensor, values: Tensor) -> Tensor:
    """A message of float32: the numbers as int32, then the rows; ``packed_numel`` long."""
    return torch.cat([numbers.int().view(torch.float32), values])


def packed_numel(count: int, width: int) -> int:
    return count * (1 + width)


def unpacked(message: Tensor, count: int) -> Rows:
    return Rows(message[:count].view(torch.int32).long(), message[count:])
