# SPDX-License-Identifier: MIT
"""The operators of ``ops.py`` that touch a bucket's elements, on CUDA tensors, by own kernels.

What ``BlockOps`` says is on the CPU gets to the device here, by copies that nothing waits for.
"""

from collections.abc import Sequence

from torch import Tensor

from s2reducer import ops
from s2reducer.device import to_device
from s2reducer.ops import bitmap_from_nonzero as bitmap_from_nonzero
from s2reducer.ops import values_convert as values_convert


def blocks_gather(
    values: Tensor,
    segments: Tensor,
    positions: Tensor,
    packed: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``packed = values / divisor`` in the blocks at ``positions``."""
    ops.blocks_gather(values, segments, to_device(positions, values.device), packed, divisor)


def blocks_scatter(
    packed: Tensor,
    segments: Tensor,
    positions: Tensor,
    values: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``values = packed / divisor`` in the blocks at ``positions``; other blocks are left alone."""
    ops.blocks_scatter(packed, segments, to_device(positions, values.device), values, divisor)


def blocks_add(
    packed: Tensor, segments: Tensor, positions: Tensor, accumulator: Tensor, parallel: bool = True
) -> None:
    """``accumulator += packed`` in the blocks at ``positions``, in the accumulator's arithmetic."""
    ops.blocks_add(packed, segments, to_device(positions, accumulator.device), accumulator)


def blocks_sum(
    packed: Sequence[Tensor],
    segments: Tensor,
    positions: Sequence[Tensor],
    sums: Tensor,
    lost: Tensor | None = None,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``sums = (the sum of the ranks' blocks) / divisor``, added in rank order and rounded once."""
    on_device = [to_device(where, sums.device) for where in positions]
    ops.blocks_sum(packed, segments, on_device, sums, lost, divisor)


def blocks_clear_dead(
    bitmap: Tensor, segments: Tensor, values: Tensor, parallel: bool = True
) -> None:
    """Sets to +0.0 every element of every block whose bit is clear."""
    ops.blocks_clear_dead(to_device(bitmap, values.device), segments, values)
