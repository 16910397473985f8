# SPDX-License-Identifier: MIT
"""Gradients that are rounded, and models that users have, against DDP without a hook."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import FLAGS, STEPS, Pair, make_tables
from ranks import Ranks, assert_same_on_all_ranks, world_sizes
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks


def random_of(step: int) -> torch.Generator:
    """Other numbers in each step and on each rank."""
    return torch.Generator().manual_seed(step * 8 + dist.get_rank())


def compare_dense_bits(flags: dict[str, Any]) -> None:
    pair = Pair(make_tables, {"plan": "dense"}, **flags)
    for step in range(STEPS):
        generator = random_of(step)
        parameters = enumerate(pair.plain.module.p)
        pair.step({i: torch.randn(p.shape, generator=generator) for i, p in parameters})
        pair.assert_equal()
    pair.assert_trained()


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("count", [2, 3])
def test_dense_has_the_bits_of_ddp(ranks: Ranks, count: int, flags: str) -> None:
    ranks.run(count, compare_dense_bits, FLAGS[flags])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.table = nn.Embedding(2000, 32)
        self.convolution = nn.Conv2d(32, 48, (1, 3))
        self.norm = nn.LayerNorm(48)
        self.hidden = nn.Linear(48, 96)
        self.out = nn.Linear(96, 300)
        self.to(memory_format=torch.channels_last)

    def forward(self, words: Tensor) -> Tensor:
        words = self.table(words).transpose(1, 2).unsqueeze(2)
        words = self.convolution(words).relu().mean((2, 3))
        return self.out(self.hidden(self.norm(words)).relu()).log_softmax(1)[:, 0]


def train_classifier(
    plan: str, flags: dict[str, Any], half: bool, accumulate: bool = False
) -> set[str]:
    """The plans taken."""
    wrap = default_hooks.fp16_compress_wrapper if half else lambda hook: hook
    pair = Pair(Classifier, {"plan": plan}, wrap=wrap, bucket_cap_mb=0.015, **flags)
    if half:
        pair.plain.register_comm_hook(None, wrap(_mean_of(default_hooks.allreduce_hook)))
    assert not pair.hooked.module.convolution.weight.is_contiguous()
    optimizer = torch.optim.Adam(pair.hooked.parameters(), 1e-3)
    for step in range(STEPS):
        words = torch.randint(2000, (6, 9), generator=random_of(step))
        more = torch.randint(2000, (6, 9), generator=random_of(100 + step))
        magnitudes = sums_of_magnitudes(pair.plain.module, [words, more] if accumulate else [words])
        if accumulate:
            pair.step(more, sync=False)
        pair.step(words, zero_grad=not accumulate)
        assert_within_rounding(pair, magnitudes, half)
        optimizer.step()
        with torch.no_grad():  # or the difference would be that of two trainings
            both = zip(pair.hooked.parameters(), pair.plain.parameters(), strict=True)
            for mine, theirs in both:
                theirs.copy_(mine)
    pair.assert_trained()
    return set(pair.state.report().plans)


def assert_within_rounding(pair: Pair, magnitudes: list[Tensor], half: bool = False) -> None:
    """That DDP's means and the hook's differ by no more than rounding can bring about.

    A mean of P ranks is rounded when its values are narrowed (to half, or not at all), when they
    are multiplied by 1/P, itself rounded, and in P-1 additions, each time by no more than the unit
    roundoff times the sum of the magnitudes over P, or than half the smallest number there is.  Two
    such means differ by twice that at the most.
    """
    roundoff, smallest = (2.0**-11, 2.0**-25) if half else (2.0**-24, 0.0)
    world_size = dist.get_world_size()
    for (plain, hooked), magnitude in zip(pair.gradients(), magnitudes, strict=True):
        assert hooked.dtype == torch.float32 and hooked.is_sparse == plain.is_sparse
        difference = (hooked - plain).to_dense().abs()
        bound = 2 * (world_size + 2) * (roundoff * magnitude / world_size + smallest)
        assert (difference <= bound).all()
    assert_same_on_all_ranks([hooked for _, hooked in pair.gradients()])


def sums_of_magnitudes(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """Of each parameter's gradient over batches and ranks, past DDP and its hooks."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for words in batches:
        gradients = torch.autograd.grad(model(words).sum(), list(model.parameters()))
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient.to_dense().abs()
    for total in sums:
        contiguous = total.contiguous()
        dist.all_reduce(contiguous)
        total.copy_(contiguous)
    return sums


def _mean_of(hook: Any) -> Any:
    """A hook of torch's own, with the default group as its state."""

    def with_group(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        return hook(dist.group.WORLD, bucket)

    return with_group


SPARSE = {"owner", "gather", "union"}


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4, fast=2))
def test_a_classifier_within_rounding(ranks: Ranks, count: int, flags: str) -> None:
    for plans in ranks.run(count, train_classifier, "auto", FLAGS[flags], False):
        assert plans & SPARSE or count == 1


@pytest.mark.parametrize("plan", ["union", "owner"])
@pytest.mark.parametrize("count", world_sizes(2, 4))
def test_other_plans_within_rounding(ranks: Ranks, count: int, plan: str) -> None:
    for plans in ranks.run(count, train_classifier, plan, {}, False):
        assert plans == {plan}


@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4))
def test_accumulated_gradients_within_rounding(ranks: Ranks, count: int) -> None:
    for plans in ranks.run(count, train_classifier, "auto", {}, False, True):
        assert plans & SPARSE or count == 1


@pytest.mark.parametrize("count", [2, 3])
def test_inside_the_wrapper_that_compresses_to_float16(ranks: Ranks, count: int) -> None:
    for plans in ranks.run(count, train_classifier, "union", {}, True):
        assert plans == {"union"}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.table = nn.Embedding(500, 16, sparse=True, padding_idx=0)
        self.out = nn.Linear(16, 400)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.table(words).sum(1))


def train_bag() -> None:
    pair = Pair(Bag)
    for step in range(STEPS):
        words = torch.randint(500, (6, 9), generator=random_of(step))
        if step == 2 and dist.get_rank() == 0:
            words.zero_()  # padding alone: no row at all
        magnitudes = sums_of_magnitudes(pair.plain.module, [words])
        pair.step(words)
        assert pair.hooked.module.table.weight.grad.is_sparse
        assert_within_rounding(pair, magnitudes)
    assert pair.state.step == STEPS


@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4))
def test_sparse_embeddings_within_rounding(ranks: Ranks, count: int) -> None:
    ranks.run(count, train_bag)
