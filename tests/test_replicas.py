# SPDX-License-Identifier: MIT
"""``check_every``: ranks whose results differ say so, and which parameter it was."""

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, recorded_collectives
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import stages


def train(steps: int, plan: str, every: int, spoiled: int | None) -> tuple[str, int]:
    """The error, if there is one, and the step in which it came."""
    ddp = DistributedDataParallel(
        Given(torch.zeros(800, 16), torch.zeros(900, 16), torch.zeros(3)), bucket_cap_mb=0.04
    )
    state = s2reducer.register(ddp, plan=plan, check_every=every)
    original = stages.reduce_owner

    def spoil(buffer: Tensor, *arguments: object) -> None:
        original(buffer, *arguments)
        if state.step == spoiled and dist.get_rank() == 1 and buffer.numel() == 800 * 16:
            buffer[5] += 1e-3  # of the first table

    stages.reduce_owner = spoil
    try:
        for step in range(1, steps + 1):
            gradient = torch.zeros(800, 16)
            gradient[:10] = 1.0
            ddp.zero_grad()
            try:
                ddp({0: gradient, 1: torch.ones(900, 16), 2: torch.ones(3)}).backward()
            except s2reducer.S2Error as error:
                return str(error), step
            except RuntimeError as error:
                return str(error), step
        return "", steps
    finally:
        stages.reduce_owner = original


def test_a_replica_that_parts_is_named_in_the_next_step(ranks: Ranks) -> None:
    for text, step in ranks.run(3, train, 6, "owner", 1, 3):
        assert step == 4
        assert "after step 3 the reduced gradients of parameter p.0 must be the same" in text
        assert "on rank 0" in text and "on rank 1" in text and "on rank 2" in text


def test_only_every_so_many_steps_are_checked(ranks: Ranks) -> None:
    assert [text for text, _ in ranks.run(2, train, 6, "owner", 2, 3)] == ["", ""]
    for text, step in ranks.run(2, train, 6, "owner", 2, 4):
        assert step == 5 and "after step 4" in text


@pytest.mark.parametrize("plan", ["auto", "dense", "union", "gather"])
def test_equal_replicas_pass(ranks: Ranks, plan: str) -> None:
    assert ranks.run(3, train, 5, plan, 1, None) == [("", 5)] * 3


def count(every: int) -> list[tuple[str, str, int]]:
    ddp = DistributedDataParallel(Given(torch.zeros(900, 16), torch.zeros(3)))
    s2reducer.register(ddp, plan="dense", check_every=every)
    for _ in range(4):
        with recorded_collectives() as calls:
            ddp.zero_grad()
            ddp({0: torch.ones(900, 16), 1: torch.ones(3)}).backward()
    return calls


def test_it_takes_one_small_collective_and_none_without(ranks: Ranks) -> None:
    without, checked = (ranks.run(2, count, every)[0] for every in (0, 3))
    extra = [call for call in checked if call not in without]
    assert len(checked) == len(without) + 1
    assert [(dtype, length) for _, dtype, length in extra] == [("torch.uint8", 2 * 8)]


def train_sparse() -> str:
    embedding = nn.Embedding(500, 8, sparse=True)
    ddp = DistributedDataParallel(embedding)
    state = s2reducer.register(ddp, check_every=1)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.arange(7) + dist.get_rank()).sum().backward()
    checksums = state._replicas._sums[0]
    # The last step's checksums wait for the next step: they are spoiled here.
    state._replicas._sums[0] = [(name, value + dist.get_rank()) for name, value in checksums]
    with pytest.raises(s2reducer.S2Error) as raised:
        ddp(torch.arange(7)).sum().backward()
    return str(raised.value)


def test_sparse_gradients_are_checked_too(ranks: Ranks) -> None:
    for text in ranks.run(2, train_sparse):
        assert "after step 3 the reduced gradients of parameter weight" in text
