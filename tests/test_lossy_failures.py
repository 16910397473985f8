# SPDX-License-Identifier: MIT
"""Lossy modes where ranks differ, steps are skipped, peers die, and states do not fit."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer


def one_row_on_one_rank(plan: str, last: int) -> tuple[Tensor, Tensor]:
    """The mean where rank ``last`` has one row and the others none, and what this rank owes."""
    ddp = DistributedDataParallel(Given(torch.zeros(64, 64)))
    state = s2reducer.register(ddp, plan=plan, wire="bf16")
    own = torch.zeros(64, 64)
    if dist.get_rank() == last:
        own[7] = dist.get_world_size() * (1.0 + 2.0**-10)
    ddp({0: own}).backward()
    (parameter,) = ddp.parameters()
    assert_same_on_all_ranks([parameter.grad])
    residual = state.residual(parameter)
    return parameter.grad, torch.zeros(64) if residual is None else residual.rows.sum(0)


@pytest.mark.parametrize("plan", ["owner", "gather", "union", "dense"])
def test_ranks_without_live_blocks_have_nothing_to_round(ranks: Ranks, plan: str) -> None:
    wanted = torch.zeros(64, 64)
    wanted[7] = 1.0
    for last in (0, 2):
        results = ranks.run(3, one_row_on_one_rank, plan, last)
        assert all(torch.equal(mean, wanted) for mean, _ in results)
        assert torch.equal(sum(owed for _, owed in results), torch.full((64,), 3 * 2.0**-10))


def go_on_after(bad: float, rank_of_live: int, settings: dict[str, Any], skip: bool) -> str:
    """The error of the step that comes after one which was not finite, or where it was not.

    The first bucket is finite in any case; only one rank has anything, in the second.
    """
    ddp = DistributedDataParallel(
        Given(torch.zeros(64, 64), torch.zeros(64, 64)), bucket_cap_mb=0.001
    )
    s2reducer.register(ddp, **settings)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for step in range(3):
        own = torch.zeros(64, 64)
        if dist.get_rank() == rank_of_live:
            own[3] = 8.0
            own[3, 3] = bad if step == 0 else 8.0
        ddp.zero_grad()
        try:
            ddp({0: own, 1: torch.zeros(64, 64)}).backward()
        except RuntimeError as error:
            return f"step {step}: {error}"
        first = next(ddp.parameters())
        if not skip or first.grad.isfinite().all():
            optimizer.step()
    return "none"


OWING: dict[str, dict[str, Any]] = {
    "narrow": {"wire": "bf16"},
    "select": {"select": s2reducer.TopK(0.1)},
    "defer": {"plan": "sketch", "sketch": s2reducer.SketchConfig(on_overflow="defer")},
}


@pytest.mark.parametrize("name", OWING)
def test_all_ranks_miss_the_scaler_also_those_that_owe_nothing(ranks: Ranks, name: str) -> None:
    for error in ranks.run(2, go_on_after, math.inf, 1, OWING[name], True):
        assert error.startswith("step 1: ") and "give it as S2State(scaler=...)" in error


def test_a_step_that_was_not_skipped_needs_no_scaler(ranks: Ranks) -> None:
    """Whatever the bucket in which it was not finite."""
    assert ranks.run(2, go_on_after, math.nan, 1, OWING["select"], False) == ["none"] * 2
