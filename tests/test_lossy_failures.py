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
