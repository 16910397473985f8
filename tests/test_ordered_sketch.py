# SPDX-License-Identifier: MIT
"""The plan ``sketch`` in the engine for NCCL: the bits of the lanes, and waits of the host."""

import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from nccl_like import Nowhere, Record, assert_alike, job_nowhere, make_pair, nccl_like, steps_of
from pairs import FLAGS, given, make_tables
from pairs import STEPS as PAIR_STEPS
from ranks import Ranks, cases
from seeds import SEED
from two_engines import STEPS, Training, go_on, gradients, scale, train_both

from s2reducer import SketchConfig, device_lists
from s2reducer.device import HostCopy
from s2reducer.ordered_decoder import ROUNDS
from s2reducer.ordered_sketch import begin_sketch
from s2reducer.segments import LayoutCache

pytestmark = pytest.mark.usefixtures("seed")


# Too few cells, so that something is stuck in every step, and enough of them.
_KINDS = {
    "repair": SketchConfig(),
    "repair, tight": SketchConfig(cells=0.9, margin=1.0),
    "defer": SketchConfig(cells=0.9, margin=1.0, on_overflow="defer"),
    "estimate": SketchConfig(cells=0.9, margin=1.0, on_overflow="estimate"),
    "feedback": SketchConfig(
        rows=1, cells=0.5, margin=1.0, on_overflow="estimate", error_feedback=True
    ),
    "rounds": SketchConfig(cells=1.25, margin=1.0, peel_rounds=3),
    "fixed, defer": SketchConfig(cells=1.4, fixed=True, on_overflow="defer"),
    "fixed, estimate": SketchConfig(cells=0.9, fixed=True, on_overflow="estimate"),
    "fixed, feedback": SketchConfig(
        rows=1, cells=0.5, fixed=True, on_overflow="estimate", error_feedback=True
    ),
}
# Where blocks come loose one after the other, lanes would take more rounds than the other engine.
KINDS = {
    kind: replace(config, peel_rounds=config.peel_rounds or ROUNDS)
    for kind, config in _KINDS.items()
}
FAST = ("repair, tight", "defer", "feedback", "fixed, defer")


def settings_of(kind: str) -> dict[str, Any]:
    return {"plan": "sketch", "sketch": KINDS[kind]}


def beside_lanes(
    kind: str, dtype: torch.dtype, seed: int, spoilt: tuple[int, ...] = ()
) -> tuple[list[str], list[list[str]]]:
    events, lanes, ordered = train_both(settings_of(kind), dtype, seed, spoilt)
    assert all(reason.startswith("sketch: ") for step in ordered.reasons for reason in step)
    if not KINDS[kind].reads_nothing:
        assert ordered.reasons == lanes.reasons
    return events, lanes.reasons


def check_reads(events: list[str], kind: str) -> None:
    steps = steps_of(Record(events))
    nbuckets = len([event for event in steps[-1] if event.startswith("all_to_all")])
    assert nbuckets >= 3
    reads = [step.count("read") for step in steps]
    # In the first step, of one bucket, the union is read before the tables can be made.
    assert reads == [2] + [0 if KINDS[kind].reads_nothing else nbuckets] * (STEPS - 1)


@pytest.mark.parametrize("kind", cases([*KINDS], *FAST))
@pytest.mark.parametrize("count", cases([2, 3, 4], 2))
def test_the_bits_are_those_of_the_lanes(ranks: Ranks, count: int, kind: str) -> None:
    results = ranks.run(count, beside_lanes, kind, torch.float32, SEED)
    assert_alike([events for events, _ in results])
    events, reasons = results[0]
    check_reads(events, kind)
    happens = {"repair, tight": "repaired", "defer": "deferred", "feedback": "estimated"}
    assert any(happens.get(kind, "blocks") in reason for step in reasons[1:] for reason in step)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_types(ranks: Ranks, kind: str, dtype: torch.dtype) -> None:
    ranks.run(2, beside_lanes, kind, dtype, SEED)


@pytest.mark.parametrize("kind", cases(["repair", "defer", "estimate", "feedback"], "defer"))
def test_values_that_are_not_finite(ranks: Ranks, kind: str) -> None:
    """They are summed by themselves, and undo what is owed, as in the lanes."""
    ranks.run(3, beside_lanes, kind, torch.float32, SEED, (2, 3))


def spoil_what_is_not_read(kind: str, seed: int) -> None:
    lanes, spoilt = Training(settings_of(kind)), 3
    for step in range(STEPS):
        lanes.step(step, seed, step == spoilt)
    with nccl_like():
        ordered = Training(settings_of(kind))
        for step in range(STEPS):
            ordered.step(step, seed, step == spoilt)
    for step in range(STEPS):
        if step != spoilt:
            assert ordered.bits(step) == lanes.bits(step), step
    (grads, owed), (expected, expected_owed) = ordered.results[spoilt], lanes.results[spoilt]
    live = torch.stack([gradients(spoilt, r, seed, torch.float32)[2].any(1) for r in (0, 1)]).any(0)
    live[[7, 9]] = True
    nans = grads[2].isnan()
    # Beside live blocks those that were owed; the others are zeros.
    assert nans[live].all() and torch.equal(nans.all(1), nans.any(1))
    assert int(nans.all(1).sum()) < len(live) // 2 and not grads[2][~nans].any()
    for number in {*range(len(grads))} - {2}:
        assert torch.equal(grads[number], expected[number]), number
    for one, other in zip(owed, expected_owed, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("kind", cases(["fixed, defer", "fixed, estimate"], "fixed, defer"))
def test_values_that_are_not_finite_are_nans_where_nothing_is_read(ranks: Ranks, kind: str) -> None:
    ranks.run(2, spoil_what_is_not_read, kind, SEED)


@pytest.mark.parametrize("kind", cases(["defer", "feedback"], "defer"))
def test_what_is_owed_has_no_scale(ranks: Ranks, kind: str) -> None:
    ranks.run(2, scale, settings_of(kind), SEED)


@pytest.mark.parametrize("kind", cases(["defer", "feedback"], "defer"))
def test_a_state_goes_on_with_either_engine(ranks: Ranks, kind: str) -> None:
    ranks.run(2, go_on, settings_of(kind), SEED)


def train_pair(settings: dict[str, Any], flags: dict[str, Any]) -> list[str]:
    with nccl_like() as record:
        pair = make_pair(record, make_tables, settings, **flags)
        for step in range(PAIR_STEPS):
            record.mark("step")
            pair.step(given(pair.plain.module, step))
            pair.assert_equal()
        pair.assert_trained()
        assert set(pair.state.report().as_dict()["plans"]) == {"sketch"}
    return record.events


@pytest.mark.slow
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("count", [2, 4])
def test_every_flag(ranks: Ranks, count: int, flags: str) -> None:
    assert_alike(ranks.run(count, train_pair, {"plan": "sketch"}, FLAGS[flags]))


# ------------------------------------------------------------------------------------------------
# Without anything to read
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", cases([torch.float32, torch.bfloat16], torch.float32))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].reads_nothing])
def test_nothing_is_read(monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype) -> None:
    """On the meta device, where a read raises, with operators that do nothing."""
    layout = LayoutCache(None).layout([torch.zeros(300, 16), torch.zeros(77), torch.zeros(40, 64)])
    for record, union in zip(layout.records, (20, 1, 35), strict=True):
        record.remember_union(union)
    called: list[str] = []

    class Operator:
        def __init__(self, name: str) -> None:
            self.default = lambda *arguments: called.append(name)

    names = ("insert", "weigh", "estimate", "peel")
    fields = {f"sketch_{name}_counted": Operator(name) for name in names}
    monkeypatch.setattr(device_lists, "_ops", types.SimpleNamespace(**fields))
    monkeypatch.setattr(HostCopy, "wait", None)
    buffer = torch.empty(layout.numel, dtype=dtype, device="meta")
    job = job_nowhere(buffer, layout, plan="sketch", sketch=KINDS[kind])
    assert begin_sketch(job, Nowhere(1, 3))()(Nowhere(1, 3)) is job.buffer
    assert [part.plan for part in job.parts] == ["sketch"]
    # A table for blocks of 16 and one for those of 64; the third parameter travels as it is.
    each = ["peel"]
    each += ["estimate"] if "defer" not in kind else []
    each += ["insert", "estimate"] if "feedback" in kind else []
    assert called == ["insert", "weigh"] * 2 + each * 2
