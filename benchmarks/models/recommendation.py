# SPDX-License-Identifier: MIT
"""A recommendation model: many tables, a small dense part.

Every sample looks up one row in each of the tables; numbers go through a small network of their
own, and another takes all of it to one score.  Tables differ in size as those of real features do:
each is a quarter larger than the one before.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from .task import Task, Zipf, generator_of

TABLES = 26
WIDTH = 64
NUMBERS = 13
SAMPLES = 2048
EXPONENT = 1.05
GROWTH = 1.25  # of 1 M rows the smallest table has 757, the largest 200,606


class RecommendationModel(nn.Module):
    """``forward`` takes rows [samples, TABLES], numbers [samples, NUMBERS] and labels [samples]."""

    def __init__(self, sizes: Sequence[int], sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, WIDTH, sparse=sparse) for size in sizes)
        self.below = nn.Sequential(nn.Linear(NUMBERS, WIDTH), nn.ReLU())
        self.above = nn.Sequential(
            nn.Linear((TABLES + 1) * WIDTH, 128), nn.ReLU(), nn.Linear(128, 1)
        )
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, rows: Tensor, numbers: Tensor, labels: Tensor) -> Tensor:
        found = [table(rows[:, column]) for column, table in enumerate(self.tables)]
        scores = self.above(torch.cat([self.below(numbers), *found], 1)).view(-1)
        return functional.binary_cross_entropy_with_logits(scores, labels)


def table_sizes(rows: int) -> list[int]:
    """Of all tables, ``rows`` together but for the rounding."""
    shares = [GROWTH**table for table in range(TABLES)]
    return [max(1, int(rows * share / sum(shares))) for share in shares]


def recommendation_model(rows: int = 1_000_000, sparse: bool = False) -> Task:
    """``rows`` in all tables together; a dense part of 0.9 MB."""
    torch.manual_seed(0)
    sizes = table_sizes(rows)
    module = RecommendationModel(sizes, sparse)
    draws = [Zipf(size, EXPONENT) for size in sizes]
    # Hashed features: which of them are frequent does not show in their numbers.
    names = [torch.randperm(size, generator=generator_of(0, -1)) for size in sizes]

    def batch(rank: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = generator_of(rank, step)
        columns = [
            name[draw.draw((SAMPLES,), generator)] for name, draw in zip(names, draws, strict=True)
        ]
        numbers = torch.randn(SAMPLES, NUMBERS, generator=generator)
        return torch.stack(columns, 1), numbers, torch.rand(SAMPLES, generator=generator).round_()

    return Task(module, batch, tuple(table.weight for table in module.tables))
