# SPDX-License-Identifier: MIT
"""The operators that touch a bucket's elements, for the device on which they lie.

Everything else (bitmaps, positions, plans) is small, and is worked on by the CPU.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from s2reducer import cuda, cuda_blocks, device_blocks, ops


class BlockOps(Protocol):
    """What ``ops.py`` documents; ``segments`` and ``positions`` are on the CPU everywhere."""

    def bitmap_from_nonzero(
        self,
        values: Tensor,
        segments: Tensor,
        bitmap: Tensor,
        negative_zeros: Tensor,
        parallel: bool = ...,
    ) -> None: ...

    def blocks_gather(
        self,
        values: Tensor,
        segments: Tensor,
        positions: Tensor,
        packed: Tensor,
        divisor: float = ...,
        parallel: bool = ...,
    ) -> None: ...

    def blocks_scatter(
        self,
        packed: Tensor,
        segments: Tensor,
        positions: Tensor,
        values: Tensor,
        divisor: float = ...,
        parallel: bool = ...,
    ) -> None: ...

    def blocks_add(
        self,
        packed: Tensor,
        segments: Tensor,
        positions: Tensor,
        accumulator: Tensor,
        parallel: bool = ...,
    ) -> None: ...

    def blocks_sum(
        self,
        packed: Sequence[Tensor],
        segments: Tensor,
        positions: Sequence[Tensor],
        sums: Tensor,
        lost: Tensor | None = ...,
        divisor: float = ...,
        parallel: bool = ...,
    ) -> None: ...

    def blocks_clear_dead(
        self, bitmap: Tensor, segments: Tensor, values: Tensor, parallel: bool = ...
    ) -> None: ...

    def values_convert(
        self, src: Tensor, dst: Tensor, divisor: float = ..., parallel: bool = ...
    ) -> None: ...


_BY_DEVICE: dict[str, BlockOps] = {"cpu": ops}


def ops_for(device: torch.device) -> BlockOps:
    """The C core's on the CPU, the CUDA kernels' where they run, else torch's own."""
    if cuda.run_on(device):
        return cuda_blocks
    return _BY_DEVICE.get(device.type, device_blocks)
