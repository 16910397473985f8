# SPDX-License-Identifier: MIT
"""``wire="bf16"`` in the engine for NCCL: the bits of the lanes, and what the host waits for."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_like import Nowhere, Record, assert_alike, job_nowhere, nccl_like, slow_link, steps_of
from ranks import Ranks, cases
from seeds import SEED
from test_device_blocks import assert_same_bits, random_values
from torch import Tensor
from two_engines import Training, go_on, scale, train_both

from s2reducer import RandomK, SharedTopK, Threshold, TopK, ops, ordered_narrow
from s2reducer.device import HostCopy
from s2reducer.exchange import HEADER_NBYTES, Header, identity, message_of
from s2reducer.ordered_lossy import begin_lossy
from s2reducer.ordered_narrow import round_live
from s2reducer.segments import LayoutCache
from s2reducer.select_ops import selected_nbytes

pytestmark = pytest.mark.usefixtures("seed")


# The smallest parameters, and that of one dimension, are not selected from.
LEAST = {"least_numel": 1000}
KINDS: dict[str, dict[str, Any]] = {plan: {"plan": plan} for plan in ("owner", "gather", "union")}
KINDS |= {
    "dense": {"plan": "dense"},
    "auto": {"plan": "auto"},
    "deterministic": {"plan": "auto", "deterministic": True},
    "forget": {"plan": "gather", "error_feedback": False},
    "top": {"select": TopK(0.02, block=16, **LEAST), "plan": "owner"},
    "elements": {"select": TopK(0.01, block=1, **LEAST), "plan": "gather"},
    "shared": {"select": SharedTopK(0.02, warmup_steps=3, **LEAST), "plan": "union"},
    "shared, auto": {"select": SharedTopK(0.02, block=16, **LEAST), "plan": "auto"},
    "random": {"select": RandomK(0.1, **LEAST), "plan": "union"},
    "threshold": {"select": Threshold(4000.0, block=30, **LEAST), "plan": "owner"},
    "top, dense": {"select": TopK(0.02, **LEAST), "plan": "dense"},
    "shared, dense": {"select": SharedTopK(0.02, **LEAST), "plan": "dense"},
}
NO_INDEX = ("dense", "top, dense")
FAST = ("owner", "gather", "top")


def beside_lanes(
    kind: str, seed: int, spoilt: tuple[int, ...] = (), kernels: bool = True
) -> tuple[list[str], int, bool]:
    """The events, the buckets of a step, and whether anything was owed at the end."""
    original = ordered_narrow.missing
    if not kernels:
        ordered_narrow.missing = lambda device, operator: "there are none"
    try:
        with slow_link():
            both = train_both(KINDS[kind] | {"wire": "bf16"}, torch.float32, seed, spoilt)
    finally:
        ordered_narrow.missing = original
    events, lanes, ordered = both
    assert ordered.reasons == lanes.reasons
    for means, _ in ordered.results:
        assert all(torch.equal(mean, mean.bfloat16().float()) for mean in means if not spoilt)
    owes = any(residual is not None for residual in ordered.results[-1][1])
    return events, ordered.nbuckets[-1] - ordered.nbuckets[-2], owes


@pytest.mark.parametrize("kind", cases([*KINDS], *FAST))
@pytest.mark.parametrize("count", cases([2, 3], 3))
def test_the_bits_are_those_of_the_lanes(ranks: Ranks, count: int, kind: str) -> None:
    results = ranks.run(count, beside_lanes, kind, SEED)
    assert_alike([events for events, *_ in results])
    events, nbuckets, owes = results[0]
    assert nbuckets >= 3 and owes == (kind != "forget")
    for step in steps_of(Record(events))[1:]:
        assert step.count("read") == (0 if kind in NO_INDEX else nbuckets)
        # No AllReduce of the gradients, which would round at every addition.
        assert not any(event.startswith("all_reduce torch.bfloat16") for event in step)


@pytest.mark.parametrize("kind", cases(["owner", "gather", "forget", "top"], "gather"))
def test_without_kernels(ranks: Ranks, kind: str) -> None:
    ranks.run(2, beside_lanes, kind, SEED, (3,), False)


@pytest.mark.parametrize("kind", cases(["owner", "gather", "union", "dense", "top"], "owner"))
def test_values_that_are_not_finite(ranks: Ranks, kind: str) -> None:
    """They arrive, and what the step owes is undone, as in the lanes."""
    ranks.run(2, beside_lanes, kind, SEED, (2, 3))


def half_types(dtype: torch.dtype, seed: int) -> list[str]:
    """They travel as without the setting."""
    trained = []
    with nccl_like():
        for wire in (None, "bf16"):
            training = Training({"plan": "owner", "wire": wire}, dtype)
            for step in range(3):
                training.step(step, seed)
            trained.append(training)
    one, other = trained
    assert [one.bits(step) for step in range(3)] == [other.bits(step) for step in range(3)]
    assert all(residual is None for residual in other.results[-1][1])
    return other.reasons[-1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_gradients_travel_as_they_are(ranks: Ranks, dtype: torch.dtype) -> None:
    for reasons in ranks.run(2, half_types, dtype, SEED):
        assert set(reasons) == {"owner: as set"}


@pytest.mark.parametrize("kind", cases(["owner", "gather", "union", "top", "shared"], "gather"))
def test_what_is_owed_has_no_scale(ranks: Ranks, kind: str) -> None:
    ranks.run(2, scale, KINDS[kind] | {"wire": "bf16"}, SEED)


@pytest.mark.parametrize("kind", cases(["owner", "gather", "dense", "top"], "owner"))
def test_a_state_goes_on_with_either_engine(ranks: Ranks, kind: str) -> None:
    ranks.run(2, go_on, KINDS[kind] | {"wire": "bf16"}, SEED)


# ------------------------------------------------------------------------------------------------
# By torch's own operators
# ------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    st.integers(1, 500),
    st.integers(1, 70),
    st.sampled_from([1.0, 2.0**16, 3.0, 1e-3]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_rounding_without_kernels(
    numel: int, block: int, scale: float, owes: bool, seed: int
) -> None:
    numbers = torch.Generator().manual_seed(seed)
    values = random_values(numel, torch.float32, numbers)
    before = random_values(numel, torch.float32, numbers) if owes else None
    bitmap = torch.zeros(selected_nbytes(-(-numel // block)), dtype=torch.uint8)
    negative_zeros, alone = torch.empty(1).long(), torch.tensor([[0, numel, block, 0]])
    dead = torch.rand(-(-numel // block), generator=numbers) < 0.5
    values[dead.repeat_interleave(block)[:numel]] = 0.0
    ops.bitmap_from_nonzero(values, alone, bitmap, negative_zeros)
    results = []
    for operators in (round_live, ordered_narrow._round_live):
        owed, narrow = torch.full((numel,), 7.0), torch.full((numel,), 7.0).bfloat16()
        operators(values, before, owed, block, bitmap, narrow, scale)
        results.append((owed, narrow))
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


# ------------------------------------------------------------------------------------------------
# What is read
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("plan", ["owner", "gather", "union", "dense"])
def test_a_bucket_is_reduced_with_one_read(
    monkeypatch: pytest.MonkeyPatch, plan: str, feedback: bool
) -> None:
    """On the meta device, where a read raises; what arrives at the host is put into its place."""
    layout = LayoutCache(None).layout([torch.zeros(300, 16), torch.zeros(77), torch.zeros(40, 64)])
    bitmaps = []
    for rank in range(3):
        numbers = torch.Generator().manual_seed(rank)
        values = (torch.rand(layout.numel, generator=numbers) < 0.02).float()
        bitmaps.append(torch.empty(layout.bitmap_nbytes, dtype=torch.uint8))
        ops.bitmap_from_nonzero(values, layout.segments, bitmaps[-1], torch.empty(1).long())
    header = Header(identity(layout, torch.bfloat16), step=5)
    messages = torch.stack([message_of(header, bitmap) for bitmap in bitmaps])
    reads = 0

    def wait(copy: HostCopy) -> tuple[Tensor, ...]:
        nonlocal reads
        reads += 1
        assert all(copied.is_meta for copied in copy._copies)
        if plan == "union":
            heads, union = messages[:, :HEADER_NBYTES].contiguous(), bitmaps[0] | bitmaps[2]
            return (torch.zeros(1).long(), heads, bitmaps[1], bitmaps[1] | union)
        return (torch.zeros(1).long(), messages)

    monkeypatch.setattr(HostCopy, "wait", wait)
    monkeypatch.setattr(ordered_narrow, "missing", lambda device, operator: "there are none")
    target = torch.empty(layout.numel, device="meta")
    job = job_nowhere(target, layout, plan=plan, wire="bf16", error_feedback=feedback)
    begun = begin_lossy(job, Nowhere(1, 3))
    assert reads == 0 and job.buffer.dtype == torch.bfloat16
    second = begun()
    assert reads == (0 if plan == "dense" else 1)
    assert second(Nowhere(1, 3)) is target
    assert reads == (0 if plan == "dense" else 1)
    assert [part.plan for part in job.parts] == [plan]
