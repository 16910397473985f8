# SPDX-License-Identifier: MIT
"""Calls of the hook that a CUDA graph captures: which are refused, and what the others do.

There is no graph here.  What has to be true of one is: nothing waits for the device, nothing comes
from the host, and what a step leaves for the next lies where the step before left it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import Record, assert_alike, nccl_like, steps_of
from ranks import Given, Ranks, cases, exact_gradient
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import (
    S2State,
    SketchConfig,
    device_blocks,
    ordered_contribution,
    ordered_sketch,
    state,
)
from s2reducer.capture import refusal
from s2reducer.device import is_capturing
from s2reducer.segments import LayoutCache

FIXED = {
    kind: SketchConfig(cells=0.9, fixed=True, on_overflow=kind) for kind in ("defer", "estimate")
}
WARM, STEPS = 4, 6


def test_tensors_on_the_cpu_are_not_captured() -> None:
    assert not is_capturing(torch.zeros(1))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, "plan is 'auto'"),
        ({"plan": "owner"}, "plan is 'owner'"),
        ({"plan": "dense", "wire": "bf16"}, "wire is 'bf16'"),
        ({"plan": "dense", "select": s2reducer.TopK(0.1)}, "select is TopK(block=64"),
        ({"plan": "dense", "check_every": 8}, "check_every is 8"),
        ({"plan": "dense", "scaler": torch.amp.GradScaler("cpu")}, "the scaler is enabled"),
        ({"plan": "sketch"}, "fixed is False and on_overflow is 'repair'"),
        (
            {"plan": "sketch", "sketch": SketchConfig(on_overflow="defer")},
            "fixed is False and on_overflow is 'defer'",
        ),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], found: str) -> None:
    made = S2State(**settings)
    layout = LayoutCache(None).layout([torch.zeros(5, 8)])
    sentence = refusal(made.config, made.scaler, torch.zeros(40), layout)
    assert sentence is not None and sentence.startswith(
        'a CUDA graph can capture the hook with plan="dense", or with plan="sketch" and '
        'SketchConfig(fixed=True, on_overflow="defer") or "estimate", '
    )
    assert f", but {found}" in sentence


def test_what_has_to_come_before() -> None:
    config = S2State(plan="sketch", sketch=FIXED["defer"]).config
    layout = LayoutCache(None).layout([torch.zeros(5, 8)])

    def ask(buffer: Tensor) -> str:
        return refusal(config, torch.amp.GradScaler(enabled=False), buffer, layout) or ""

    assert "the bucket of 5x8 comes for the first time: warm up" in ask(torch.zeros(40))
    layout.memory.compared = True
    assert ask(torch.zeros(40)) == ""
    assert "but the bucket of 5x8 is a COO gradient" in ask(torch.zeros(5, 8).to_sparse(1))
    # A device without operators that take counts.
    assert "the operators at hand want to know how long lists are" in ask(
        torch.zeros(40).to("meta")
    )


def from_the_host(*arguments: Any) -> Tensor:
    raise AssertionError("a copy from the host, which a graph would repeat from other memory")


def addresses(made: S2State) -> list[int]:
    """Of what one step leaves for the next."""
    residuals = made._residuals
    grids = [owed.grid for owed in residuals._owed.values() if owed.grid is not None]
    tensors = [tensor for grid in grids for tensor in vars(grid).values()]
    return [tensor.data_ptr() for tensor in (*tensors, *residuals._not_finite.values())]


@contextmanager
def scans() -> Iterator[list[int]]:
    """Gets the addresses of the segments that kernels would copy in every replay."""
    found: list[int] = []
    original = device_blocks.bitmap_from_nonzero

    def scan(values: Tensor, segments: Tensor, *outputs: Tensor) -> None:
        found.append(segments.data_ptr())
        original(values, segments, *outputs)

    device_blocks.bitmap_from_nonzero = scan
    try:
        yield found
    finally:
        device_blocks.bitmap_from_nonzero = original


def train(settings: dict[str, Any], captured: bool) -> tuple[list[str], list[bytes]]:
    parameters = [torch.zeros(600, 16), torch.zeros(400, 32), torch.zeros(900, 8)]
    ddp = DistributedDataParallel(Given(*parameters), bucket_cap_mb=0.03)
    made = s2reducer.register(ddp, scaler=torch.amp.GradScaler(enabled=False), **settings)
    is_scanned = made.config.plan != "dense" and dist.get_world_size() > 1
    results, places = [], []
    originals = ordered_sketch.to_device, ordered_contribution.to_device
    with nccl_like() as record:
        for step in range(STEPS):
            record.mark("step")
            if captured and step == WARM:
                state.is_capturing = lambda tensor: True
                ordered_sketch.to_device = ordered_contribution.to_device = from_the_host
            given = {
                n: exact_gradient(p, 0.1, step, dist.get_rank(), n)
                for n, p in enumerate(ddp.module.p)
            }
            ddp.zero_grad()
            try:
                with scans() as scanned:
                    ddp(given).backward()
            finally:
                state.is_capturing = is_capturing
                ordered_sketch.to_device, ordered_contribution.to_device = originals
            grads = [parameter.grad for parameter in ddp.parameters()]
            results.append(b"".join(grad.numpy().tobytes() for grad in grads))
            places.append(addresses(made))
            kept = [layout.segments.data_ptr() for layout in made._layouts._layouts.values()]
            if step >= WARM - 1:  # the buckets are those that stay
                assert sorted(scanned) == (sorted(kept) if is_scanned else [])
    assert bool(places[-1]) == made.config.owes
    assert places[WARM - 1 :] == [places[-1]] * (STEPS - WARM + 1)
    return record.events, results


def capture(settings: dict[str, Any]) -> list[str]:
    events, results = train(settings, captured=True)
    assert (events, results) == train(settings, captured=False)
    for step in steps_of(Record(events))[WARM:]:
        assert "read" not in step and Record(step).collectives
    return events


@pytest.mark.parametrize("kind", cases(["defer", "estimate", "dense"], "defer"))
def test_what_may_be_captured(ranks: Ranks, kind: str) -> None:
    settings = {"plan": "dense"} if kind == "dense" else {"plan": "sketch", "sketch": FIXED[kind]}
    assert_alike(ranks.run(2, capture, settings))


@pytest.mark.parametrize(
    "settings", [{"plan": "dense"}, {"plan": "sketch", "sketch": FIXED["defer"]}]
)
def test_one_rank_may_be_captured(ranks: Ranks, settings: dict[str, Any]) -> None:
    """Which sends nothing, and so has nothing to compare."""
    ((events, _),) = ranks.run(1, train, settings, True)
    assert Record(events).collectives == []


def refuse(settings: dict[str, Any]) -> tuple[str, bool]:
    with pytest.raises(RuntimeError) as raised:
        train(settings, captured=True)
    return str(raised.value), state.is_capturing is is_capturing


def test_the_hook_refuses(ranks: Ranks) -> None:
    for text, restored in ranks.run(2, refuse, {"plan": "owner"}):
        assert "a CUDA graph can capture the hook with" in text and "plan is 'owner'" in text
        assert restored
