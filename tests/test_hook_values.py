# SPDX-License-Identifier: MIT
"""Values that trip up a compressing hook: zeros and their signs, NaN, Inf, overflow, noise."""

import math
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, exact_gradient, recorded_collectives
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import deterministic

import s2reducer
from s2reducer import reference
from s2reducer.config import RECORD_NBYTES
from s2reducer.constants import FLOOR_NBYTES
from s2reducer.segments import block_length, segments_of

PLANS = ["union", "auto", "dense"]


def reduce_given(gradients: list[Tensor], steps: int = 1, **settings: Any) -> list[Tensor]:
    """The mean of what the ranks call this with, through DDP and the hook."""
    ddp = DistributedDataParallel(Given(*map(torch.zeros_like, gradients)), bucket_cap_mb=0.03)
    s2reducer.register(ddp, **settings)
    for _ in range(steps):
        ddp.zero_grad()
        ddp(dict(enumerate(gradients))).backward()
    results = [parameter.grad for parameter in ddp.parameters()]
    assert_same_on_all_ranks(results)
    return results


def test_the_hook_gives_what_the_reference_gives(ranks: Ranks) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        inputs = [exact_gradient(torch.zeros(50, 40, dtype=dtype), 0.2, rank) for rank in range(3)]
        segments = segments_of([2000], [block_length(inputs[0])])
        expected = reference.union_mean([values.flatten() for values in inputs], segments)
        for result in ranks.run(3, reduce_own, inputs, "union"):
            assert torch.equal(result.flatten(), expected)


def reduce_own(inputs: list[Tensor], plan: str) -> Tensor:
    return reduce_given([inputs[dist.get_rank()]], plan=plan)[0]


def kinds(calls: list[tuple[str, str, int]]) -> list[tuple[str, str]]:
    """Collectives without their order, which is that of each lane, and without their length: all
    ranks know that of an all-to-all's pieces, and it differs."""
    return sorted((name, dtype) for name, dtype, _ in calls)


# ------------------------------------------------------------------------------------------------
# Zeros
# ------------------------------------------------------------------------------------------------


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("plan", PLANS)
def test_negative_zeros_are_the_same_on_all_ranks(
    ranks: Ranks, plan: str, dtype: torch.dtype
) -> None:
    plus = torch.zeros(512, 16, dtype=dtype)
    minus = -plus
    minus[:5] = torch.tensor(3.0)  # rank 0 has live blocks, and signs in dead and in live ones
    minus[:5, 1] = -0.0
    for result in ranks.run(2, reduce_own, [minus, plus], plan):  # asserts the sameness itself
        assert torch.equal(result[:5, 0], torch.full((5,), 1.5, dtype=dtype))
        assert not result[5:].any()
        if plan == "union":
            assert not bits(result[5:]).any()


def zeros_on_some_ranks(silent: str, plan: str) -> tuple[list[tuple[str, str, int]], bool]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    like = torch.zeros(512, 16)
    ddp = DistributedDataParallel(Given(like.clone(), like.clone()), bucket_cap_mb=0.03)
    s2reducer.register(ddp, plan=plan)
    exact = True
    with recorded_collectives() as calls:
        for step in range(6):
            quiet = {"one": rank == 0, "all": True, "turns": rank == step % world_size}[silent]
            density = 0.0 if quiet else 0.1
            ddp.zero_grad()
            ddp({i: exact_gradient(like, density, step, i, rank) for i in range(2)}).backward()
            densities = [
                {"one": other == 0, "all": True, "turns": other == step % world_size}[silent]
                for other in range(world_size)
            ]
            for index, parameter in enumerate(ddp.parameters()):
                everyone = [
                    exact_gradient(like, 0.0 if none else 0.1, step, index, other)
                    for other, none in enumerate(densities)
                ]
                exact &= torch.equal(parameter.grad, reference.mean(everyone))
    return calls, exact


@pytest.mark.parametrize("silent", ["one", "all", "turns"])
@pytest.mark.parametrize("plan", ["union", "auto"])
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_without_any_gradient(ranks: Ranks, count: int, plan: str, silent: str) -> None:
    results = ranks.run(count, zeros_on_some_ranks, silent, plan)
    assert all(exact for _, exact in results)
    assert all(kinds(calls) == kinds(results[0][0]) for calls, _ in results)


def train_small_table() -> bool:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(torch.nn.Embedding(512, 16))
    start = ddp.module.weight.detach().clone()
    s2reducer.register(ddp, plan="union")
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        words = torch.randint(128, (40,), generator=generator)
        ddp(words).square().sum().backward()
        assert not bits(ddp.module.weight.grad[128:]).any()
        optimizer.step()
    return torch.equal(ddp.module.weight[128:], start[128:])


def test_rows_that_nobody_uses_never_move(ranks: Ranks) -> None:
    assert all(ranks.run(2, train_small_table))


# ------------------------------------------------------------------------------------------------
# NaN, Inf, overflow
# ------------------------------------------------------------------------------------------------


def non_finite_steps(plan: str) -> list[list[Tensor]]:
    """Three steps, the second with NaN and infinities, under DDP without and with the hook."""
    rank = dist.get_rank()
    models = [DistributedDataParallel(Given(torch.zeros(256, 16))) for _ in range(2)]
    s2reducer.register(models[1], plan=plan)
    results: list[list[Tensor]] = [[], []]
    for step in range(3):
        gradient = exact_gradient(torch.zeros(256, 16), 0.05, step, rank)
        if step == 1 and rank == 0:
            gradient[0, 7] = -math.inf
            gradient[9, 0] = math.nan
        if step == 1 and rank == 1:
            gradient[0, 7] = math.inf
            gradient[200, 3] = math.inf
        for model, result in zip(models, results, strict=True):
            model.zero_grad()
            model({0: gradient}).backward()
            result.append(next(model.parameters()).grad.clone())
    return results


@pytest.mark.parametrize("plan", PLANS)
def test_nan_and_inf_arrive_where_ddp_brings_them(ranks: Ranks, plan: str) -> None:
    for plain, hooked in ranks.run(2, non_finite_steps, plan):
        assert plain[1].isnan().sum() == 2 and plain[1].isinf().sum() == 1
        for expected, got in zip(plain, hooked, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


HUGE = {torch.float32: 3e38, torch.float16: 30000.0, torch.bfloat16: 3e38, torch.float64: 1.7e308}


@pytest.mark.parametrize("dtype", HUGE)
@pytest.mark.parametrize("plan", PLANS)
def test_a_mean_does_not_overflow_where_its_values_do_not(
    ranks: Ranks, plan: str, dtype: torch.dtype
) -> None:
    values = torch.zeros(256, 64, dtype=dtype)
    values[::10] = HUGE[dtype]
    for result in ranks.run(4, reduce_own, [values] * 4, plan):
        assert torch.equal(result, values)


def test_half_types_are_summed_in_float32(ranks: Ranks) -> None:
    # In bfloat16 arithmetic each addition of 1 to 256 is lost, and so are all of them.
    inputs = [torch.full((300, 64), value, dtype=torch.bfloat16) for value in (1024, 4, 4, 4)]
    for result in ranks.run(4, reduce_own, inputs, "union"):
        assert torch.equal(result, torch.full((300, 64), 259, dtype=torch.bfloat16))


# ------------------------------------------------------------------------------------------------
# Densities, bytes, collectives
# ------------------------------------------------------------------------------------------------


def reduce_at_densities(
    densities: list[list[float]], plan: str, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """A step for each entry, which has a density for every rank."""
    rank, like = dist.get_rank(), torch.zeros(1024, 16, dtype=dtype)
    ddp = DistributedDataParallel(Given(like.clone(), like.clone()), bucket_cap_mb=0.05)
    state = s2reducer.register(ddp, plan=plan)
    plans = []
    with recorded_collectives() as calls:
        for step, of_ranks in enumerate(densities):
            ddp.zero_grad()
            gradients = {i: exact_gradient(like, of_ranks[rank], step, i, rank) for i in (0, 1)}
            ddp(gradients).backward()
            everyone = [
                exact_gradient(like, density, step, 0, other)
                for other, density in enumerate(of_ranks)
            ]
            assert torch.equal(ddp.module.p[0].grad, reference.mean(everyone))
            plans.append([record.plan for record in state.report().parameters])
    return {"calls": calls, "plans": plans, "report": state.report().as_dict()}


@pytest.mark.parametrize("plan", ["union", "auto"])
def test_ranks_of_different_density_choose_alike(ranks: Ranks, plan: str) -> None:
    densities = [[0.01, 0.9], [0.02, 0.03], [0.499, 0.501], [0.0, 1.0], [1.0, 1.0], [0.03, 0.02]]
    results = ranks.run(2, reduce_at_densities, densities, plan)
    assert kinds(results[0]["calls"]) == kinds(results[1]["calls"])
    assert results[0]["plans"] == results[1]["plans"]
    if plan == "auto":
        names = {name for step in results[0]["plans"] for name in step}
        assert "dense" in names and names & {"owner", "gather"}
        assert "dense" not in results[0]["plans"][-1]  # and back again


@pytest.mark.parametrize("density", [0.05, 0.25, 0.6, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_auto_sends_no_more_than_dense_and_a_bitmap(
    ranks: Ranks, dtype: torch.dtype, density: float
) -> None:
    # bfloat16 travels as float32: more than half of its blocks are more bytes than all of it.
    result = ranks.run(4, reduce_at_densities, [[density] * 4] * 4, "auto", dtype)[0]
    report = result["report"]
    bitmaps = 4 * 3 * (2048 // 8 + 2 * 64)  # with the headers of two buckets
    settings = 3 * RECORD_NBYTES
    assert report["bytes_dense"] == 4 * 2 * 3 * 2048 * 16 * dtype.itemsize // 4
    assert report["bytes_sent"] <= report["bytes_dense"] + bitmaps + settings


def test_one_rank_talks_to_nobody(ranks: Ranks) -> None:
    for plan in PLANS:
        assert ranks.run(1, reduce_at_densities, [[0.1], [1.0]], plan)[0]["calls"] == []


def live_rows(index: int, rank: int) -> set[int]:
    gradient = exact_gradient(torch.zeros(1024, 16), 0.1, 0, index, rank)
    return set(gradient.any(1).nonzero()[:, 0].tolist())


def test_the_bytes_of_a_union_follow_its_formula(ranks: Ranks) -> None:
    own = [live_rows(index, 0) for index in (0, 1)]
    union = [live_rows(index, 0) | live_rows(index, 1) for index in (0, 1)]
    report = ranks.run(2, reduce_at_densities, [[0.1] * 2], "union")[0]["report"]
    settings, header, bitmaps = RECORD_NBYTES, 128, 2048 // 8
    assert report["bytes_sent"] == (
        settings + header + header + bitmaps + sum(map(len, union)) * 16 * 4
    )
    for entry, mine, ours in zip(report["parameters"], own, union, strict=True):
        assert entry["density"] == len(mine) / 1024
        assert entry["union_density"] == len(ours) / 1024


def count_collectives_of_small_buckets(plan: str) -> int:
    ddp = DistributedDataParallel(
        Given(*(torch.ones(64) for _ in range(200)), torch.ones(())), bucket_cap_mb=0.001
    )
    s2reducer.register(ddp, plan=plan)
    for step in range(3):
        with recorded_collectives() as calls:
            ddp.zero_grad()
            ddp({i: torch.full_like(p, 2.0) for i, p in enumerate(ddp.module.p)}).backward()
        assert all(p.grad.eq(2).all() for p in ddp.parameters()), step
    return len(calls)


def test_small_buckets_take_one_collective_each(ranks: Ranks) -> None:
    auto = ranks.run(2, count_collectives_of_small_buckets, "auto")[0]
    dense = ranks.run(2, count_collectives_of_small_buckets, "dense")[0]
    union = ranks.run(2, count_collectives_of_small_buckets, "union")[0]
    assert 40 <= auto == dense and union == 3 * auto  # header, union of bitmaps, values
    assert FLOOR_NBYTES > 1024


# ------------------------------------------------------------------------------------------------
# What else must not change
# ------------------------------------------------------------------------------------------------


def run_twice(plan: str) -> bool:
    results = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(dist.get_rank())
        gradients = [torch.randn(500, 24, generator=generator) for _ in range(3)]
        for gradient in gradients:
            gradient[torch.rand(500, generator=generator) < 0.8] = 0
        results.append(reduce_given(gradients, steps=3, plan=plan))
    return all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_two_runs_have_the_same_bits(ranks: Ranks, plan: str) -> None:
    assert all(ranks.run(4, run_twice, plan))


def draw_beside_the_hook(seed: int) -> list[bool]:
    """Whether the global generators of torch and Python are where they were."""
    torch.manual_seed(1234 + seed * dist.get_rank())
    random.seed(seed * dist.get_rank())
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    reduce_given([exact_gradient(torch.zeros(500, 40), 0.1, dist.get_rank())], steps=3, seed=7)
    return [torch.equal(torch_state, torch.get_rng_state()), python_state == random.getstate()]


def test_global_generators_are_left_alone(ranks: Ranks) -> None:
    assert ranks.run(2, draw_beside_the_hook, 1) == [[True, True]] * 2


def poisoned_scratch() -> bool:
    """Whether results stay right when fresh memory is full of NaN, and freed memory is reused."""
    like = torch.zeros(512, 40)
    ddp = DistributedDataParallel(Given(*[like.clone() for _ in range(4)]), bucket_cap_mb=0.05)
    kept: list[Tensor] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future = s2reducer.s2_hook(state, bucket)
        # Something of every size that the plan may have freed while a collective reads it.
        kept.extend(torch.full((numel,), math.nan) for numel in range(40, 8000, 40))
        return future

    ddp.register_comm_hook(s2reducer.S2State(plan="union"), hook)
    torch.use_deterministic_algorithms(True)  # torch.empty() then gives NaN
    assert deterministic.fill_uninitialized_memory
    try:
        right = True
        for step in range(3):
            everyone = [
                [exact_gradient(like, 0.1, step, index, rank) for index in range(4)]
                for rank in range(dist.get_world_size())
            ]
            ddp.zero_grad()
            ddp(dict(enumerate(everyone[dist.get_rank()]))).backward()
            for parameter, *values in zip(ddp.module.p, *everyone, strict=True):
                right &= torch.equal(parameter.grad, reference.mean(values))
            kept.clear()
    finally:
        torch.use_deterministic_algorithms(False)
    return right


def test_no_scratch_is_read_before_it_is_written_or_after_it_is_freed(ranks: Ranks) -> None:
    assert all(ranks.run(2, poisoned_scratch))
