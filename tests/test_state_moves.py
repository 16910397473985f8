# SPDX-License-Identifier: MIT
"""A state goes on in another module, with other flags of DDP, or is saved after an error."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, TopK, s2_hook
from s2reducer.config import Config
from s2reducer.residuals import Residuals
from s2reducer.saved import Resumption
from s2reducer.segments import new_record
from s2reducer.sketch_config import SketchConfig

SHAPE = (96, 64)
SELECT = TopK(0.1, least_numel=1)


def ddp_of(count: int, **flags: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Given(*(torch.zeros(SHAPE) for _ in range(count))), **flags)


def backward(ddp: DistributedDataParallel, factor: float) -> None:
    """Parameter n has gradients of the size of n + 1, other ones in each block."""
    ddp.zero_grad()
    each = 1.0 + torch.arange(96.0).unsqueeze(1).expand(SHAPE) / 96
    ddp({n: factor * (n + 1) * each for n in range(len(ddp.module.p))}).backward()


def owed(state: S2State, ddp: DistributedDataParallel) -> list[float]:
    """The sum of what each parameter owes."""
    residuals = [state.residual(parameter) for parameter in ddp.parameters()]
    return [0.0 if one is None else float(one.rows.double().sum()) for one in residuals]


def by_hand(flags: dict[str, Any]) -> tuple[list[float], list[float]]:
    """What four parameters of one shape owe, and after a step of zeros in another module."""
    found = []
    saved: dict[str, Any] = {}
    for kwargs in ({}, flags):
        ddp = ddp_of(4, **kwargs)
        state = S2State(select=SELECT)
        ddp.register_comm_hook(state, s2_hook)
        if saved:
            state.load_state_dict(saved)
        backward(ddp, 0.0 if saved else 1.0)
        found.append(owed(state, ddp))
        saved = state.state_dict()
    return found[0], found[1]


@pytest.mark.parametrize(
    "flags", [{"find_unused_parameters": True, "bucket_cap_mb": 0.05}, {"bucket_cap_mb": 0.01}]
)
def test_a_hook_registered_by_hand_goes_by_names(ranks: Ranks, flags: dict[str, Any]) -> None:
    """The first step's buckets come in another order, and the parameters have one shape."""
    for before, after in ranks.run(2, by_hand, flags):
        assert len(set(before)) == 4 and all(before)
        assert after == before


def pickled() -> tuple[list[float], list[float]]:
    first = ddp_of(3)
    state = s2reducer.register(first, select=SELECT)
    backward(first, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = pickle.loads(pickle.dumps(state))
    second = ddp_of(3)
    second.register_comm_hook(again, s2_hook)
    backward(second, 0.0)
    assert again.step == 2
    return owed(state, first), owed(again, second)


def test_what_register_made_can_be_pickled_and_registered_by_hand(ranks: Ranks) -> None:
    for before, after in ranks.run(2, pickled):
        assert all(before) and after == before


class Table(nn.Module):
    """A COO gradient beside a dense one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(5000, 16, sparse=True, mode="sum")
        self.head = nn.Linear(16, 64)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.head(self.table(rows)).sum()
        return result


def keys_of_a_table(way: str) -> list[dict[str, Any]]:
    """What is saved of the parameters, before the first step and after it."""
    ddp = DistributedDataParallel(Table())
    if way == "register":
        state = s2reducer.register(ddp, wire="bf16")
    else:
        state = S2State(wire="bf16")
        ddp.register_comm_hook(state, s2_hook)
    found = []
    for _ in range(2):
        saved = state.state_dict()["parameters"]
        found.append({one["name"]: len(one["owed"]) if "owed" in one else 0 for one in saved})
        ddp(torch.tensor([[1, 2 + dist.get_rank()]])).backward()
    return found


def test_nothing_of_a_tables_length_is_saved(ranks: Ranks) -> None:
    expected = {"table.weight": 0, "head.weight": 1024, "head.bias": 64}
    assert ranks.run(2, keys_of_a_table, "register") == [[expected, expected]] * 2
    for found in ranks.run(2, keys_of_a_table, "by hand"):
        assert found[0] == {}


def save_after_an_error() -> tuple[list[float], list[float], int]:
    """What is owed and saved before a step in which a peer is gone, and after it."""
    ddp = ddp_of(2)
    state = s2reducer.register(ddp, plan="owner", select=SELECT)
    for _ in range(3):
        backward(ddp, 1.0)
    before = copy.deepcopy(state.state_dict())
    if dist.get_rank() == 1:
        state._sender.give_up(RuntimeError("for this test"))
        return [], [], 3
    with pytest.raises(RuntimeError, match="step 4"):
        backward(ddp, 1.0)
    after = state.state_dict()
    sums = [[float(one["owed"].double().sum()) for one in s["parameters"]] for s in (before, after)]
    assert owed(state, ddp) == sums[1]
    return sums[0], sums[1], after["step"]


def test_after_an_error_what_was_there_before_is_saved(ranks: Ranks) -> None:
    (before, after, step), _ = ranks.run(2, save_after_an_error)
    assert all(before)
    assert after == before
    assert step == 3


@pytest.mark.parametrize("rows_are_exact", [False, True])
def test_rows_that_would_never_be_sent_are_dropped_with_a_warning(rows_are_exact: bool) -> None:
    """A sketch of rows owes some; over NCCL rows travel exactly."""
    config = Config(plan="sketch", sketch=SketchConfig(on_overflow="defer"))
    record = new_record(torch.empty(100, 8, device="meta"), "table")
    record.is_table = True
    debts = {"owed_blocks": torch.tensor([7]), "owed_rows": torch.ones(1, 8)}
    saved = {"name": "table", "shape": [100, 8], "unions": [], **debts}
    whole = {"format": 1, "step": 3, "rank": 0, "world_size": 2, "parameters": [saved]}
    residuals = Residuals()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Resumption(whole).give([record], residuals, (0, 2), config, rows_are_exact)
    assert (residuals.of(record) is None) == rows_are_exact
    assert ["what 1 parameters owed is dropped" in str(one.message) for one in told] == (
        [True] if rows_are_exact else []
    )
