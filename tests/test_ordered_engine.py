# SPDX-License-Identifier: MIT
"""The engine for NCCL over gloo, which is made to refuse what NCCL lacks: results, order, waits."""

import contextlib
import itertools
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from nccl_like import Record, nccl_like
from pairs import FLAGS, MODELS, STEPS, Pair, given, make_tables
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks, exact_gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import constants, functional, ops, ordered_stages, state
from s2reducer.chooser import Chooser
from s2reducer.config import Config
from s2reducer.constants import Constants
from s2reducer.device import HostCopy
from s2reducer.exchange import HEADER_NBYTES, Header, identity, message_of
from s2reducer.job import Job
from s2reducer.ordered_stages import begin_blocks
from s2reducer.segments import LayoutCache
from s2reducer.transport import ORDERED, Transport

PLANS = ["owner", "gather", "union", "auto"]


@contextlib.contextmanager
def slow_link() -> Any:
    """A network for which "auto" takes the trouble, with models as small as these."""
    places = (state, functional)
    try:
        for module in places:
            module.ON_DEVICES = Constants()
        yield
    finally:
        for module in places:
            module.ON_DEVICES = constants.ON_DEVICES


def make_pair(record: Record, make: Any, settings: Any, **flags: Any) -> Pair:
    """Both models; calls of the hook are marked in the record."""

    def wrap(hook: Any) -> Any:
        def marking(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            record.mark("hook")
            result = hook(state, bucket)
            record.mark("returned")
            return result

        return marking

    return Pair(make, settings, wrap, **flags)


def steps_of(record: Record) -> list[list[str]]:
    """The events of each step, which begins with a mark."""
    cut = [number for number, event in enumerate(record.events) if event == "step"]
    return [record.events[a:b] for a, b in itertools.pairwise([*cut, len(record.events)])]


def assert_alike(results: list[Any]) -> None:
    """The ranks have issued the same collectives, with waits at the same places among them."""
    for events in results[1:]:
        assert events == results[0]


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


def cases(every: list[Any], *fast: Any) -> list[Any]:
    """For parametrize(): all but ``fast`` are left to the whole suite."""
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in every]


@pytest.mark.parametrize("flags", cases([*FLAGS], "static_graph", "both"))
@pytest.mark.parametrize("count", cases([1, 2, 3, 4], 2))
def test_every_flag(ranks: Ranks, count: int, flags: str) -> None:
    check_training(ranks.run(count, train, "tables", "owner", FLAGS[flags]), "owner", count)


OTHERS = [("tables", plan) for plan in PLANS] + [("dtypes", "auto"), ("layouts", "owner")]
OTHERS += [("dtypes", plan) for plan in ("owner", "gather", "union")]


@pytest.mark.parametrize(("model", "plan"), OTHERS)
@pytest.mark.parametrize("count", cases([1, 2, 3, 4], 3))
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
        elif event.startswith("all_to_all_single"):
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


def use_some(skip: bool) -> list[str]:
    """Other ranks leave out tables 1 and 2, which rank 0 uses; nobody uses 4.

    Or nobody uses those, and 0 in every other step: so that the last bucket does not come although
    the one before it is open.
    """
    with nccl_like() as record:
        pair = make_pair(
            record,
            make_tables,
            {"plan": "owner"},
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
def test_buckets_that_are_left_out(ranks: Ranks, count: int, skip: bool) -> None:
    results = ranks.run(count, use_some, skip)
    assert_alike(results)
    after = [
        step[len(step) - step[::-1].index("returned") :] for step in steps_of(Record(results[0]))
    ]
    # Where the last bucket is left out, the one before is finished by the callback.
    assert any("read" in rest for rest in after) == skip


def join_unevenly() -> list[str]:
    """Ranks with 2, 4 and 6 batches; those that are done follow the others with zeros."""
    with nccl_like() as record:
        pair = make_pair(record, make_tables, {"plan": "owner"})
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


def test_uneven_inputs_with_join(ranks: Ranks) -> None:
    """A rank that is done has its buckets outside of a backward pass, in the same order."""
    results = ranks.run(3, join_unevenly)
    assert_alike(results)
    assert results[0].count("read") == 1 + 4 * (STEPS - 1)


def accumulate() -> list[str]:
    with nccl_like() as record:
        pair = make_pair(record, make_tables, {"plan": "owner"})
        for step in range(STEPS):
            calls = len(pair.buckets)
            pair.step(given(pair.plain.module, 10 * step, 0.1), sync=False)
            assert len(pair.buckets) == calls
            pair.step(given(pair.plain.module, 10 * step + 1, 0.1), zero_grad=False)
            pair.assert_equal()
        pair.assert_trained()
    return record.events


def test_no_sync_accumulates(ranks: Ranks) -> None:
    assert_alike(ranks.run(2, accumulate))


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
    assert plans["weight"] == {"sketch": "dense", "auto": plans["weight"]}.get(plan, plan)
    # From the third step on the tables travel as one, and in the third they have more rows.
    flat = 0 if plan in ("dense", "sketch") else 1
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
    "select": {"select": s2reducer.TopK(0.1)},
    "wire": {"wire": "bf16"},
}


def train_densely(settings: dict[str, Any]) -> set[str]:
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
    reason = f"{'sketch' if what == 'sketch' else 'select and wire'}, not supported over gloo yet"
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


def fail_in(what: str) -> tuple[str, str, str]:
    """One rank raises where it plans, or all of them find that they disagree."""
    with nccl_like():
        ddp = DistributedDataParallel(Given(*(torch.zeros(500, 16) for _ in range(3))))
        state = s2reducer.register(ddp, plan="owner")
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
        assert record.events.count("read") == 4 + 6 * 2


def test_all_reduce(ranks: Ranks) -> None:
    ranks.run(2, reduce_tensors)


# ------------------------------------------------------------------------------------------------
# Without anything to read
# ------------------------------------------------------------------------------------------------


class Nowhere(Transport):
    """Collectives of tensors that have no elements: their results' shapes are all there is."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.bytes_sent, self.seconds = rank, world_size, 0, 0.0
        self.way = ORDERED

    def all_gather(self, piece: Tensor) -> Tensor:
        return piece.new_empty(self.world_size, piece.numel())

    def all_to_all(self, incoming: Tensor, outgoing: Tensor, *sizes: list[int]) -> None:
        assert list(map(sum, sizes)) == [incoming.numel(), outgoing.numel()]

    def sum(self, tensor: Tensor) -> None:
        assert tensor.is_contiguous()

    begin_sum = None  # type: ignore[assignment]


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
    job = Job(
        buffer=torch.empty(layout.numel, dtype=dtype, device="meta"),
        layout=layout,
        compared=layout,
        config=Config(plan=plan),
        transport=Nowhere(1, 3),
        chooser=Chooser(adapts=False, learns=False),
        step=5,
        divisor=3.0,
    )
    begun = begin_blocks(job, [], Nowhere(1, 3))
    assert reads == 0
    second = begun()
    assert reads == 1
    assert second(Nowhere(1, 3)) is job.buffer
    assert reads == 1
    assert [part.plan for part in job.parts] == [plan] and job.has_negative_zeros
