# SPDX-License-Identifier: MIT
"""Gradients of two tables and two dense parameters, and their exact means, for the baselines."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import Given, assert_same_on_all_ranks, exact_gradient
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from baselines import make_method

WIDTH = 16
SHAPES = ((300, WIDTH), (7, 5), (130, WIDTH), (11,))
STEPS = 3


def densities_of(rank: int) -> float:
    """Rank 1 has no row at all; with four ranks, rank 3 has most of them."""
    return (0.1, 0.0, 0.05, 0.8, 0.2)[rank]


def given(rank: int, step: int) -> dict[int, Tensor]:
    """What each parameter's gradient is; of the tables (0 and 2) a share of the rows.

    Multiples of 5 as well, so that the means of five ranks are exact.
    """
    return {
        index: 5.0
        * exact_gradient(
            torch.empty(shape), densities_of(rank) if index % 2 == 0 else 1.0, step, index, rank
        )
        for index, shape in enumerate(SHAPES)
    }


def mean(world_size: int, step: int) -> list[Tensor]:
    """Exact in any arithmetic."""
    ranks = [given(rank, step) for rank in range(world_size)]
    return [sum(rank[index] for rank in ranks) / world_size for index in range(len(SHAPES))]


def live_rows(rank: int, step: int) -> list[Tensor]:
    gradients = given(rank, step)
    return [gradients[index].any(1).nonzero().view(-1) for index in (0, 2)]


def reduce_given(name: str, bucket_cap_mb: float = 25) -> tuple[int, list[int]]:
    """Some steps with a method, whose results must be the means.

    Gives the bytes that the last step sent, and the parameters' order in its last bucket, which DDP
    decides.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(
        Given(*(torch.zeros(shape) for shape in SHAPES)), bucket_cap_mb=bucket_cap_mb
    )
    method = make_method(name, [module.module.p[0], module.module.p[2]])
    sent, order = 0, []

    def record_order(state, bucket) -> torch.futures.Future[Tensor]:
        order[:] = [parameter.numel() for parameter in bucket.parameters()]
        return method.hook(state, bucket)

    module.register_comm_hook(method.state, record_order)
    for step in range(STEPS):
        module.zero_grad()
        before = method.nbytes
        module(given(rank, step)).backward()
        sent = method.nbytes - before
        gradients = [parameter.grad for parameter in module.module.p]
        for gradient, expected in zip(gradients, mean(world_size, step), strict=True):
            assert torch.equal(gradient, expected)
        assert_same_on_all_ranks(gradients)
    return sent, [[torch.Size(shape).numel() for shape in SHAPES].index(numel) for numel in order]
