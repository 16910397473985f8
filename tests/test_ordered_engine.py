# SPDX-License-Identifier: MIT
"""The engine for NCCL over gloo, which is made to refuse what NCCL lacks: results, order, waits."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import PLANS, Record, assert_alike, make_pair, nccl_like, slow_link, steps_of
from pairs import FLAGS, MODELS, STEPS, given, make_tables
from ranks import SKETCH, Given, Ranks, cases
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


def train(model: str, plan: str, flags: dict[str, Any]) -> tuple[list[str], set[str], list[int]]:
    """The record, the plans, and how many buckets each step had."""
    nbuckets = []
    groups = len(dist.distributed_c10d._world.pg_map)
    with nccl_like() as record, slow_link():
        pair = make_pair(record, MODELS[model], {"plan": plan}, **flags)
        for step in range(STEPS):
            record.mark("step")
            before = len(pair.buckets)
            pair.step(given(pair.plain.module, step))
            nbuckets.append(len(pair.buckets) - before)
            pair.assert_equal()
        pair.assert_trained()
    assert len(dist.distributed_c10d._world.pg_map) == groups
    return record.events, set(pair.state.report().as_dict()["plans"]), nbuckets


def check_training(results: list[Any], plan: str, count: int) -> None:
    assert_alike([events for events, *_ in results])
    for events, plans, nbuckets in results:
        if count == 1:
            assert plans == {"none"} and "read" not in events
            continue
        chosen = {"gather", "owner", "union", "dense"} if plan == "auto" else {plan}
        assert plans <= chosen and plans != {"dense"}
        for step, n in zip(steps_of(Record(events)), nbuckets, strict=True):
            assert step.count("read") == n or (plan == "auto" and step.count("read") < n)


@pytest.mark.parametrize("flags", cases([*FLAGS], "static_graph", "both"))
@pytest.mark.parametrize("count", cases([1, 2, 3, 4], 2))
def test_every_flag(ranks: Ranks, count: int, flags: str) -> None:
    check_training(ranks.run(count, train, "tables", "owner", FLAGS[flags]), "owner", count)


OTHERS = [("tables", plan) for plan in PLANS] + [("dtypes", "auto"), ("layouts", "owner")]
OTHERS += [("dtypes", plan) for plan in ("owner", "gather", "union")]


@pytest.mark.parametrize(("model", "plan"), cases(OTHERS, *OTHERS[:3]))
@pytest.mark.parametrize("count", cases([1, 2, 3, 4], 2))
def test_every_plan_and_dtype(ranks: Ranks, count: int, model: str, plan: str) -> None:
    check_training(ranks.run(count, train, model, plan, {}), plan, count)


# ------------------------------------------------------------------------------------------------
# Order
# ------------------------------------------------------------------------------------------------


def shape_of(step: list[str]) -> list[str]:
    """For each call of the hook: "I" for an index's all-gather, "R" for a wait, "V" for values."""
    calls: list[str] = []
    for event in step:
        if event == "hook":
            calls.append("")
        elif event == "read":
            calls[-1] += "R"
        elif event.startswith("all_to_all"):
            calls[-1] += "V"  # rows to their owners, which then go to all
        elif event.startswith("all_gather") and "uint8" in event:
            calls[-1] += "I"
    return calls


@pytest.mark.parametrize("flags", ["default", "static_graph"])
def test_a_bucket_is_open_until_the_next_ones_index(ranks: Ranks, flags: str) -> None:
    (events, _, nbuckets), *_ = ranks.run(2, train, "tables", "owner", FLAGS[flags])
    shapes = [shape_of(step) for step in steps_of(Record(events))]
    rebuilt = 2 if flags == "static_graph" else 1  # the step whose buckets are new
    for step, (shape, n) in enumerate(zip(shapes, nbuckets, strict=True)):
        if step in (0, rebuilt):
            # New buckets, which are compared beforehand, are finished in their own calls; in the
            # first step ranks compare their settings.
            assert [call.lstrip("I") for call in shape] == ["RV"] * n, (step, shape)
        elif n == 1:
            assert shape == ["IRV"]
        else:
            assert n >= 4
            assert shape == ["I", *["IRV"] * (n - 2), "IRVRV"], (step, shape)


def complete_in_callback(flags: dict[str, Any], nparameters: int) -> list[list[str]]:
    """A hook whose futures are done by a callback that it has queued on the autograd engine."""
    ddp = DistributedDataParallel(
        Given(*(torch.zeros(2000) for _ in range(nparameters))), bucket_cap_mb=0.004, **flags
    )
    events: list[str] = []
    waiting: list[tuple[torch.futures.Future[Tensor], Tensor]] = []

    def complete() -> None:
        events.append("callback")
        while waiting:
            future, tensor = waiting.pop()
            future.set_result(tensor * 2)

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        events.append("hook")
        if step == 0:  # under static_graph DDP's own callback calls the hook
            future.set_result(bucket.buffer() * 2)
            return future
        if not waiting:
            torch.autograd.Variable._execution_engine.queue_callback(complete)
        waiting.append((future, bucket.buffer()))
        return future

    ddp.register_comm_hook(None, hook)
    result = []
    for step in range(4):  # noqa: B007  (the hook reads it)
        events.clear()
        ddp.zero_grad()
        gradients = {i: torch.full((2000,), float(i + 1)) for i in range(nparameters)}
        ddp(gradients).backward()
        for i, parameter in enumerate(ddp.parameters()):
            assert torch.equal(parameter.grad, torch.full((2000,), 2.0 * (i + 1)))
        result.append(list(events))
    return result


@pytest.mark.parametrize("nparameters", cases([1, 5], 5))
@pytest.mark.parametrize("flags", cases([*FLAGS], "default", "both"))
def test_a_callback_comes_before_ddp_waits(ranks: Ranks, flags: str, nparameters: int) -> None:
    """That a queued callback may finish buckets at all; else DDP would wait for ever."""
    for steps in ranks.run(2, complete_in_callback, FLAGS[flags], nparameters):
        for step in steps[1:]:
            assert step == ["hook"] * (len(step) - 1) + ["callback"]
        assert len(steps[-1]) - 1 == nparameters


def use_some(skip: bool, plan: str) -> list[str]:
    """Other ranks leave out tables 1 and 2, which rank 0 uses; nobody uses 4.

    Or nobody uses those, and 0 in every other step: so that the last bucket does not come although
    the one before it is open.
    """
    with nccl_like() as record:
        pair = make_pair(
            record,
            make_tables,
            {"plan": plan},
            find_unused_parameters=True,
            skip_all_reduce_unused_params=skip,
        )
        for step in range(STEPS):
            record.mark("step")
            only = {0, 3, 5, 6, 7} if skip or dist.get_rank() else {0, 1, 2, 3, 5, 6, 7}
            only -= {0} if skip and step % 2 else set()
            pair.step(given(pair.plain.module, step, only=only))
            pair.assert_equal()
    return record.events


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("count", cases([2, 3], 2))
@pytest.mark.parametrize("plan", ["owner", SKETCH])
def test_buckets_that_are_left_out(ranks: Ranks, plan: str, count: int, skip: bool) -> None:
    results = ranks.run(count, use_some, skip, plan)
    assert_alike(results)
    after = [
        step[len(step) - step[::-1].index("returned") :] for step in steps_of(Record(results[0]))
    ]
    # Where the last bucket is left out, the one before is finished by the callback.
    assert any("read" in rest for rest in after) == skip


def join_unevenly(plan: str) -> list[str]:
    """Ranks with 2, 4 and 6 batches; those that are done follow the others with zeros."""
    with nccl_like() as record:
        pair = make_pair(record, make_tables, {"plan": plan})
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
    return [event for event in record.events if event not in ("hook", "returned")]


@pytest.mark.parametrize("plan", ["owner", SKETCH])
def test_uneven_inputs_with_join(ranks: Ranks, plan: str) -> None:
    """A rank that is done has its buckets outside of a backward pass, in the same order."""
    results = ranks.run(3, join_unevenly, plan)
    assert_alike(results)
    first = 2 if plan == "sketch" else 1  # of the one bucket of the first step
    assert results[0].count("read") == first + 4 * (STEPS - 1)


def accumulate(plan: str) -> list[str]:
    with nccl_like() as record:
        pair = make_pair(record, make_tables, {"plan": plan})
        for step in range(STEPS):
            calls = len(pair.buckets)
            pair.step(given(pair.plain.module, 10 * step, 0.1), sync=False)
            assert len(pair.buckets) == calls
            pair.step(given(pair.plain.module, 10 * step + 1, 0.1), zero_grad=False)
            pair.assert_equal()
        pair.assert_trained()
    return record.events


@pytest.mark.parametrize("plan", ["owner", SKETCH])
def test_no_sync_accumulates(ranks: Ranks, plan: str) -> None:
    assert_alike(ranks.run(2, accumulate, plan))
