# SPDX-License-Identifier: MIT
"""How far peeled values are from the exact sums, before and after the plan's repair.

Tables are made, laid out and decoded by the plan's own code; only the network is left out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer.plans.contribution import Rows
from s2reducer.plans.sketch import cells_of, fill, lay_out, magnitudes_of
from s2reducer.plans.sketch_decoder import Decoder
from s2reducer.sketch_config import SketchConfig
from sketching.tables import norm, peel, seeds

ADAM_EPSILON = 1e-8
ZEROS = 0.25  # share of a block's elements that are zero on all ranks
QUANTILES = {"median": 0.5, "p99": 0.99, "most": 1.0}


@dataclass(frozen=True)
class NoNetwork:
    """What the decoder needs of a transport; what it repairs is overwritten with the exact sums."""

    world_size: int

    def sum(self, packed: Tensor) -> None:
        pass


@dataclass(frozen=True)
class Case:
    """Gaussian blocks.

    Attributes:
        sizes: ``"equal"``, or ``"six decades"`` for factors 10^g with g from the standard normal
            distribution, of which all but 3 in 1000 lie within six decades.
        nranks: tables that are added up.  A rank has every second block, by chance, but at least
            one rank has it.
    """

    sizes: str
    nranks: int
    nblocks: int
    block: int

    def contributions(self) -> tuple[list[Rows], Tensor]:
        """Of the ranks, and the exact mean in float64."""
        generator = torch.Generator().manual_seed(self.nranks)
        numbers = torch.arange(self.nblocks)
        factors = torch.ones(self.nblocks, 1)
        if self.sizes == "six decades":
            factors = 10.0 ** torch.randn(self.nblocks, 1, generator=generator)
        live = torch.rand(self.nblocks, self.block, generator=generator) >= ZEROS
        total = torch.zeros(self.nblocks, self.block, dtype=torch.float64)
        owns = []
        for rank in range(self.nranks):
            has = torch.rand(self.nblocks, generator=generator) < 0.5
            has |= numbers % self.nranks == rank
            values = torch.randn(self.nblocks, self.block, generator=generator) * factors * live
            total[has] += values[has].double()
            owns.append(Rows([numbers[has]], [values[has]], [0], float(self.nranks)))
        return owns, total / self.nranks

    def measure(self) -> tuple[dict[str, object], dict[str, Tensor]]:
        """Figures, and the blocks' errors relative to their own norms, before and after repair."""
        owns, exact = self.contributions()
        config, (seed,) = SketchConfig(), seeds(1, stream=self.nranks)
        expected = math.ceil(config.margin * self.nblocks)
        message = lay_out([self.block], {}, [expected], config, seed)
        flat = torch.zeros(message.numel)
        for own in owns:
            flat += fill(message, own, config)
        (table,), ids = message.tables, torch.arange(self.nblocks)
        copy = flat.clone()
        cells, magnitudes = cells_of(table, copy, config), magnitudes_of(table, copy, config)
        peeled = peel(cells, table.seed, ids, self.nranks, magnitudes)
        assert peeled.nstuck == 0, "the seed leaves blocks stuck"

        decoder = Decoder(owns[0], message, config, [ids], [True])
        (plan,) = decoder.decode(flat, NoNetwork(self.nranks))  # type: ignore[arg-type]
        plan.rows[plan.exactly] = exact[plan.exactly].float()
        before, after = (own_errors(rows, exact) for rows in (peeled.values, plan.rows))
        figures = {
            "sizes": self.sizes,
            "ranks": self.nranks,
            "blocks": self.nblocks,
            "block": self.block,
            "cells_per_block": config.rows * table.width / self.nblocks,
            "normwise": norm(peeled.values - exact) / norm(exact),
            **{name: float(before.quantile(q)) for name, q in QUANTILES.items()},
            "off_by_a_thousandth": float((before > 1e-3).double().mean()),
            "repaired": float(plan.exactly.double().mean()),
            "most_after_repair": float(after.max()),
            **zeros(exact, plan.rows),
            **bounds(exact, peeled.values, peeled.bounds),
        }
        return figures, {"before": before, "after": after}


def own_errors(rows: Tensor, exact: Tensor) -> Tensor:
    errors = torch.linalg.vector_norm(rows.double() - exact, dim=1)
    return errors / torch.linalg.vector_norm(exact, dim=1)


def zeros(exact: Tensor, rows: Tensor) -> dict[str, float]:
    """What becomes of zeros, and of what is not zero but within its error of it."""
    are_zero = exact == 0
    noise = rows[are_zero].abs().double()
    return {
        "zeros_not_zero": float((noise != 0).double().mean()),
        "set_to_zero": float((rows[~are_zero] == 0).double().mean()),
        # Adam's first step moves an element by |g| / (|g| + epsilon) of the learning rate.
        "adam_moves_zeros_by": float((noise / (noise + ADAM_EPSILON)).mean()),
    }


def bounds(exact: Tensor, peeled: Tensor, limits: Tensor) -> dict[str, float]:
    """The largest error in a block, over its bound."""
    errors = (peeled.double() - exact).abs().amax(1)
    shared = limits > 0
    return {
        "most_of_bound": float((errors[shared] / limits[shared]).max()),
        "median_of_bound": float((errors[shared] / limits[shared]).median()),
    }


def cases(quick: bool) -> list[Case]:
    nblocks, block = (1000, 16) if quick else (20_000, 64)
    return [
        Case(sizes, nranks, nblocks, block)
        for sizes in ("equal", "six decades")
        for nranks in (1, 4)
    ]
