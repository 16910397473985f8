# SPDX-License-Identifier: MIT
"""How far estimates are from the sums, beside theory, and what error feedback makes of that."""

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops
from sketching.tables import new_table, norm, seeds

CELLS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ROWS = (1, 3, 5)


def estimate(table: Tensor, seed: int, ids: Tensor, values: Tensor) -> Tensor:
    """Of the blocks that are inserted."""
    ops.sketch_insert(table.zero_(), seed, ids, values)
    result = torch.empty_like(values)
    ops.sketch_estimate(table, seed, ids, result)
    return result


def gaussian(nblocks: int, stream: int) -> Tensor:
    return torch.randn(nblocks, 1, generator=torch.Generator().manual_seed(stream))


def error(rows: int, cells: float, nblocks: int, nseeds: int) -> dict[str, object]:
    """Of Gaussian values relative to their norm, the mean over seeds."""
    table, ids = new_table(rows, cells, nblocks), torch.arange(nblocks)
    values = gaussian(nblocks, nblocks)
    errors = [
        norm(estimate(table, seed, ids, values) - values) / norm(values)
        for seed in seeds(nseeds, stream=nblocks)
    ]
    mean, theory = statistics.mean(errors), math.sqrt(1 / cells)
    return {
        "rows": rows,
        "cells_per_block": cells,
        "error": mean,
        "theory": theory,
        "of_theory": mean / theory,
    }


def bias(cells: float, nblocks: int, nseeds: int) -> dict[str, object]:
    """One row.  The error's part along the values, in units of the values, over fresh seeds.

    Its mean should be zero, and that of the squared error over the squared values K / c.
    """
    table, ids = new_table(1, cells, nblocks), torch.arange(nblocks)
    values = gaussian(nblocks, nblocks)
    square = norm(values) ** 2
    along, squares = [], []
    for seed in seeds(nseeds, stream=nblocks + 1):
        miss = (estimate(table, seed, ids, values) - values).double()
        along.append(float((miss * values).sum()) / square)
        squares.append(norm(miss) ** 2 / square)
    deviation = statistics.stdev(along) / math.sqrt(nseeds)
    return {
        "cells_per_block": cells,
        "blocks": nblocks,
        "seeds": nseeds,
        "bias": statistics.mean(along),
        "standard_error": deviation,
        "in_standard_errors": statistics.mean(along) / deviation,
        "variance": statistics.mean(squares),
        "theory": 1 / cells,
    }


@dataclass(frozen=True)
class Feedback:
    """One rank that adds to each gradient what estimates have missed so far.

    Attributes:
        cells: for each block, in one row.
        damped: whether estimates are divided by 1 + K / c.
    """

    cells: float
    damped: bool
    nblocks: int
    steps: int

    def measure(self) -> list[float]:
        """After each step the norm of what is owed over the norm of a gradient.

        Gradients are Gaussian, fresh in every step, and hashes too.
        """
        table, ids = new_table(1, self.cells, self.nblocks), torch.arange(self.nblocks)
        factor = 1 + self.nblocks / table.shape[1] if self.damped else 1.0
        owed = torch.zeros(self.nblocks, 1)
        norms = []
        for step, seed in enumerate(seeds(self.steps, stream=self.nblocks)):
            owed += gaussian(self.nblocks, step)
            owed -= estimate(table, seed, ids, owed) / factor
            norms.append(norm(owed) / math.sqrt(self.nblocks))
        return norms

    @property
    def limit(self) -> float:
        """What the norm tends to, by theory: see docs/sketch.md."""
        share = 1 / self.cells
        if self.damped:
            return math.sqrt(share)
        return math.sqrt(share / (1 - share)) if share < 1 else math.inf


def errors(quick: bool) -> list[dict[str, object]]:
    nblocks, nseeds = (2000, 5) if quick else (50_000, 20)
    return [error(rows, cells, nblocks, nseeds) for rows in ROWS for cells in CELLS]


def biases(quick: bool) -> list[dict[str, object]]:
    return [bias(cells, 1000, 100 if quick else 1000) for cells in CELLS]


def feedback_cases(quick: bool) -> list[Feedback]:
    steps = 20 if quick else 60
    return [
        Feedback(cells, damped, 2000, steps)
        for cells in (0.25, 1.0, 4.0)
        for damped in (False, True)
    ]
