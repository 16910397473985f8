# SPDX-License-Identifier: MIT
"""Selection and error feedback in plain PyTorch: to be read, and to be compared with.

Nothing here is quick, and nothing of it runs in training.  The words are those of
``s2reducer/select_ops.py``; sets of blocks or elements are ascending lists of their numbers.  Every
function returns a new result and leaves its arguments alone.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from s2reducer.reference import hash64

FLOAT32 = torch.finfo(torch.float32)


def magnitudes(scores: Tensor) -> list[int]:
    """The bits without the sign: whole numbers in the order of the numbers, NaNs above all."""
    return [bits & 0x7FFFFFFF for bits in scores.view(torch.int32).tolist()]


def top(scores: Tensor, keep: int) -> list[int]:
    """The ``keep`` of largest magnitude, of equal ones the first."""
    sizes = magnitudes(scores)
    return sorted(sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:keep])


def above(scores: Tensor, threshold: float) -> list[int]:
    """Those of at least that magnitude."""
    (least,) = magnitudes(torch.tensor([threshold], dtype=torch.float32))
    return [i for i, size in enumerate(magnitudes(scores)) if size >= least]


def random(seed: int, numel: int, keep: int) -> list[int]:
    """``keep`` of ``numel`` by Floyd's algorithm, with hashes for random numbers."""
    chosen: set[int] = set()
    for last in range(numel - keep, numel):
        candidate = hash64(seed, last) * (last + 1) >> 64
        chosen.add(last if candidate in chosen else candidate)
    return sorted(chosen)


def add(values: Tensor, before: Tensor | None, factor: float = 1.0) -> Tensor:
    """What is owed with these gradients."""
    product = values.float() * torch.tensor(factor, dtype=torch.float32)
    return (torch.zeros_like(product) if before is None else before) + product


def energies(owed: Tensor, block: int) -> Tensor:
    """The sums of the squares of the blocks, added up in float64 in the order of 16 lanes."""
    results = []
    for begin in range(0, owed.numel(), block):
        part = owed[begin : begin + block].double()
        padded = torch.zeros(-(-part.numel() // 16) * 16, dtype=torch.float64)
        padded[: part.numel()] = part**2
        lanes = torch.zeros(16, dtype=torch.float64)
        for row in padded.view(-1, 16):
            lanes = lanes + row
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        energy = float(lanes)
        results.append(min(energy, FLOAT32.max) if math.isfinite(energy) else energy)
    return torch.tensor(results, dtype=torch.float32)


def deliver(
    owed: Tensor, block: int, selected: Sequence[int], dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The values that the selected blocks deliver, zeros in the others, and what is owed then."""
    values = torch.zeros(owed.numel(), dtype=dtype)
    rest = owed.clone()
    for index in selected:
        part = slice(index * block, (index + 1) * block)
        values[part] = (owed[part] * torch.tensor(scale, dtype=torch.float32)).to(dtype)
        product = values[part].float() * torch.tensor(1 / scale, dtype=torch.float32)
        rest[part] -= torch.where(product.isfinite(), product, 0.0)
    return values, rest
