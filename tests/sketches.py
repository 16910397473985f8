# SPDX-License-Identifier: MIT
"""What the tests of the operators for sketches share."""

import math
import random
from typing import NamedTuple

import torch
from torch import Tensor

from s2reducer import ops


class Peeled(NamedTuple):
    values: Tensor
    decoded: Tensor
    bounds: Tensor
    norms: Tensor
    ndecoded: int
    nrounds: int


def peel(
    table: Tensor,
    seed: int,
    ids: Tensor,
    nranks: int = 1,
    magnitudes: Tensor | None = None,
    max_rounds: int = 0,
) -> Peeled:
    """Into memory that is full of something else."""
    n = len(ids)
    values, bounds = torch.full((n, table.shape[2]), math.nan), torch.full((n,), math.nan)
    norms, decoded = torch.full((n,), math.nan), torch.ones(n, dtype=torch.bool)
    scratch = torch.full((ops.sketch_scratch_nbytes(table, n),), 255, dtype=torch.uint8)
    outputs = (values, decoded, bounds, norms)
    counts = ops.sketch_peel(
        table, seed, ids, nranks, magnitudes, *outputs, scratch, max_rounds=max_rounds
    )
    return Peeled(*outputs, *counts)


def inserted(shape: tuple[int, int, int], seed: int, ids: Tensor, values: Tensor) -> Tensor:
    table = torch.zeros(shape)
    ops.sketch_insert(table, seed, ids, values)
    return table


def weighed(shape: tuple[int, int], seed: int, ids: Tensor, values: Tensor) -> Tensor:
    magnitudes = torch.zeros(shape)
    ops.sketch_weigh(magnitudes, seed, ids, values)
    return magnitudes


def estimate(table: Tensor, seed: int, ids: Tensor) -> Tensor:
    values = torch.full((len(ids), table.shape[2]), math.nan)
    ops.sketch_estimate(table, seed, ids, values)
    return values


def draw_ids(n: int, end: int = 1 << 40) -> Tensor:
    return torch.tensor(sorted(random.sample(range(end), n)), dtype=torch.int64)


def draw_seed() -> int:
    return random.getrandbits(64)


def whole(n: int, block: int) -> Tensor:
    """Values whose sums are exact in any order."""
    return torch.randint(-100, 101, (n, block)).float()


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))
