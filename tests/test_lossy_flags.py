# SPDX-License-Identifier: MIT
"""Lossy modes over DDP's flags: what DDP without a hook brings has arrived or is owed, to the bit.

Gradients are whole numbers, so that sums, and means of two, are exact in any order.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import FLAGS, MODELS, STEPS, Pair
from pairs import given as given_few_bits
from ranks import Given, Ranks, assert_same_on_all_ranks
from torch import Tensor

from s2reducer import RandomK, SharedTopK, TopK

SETTINGS: dict[str, dict[str, Any]] = {
    "both": {"select": TopK(0.1, block=30, least_numel=100), "wire": "bf16"},
    "shared": {"select": SharedTopK(0.1, least_numel=100), "plan": "owner"},
    "random": {"select": RandomK(0.1, block=1, least_numel=100), "plan": "union"},
    "narrow": {"wire": "bf16", "plan": "gather"},
}
FAST = ("both",)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


def given(model: Given, step: int, density: float = 0.3, only: Any = None) -> dict[int, Tensor]:
    """Of so many bits that bfloat16 rounds them."""
    gradients = given_few_bits(model, step, density, only)
    return {number: 257 * gradient for number, gradient in gradients.items()}


def flat(tensor: Tensor) -> Tensor:
    """float64, in memory order, as a residual is."""
    return tensor.as_strided((tensor.numel(),), (1,)).double()


class Books:
    """Of all steps, times the ranks: what came, by the model without a hook, and what arrived."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.parameters = list(pair.hooked.module.parameters())
        self.came = [torch.zeros(p.numel(), dtype=torch.float64) for p in self.parameters]
        self.arrived = [torch.zeros_like(total) for total in self.came]

    def enter(self) -> None:
        nranks = dist.get_world_size()
        models = ((self.pair.plain, self.came), (self.pair.hooked, self.arrived))
        for model, totals in models:
            for total, parameter in zip(totals, model.module.parameters(), strict=True):
                if parameter.grad is not None:
                    total += nranks * flat(parameter.grad)
        assert_same_on_all_ranks([hooked for _, hooked in self.pair.gradients()])

    def owed(self, number: int) -> Tensor:
        """By all ranks."""
        parameter = self.parameters[number]
        residual = self.pair.state.residual(parameter)
        result = torch.zeros(parameter.numel(), dtype=torch.float64)
        if residual is not None:
            block = residual.rows.shape[1]
            whole = torch.zeros(-(-parameter.numel() // block), block, dtype=torch.float64)
            whole[residual.blocks] = residual.rows.double()
            result = whole.view(-1)[: parameter.numel()].clone()
        dist.all_reduce(result)
        return result

    def close(self) -> None:
        owed = [self.owed(number) for number in range(len(self.parameters))]
        for came, arrived, rest in zip(self.came, self.arrived, owed, strict=True):
            assert torch.equal(came, arrived + rest)
        assert any(rest.any() for rest in owed)
        self.pair.assert_trained()


def train(settings: dict[str, Any], flags: dict[str, Any]) -> None:
    books = Books(Pair(MODELS["layouts"], settings, **flags))
    for step in range(STEPS):
        books.pair.step(given(books.pair.plain.module, step))
        books.enter()
    books.close()


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", NAMES)
def test_every_flag(ranks: Ranks, name: str, flags: str) -> None:
    ranks.run(2, train, SETTINGS[name], FLAGS[flags])


def accumulate(settings: dict[str, Any], flags: dict[str, Any]) -> None:
    books = Books(Pair(MODELS["layouts"], settings, **flags))
    pair = books.pair
    for step in range(STEPS):
        pair.step(given(pair.plain.module, 10 * step, 0.1), sync=False)
        pair.step(given(pair.plain.module, 10 * step + 1, 0.1), zero_grad=False)
        books.enter()
    books.close()


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["default", "gradient_as_bucket_view"])
@pytest.mark.parametrize("name", SETTINGS)
def test_no_sync_accumulates(ranks: Ranks, name: str, flags: str) -> None:
    ranks.run(2, accumulate, SETTINGS[name], FLAGS[flags])


def use_some(settings: dict[str, Any]) -> None:
    """Ranks use different parameters, in each step others, and some of them nobody."""
    books = Books(Pair(MODELS["layouts"], settings, find_unused_parameters=True))
    pair = books.pair
    for step in range(STEPS):
        only = {i for i in range(8) if (i + step + dist.get_rank()) % 4 > 1}
        pair.step(given(pair.plain.module, step, only=only))
        books.enter()
    assert any(grad is None for grad in (p.grad for p in books.parameters))
    books.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_unused_parameters(ranks: Ranks, name: str) -> None:
    ranks.run(2, use_some, SETTINGS[name])


def join_unevenly(settings: dict[str, Any]) -> list[list[bytes]]:
    """Ranks with 2, 4 and 6 batches: the bits of all gradients, after each step of this rank."""
    pair = Pair(MODELS["layouts"], settings)
    bits = []
    with pair.hooked.join():
        for step in range((2, 4, STEPS)[dist.get_rank()]):
            pair.hooked.zero_grad()
            pair.hooked(given(pair.plain.module, step)).backward()
            grads = [flat(parameter.grad) for parameter in pair.hooked.parameters()]
            assert any(grad.any() for grad in grads)
            bits.append([grad.numpy().tobytes() for grad in grads])
    pair.assert_trained()
    return bits


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_uneven_inputs_with_join(ranks: Ranks, name: str) -> None:
    two, four, six = ranks.run(3, join_unevenly, SETTINGS[name])
    assert (len(two), len(four), len(six)) == (2, 4, STEPS)
    assert two == six[:2] and four == six[:4]
