# SPDX-License-Identifier: MIT
"""Gradients against those of DDP without a hook, over every flag of DDP, bit by bit.

The gradients are such that every sum and mean is exact, so that no order of summation shows; what
is not exact is compared at the end of the file.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks, exact_gradient
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, s2_hook

STEPS = 6
CAP_MB = 0.03  # buckets of 31 KiB: above the size below which "auto" sends everything densely


class Pair:
    """The same model under DDP twice: without a hook, and with s2_hook, noting its buckets."""

    def __init__(self, make: Callable[[], nn.Module], settings: Any = None, **flags: Any) -> None:
        flags = {"bucket_cap_mb": CAP_MB} | flags
        self.plain = DistributedDataParallel(make(), **flags)
        self.hooked = DistributedDataParallel(make(), **flags)
        self.state = S2State(flags.get("process_group"), **(settings or {}))
        self.buckets: list[tuple[int, tuple[int, ...], int, torch.dtype]] = []

        def hook(state: S2State, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            parameters = tuple(map(id, bucket.parameters()))
            buffer = bucket.buffer()
            self.buckets.append((bucket.index(), parameters, buffer.numel(), buffer.dtype))
            return s2_hook(state, bucket)

        self.hooked.register_comm_hook(self.state, hook)

    def step(self, *inputs: Any, zero_grad: bool = True, sync: bool = True) -> None:
        """A backward of both models."""
        for model in (self.plain, self.hooked):
            if zero_grad:
                model.zero_grad()
            with contextlib.nullcontext() if sync else model.no_sync():
                loss = model(*inputs)
                loss.sum().backward()

    def assert_equal(self) -> None:
        both = zip(self.plain.parameters(), self.hooked.parameters(), strict=True)
        grads = [(plain.grad, hooked.grad) for plain, hooked in both]
        for number, (plain, hooked) in enumerate(grads):
            if plain is None or hooked is None:
                assert plain is hooked, f"parameter {number}"
                continue
            assert hooked.dtype == plain.dtype and hooked.stride() == plain.stride()
            assert torch.equal(plain, hooked), f"parameter {number}"
        assert_same_on_all_ranks([hooked for _, hooked in grads if hooked is not None])


def make_tables() -> Given:
    """Eight tables of 16 KiB, two of them alike in size: four buckets or more after the rebuild."""
    torch.manual_seed(5)
    rows = (64, 64, 32, 128, 16, 256, 64, 8)
    return Given(*(torch.randn(count, 4096 // count) for count in rows))


def given(model: Given, step: int, density: float = 0.3, only: Any = None) -> dict[int, Tensor]:
    """Gradients in an order that is not that of the parameters; different on every rank."""
    order = [index for index in (3, 0, 6, 1, 7, 2, 5, 4) if only is None or index in only]
    rank = dist.get_rank()
    return {i: exact_gradient(model.p[i], density, step, rank, i) for i in order}


def train_tables(plan: str, flags: dict[str, Any]) -> dict[str, Any]:
    pair = Pair(make_tables, {"plan": plan}, **flags)
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step))
        pair.assert_equal()
    layouts = {bucket[1] for bucket in pair.buckets}
    last = pair.buckets[-1][0]
    numels = [numel for _, _, numel, _ in pair.buckets[-last - 1 :]]
    report = pair.state.report().as_dict()
    return {
        "steps": pair.state.step,
        "buckets": last + 1,
        "layouts": len(layouts),
        "equal numels": len(numels) > len(set(numels)),
        "plans": report["plans"],
        "bytes": (report["bytes_sent"], report["bytes_dense"]),
    }


FLAGS: dict[str, dict[str, Any]] = {
    "default": {},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "both": {"gradient_as_bucket_view": True, "static_graph": True},
}


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_flag(ranks: Ranks, count: int, flags: str) -> None:
    results = ranks.run(count, train_tables, "union", FLAGS[flags])
    for result in results:
        assert result["steps"] == STEPS
        assert result["buckets"] >= 4 and result["equal numels"]
        assert set(result["plans"]) == ({"union"} if count > 1 else {"none"})
        # Two layouts: DDP rebuilds its buckets, but for find_unused_parameters.
        rebuilt = flags != "find_unused_parameters"
        assert (result["layouts"] > result["buckets"]) == rebuilt
    sent, dense = results[0]["bytes"]
    assert sent < dense or count == 1


@pytest.mark.parametrize("plan", ["auto", "dense"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_other_plans(ranks: Ranks, count: int, plan: str) -> None:
    for result in ranks.run(count, train_tables, plan, {}):
        assert result["steps"] == STEPS and result["buckets"] >= 4
        sparse = {"gather", "owner", "union"}
        expected = {"none"} if count == 1 else {"dense"} if plan == "dense" else sparse
        assert set(result["plans"]) <= expected


def accumulate(flags: dict[str, Any]) -> None:
    pair = Pair(make_tables, {"plan": "union"}, **flags)
    for step in range(STEPS):
        model = pair.plain.module
        calls = len(pair.buckets)
        pair.step(given(model, 10 * step, 0.1), sync=False)
        assert len(pair.buckets) == calls
        pair.step(given(model, 10 * step + 1, 0.1), zero_grad=False)
        pair.assert_equal()
    assert pair.state.step == STEPS


@pytest.mark.parametrize("flags", ["default", "gradient_as_bucket_view"])
def test_no_sync_accumulates(ranks: Ranks, flags: str) -> None:
    for count in (1, 2, 3, 4):
        ranks.run(count, accumulate, FLAGS[flags])


def use_some(skip: bool) -> int:
    """Rank 1 leaves out tables 1 and 2, which rank 0 uses; nobody uses 4."""
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
    assert pair.state.step == STEPS
    return max(index for index, *_ in pair.buckets)


@pytest.mark.parametrize("skip", [False, True])
def test_unused_parameters(ranks: Ranks, skip: bool) -> None:
    ranks.run(2, use_some, skip)


def make_mixed() -> Given:
    torch.manual_seed(6)
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    return Given(*(torch.randn(96, 128).to(dtype) for dtype in dtypes for _ in range(2)))


def train_mixed(plan: str) -> tuple[set[torch.dtype], int]:
    pair = Pair(make_mixed, {"plan": plan})
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step))
        pair.assert_equal()
    return {dtype for *_, dtype in pair.buckets}, pair.buckets[-1][0] + 1


@pytest.mark.parametrize("plan", ["union", "auto", "dense"])
def test_several_dtypes_in_one_model(ranks: Ranks, plan: str) -> None:
    for dtypes, buckets in ranks.run(3, train_mixed, plan):
        assert dtypes == {torch.float32, torch.float64, torch.float16, torch.bfloat16}
        assert buckets >= 4


def make_odd_layouts() -> Given:
    torch.manual_seed(7)
    convolution = torch.randn(16, 24, 3, 3).contiguous(memory_format=torch.channels_last)
    pointwise = torch.randn(64, 32, 1, 1).contiguous(memory_format=torch.channels_last)
    return Given(convolution, torch.randn(40, 90).t(), pointwise, torch.randn(50, 20).t())


def train_odd_layouts(flags: dict[str, Any]) -> None:
    pair = Pair(make_odd_layouts, {"plan": "union"}, **flags)
    shapes = [parameter.stride() for parameter in pair.plain.parameters()]
    assert shapes[0] != torch.empty(16, 24, 3, 3).stride()
    for step in range(STEPS):
        gradients = {}
        for index, parameter in enumerate(pair.plain.module.p):
            # Distinct values, so that a permutation of elements shows.
            values = torch.arange(parameter.numel()).reshape(parameter.shape) * EXACT_UNIT
            live = exact_gradient(parameter, 0.3, step, dist.get_rank(), index) != 0
            gradients[index] = torch.where(live, values, 0).to(parameter.dtype)
        pair.step(gradients)
        pair.assert_equal()


@pytest.mark.parametrize("flags", ["default", "gradient_as_bucket_view"])
def test_parameters_that_are_not_contiguous(ranks: Ranks, flags: str) -> None:
    ranks.run(2, train_odd_layouts, FLAGS[flags])


SIZES = (1, 7, 8, 9, 31, 33, 63, 64, 65, 127, 10_007)


def make_sizes() -> Given:
    shaped = [torch.ones(()), torch.ones(1), torch.ones(0, 3), torch.ones(5, 3), torch.ones(3, 9)]
    return Given(*(torch.ones(size) for size in SIZES), *shaped, torch.ones(0).double())


def send_last_elements() -> None:
    for block in (None, 1, 3, 100):
        pair = Pair(make_sizes, {"plan": "union", "block": block}, bucket_cap_mb=0.01)
        for step in range(3):
            gradients = {}
            for index, parameter in enumerate(pair.plain.module.p):
                gradients[index] = torch.zeros_like(parameter)
                if parameter.numel() and dist.get_rank() == step % dist.get_world_size():
                    gradients[index].view(-1)[-1] = EXACT_UNIT * (index + 1)
            pair.step(gradients)
            pair.assert_equal()


@pytest.mark.parametrize("count", [2, 3])
def test_sizes_that_divide_by_nothing(ranks: Ranks, count: int) -> None:
    ranks.run(count, send_last_elements)


def train_in_subgroups(members: list[list[int]]) -> None:
    groups = [dist.new_group(part) for part in members]
    for group, part in zip(groups, members, strict=True):
        if dist.get_rank() not in part:
            continue
        plain = DistributedDataParallel(make_tables(), process_group=group)
        hooked = DistributedDataParallel(make_tables(), process_group=group)
        s2reducer.register(hooked, plan="union")
        for step in range(3):
            for model in (plain, hooked):
                model.zero_grad()
                model(given(plain.module, step)).backward()
            for mine, theirs in zip(hooked.parameters(), plain.parameters(), strict=True):
                assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("members", [[[0, 1], [2, 3]], [[1, 3]]])
def test_groups_that_are_not_the_default_one(ranks: Ranks, members: list[list[int]]) -> None:
    ranks.run(4, train_in_subgroups, members)


def join_unevenly() -> None:
    """Ranks with 2, 4 and 5 batches; those that are done follow the others with zeros."""
    pair = Pair(make_tables, {"plan": "union"})
    grads: dict[str, list[Tensor]] = {}
    for name, model in (("plain", pair.plain), ("hooked", pair.hooked)):
        grads[name] = []
        with model.join():
            for step in range((2, 4, 5)[dist.get_rank()]):
                model.zero_grad()
                model(given(pair.plain.module, step)).backward()
                grads[name] += [parameter.grad.clone() for parameter in model.parameters()]
    assert all(map(torch.equal, grads["plain"], grads["hooked"]))


def test_uneven_inputs_with_join(ranks: Ranks) -> None:
    ranks.run(3, join_unevenly)


# ------------------------------------------------------------------------------------------------
# Sums that are rounded, and models that users have
# ------------------------------------------------------------------------------------------------


def compare_dense_bits(flags: dict[str, Any]) -> None:
    pair = Pair(make_tables, {"plan": "dense"}, **flags)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * 8 + dist.get_rank())
        parameters = enumerate(pair.plain.module.p)
        pair.step({i: torch.randn(p.shape, generator=generator) for i, p in parameters})
        pair.assert_equal()


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("count", [2, 3])
def test_dense_has_the_bits_of_ddp(ranks: Ranks, count: int, flags: str) -> None:
    ranks.run(count, compare_dense_bits, FLAGS[flags])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.table = nn.Embedding(2000, 32)
        self.convolution = nn.Conv1d(32, 48, 3)
        self.norm = nn.LayerNorm(48)
        self.out = nn.Linear(48, 300)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.convolution(self.table(words).transpose(1, 2)).relu().mean(2)
        return self.out(self.norm(hidden)).log_softmax(1)[:, 0]


def train_classifier(plan: str, wrapped: bool) -> tuple[float, int]:
    flags = {"bucket_cap_mb": CAP_MB}
    plain = DistributedDataParallel(Classifier(), **flags)
    hooked = DistributedDataParallel(Classifier(), **flags)
    state = S2State(plan=plan)
    hook, reference = s2_hook, default_hooks.allreduce_hook
    if wrapped:
        hook, reference = map(default_hooks.fp16_compress_wrapper, (hook, reference))
        plain.register_comm_hook(None, _mean_of(reference))
    hooked.register_comm_hook(state, hook)
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (plain, hooked)]
    worst = 0.0
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * 8 + dist.get_rank())
        words = torch.randint(2000, (6, 9), generator=generator)
        for model, optimizer in zip((plain, hooked), optimizers, strict=True):
            optimizer.zero_grad()
            model(words).sum().backward()
        for mine, theirs in zip(hooked.parameters(), plain.parameters(), strict=True):
            assert mine.grad.dtype == torch.float32
            scale = float(theirs.grad.abs().max())
            worst = max(worst, float((mine.grad - theirs.grad).abs().max()) / scale)
        for optimizer in optimizers:
            optimizer.step()
        assert_same_on_all_ranks([parameter.grad for parameter in hooked.parameters()])
        with torch.no_grad():  # or the difference would be that of two trainings
            for mine, theirs in zip(hooked.parameters(), plain.parameters(), strict=True):
                mine.copy_(theirs)
    plans = state.report().plans.items()
    return worst, sum(totals.buckets for name, totals in plans if name != "dense")


def _mean_of(hook: Any) -> Any:
    """A hook of torch's own, with the default group as its state."""

    def with_group(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        return hook(dist.group.WORLD, bucket)

    return with_group


@pytest.mark.parametrize("plan", ["union", "auto"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_classifier_within_rounding(ranks: Ranks, count: int, plan: str) -> None:
    for worst, buckets in ranks.run(count, train_classifier, plan, False):
        assert worst < 1e-6
        assert buckets >= STEPS


def test_inside_the_wrapper_that_compresses_to_float16(ranks: Ranks) -> None:
    for worst, _ in ranks.run(2, train_classifier, "union", True):
        assert worst < 2e-3  # one rounding to float16 apart: the sum is float32 here


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.table = nn.Embedding(500, 16, sparse=True, padding_idx=0)
        self.out = nn.Linear(16, 400)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.table(words).sum(1))


def train_bag() -> list[dict[str, Any]]:
    pair = Pair(Bag)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step * 8 + dist.get_rank())
        words = torch.randint(500, (6, 9), generator=generator)
        if step == 2 and dist.get_rank() == 0:
            words.zero_()  # padding alone: no row at all
        pair.step(words)
        sparse = pair.hooked.module.table.weight.grad
        assert sparse.is_sparse
        plain = pair.plain.module.table.weight.grad
        assert torch.equal(sparse.to_dense(), plain.to_dense())
        assert torch.equal(pair.hooked.module.out.weight.grad, pair.plain.module.out.weight.grad)
    return pair.state.report().as_dict()["parameters"]


@pytest.mark.parametrize("count", [2, 3])
def test_sparse_embeddings_travel_as_without_a_hook(ranks: Ranks, count: int) -> None:
    for parameters in ranks.run(count, train_bag):
        reasons = {tuple(entry["shape"]): entry["reason"] for entry in parameters}
        assert reasons[(500, 16)] == "COO gradient"
