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
    ops.bitmap_count(bitmap, _one_segment(8 * bitmap.numel(), 1), count)
    numbers = torch.empty(int(count), dtype=torch.int64)
    ops.bitmap_positions(bitmap, numbers)
    return numbers


def mean_of(parts: Sequence[Rows], nrows: int, width: int) -> Rows:
    """The union of the parts' rows: summed in float64 in the order of parts, divided, rounded."""
    union = bitmap_of(parts[0].numbers, nrows)
    for part in parts[1:]:
        ops.bitmap_or(union, bitmap_of(part.numbers, nrows))
    numbers = numbers_of(union)
    total = torch.zeros(numbers.numel() * width, dtype=torch.float64)
    compact = _one_segment(total.numel(), width)
    for part in parts:
        where = torch.searchsorted(numbers, part.numbers)
        ops.blocks_add(part.values, compact, where, total)
    means = torch.empty(total.numel())
    ops.values_convert(total, means, float(len(parts)))
    return Rows(numbers, means)


def _one_segment(numel: int, block: int) -> Tensor:
    return torch.tensor([[0, numel, block, 0]])
