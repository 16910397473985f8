# SPDX-License-Identifier: MIT
"""``select`` in the engine for NCCL: the bits of the lanes, and what the host waits for."""

import types
from typing import Any

import pytest
import torch
from nccl_like import Nowhere, Record, assert_alike, job_nowhere, steps_of
from ranks import Ranks, cases
from seeds import SEED
from two_engines import go_on, scale, train_both

from s2reducer import RandomK, SharedTopK, SketchConfig, Threshold, TopK, ordered_lossy
from s2reducer.device import HostCopy
from s2reducer.ordered_lossy import begin_lossy
from s2reducer.segments import LayoutCache

pytestmark = pytest.mark.usefixtures("seed")


# The smallest parameters, and that of one dimension, are not selected from.
LEAST = {"least_numel": 1000}
KINDS: dict[str, dict[str, Any]] = {
    "top": {"select": TopK(0.02, block=16, **LEAST), "plan": "owner"},
    "elements": {"select": TopK(0.01, block=1, **LEAST), "plan": "gather"},
    "shared": {"select": SharedTopK(0.02, warmup_steps=3, **LEAST), "plan": "owner"},
    "shared, union": {"select": SharedTopK(0.02, block=16, **LEAST), "plan": "union"},
    "random": {"select": RandomK(0.1, **LEAST), "plan": "union"},
    "threshold": {"select": Threshold(40.0, block=30, **LEAST), "plan": "owner"},
    "dense": {"select": TopK(0.02, **LEAST), "plan": "dense"},
    "shared, dense": {"select": SharedTopK(0.02, **LEAST), "plan": "dense"},
    "sketch": {"select": TopK(0.02, block=16, **LEAST), "plan": "sketch"},
    "shared, sketch": {"select": SharedTopK(0.02, **LEAST), "plan": "sketch"},
    "estimate": {
        "select": RandomK(0.05, **LEAST),
        "plan": "sketch",
        "sketch": SketchConfig(cells=0.9, fixed=True, on_overflow="estimate", peel_rounds=9),
    },
    "forget": {"select": TopK(0.02, **LEAST), "plan": "owner", "error_feedback": False},
}
FAST = ("top", "shared", "sketch")


def beside_lanes(
    kind: str, dtype: torch.dtype, seed: int, spoilt: tuple[int, ...] = ()
) -> tuple[list[str], int]:
    """The events, and the buckets of a step."""
    settings = KINDS[kind]
    # There the lanes take blocks of what is not selected from for live that are not.
    alike = kind != "shared, sketch"
    events, lanes, ordered = train_both(settings, dtype, seed, spoilt, signs=alike)
    if kind != "estimate" and alike:
        assert ordered.reasons == lanes.reasons
    plan = settings["plan"]
    assert all(reason.startswith(plan) for step in ordered.reasons for reason in step)
    return events, ordered.nbuckets[-1] - ordered.nbuckets[-2]


@pytest.mark.parametrize("kind", cases([*KINDS], *FAST))
@pytest.mark.parametrize("count", cases([2, 3], 2))
def test_the_bits_are_those_of_the_lanes(ranks: Ranks, count: int, kind: str) -> None:
    results = ranks.run(count, beside_lanes, kind, torch.float32, SEED)
    assert_alike([events for events, _ in results])
    events, nbuckets = results[0]
    assert nbuckets >= 3
    for step in steps_of(Record(events))[1:]:
        assert step.count("read") == (0 if kind in ("dense", "estimate") else nbuckets)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["top", "elements", "shared", "random", "threshold", "sketch"])
def test_half_types(ranks: Ranks, kind: str, dtype: torch.dtype) -> None:
    ranks.run(2, beside_lanes, kind, dtype, SEED)


@pytest.mark.parametrize("kind", cases(["top", "shared", "random", "sketch"], "top"))
def test_values_that_are_not_finite(ranks: Ranks, kind: str) -> None:
    """They arrive, and what the step owes is undone, as in the lanes."""
    ranks.run(2, beside_lanes, kind, torch.float32, SEED, (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["top", "shared", "random"])
def test_what_is_owed_has_no_scale(ranks: Ranks, kind: str) -> None:
    ranks.run(2, scale, KINDS[kind], SEED)


@pytest.mark.parametrize("kind", cases(["top", "shared", "random"], "top"))
def test_a_state_goes_on_with_either_engine(ranks: Ranks, kind: str) -> None:
    ranks.run(2, go_on, KINDS[kind], SEED)


# ------------------------------------------------------------------------------------------------
# What is read
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", cases([torch.float32, torch.bfloat16], torch.float32))
@pytest.mark.parametrize("kind", ["top", "elements", "shared", "random", "threshold", "dense"])
def test_nothing_is_read_before_the_index(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    """On the meta device, where a read raises, with operators that do nothing."""
    layout = LayoutCache(None).layout([torch.zeros(300, 16), torch.zeros(77), torch.zeros(40, 64)])
    called: list[str] = []

    class Operator:
        def __init__(self, name: str) -> None:
            self.default = lambda *arguments: called.append(name)

    names = ("owed_add", "owed_energies", "owed_deliver", "select_top", "select_above")
    operators = types.SimpleNamespace(**{name: Operator(name) for name in names})
    monkeypatch.setattr(ordered_lossy, "_ops", operators)
    monkeypatch.setattr(HostCopy, "wait", None)
    buffer = torch.empty(layout.numel, dtype=dtype, device="meta")
    job = job_nowhere(buffer, layout, **KINDS[kind])
    begin_lossy(job, Nowhere(1, 3))
    # The records have rows as blocks, whatever the selection.
    scores = ["owed_add", "owed_energies"]
    choice = "select_above" if kind in ("random", "threshold") else "select_top"
    # Both matrices, first the scores of all, then the choices, then what is delivered.
    assert called == scores * 2 + [choice] * 2 + ["owed_deliver"] * 2
