# SPDX-License-Identifier: MIT
"""The engine for NCCL over gloo: COO gradients, what goes dense, errors, and what is read."""

import itertools
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import (
    PLANS,
    Nowhere,
    Record,
    assert_alike,
    job_nowhere,
    make_pair,
    nccl_like,
    slow_link,
    steps_of,
)
from pairs import STEPS, given, make_tables
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks, cases, exact_gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import comparison, cuda, functional, ops, ordered_stages, sender
from s2reducer.device import HostCopy
from s2reducer.exchange import HEADER_NBYTES, Header, identity, message_of
from s2reducer.ordered_stages import begin_blocks
from s2reducer.segments import LayoutCache

# ------------------------------------------------------------------------------------------------
# COO gradients
# ------------------------------------------------------------------------------------------------


class Tables(nn.Module):
    """Embeddings whose gradients are the COO tensors that it is called with, and a dense weight."""

    def __init__(self, sizes: list[tuple[int, int]], dtype: torch.dtype) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(*size, sparse=True, dtype=dtype) for size in sizes)
        self.weight = nn.Parameter(torch.zeros(96, 64, dtype=dtype))

    def forward(self, gradients: list[Tensor], dense: Tensor) -> Tensor:
        pairs = zip(self.tables, gradients, strict=True)
        losses = [(table(g._indices()[0]) * g._values()).sum() for table, g in pairs]
        return sum(losses, (self.weight * dense).sum())


SIZES = [(500, 12), (3000, 16), (64, 8)]


def coo_gradients(rank: int, step: int, dtype: torch.dtype) -> list[Tensor]:
    """Rows in any order, some of them twice; in the third step there are more of them."""
    random = torch.Generator().manual_seed(100 * step + rank)
    gradients = []
    for nrows, width in SIZES:
        n = 0 if (rank, nrows) == (1, 64) else (20, 15, 60, 30, 30, 40)[step] + 3 * rank
        rows = torch.randint(nrows // 4, (1, n), generator=random)
        values = torch.randint(-2, 3, (n, width), generator=random) * EXACT_UNIT
        gradients.append(
            torch.sparse_coo_tensor(rows, values.to(dtype), (nrows, width), check_invariants=False)
        )
    return gradients


def train_tables(plan: str, dtype: torch.dtype) -> tuple[list[str], dict[str, str]]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with nccl_like() as record, slow_link():
        ddp = DistributedDataParallel(Tables(SIZES, dtype))
        state = s2reducer.register(ddp, plan=plan)
        for step in range(STEPS):
            record.mark("step")
            dense = exact_gradient(ddp.module.weight, 0.2, step, rank)
            ddp.zero_grad()
            ddp(coo_gradients(rank, step, dtype), dense).backward()
            ranks = [coo_gradients(r, step, dtype) for r in range(world_size)]
            for number, table in enumerate(ddp.module.tables):
                grad = table.weight.grad
                assert grad.is_sparse and grad.dtype == dtype
                total = sum(gradients[number].to_dense().double() for gradients in ranks)
                assert torch.equal(grad.to_dense().double(), total / world_size)
                touched = torch.cat([gradients[number]._indices()[0] for gradients in ranks])
                assert torch.equal(grad._indices()[0], touched.unique())
            dense = [exact_gradient(ddp.module.weight, 0.2, step, r) for r in range(world_size)]
            assert torch.equal(ddp.module.weight.grad, sum(dense) / world_size)
            assert_same_on_all_ranks([parameter.grad for parameter in ddp.parameters()])
    entries = state.report().as_dict()["parameters"]
    return record.events, {entry["name"]: entry["plan"] for entry in entries}


@pytest.mark.parametrize("plan", cases([*PLANS, "dense", "sketch"], "auto", "dense"))
@pytest.mark.parametrize("count", cases([2, 3, 4], 3))
def test_coo_gradients(ranks: Ranks, count: int, plan: str) -> None:
    results = ranks.run(count, train_tables, plan, torch.float32)
    assert_alike([events for events, _ in results])
    events, plans = results[0]
    expected = {"auto": {"owner", "gather", "union"}, "dense": {"owner"}, "sketch": {"owner"}}
    assert {plans[f"tables.{n}.weight"] for n in range(3)} <= expected.get(plan, {plan})
    assert plan == "auto" or plans["weight"] == plan
    # From the third step on the tables travel as one, and in the third they have more rows.
    flat = 0 if plan == "dense" else 1
    reads = [step.count("read") for step in steps_of(Record(events))]
    if plan == "auto":
        assert all(1 <= count <= 2 for count in reads[3:]) and 2 <= reads[2] <= 3
    else:
        assert reads[2:] == [flat + 2] + [flat + 1] * 3


@pytest.mark.parametrize("dtype", cases([torch.float64, torch.float16, torch.bfloat16]))
def test_coo_gradients_of_other_dtypes(ranks: Ranks, dtype: torch.dtype) -> None:
    assert_alike([events for events, _ in ranks.run(2, train_tables, "owner", dtype)])


# ------------------------------------------------------------------------------------------------
# What goes dense, errors, and all_reduce()
# ------------------------------------------------------------------------------------------------

DENSE = {
    "sketch": {"plan": "sketch"},
    "select": {"select": s2reducer.TopK(0.1, least_numel=100)},
    "select, wire": {"select": s2reducer.TopK(0.1, least_numel=100), "wire": "bf16"},
}
NO_KERNELS = cuda.missing()


def train_densely(settings: dict[str, Any]) -> set[str]:
    """As if the tensors were on a device, which no kernels are built for."""

    def missing(device: torch.device, operator: str) -> str | None:
        assert original(device, operator) is None
        return original(torch.device("cuda"), operator)

    original, sender.missing = sender.missing, missing
    try:
        return _train_densely(settings)
    finally:
        sender.missing = original


def _train_densely(settings: dict[str, Any]) -> set[str]:
    with nccl_like() as record:
        pair = make_pair(record, make_tables, settings)
        for step in range(STEPS):
            pair.step(given(pair.plain.module, step))
            pair.assert_equal()
        pair.assert_trained()
        assert "read" not in record.events
    return {entry["reason"] for entry in pair.state.report().as_dict()["parameters"]}


@pytest.mark.parametrize("what", DENSE)
def test_what_is_not_there_yet_goes_dense(ranks: Ranks, what: str) -> None:
    reason = f"{what.split(',')[0]}, for which {NO_KERNELS}"
    assert ranks.run(2, train_densely, DENSE[what]) == [{reason}] * 2


def mixed_with_dense() -> list[str]:
    """A bucket of a dtype that always goes dense comes while another is open."""
    with nccl_like() as record, slow_link():
        parameters = [torch.zeros(200, 64) for _ in range(3)]
        ddp = DistributedDataParallel(Given(*parameters), bucket_cap_mb=0.04)
        s2reducer.register(ddp, plan="auto")
        for step in range(12):
            record.mark("step")
            gradients = {
                i: exact_gradient(p, 1.0 if i == 1 else 0.05, step, dist.get_rank(), i)
                for i, p in enumerate(ddp.module.p)
            }
            ddp.zero_grad()
            ddp(gradients).backward()
            for i, parameter in enumerate(ddp.module.p):
                ranks = [
                    exact_gradient(parameter, 1.0 if i == 1 else 0.05, step, rank, i)
                    for rank in range(dist.get_world_size())
                ]
                assert torch.equal(parameter.grad, sum(ranks) / len(ranks))
    return record.events


def test_buckets_that_stay_dense_between_others(ranks: Ranks) -> None:
    results = ranks.run(2, mixed_with_dense)
    assert_alike(results)
    last = " ".join(steps_of(Record(results[0]))[-1])
    # The open bucket is finished in the call for the dense one, not later.
    order = "uint8 .*all_reduce .*read .*float32 .*uint8 .*read .*float32"
    assert re.search(order, last) and last.count("read") == 2, last


def fail_in(what: str, plan: str = "owner") -> tuple[str, str, str]:
    """One rank raises where it plans, or all of them find that they disagree."""
    with nccl_like():
        ddp = DistributedDataParallel(Given(*(torch.zeros(500, 16) for _ in range(3))))
        state = s2reducer.register(ddp, plan=plan)
        gradients = {index: torch.ones(500, 16) for index in range(3)}
        for _ in range(2):
            ddp(gradients).backward()
        if what == "step":
            state.step += dist.get_rank()
        else:
            state._layouts.layout = None  # the hook's own call fails
        with pytest.raises(RuntimeError) as first:
            ddp(gradients).backward()
        with pytest.raises(RuntimeError) as second:
            ddp(gradients).backward()
    return str(first.value), str(second.value), type(state.last_error).__name__


def test_ranks_that_disagree_all_say_so(ranks: Ranks) -> None:
    for first, second, kind in ranks.run(2, fail_in, "step"):
        assert "plan owner, index: the ranks reduce different buckets: the step must be" in first
        assert second.startswith("this S2State has failed before: step ")
        assert kind == "Disagreement"


def test_ranks_that_disagree_in_a_sketch(ranks: Ranks) -> None:
    for first, _, kind in ranks.run(2, fail_in, "step", "sketch"):
        assert "plan sketch, union: the ranks reduce different buckets: their steps differ" in first
        assert kind == "Disagreement"


def build_differently(settings: dict[str, Any]) -> list[str]:
    """As if the second rank's package had no kernels for its device."""
    texts, found = [], NO_KERNELS if dist.get_rank() == 1 else None
    with nccl_like(), pytest.MonkeyPatch.context() as patches:
        for module in (comparison, functional, sender):
            patches.setattr(module, "missing", lambda device, operator: found)
        ddp = DistributedDataParallel(Given(torch.zeros(500, 16)))
        s2reducer.register(ddp, **settings)
        with pytest.raises(RuntimeError) as raised:
            ddp({0: torch.ones(500, 16)}).backward()
        texts.append(str(raised.value))
        if "plan" in settings:
            with pytest.raises(s2reducer.S2Error) as raised:
                s2reducer.all_reduce(torch.ones(5000), plan="sketch")
            texts.append(str(raised.value))
    return texts


@pytest.mark.parametrize("what", ["sketch", "select"])
def test_ranks_that_are_built_differently_all_say_so(ranks: Ranks, what: str) -> None:
    for first, *rest in ranks.run(2, build_differently, DENSE[what]):
        builds = "the same build, but it is 'whole' on rank 0, 'without CUDA kernels' on rank 1"
        assert builds in first
        assert all("segments, dtype or settings must be the same" in text for text in rest)


def test_an_error_in_the_hook_comes_out_of_backward(ranks: Ranks) -> None:
    for first, _, kind in ranks.run(2, fail_in, "layouts"):
        assert "step 3: 'NoneType' object is not callable" in first
        assert kind == "TypeError"


def fail_while_planning() -> tuple[str, int]:
    """Of an open bucket, in the call for the next one: it is that of the bucket which fails."""
    calls = itertools.count()

    def planning(*arguments: Any) -> Any:
        if next(calls) == 0:
            record.mark("failure")
            raise MemoryError("no room for a plan")
        return original(*arguments)

    original = ordered_stages.plan_blocks
    with nccl_like() as record:
        pair = make_pair(record, make_tables, {"plan": "owner"})
        pair.step(given(pair.plain.module, 0))
        pair.step(given(pair.plain.module, 1))
        ordered_stages.plan_blocks = planning
        try:
            with pytest.raises(RuntimeError) as raised:
                pair.step(given(pair.plain.module, 2))
        finally:
            ordered_stages.plan_blocks = original
        with pytest.raises(RuntimeError, match="has failed before"):
            pair.step(given(pair.plain.module, 3))
        assert isinstance(pair.state.last_error, MemoryError)
        after = record.events[record.events.index("failure") :]
        assert set(after) == {"failure", "hook", "returned"}, "no collective after an error"
        assert after.count("hook") >= 2
    return str(raised.value), pair.state.step


def test_an_error_belongs_to_its_bucket(ranks: Ranks) -> None:
    for text, step in ranks.run(2, fail_while_planning):
        assert "step 3, bucket of " in text and "plan owner, index: no room for a plan" in text
        assert step == 4


def reduce_tensors() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with nccl_like() as record, slow_link():
        like = torch.empty(3000, 16)
        both = [exact_gradient(like, 0.05, r) for r in range(world_size)]
        for plan in (*PLANS, "dense", "sketch"):
            result = s2reducer.all_reduce(both[rank].clone(), plan=plan)
            assert torch.equal(result, sum(both) / world_size)
            total = s2reducer.all_reduce(both[rank].to_sparse(1), op="sum", plan=plan)
            assert total.is_sparse and torch.equal(total.to_dense(), sum(both))
        whole = [part.to(torch.int32) for part in both]
        assert torch.equal(s2reducer.all_reduce(whole[rank].clone(), op="sum"), sum(whole))
        with pytest.raises(ValueError, match="must be of floating point and have rows"):
            s2reducer.all_reduce(whole[rank].to_sparse(1), op="sum")
        with pytest.raises(s2reducer.S2Error, match="the ranks reduce different buckets"):
            s2reducer.all_reduce(both[rank][: 10 + rank].clone())
        # One for each but "dense", and two of a table or of rows that were not seen before.
        assert record.events.count("read") == 4 + 2 + 6 * 2


def test_all_reduce(ranks: Ranks) -> None:
    ranks.run(2, reduce_tensors)


# ------------------------------------------------------------------------------------------------
# Without anything to read
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", ["owner", "gather", "union"])
def test_a_bucket_is_reduced_with_one_read(
    monkeypatch: pytest.MonkeyPatch, plan: str, dtype: torch.dtype
) -> None:
    """On the meta device, where a read raises; what arrives at the host is put into its place."""
    layout = LayoutCache(None).layout([torch.zeros(300, 16), torch.zeros(77), torch.zeros(40, 64)])
    live = [torch.rand(layout.numel, generator=torch.Generator().manual_seed(r)) for r in range(3)]
    bitmaps = []
    for values in live:
        bitmaps.append(torch.empty(layout.bitmap_nbytes, dtype=torch.uint8))
        values = torch.where(values < 0.02, 1.0, 0.0)
        ops.bitmap_from_nonzero(values, layout.segments, bitmaps[-1], torch.empty(1).long())
    union = bitmaps[0] | bitmaps[1] | bitmaps[2]
    header = Header(identity(layout, dtype), step=5)
    messages = [message_of(header, bitmap) for bitmap in bitmaps]
    reads = 0

    def wait(copy: HostCopy) -> tuple[Tensor, ...]:
        nonlocal reads
        reads += 1
        arrived = (torch.ones(1).long(), torch.stack(messages))
        if plan == "union":
            heads = torch.stack(messages)[:, :HEADER_NBYTES].contiguous()
            arrived = (arrived[0], heads, bitmaps[1], union)
        assert [copied.shape for copied in copy._copies] == [tensor.shape for tensor in arrived]
        assert all(copied.is_meta for copied in copy._copies)
        return arrived

    monkeypatch.setattr(HostCopy, "wait", wait)
    buffer = torch.empty(layout.numel, dtype=dtype, device="meta")
    job = job_nowhere(buffer, layout, plan=plan)
    begun = begin_blocks(job, [], Nowhere(1, 3))
    assert reads == 0
    second = begun()
    assert reads == 1
    assert second(Nowhere(1, 3)) is job.buffer
    assert reads == 1
    assert [part.plan for part in job.parts] == [plan] and job.has_negative_zeros
