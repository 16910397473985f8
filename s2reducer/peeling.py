# SPDX-License-Identifier: MIT
"""Peeling, with the memory that the operator wants."""

from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer import ops


@dataclass(frozen=True, eq=False)  # tensors compare element by element
class Peeled:
    """What was read from a sketch, in the order of the ids that were asked for.

    Attributes:
        values: float32 [n, block], the blocks; +0.0 where one is stuck.
        decoded: bool [n], whether it is not.
        bounds: float32 [n], how far the block's elements are likely to be from the exact sums at
            most: 0 where one sketch gave a block that it held alone in a cell, infinite where the
            block is stuck.  Elements that may well be zero, of a magnitude of bound / sqrt(block)
            or less in a block that was not alone, have been set to zero beside.
        norms: float32 [n], the largest magnitude in the block.
        nrounds: after how many rounds no block was alone in a cell any more.
    """

    values: Tensor
    decoded: Tensor
    bounds: Tensor
    norms: Tensor
    nrounds: int

    @property
    def nstuck(self) -> int:
        """How many blocks are stuck."""
        return int((~self.decoded).sum())


def peel(
    table: Tensor,
    seed: int,
    ids: Tensor,
    nranks: int = 1,
    magnitudes: Tensor | None = None,
    max_rounds: int = 0,
) -> Peeled:
    """Uses up the table: see ``ops.sketch_peel``, whose arguments these are."""
    n = ids.numel()
    values, decoded = torch.empty(n, table.shape[2]), torch.empty(n, dtype=torch.bool)
    bounds, norms = torch.empty(n), torch.empty(n)
    scratch = torch.empty(ops.sketch_scratch_nbytes(table, n), dtype=torch.uint8)
    _, nrounds = ops.sketch_peel(
        table, seed, ids, nranks, magnitudes, values, decoded, bounds, norms, scratch, max_rounds
    )
    return Peeled(values, decoded, bounds, norms, nrounds)
