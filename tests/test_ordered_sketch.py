# SPDX-License-Identifier: MIT
"""The plan ``sketch`` in the engine for NCCL: the bits of the lanes, and waits of the host."""

import itertools
import math
import os
import random
import types
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import Nowhere, Record, assert_alike, cases, make_pair, nccl_like, steps_of
from pairs import FLAGS, given, make_tables
from pairs import STEPS as PAIR_STEPS
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import SketchConfig, device_lists
from s2reducer.chooser import Chooser
from s2reducer.config import Config
from s2reducer.device import HostCopy
from s2reducer.job import Job
from s2reducer.ordered_sketch import begin_sketch
from s2reducer.segments import LayoutCache

SEED = int(os.environ.get("S2_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
SHAPES = [(3000, 16), (2000, 64), (500, 64), (333,), (40, 50), (12, 12)]
STEPS = 7


@pytest.fixture(autouse=True)
def seed() -> None:
    print(f"S2_TEST_SEED={SEED}")  # pytest shows it where a test fails


# Too few cells, so that something is stuck in every step, and enough of them.
KINDS = {
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


def gradient(shape: tuple[int, ...], dtype: torch.dtype, density: float, *seed: int) -> Tensor:
    """Whole numbers in some rows, and zeros of either sign in the others."""
    numbers = torch.Generator().manual_seed(hash(seed) & 0xFFFF_FFFF)
    values = torch.randint(-8, 9, shape, generator=numbers) * float(EXACT_UNIT)
    dead = torch.rand(shape[0], generator=numbers) >= density
    values[dead] = 0.0
    values[dead & (torch.rand(shape[0], generator=numbers) < 0.1)] = -0.0
    return values.to(dtype)


def gradients(step: int, rank: int, seed: int, dtype: torch.dtype) -> dict[int, Tensor]:
    """Of sparse tables, and of one that is dense; the union grows and shrinks."""
    density = (0.05, 0.04, 0.06, 0.05, 0.08, 0.03, 0.05)[step]
    sparse = {
        n: gradient(shape, dtype, density, seed, step, rank, n)
        for n, shape in enumerate(SHAPES[:-1])
    }
    return sparse | {len(SHAPES) - 1: gradient(SHAPES[-1], dtype, 1.0, seed, step, rank)}


def bits(tensors: list[Tensor]) -> bytes:
    return b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)


class Training:
    """A model with its state, some steps of which may be over lanes, or over what is like NCCL.

    Attributes:
        results: for each step the gradients and what is owed.
        reasons: that the report has for each parameter.
    """

    def __init__(self, settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        model = Given(*(torch.zeros(shape, dtype=dtype) for shape in SHAPES))
        self._ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        no_scale = torch.amp.GradScaler(enabled=False)
        settings = {"plan": "sketch", "scaler": no_scale} | settings
        self.state = s2reducer.register(self._ddp, **settings)
        self._dtype = dtype
        self.results: list[tuple[list[Tensor], list[Any]]] = []
        self.reasons: list[list[str]] = []

    def step(self, step: int, seed: int, spoilt: bool = False, factor: float = 1.0) -> None:
        """Rank 1 has a NaN and an infinity in the second table where it is ``spoilt``."""
        given = gradients(step, dist.get_rank(), seed, self._dtype)
        given = {number: factor * gradient for number, gradient in given.items()}
        if spoilt and dist.get_rank() == 1:
            given[1][7, 3], given[1][9, 1] = math.nan, math.inf
        parameters = list(self._ddp.parameters())
        self._ddp.zero_grad()
        self._ddp(given).backward()
        grads = [parameter.grad.clone() for parameter in parameters]
        assert_same_on_all_ranks(grads)
        self.results.append((grads, [self.state.residual(parameter) for parameter in parameters]))
        entries = self.state.report().as_dict()["parameters"]
        assert {entry["plan"] for entry in entries} == {"sketch"}
        self.reasons.append([entry["reason"] for entry in entries])

    def bits(self, step: int) -> bytes:
        """Of a step, but for which NaN a NaN is."""
        grads, residuals = self.results[step]
        owed = [part for one in residuals if one is not None for part in (one.blocks, one.rows)]
        return bits([grad.nan_to_num(1.0) for grad in grads] + owed)


def beside_lanes(
    kind: str, dtype: torch.dtype, seed: int, spoilt: tuple[int, ...] = ()
) -> tuple[list[str], list[list[str]]]:
    settings = {"sketch": KINDS[kind]}
    lanes = Training(settings, dtype)
    for step in range(STEPS):
        lanes.step(step, seed, step in spoilt)
    with nccl_like() as record:
        ordered = Training(settings, dtype)
        for step in range(STEPS):
            record.mark("step")
            ordered.step(step, seed, step in spoilt)
    for step in range(STEPS):
        assert ordered.bits(step) == lanes.bits(step), f"step {step}: {lanes.reasons[step]}"
    if not KINDS[kind].reads_nothing:
        assert ordered.reasons == lanes.reasons
    return record.events, lanes.reasons


def check_reads(events: list[str], kind: str) -> None:
    steps = steps_of(Record(events))
    nbuckets = len([event for event in steps[-1] if event.startswith("all_to_all_single")])
    assert nbuckets >= 3
    reads = [step.count("read") for step in steps]
    # In the first step, of one bucket, the union is read before the tables can be made.
    assert reads == [2] + [0 if KINDS[kind].reads_nothing else nbuckets] * (STEPS - 1)


@pytest.mark.parametrize("kind", KINDS)
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
    lanes, spoilt = Training({"sketch": KINDS[kind]}), 3
    for step in range(STEPS):
        lanes.step(step, seed, step == spoilt)
    with nccl_like():
        ordered = Training({"sketch": KINDS[kind]})
        for step in range(STEPS):
            ordered.step(step, seed, step == spoilt)
    for step in range(STEPS):
        if step != spoilt:
            assert ordered.bits(step) == lanes.bits(step), step
    (grads, owed), (expected, expected_owed) = ordered.results[spoilt], lanes.results[spoilt]
    live = torch.stack([gradients(spoilt, r, seed, torch.float32)[1].any(1) for r in (0, 1)]).any(0)
    live[[7, 9]] = True
    nans = grads[1].isnan()
    # Beside live blocks those that were owed; the others are zeros.
    assert nans[live].all() and torch.equal(nans.all(1), nans.any(1))
    assert int(nans.all(1).sum()) < len(live) // 2 and not grads[1][~nans].any()
    for number in (0, 2, 3, 4, 5):
        # Blocks of 64 elements share a table with those that are not read.
        assert torch.equal(grads[number], expected[number]), number
    for one, other in zip(owed, expected_owed, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("kind", ["fixed, defer", "fixed, estimate"])
def test_values_that_are_not_finite_are_nans_where_nothing_is_read(ranks: Ranks, kind: str) -> None:
    ranks.run(2, spoil_what_is_not_read, kind, SEED)


class Scales(torch.amp.GradScaler):
    """Another scale in every step."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.step_number = 0

    def get_scale(self) -> float:
        return float(2.0 ** (3 + self.step_number % 3))


def scale(kind: str, seed: int) -> None:
    trained = []
    for context in (nullcontext, nccl_like):
        with context():
            scaler = Scales()
            training = Training({"sketch": KINDS[kind], "scaler": scaler})
            for step in range(STEPS):
                scaler.step_number = step
                training.step(step, seed, step == 4, scaler.get_scale())
            trained.append([training.bits(step) for step in range(STEPS)])
    assert trained[0] == trained[1]


@pytest.mark.parametrize("kind", cases(["defer", "feedback"], "defer"))
def test_what_is_owed_has_no_scale(ranks: Ranks, kind: str) -> None:
    ranks.run(2, scale, kind, SEED)


def go_on(kind: str, seed: int) -> None:
    """Saved by either engine, and loaded by both, in the middle of a training."""
    saved, middle = [], 4
    for context in (nullcontext, nccl_like):
        with context():
            training = Training({"sketch": KINDS[kind]})
            for step in range(middle):
                training.step(step, seed)
            saved.append(training.state.state_dict())
    for one, other in zip(*(state["parameters"] for state in saved), strict=True):
        assert one.keys() == other.keys()
        assert all(bits([one[name]]) == bits([other[name]]) for name in one if "owed" in name)
    assert any("owed_rows" in one for one in saved[0]["parameters"])
    trained = []
    for state, context in itertools.product(saved, (nullcontext, nccl_like)):
        with context():
            training = Training({"sketch": KINDS[kind]})
            training.state.load_state_dict(state)
            for step in range(middle, STEPS):
                training.step(step, seed)
            trained.append([training.bits(number) for number in range(STEPS - middle)])
    assert all(one == trained[0] for one in trained)


@pytest.mark.parametrize("kind", cases(["defer", "feedback"], "defer"))
def test_a_state_goes_on_with_either_engine(ranks: Ranks, kind: str) -> None:
    ranks.run(2, go_on, kind, SEED)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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
    job = Job(
        buffer=torch.empty(layout.numel, dtype=dtype, device="meta"),
        layout=layout,
        compared=layout,
        config=Config(plan="sketch", sketch=KINDS[kind]),
        transport=Nowhere(1, 3),
        chooser=Chooser(adapts=False, learns=False),
        step=5,
        divisor=3.0,
    )
    assert begin_sketch(job, Nowhere(1, 3))()(Nowhere(1, 3)) is job.buffer
    assert [part.plan for part in job.parts] == ["sketch"]
    # A table for blocks of 16 and one for those of 64; the third parameter travels as it is.
    each = ["peel"]
    each += ["estimate"] if "defer" not in kind else []
    each += ["insert", "estimate"] if "feedback" in kind else []
    assert called == ["insert", "weigh"] * 2 + each * 2
