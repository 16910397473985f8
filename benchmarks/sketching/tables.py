# SPDX-License-Identifier: MIT
"""Tables as the operators take them, and seeds that can be drawn again."""

import math
import random

import torch
from torch import Tensor

from s2reducer.peeling import peel as peel  # for those who take all else from here


def seeds(count: int, stream: int) -> list[int]:
    """Seeds of 64 bits; another ``stream`` has others."""
    generator = random.Random(stream)
    return [generator.getrandbits(64) for _ in range(count)]


def new_table(rows: int, cells: float, nblocks: int, block: int = 1) -> Tensor:
    """Zeros, of the shape [rows, width, block], with ``cells`` for each block in all rows."""
    return torch.zeros(rows, math.ceil(round(cells * nblocks / rows, 9)), block)


def whole_numbers(nblocks: int, block: int, generator: torch.Generator) -> Tensor:
    """float32 [nblocks, block], whose sums are exact."""
    return torch.randint(-1000, 1001, (nblocks, block), generator=generator).float()


def norm(values: Tensor) -> float:
    """Of all elements, in double precision."""
    return float(torch.linalg.vector_norm(values.double()))
