# SPDX-License-Identifier: MIT
"""Gradients against those of DDP without a hook, over every flag of DDP, bit by bit.

The gradients are such that every sum and mean is exact, so that no order of summation shows;
test_hook_models.py has those that are rounded.
"""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import FLAGS, MODELS, STEPS, Pair, given, make_tables
from ranks import EXACT_UNIT, Given, Ranks, cases, world_sizes
from torch import Tensor


def train(model: str, plan: str, flags: dict[str, Any]) -> dict[str, Any]:
    pair = Pair(MODELS[model], {"plan": plan}, **flags)
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step))
        pair.assert_equal()
    pair.assert_trained()
    last = pair.last_buckets()
    numels = [numel for _, _, numel, _ in last]
    report = pair.state.report().as_dict()
    return {
        "layouts": len({bucket[1] for bucket in pair.buckets}) - len(last),
        "equal numels": len(numels) > len(set(numels)),
        "dtypes": {dtype for *_, dtype in last},
        "contiguous": [parameter.is_contiguous() for parameter in pair.hooked.module.p],
        "plans": set(report["plans"]),
        "sent": report["bytes_sent"] / max(report["bytes_dense"], 1),
    }


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4, fast=2))
def test_every_flag(ranks: Ranks, count: int, model: str, flags: str) -> None:
    for result in ranks.run(count, train, model, "union", FLAGS[flags]):
        assert result["plans"] == ({"union"} if count > 1 else {"none"})
        assert result["sent"] < (2.0 if model == "dtypes" else 1.0)  # half types go as float32
        # DDP rebuilds its buckets, but for find_unused_parameters: then other layouts were seen.
        assert (result["layouts"] > 0) == (flags != "find_unused_parameters")
        # What makes each model worth the while.
        assert result["equal numels"] or model == "layouts"
        assert len(result["dtypes"]) == (4 if model == "dtypes" else 1)
        assert result["contiguous"].count(False) == (6 if model == "layouts" else 0)


OTHER_PLANS = [(model, "auto") for model in MODELS]
OTHER_PLANS += [("tables", plan) for plan in ("owner", "gather", "dense")]
OTHER_PLANS += [
    pytest.param(model, "sketch", marks=pytest.mark.slow) for model in ("tables", "layouts")
]


@pytest.mark.parametrize(("model", "plan"), OTHER_PLANS)
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4, fast=2))
def test_other_plans(ranks: Ranks, count: int, model: str, plan: str) -> None:
    for result in ranks.run(count, train, model, plan, {}):
        chosen = {"gather", "owner", "union", "dense"} if plan == "auto" else {plan}
        assert result["plans"] <= (chosen if count > 1 else {"none"})
        assert result["plans"] != {"dense"} or plan == "dense"


def accumulate(flags: dict[str, Any]) -> None:
    for make in MODELS.values():
        pair = Pair(make, {"plan": "union"}, **flags)
        for step in range(STEPS):
            model = pair.plain.module
            calls = len(pair.buckets)
            pair.step(given(model, 10 * step, 0.1), sync=False)
            assert len(pair.buckets) == calls
            pair.step(given(model, 10 * step + 1, 0.1), zero_grad=False)
            pair.assert_equal()
        pair.assert_trained()


@pytest.mark.parametrize("flags", ["default", "gradient_as_bucket_view"])
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4, fast=2))
def test_no_sync_accumulates(ranks: Ranks, count: int, flags: str) -> None:
    ranks.run(count, accumulate, FLAGS[flags])


def use_some(skip: bool) -> None:
    """Other ranks leave out tables 1 and 2, which rank 0 uses; nobody uses 4."""
    pair = Pair(
        make_tables,
        {"plan": "union"},
        find_unused_parameters=True,
        skip_all_reduce_unused_params=skip,
    )
    only = {0, 3, 5, 6, 7} if skip or dist.get_rank() else {0, 1, 2, 3, 5, 6, 7}
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step, only=only))
        pair.assert_equal()
        assert pair.hooked.module.p[4].grad is None
        assert skip or pair.hooked.module.p[1].grad is not None
    pair.assert_trained()


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4))
def test_unused_parameters(ranks: Ranks, count: int, skip: bool) -> None:
    ranks.run(count, use_some, skip)


SIZES = (1, 7, 8, 9, 31, 33, 63, 64, 65, 127, 10_007)


def make_sizes() -> Given:
    shaped = [torch.ones(()), torch.ones(1), torch.ones(0, 3), torch.ones(5, 3), torch.ones(3, 9)]
    return Given(*(torch.ones(size) for size in SIZES), *shaped, torch.ones(0).double())


def send_last_elements(block: int | None) -> None:
    pair = Pair(make_sizes, {"plan": "union", "block": block}, bucket_cap_mb=0.0005)
    for step in range(STEPS):
        gradients = {}
        for index, parameter in enumerate(pair.plain.module.p):
            gradients[index] = torch.zeros_like(parameter)
            if parameter.numel() and dist.get_rank() == step % dist.get_world_size():
                gradients[index].view(-1)[-1] = EXACT_UNIT * (index + 1)
        pair.step(gradients)
        pair.assert_equal()
    pair.assert_trained()


@pytest.mark.parametrize("block", cases([None, 1, 3, 100], None, 3))
@pytest.mark.parametrize("count", world_sizes(1, 2, 3, 4))
def test_sizes_that_divide_by_nothing(ranks: Ranks, count: int, block: int | None) -> None:
    ranks.run(count, send_last_elements, block)


def train_in_subgroups(members: list[list[int]]) -> list[bytes]:
    """The bits of the last step's gradients; none on a rank that is no member."""
    groups = [dist.new_group(part) for part in members]
    bits: list[bytes] = []
    for group, part in zip(groups, members, strict=True):
        if dist.get_rank() in part:
            pair = Pair(make_tables, {"plan": "union"}, process_group=group)
            for step in range(STEPS):
                pair.step(given(pair.plain.module, step))
                for plain, hooked in pair.gradients():
                    assert torch.equal(plain, hooked)
            pair.assert_trained()
            bits = [hooked.numpy().tobytes() for _, hooked in pair.gradients()]
    return bits


@pytest.mark.parametrize("members", [[[0, 1], [2, 3]], [[1, 3]], [[3, 0, 2]]])
def test_groups_that_are_not_the_default_one(ranks: Ranks, members: list[list[int]]) -> None:
    bits = ranks.run(4, train_in_subgroups, members)
    for part in members:
        assert all(len(bits[rank]) == 8 and bits[rank] == bits[part[0]] for rank in part)


def join_unevenly() -> None:
    """Ranks with 2, 4 and 6 batches; those that are done follow the others with zeros."""
    pair = Pair(make_tables, {"plan": "union"})
    grads: dict[str, list[Tensor]] = {}
    for name, model in (("plain", pair.plain), ("hooked", pair.hooked)):
        grads[name] = []
        with model.join():
            for step in range((2, 4, STEPS)[dist.get_rank()]):
                model.zero_grad()
                model(given(pair.plain.module, step)).backward()
                grads[name] += [parameter.grad.clone() for parameter in model.parameters()]
    assert all(map(torch.equal, grads["plain"], grads["hooked"]))
    pair.assert_trained()


def test_uneven_inputs_with_join(ranks: Ranks) -> None:
    ranks.run(3, join_unevenly)
