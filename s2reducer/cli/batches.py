# SPDX-License-Identifier: MIT
"""Which words each rank sees at each step: a pure function of (seed, step, rank).

Both runs of the demo, and a second demo with the same seed, train on the same words in the same
order. torch's global generator is not used.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """``inputs`` and the words that follow them, ``targets``, both [batch, length]; and the words
    that the sampled softmax takes as negatives, [negatives]."""

    inputs: Tensor
    targets: Tensor
    negatives: Tensor


def generator(seed: int, step: int, rank: int) -> torch.Generator:
    # torch's generator on the CPU takes the low 32 bits of its seed alone, so all three are hashed
    # into these.
    digest = hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def draw(
    words: Tensor,
    *,
    seed: int,
    step: int,
    rank: int,
    batch: int,
    length: int,
    negatives: int,
    vocabulary: int,
) -> Batch:
    """Windows at random places of ``words`` and negatives in the log-uniform distribution."""
    draws = generator(seed, step, rank)
    starts = torch.randint(len(words) - length, (batch, 1), generator=draws)
    windows = words[starts + torch.arange(length + 1)].long()
    uniform = torch.rand(negatives, generator=draws, dtype=torch.float64)
    return Batch(windows[:, :-1], windows[:, 1:], log_uniform(uniform, vocabulary))


def log_uniform(uniform: Tensor, vocabulary: int) -> Tensor:
    """Word numbers with P(i) = log((i + 2) / (i + 1)) / log(vocabulary + 1): the frequency of words
    by rank in natural text (Zipf), by inversion of its distribution function."""
    numbers = torch.exp(uniform * torch.log(torch.tensor(vocabulary + 1.0))) - 1
    return numbers.long().clamp_(0, vocabulary - 1)


def log_uniform_probability(numbers: Tensor, vocabulary: int) -> Tensor:
    numbers = numbers.to(torch.float64)
    return torch.log((numbers + 2) / (numbers + 1)) / torch.log(torch.tensor(vocabulary + 1.0))


def held_out_windows(words: Tensor, *, batch: int, length: int, most: int) -> Iterator[Batch]:
    """Consecutive windows, at most ``most`` of them, evenly spread; without negatives."""
    count = (len(words) - 1) // length
    chosen = torch.linspace(0, count - 1, min(count, most)).long() * length
    for first in range(0, len(chosen), batch):
        starts = chosen[first : first + batch, None]
        windows = words[starts + torch.arange(length + 1)].long()
        yield Batch(windows[:, :-1], windows[:, 1:], torch.empty(0, dtype=torch.long))
