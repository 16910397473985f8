# SPDX-License-Identifier: MIT
"""The state over time: steps, saving and copying, memory, what it keeps alive."""

import copy
import gc
import inspect
import pickle
import resource
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, exact_gradient
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, s2_hook
from s2reducer.engine import engine_of


def make_ddp(**flags: Any) -> DistributedDataParallel:
    """Two dtypes, so that there are several buckets from the first step on."""
    tables = [torch.zeros(256, 32, dtype=dtype) for dtype in (torch.float32, torch.float64) * 2]
    return DistributedDataParallel(Given(*tables), **{"bucket_cap_mb": 0.03} | flags)


def backward(ddp: DistributedDataParallel, step: int) -> list[Tensor]:
    rank = dist.get_rank()
    ddp.zero_grad()
    ddp({i: exact_gradient(p, 0.1, step, rank, i) for i, p in enumerate(ddp.module.p)}).backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()]


# ------------------------------------------------------------------------------------------------
# Steps
# ------------------------------------------------------------------------------------------------


def count_steps(flags: dict[str, Any]) -> tuple[list[int], set[tuple[int, bool]]]:
    ddp = make_ddp(**flags)
    state, first_step = S2State(), set()

    def hook(state: S2State, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future = s2_hook(state, bucket)
        if state.step == 1:
            first_step.add((bucket.index(), bucket.is_last()))
        return future

    ddp.register_comm_hook(state, hook)
    steps = []
    for step in range(5):
        backward(ddp, step)
        steps.append(state.step)
    return steps, first_step


@pytest.mark.parametrize("static", [False, True])
def test_every_backward_is_a_step(ranks: Ranks, static: bool) -> None:
    for steps, first_step in ranks.run(2, count_steps, {"static_graph": static}):
        assert steps == [1, 2, 3, 4, 5]
        # What makes is_last() useless: all buckets of the first step say that they are the first.
        assert (first_step == {(0, False)}) == static


# ------------------------------------------------------------------------------------------------
# Saving and copying
# ------------------------------------------------------------------------------------------------


def save_and_load(way: str) -> tuple[int, bool, dict[str, Any]]:
    group = dist.new_group([0, 1])
    ddp = make_ddp(process_group=group)
    state = s2reducer.register(ddp, plan="union", block=16, seed=3)
    for step in range(2):
        expected = backward(ddp, step)
    with pytest.warns(UserWarning, match="without its process group, its scaler and its"):
        loaded = copy.deepcopy(state) if way == "copy" else pickle.loads(pickle.dumps(state))
    assert loaded is not state and loaded.process_group is None
    assert loaded.config == state.config and loaded.last_error is None
    assert loaded.report().bytes_sent == 0
    other = make_ddp()
    other.register_comm_hook(loaded, s2_hook)
    got = backward(other, 1)
    backward(ddp, 2)  # and the first one is as it was
    same = all(map(torch.equal, expected, got))
    return loaded.step, same, loaded.report().as_dict()["plans"]


@pytest.mark.parametrize("way", ["pickle", "copy"])
def test_a_state_is_saved_without_its_group(ranks: Ranks, way: str) -> None:
    for step, same, plans in ranks.run(2, save_and_load, way):
        assert step == 3 and same
        assert set(plans) == {"union"}


def copy_whole_module() -> list[str]:
    ddp = make_ddp()
    s2reducer.register(ddp)
    backward(ddp, 0)
    with pytest.warns(UserWarning, match="without its process group"):
        copied = copy.deepcopy(ddp)
    (_, state) = copied._comm_hooks[0]
    return [type(state).__name__, str(state.process_group)]


def test_a_module_with_the_hook_can_be_copied(ranks: Ranks) -> None:
    assert ranks.run(1, copy_whole_module) == [["S2State", "None"]]


# ------------------------------------------------------------------------------------------------
# Memory
# ------------------------------------------------------------------------------------------------


def wait_for_lanes() -> None:
    """A lane lets go of a bucket only after it has given the result away."""
    engine = engine_of(dist.group.WORLD, torch.device("cpu"))
    for lane in (engine._index_lane, engine._values_lane):
        idle = threading.Event()
        lane.put(idle.set)
        assert idle.wait(10)


def held(state: S2State) -> tuple[int, ...]:
    """The process in KiB, Python's objects, tensors, layouts."""
    wait_for_lanes()
    gc.collect()
    objects = gc.get_objects()
    tensors = sum(isinstance(thing, Tensor) for thing in objects)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return memory, len(objects), tensors, len(state._layouts._layouts)


def train_for_long(steps: int) -> tuple[int, ...]:
    """Growth of what is held, from step 50 to the last.

    Each time it is the least of six steps: gloo's own threads let go of the tensors of a call a
    little after it has ended, and nothing tells when.
    """
    ddp = DistributedDataParallel(
        Given(*(torch.zeros(2000, 64) for _ in range(8))), bucket_cap_mb=0.6
    )
    state = s2reducer.register(ddp, plan="union")
    first, last = [], []
    for step in range(steps):
        ddp.zero_grad()
        density = (0.01, 0.05, 0.1)[step % 3]
        gradients = {i: exact_gradient(p, density, step % 9) for i, p in enumerate(ddp.module.p)}
        ddp(gradients).backward()
        del gradients
        if 50 - 6 <= step < 50:
            first.append(held(state))
        if step >= steps - 6:
            last.append(held(state))
    least = (map(min, zip(*looks, strict=True)) for looks in (first, last))
    return tuple(after - before for before, after in zip(*least, strict=True))


@pytest.mark.slow
def test_memory_is_flat_over_two_hundred_steps(ranks: Ranks) -> None:
    for memory, objects, tensors, layouts in ranks.run(2, train_for_long, 200, seconds=90):
        # DDP alone wanders by some MiB; 4 MiB of gradients, kept in each step, were 600.
        assert memory < 32 * 1024
        assert objects < 50 and tensors <= 0 and layouts <= 0


def drop_everything() -> list[bool]:
    ddp = make_ddp()
    state = s2reducer.register(ddp)
    for step in range(3):
        backward(ddp, step)
    references = [weakref.ref(ddp), weakref.ref(state), weakref.ref(ddp.module.p[0])]
    report = state.report()
    wait_for_lanes()
    del ddp, state
    gc.collect()
    assert report.steps == 3
    return [reference() is None for reference in references]


def test_nothing_is_kept_alive(ranks: Ranks) -> None:
    assert ranks.run(2, drop_everything) == [[True] * 3] * 2


def keep_the_state_alone() -> bool:
    ddp = make_ddp()
    state = s2reducer.register(ddp)
    backward(ddp, 0)
    wait_for_lanes()
    parameter = weakref.ref(ddp.module.p[0])
    del ddp
    gc.collect()
    return parameter() is None and len(state.report().parameters) == 4


def test_a_state_does_not_keep_a_model_alive(ranks: Ranks) -> None:
    assert all(ranks.run(1, keep_the_state_alone))


# ------------------------------------------------------------------------------------------------
# The public face
# ------------------------------------------------------------------------------------------------


def test_the_signature_is_one_that_ddp_accepts() -> None:
    signature = inspect.signature(s2_hook)
    assert list(signature.parameters) == ["state", "bucket"]
    assert signature.parameters["bucket"].annotation is dist.GradBucket
    assert signature.return_annotation == torch.futures.Future[torch.Tensor]


def use_every_form() -> int:
    forms = 0
    for hook in (s2_hook, s2reducer.s2_hook, s2reducer.hook.s2_hook):
        ddp = make_ddp()
        ddp.register_comm_hook(state=S2State(), hook=hook)
        backward(ddp, 0)
        forms += 1
    ddp = make_ddp()
    assert s2reducer.register(ddp, plan="dense", block=None, seed=0).config.plan == "dense"
    backward(ddp, 0)
    return forms


def test_every_documented_form_registers(ranks: Ranks) -> None:
    assert ranks.run(1, use_every_form) == [3]


def test_settings_are_keywords() -> None:
    with pytest.raises(TypeError):
        S2State(None, "union")  # type: ignore[misc]
    with pytest.raises(ValueError, match="plan must be one of"):
        S2State(plan="best")


class LeafBucket:
    """A bucket whose buffer asks for a gradient of its own."""

    def __init__(self) -> None:
        self._buffer = torch.full((6000,), 2.0, requires_grad=True)
        self._parameters = [torch.zeros(6000)]

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def reduce_leaf(plan: str) -> tuple[bool, bool]:
    with torch.enable_grad():  # as in backward(create_graph=True)
        result = s2_hook(S2State(plan=plan), LeafBucket()).wait()
    return result.grad_fn is None, bool(result.eq(2).all())


@pytest.mark.parametrize("plan", ["union", "dense"])
def test_no_graph_is_built(ranks: Ranks, plan: str) -> None:
    assert ranks.run(2, reduce_leaf, plan) == [(True, True)] * 2
