# SPDX-License-Identifier: MIT
"""What a training bench needs of a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """A model and its batches.

    Attributes:
        module: its forward pass takes what ``batch`` gives, and gives the loss.
        batch: from (rank, step) to the arguments.
        tables: parameters whose gradients are mostly zero rows.
    """

    module: nn.Module
    batch: Callable[[int, int], tuple[Any, ...]]
    tables: tuple[Tensor, ...] = ()


class Zipf:
    """Draws of 0 .. count-1 with P(i) in proportion to 1 / (i + 1)**exponent."""

    def __init__(self, count: int, exponent: float) -> None:
        weights = torch.arange(1, count + 1, dtype=torch.float64).pow_(-exponent)
        self._bounds = weights.cumsum(0).div_(weights.sum())

    def draw(self, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
        uniform = torch.rand(size, generator=generator, dtype=torch.float64)
        return torch.searchsorted(self._bounds, uniform).clamp_(max=len(self._bounds) - 1)


def generator_of(rank: int, step: int) -> torch.Generator:
    """Other numbers for each rank and step; the same in every run."""
    return torch.Generator().manual_seed(1_000_003 * rank + step)
