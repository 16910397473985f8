# SPDX-License-Identifier: MIT
"""A training under DDP on one device over NCCL, with the hook and without: the same bits.

NCCL takes no two ranks on one device, and one rank sends nothing.  So the hook is made to work as
if there were more, and goes all of its way over NCCL, with itself as the only peer.  On the CPU the
same goes over gloo, by the wrapper that has it behave like NCCL.
"""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import nccl_like
from ranks import cases
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import sender

STEPS = 8
NROWS, WIDTH = 3000, 32
PLANS = cases(["owner", "gather", "union", "auto"], "owner")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


class Model(nn.Module):
    """Two tables, of which a batch needs few rows, and layers that are dense."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(NROWS, WIDTH)
        self.tags = nn.Embedding(NROWS, WIDTH, sparse=sparse)
        self.layers = nn.Sequential(nn.Linear(WIDTH, 128), nn.Tanh(), nn.Linear(128, 16))

    def forward(self, numbers: Tensor) -> Tensor:
        return self.layers(self.words(numbers) + self.tags(numbers.flip(0)))


def batch(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows that come twice, so that their sum is rounded once in whatever way it is made."""
    random = torch.Generator().manual_seed(step)
    numbers = torch.randperm(NROWS, generator=random)[:100].repeat(2)
    return numbers.to(device), torch.randn(200, 16, generator=random).to(device)


class Training:
    """Under DDP, which refuses COO gradients over NCCL without a hook: there the model is alone."""

    def __init__(self, device: torch.device, sparse: bool, settings: dict[str, Any] | None) -> None:
        torch.manual_seed(1)
        self.device = device
        self.model: nn.Module = Model(sparse).to(device)
        self.state = None
        if settings is not None or not sparse:
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=0.05)
        if settings is not None:
            self.state = s2reducer.register(self.model, **settings)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def step(self, number: int) -> Tensor:
        numbers, target = batch(number, self.device)
        self.optimizer.zero_grad()
        loss = (self.model(numbers) - target).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
        self.optimizer.step()
        return loss.detach()

    def gradients(self) -> Iterator[Tensor]:
        for parameter in self.model.parameters():
            grad = parameter.grad
            assert grad is not None
            yield grad.to_dense() if grad.is_sparse else grad


def train(device: torch.device, sparse: bool, settings: dict[str, Any]) -> s2reducer.S2State:
    plain, hooked = Training(device, sparse, None), Training(device, sparse, settings)
    losses = []
    for number in range(STEPS):
        expected, loss = plain.step(number), hooked.step(number)
        assert torch.equal(loss, expected), f"the loss of step {number}"
        pairs = itertools.zip_longest(hooked.gradients(), plain.gradients())
        assert all(torch.equal(grad, wanted) for grad, wanted in pairs), f"step {number}"
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    both = zip(hooked.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(parameter, wanted) for parameter, wanted in both)
    assert hooked.state is not None and hooked.state.step == STEPS
    return hooked.state


@pytest.fixture
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[torch.device]:
    """A process group of one rank; the device that goes with it."""
    device = torch.device(request.param)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(tmp_path / "store"), 1),
        rank=0,
        world_size=1,
    )
    yield device
    dist.destroy_process_group()


@pytest.mark.usefixtures("on_one_thread")
@pytest.mark.parametrize("group", DEVICES, indirect=True)
def test_one_rank_as_it_is(group: torch.device) -> None:
    plans = train(group, True, {}).report().as_dict()["plans"]
    assert set(plans) == {"none"}


@pytest.mark.usefixtures("on_one_thread")
@pytest.mark.parametrize("group", DEVICES, indirect=True)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense tables", "sparse tables"])
@pytest.mark.parametrize("plan", PLANS)
def test_as_if_there_were_more(
    group: torch.device, plan: str, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = sender._dense_reason

    def reason(*arguments: Any) -> str | None:
        found = original(*arguments)
        return None if found == "one rank" else found

    monkeypatch.setattr(sender, "_dense_reason", reason)
    with nullcontext() if group.type == "cuda" else nccl_like():
        plans = train(group, sparse, {"plan": plan}).report().as_dict()["plans"]
    assert set(plans) <= ({"dense", "gather", "owner", "union"} if plan == "auto" else {plan})
