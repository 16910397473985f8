# SPDX-License-Identifier: MIT
"""PowerSGD and DGC do what their papers define, and send what their formulas say."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from baselines import DgcState, install
from baselines.dgc import largest

slow = pytest.mark.slow
SHAPES = ((40, 30), (24,), (10, 4, 3, 3), (2, 2))
STEPS = 6


def given(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def run_steps(name: str, settings: dict[str, Any]) -> list[list[Tensor]]:
    """What each step gave, the same on all ranks; in several buckets, which DDP rebuilds."""
    module = DistributedDataParallel(
        Given(*(torch.zeros(shape) for shape in SHAPES)), bucket_cap_mb=0.002
    )
    install(module, name, **settings)
    results = []
    for step in range(STEPS):
        module.zero_grad()
        module(dict(enumerate(given(dist.get_rank(), step)))).backward()
        gradients = [parameter.grad.clone() for parameter in module.module.p]
        assert_same_on_all_ranks(gradients)
        results.append(gradients)
    return results


def check_steps(
    ranks: Ranks,
    world_size: int,
    name: str,
    settings: dict[str, Any],
    definition: Callable[[int, list[list[Tensor]]], list[Tensor]],
    tolerance: float,
) -> None:
    """``definition`` gives a parameter's gradients of all steps from those of (step, rank)."""
    results = ranks.run(world_size, run_steps, name, settings)[0]
    for index in range(len(SHAPES)):
        inputs = [[given(rank, step)[index] for rank in range(world_size)] for step in range(STEPS)]
        for result, expected in zip(results, definition(index, inputs), strict=True):
            torch.testing.assert_close(result[index], expected, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------------------------------------
# PowerSGD
# ------------------------------------------------------------------------------------------------


SEED = 7


def subspaces(rank: int) -> Callable[[int, list[list[Tensor]]], list[Tensor]]:
    """PowerSGD's definition, in float64 and with projections where the paper has factors.

    With Q the columns that span the last step's row space, the gradient becomes the mean of M,
    projected on the column space of the mean of M Q.
    """

    def define(index: int, inputs: list[list[Tensor]]) -> list[Tensor]:
        if index in (1, 3):  # a vector, and a matrix that factors would make no smaller
            return [torch.stack(step).mean(0) for step in inputs]
        rows = SHAPES[index][0]
        errors = [torch.zeros(rows, inputs[0][0].numel() // rows).double() for _ in inputs[0]]
        generator = torch.Generator().manual_seed(SEED)
        results, right = [], None
        for step in inputs:
            matrices = [g.view_as(e) + e for g, e in zip(step, errors, strict=True)]
            mean = torch.stack(matrices).mean(0)
            if right is None:
                right = torch.randn(mean.shape[1], rank, generator=generator).double()
            left = torch.linalg.svd(mean @ right, full_matrices=False).U
            result = left @ (left.T @ mean)
            right = torch.linalg.svd(result, full_matrices=False).Vh[:rank].T
            errors = [matrix - result for matrix in matrices]
            results.append(result.view(SHAPES[index]).float())
        return results

    return define


@pytest.mark.parametrize(
    ("world_size", "rank"), [(2, 2), pytest.param(3, 1, marks=slow), pytest.param(4, 3, marks=slow)]
)
def test_powersgd(ranks: Ranks, world_size: int, rank: int) -> None:
    settings = {"rank": rank, "seed": SEED}
    check_steps(ranks, world_size, "powersgd", settings, subspaces(rank), 1e-4)


def reduce_low_rank() -> float:
    """The largest error of gradients of rank 2 on each of two ranks, by factors of rank 4."""
    module = DistributedDataParallel(Given(torch.zeros(50, 40)))
    install(module, "powersgd", rank=4)
    generator = torch.Generator().manual_seed(0)
    gradients = [
        torch.randn(50, 2, generator=generator) @ torch.randn(2, 40, generator=generator)
        for _ in range(dist.get_world_size())
    ]
    module({0: gradients[dist.get_rank()]}).backward()
    return float((module.module.p[0].grad - sum(gradients) / len(gradients)).abs().max())


def test_powersgd_gives_matrices_of_low_rank_as_they_are(ranks: Ranks) -> None:
    assert max(ranks.run(2, reduce_low_rank)) < 1e-5


# ------------------------------------------------------------------------------------------------
# DGC
# ------------------------------------------------------------------------------------------------

DENSITY, MOMENTUM = 0.05, 0.9


def dgc(
    clip: float | None = None, warm_up: int = 0
) -> Callable[[int, list[list[Tensor]]], list[Tensor]]:
    """The paper's algorithm, operation by operation."""

    def define(index: int, inputs: list[list[Tensor]]) -> list[Tensor]:
        ranks = len(inputs[0])
        if index == 1:
            velocity, results = torch.zeros(SHAPES[index]), []
            for step in inputs:
                velocity = MOMENTUM * velocity + sum(step) / ranks
                results.append(velocity)
            return results
        velocities = [torch.zeros(SHAPES[index]) for _ in range(ranks)]
        unsent = [torch.zeros(SHAPES[index]) for _ in range(ranks)]
        results = []
        for number, step in enumerate(inputs):
            density = DENSITY
            if warm_up and number < 4 * warm_up:
                density = max(DENSITY, (1 / 4, 1 / 16, 1 / 64, 1 / 256)[number // warm_up])
            total = torch.zeros(SHAPES[index])
            for rank, gradient in enumerate(step):
                if clip is not None:
                    gradient = gradient * min(1.0, clip / ranks**0.5 / float(gradient.norm()))
                velocities[rank] = MOMENTUM * velocities[rank] + gradient
                unsent[rank] = unsent[rank] + velocities[rank]
                count = max(1, round(density * gradient.numel()))
                threshold = unsent[rank].abs().flatten().sort(descending=True).values[count - 1]
                mask = unsent[rank].abs() >= threshold
                assert int(mask.sum()) == count
                total += unsent[rank] * mask
                unsent[rank] = unsent[rank] * ~mask
                velocities[rank] = velocities[rank] * ~mask
            results.append(total / ranks)
        return results

    return define


@pytest.mark.parametrize(
    ("world_size", "more"),
    [
        (2, {"warm_up": 1}),
        pytest.param(3, {}, marks=slow),
        pytest.param(4, {"clip": 2.0}, marks=slow),
    ],
)
def test_dgc(ranks: Ranks, world_size: int, more: dict[str, Any]) -> None:
    settings = {"density": DENSITY, "momentum": MOMENTUM, **more}
    check_steps(ranks, world_size, "dgc", settings, dgc(**more), 1e-6)


def test_the_largest_are_exact() -> None:
    """Whether a sample finds the threshold, is too small for it, or misses them all."""
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.rand(50_000, generator=generator)
    hidden = torch.full([50_000], 0.5)
    hidden[1:100] = 1.0 + torch.arange(99)  # the sample takes elements 0, 101, ...
    hidden[::101] += 0.25
    for values, count in [(magnitudes, 50), (magnitudes, 40_000), (hidden, 99), (hidden, 600)]:
        positions = largest(values, count)
        assert len(positions) == count and (positions[1:] > positions[:-1]).all()
        assert torch.equal(values[positions].sort().values, values.sort().values[-count:])


def densities_of_a_warm_up() -> list[float]:
    state = DgcState(density=0.001, warm_up=2)
    return [state.density(step) for step in range(10)]


def test_dgc_warms_up_by_quarters(ranks: Ranks) -> None:
    expected = [d for d in (1 / 4, 1 / 16, 1 / 64, 1 / 256, 0.001) for _ in range(2)]
    assert ranks.run(1, densities_of_a_warm_up) == [expected]


# ------------------------------------------------------------------------------------------------
# What both refuse, and what they send
# ------------------------------------------------------------------------------------------------


def reduce_coo(name: str) -> None:
    module = DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
    install(module, name)
    with pytest.raises(ValueError, match="takes dense gradients only"):
        module(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("name", ["powersgd", "dgc"])
def test_coo_gradients_are_refused(ranks: Ranks, name: str) -> None:
    ranks.run(1, reduce_coo, name)


def count_bytes(cases: list[tuple[str, dict[str, Any]]]) -> list[int]:
    sent = []
    for name, settings in cases:
        module = DistributedDataParallel(Given(torch.zeros(400, 300), torch.zeros(300)))
        method = install(module, name, **settings)
        module({0: torch.rand(400, 300), 1: torch.rand(300)}).backward()
        sent.append(method.nbytes)
    return sent


@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=() if n == 2 else slow) for n in (2, 4, 8)]
)
def test_formulas(ranks: Ranks, world_size: int) -> None:
    ring = 2 * (world_size - 1) / world_size
    rest = ring * 4 * 300
    expected: list[tuple[str, dict[str, Any], float]] = [
        ("dense", {}, ring * 4 * (400 * 300 + 300)),
        ("bf16", {}, ring * 2 * (400 * 300 + 300)),
        ("fp16", {}, ring * 2 * (400 * 300 + 300)),
    ]
    for rank in (2, 4):
        expected.append(("powersgd", {"rank": rank}, ring * 4 * rank * (400 + 300) + rest))
    for density in (0.01, 0.05):
        k = density * 400 * 300
        expected.append(("dgc", {"density": density}, (world_size - 1) * k * (4 + 4) + rest))
    cases = [(name, settings) for name, settings, _ in expected]
    for sent in ranks.run(world_size, count_bytes, cases):
        assert sent == pytest.approx([nbytes for _, _, nbytes in expected], rel=0.01)
