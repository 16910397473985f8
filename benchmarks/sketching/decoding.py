# SPDX-License-Identifier: MIT
"""How often peeling gives back everything, in how many rounds, and what stays stuck."""

import math
import statistics
from collections import Counter
from dataclasses import dataclass

import torch

from s2reducer import ops
from s2reducer.plans.sketch import lay_out
from s2reducer.sketch_config import SketchConfig
from sketching.tables import new_table, peel, seeds, whole_numbers

ROWS = 3


@dataclass(frozen=True)
class Case:
    """Peelings of one shape, each with a seed of its own."""

    nblocks: int
    width: int
    nseeds: int

    @classmethod
    def of(cls, nblocks: int, cells: float, nseeds: int) -> "Case":
        return cls(nblocks, new_table(ROWS, cells, nblocks).shape[1], nseeds)

    @classmethod
    def of_plan(cls, nblocks: int, nseeds: int) -> "Case":
        """The plan's own table in a step with as many blocks as in the steps before."""
        config = SketchConfig()
        message = lay_out([1], {}, [math.ceil(config.margin * nblocks)], config, 0)
        return cls(nblocks, message.tables[0].width, nseeds)

    def measure(self) -> dict[str, object]:
        """Blocks of one element: which of them share a cell does not depend on their length."""
        table = torch.zeros(ROWS, self.width, 1)
        ids = torch.arange(self.nblocks)
        values = whole_numbers(self.nblocks, 1, torch.Generator().manual_seed(self.nblocks))
        stuck, rounds = [], []
        for seed in seeds(self.nseeds, stream=self.nblocks):
            ops.sketch_insert(table.zero_(), seed, ids, values)
            peeled = peel(table, seed, ids)
            assert torch.equal(peeled.values[peeled.decoded], values[peeled.decoded] + 0.0)
            if peeled.nstuck:
                stuck.append(peeled.nstuck)
            rounds.append(peeled.nrounds)
        return {
            "blocks": self.nblocks,
            "cells_per_block": ROWS * self.width / self.nblocks,
            "seeds": self.nseeds,
            "whole": 1 - len(stuck) / self.nseeds,
            "not_whole": len(stuck),
            # Expected number of pairs, which is the chance of one where it is small.
            "pairs": self.nblocks * (self.nblocks - 1) / 2 / self.width**ROWS * self.nseeds,
            "stuck": dict(sorted(Counter(stuck).items())),
            "rounds": statistics.median(rounds),
            "most_rounds": max(rounds),
        }


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case.of(1000, 1.3, 50), Case.of(20_000, 1.25, 5)]
    numbers = {1000: 10_000, 1500: 10_000, 3000: 3000, 10_000: 1000}
    small = [Case.of(nblocks, 1.3, nseeds) for nblocks, nseeds in numbers.items()]
    return [*small, Case.of(100_000, 1.25, 1000)]


def plan_cases(quick: bool) -> list[Case]:
    sizes, nseeds = ((10, 1000), 50) if quick else ((1, 3, 10, 30, 100, 1000, 10_000), 1000)
    return [Case.of_plan(nblocks, nseeds) for nblocks in sizes]


def curve_cases(quick: bool) -> list[Case]:
    """Around the threshold."""
    if quick:
        return [Case.of(1000, cells, 10) for cells in (1.1, 1.5)]
    steps = [1.1 + 0.025 * step for step in range(17)]
    numbers = {300: 300, 1000: 300, 10_000: 100, 100_000: 10}
    return [Case.of(n, cells, nseeds) for n, nseeds in numbers.items() for cells in steps]
