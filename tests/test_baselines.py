# SPDX-License-Identifier: MIT
"""The exchanges that s2reducer is compared with are right, and count what they send."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, exact_gradient, world_sizes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import baselines
from baselines import RowsState, WireState, ZenExchange
from baselines.measure import CollectiveClock, Sample, interleave
from baselines.methods import BASELINES, PLANS
from baselines.rows import bitmap_nbytes
from baselines.zen import owner_of
from bench_allreduce import Point, formula

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 16
SHAPES = ((300, WIDTH), (7, 5), (130, WIDTH), (11,))
STEPS = 3


def exchange(name: str) -> baselines.hooks.Exchange:
    return {"coo": lambda: baselines.exchange_coo, "zen": ZenExchange}[name]()


def densities_of(rank: int) -> float:
    """Rank 1 has no row at all; with four ranks, rank 3 has most of them."""
    return (0.1, 0.0, 0.05, 0.8)[rank]


def given(rank: int, step: int) -> dict[int, Tensor]:
    """What each parameter's gradient is; of the tables (0 and 2) a share of the rows."""
    return {
        index: exact_gradient(
            torch.empty(shape), densities_of(rank) if index % 2 == 0 else 1.0, step, index, rank
        )
        for index, shape in enumerate(SHAPES)
    }


def mean(world_size: int, step: int) -> list[Tensor]:
    """Exact in any arithmetic."""
    ranks = [given(rank, step) for rank in range(world_size)]
    return [sum(rank[index] for rank in ranks) / world_size for index in range(len(SHAPES))]


def reduce_given(name: str) -> int:
    """Some steps with a hook; gives the bytes that the last of them sent."""
    return reduce_given_in_order(name)[0]


def reduce_given_in_order(name: str) -> tuple[int, list[int]]:
    """The same, and the parameters' order in the last step's bucket, which DDP decides."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(Given(*(torch.zeros(shape) for shape in SHAPES)))
    tables = [module.module.p[0], module.module.p[2]]
    if name in ("coo", "zen"):
        state = RowsState(exchange(name), tables)
        hook = baselines.rows_hook
    else:
        state = WireState()
        hook = getattr(baselines, f"{name}_hook")
    sent, order = 0, []

    def record_order(state, bucket) -> torch.futures.Future[Tensor]:
        order[:] = [parameter.numel() for parameter in bucket.parameters()]
        return hook(state, bucket)

    module.register_comm_hook(state, record_order)
    for step in range(STEPS):
        module.zero_grad()
        before = state.wire.nbytes
        module(given(rank, step)).backward()
        sent = state.wire.nbytes - before
        gradients = [parameter.grad for parameter in module.module.p]
        for gradient, expected in zip(gradients, mean(world_size, step), strict=True):
            assert torch.equal(gradient, expected)
        assert_same_on_all_ranks(gradients)
    return sent, [[torch.Size(shape).numel() for shape in SHAPES].index(numel) for numel in order]


def rest_nbytes(world_size: int) -> int:
    return 2 * (world_size - 1) * 4 * (7 * 5 + 11) // world_size


def live_rows(rank: int, step: int) -> list[Tensor]:
    gradients = given(rank, step)
    return [gradients[index].any(1).nonzero().view(-1) for index in (0, 2)]


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 4, fast=2))
def test_coo(ranks: Ranks, world_size: int) -> None:
    sent = ranks.run(world_size, reduce_given, "coo")
    counts = [sum(map(len, live_rows(rank, STEPS - 1))) for rank in range(world_size)]
    each = 8 + max(counts) * (4 + 4 * WIDTH)
    assert sent == [(world_size - 1) * each + rest_nbytes(world_size)] * world_size


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 4, fast=2))
def test_zen(ranks: Ranks, world_size: int) -> None:
    sent, orders = zip(*ranks.run(world_size, reduce_given_in_order, "zen"), strict=True)
    # Each table's bits begin in a word of their own.
    nrows = 320 + 192
    first, second = (0, 320) if orders[0].index(0) < orders[0].index(2) else (192, 0)
    slices = torch.bincount(owner_of(torch.arange(nrows), world_size), minlength=world_size)
    touched = torch.zeros(world_size, nrows, dtype=torch.bool)
    for rank in range(world_size):
        first_rows, second_rows = live_rows(rank, STEPS - 1)
        touched[rank, first + first_rows] = True
        touched[rank, second + second_rows] = True
    owners = owner_of(torch.arange(nrows), world_size)
    union = torch.bincount(owners[touched.any(0)], minlength=world_size)
    pull = (world_size - 1) * (bitmap_nbytes(int(slices.max())) + 4 * WIDTH * int(union.max()))
    for rank in range(world_size):
        counts = torch.bincount(owners[touched[rank]], minlength=world_size)
        push = sum(
            8
            + min(4 * int(counts[peer]), bitmap_nbytes(int(slices[peer])))
            + 4 * WIDTH * int(counts[peer])
            for peer in range(world_size)
            if peer != rank
        )
        assert sent[rank] == push + pull + rest_nbytes(world_size)


def test_zen_spreads_owners_evenly() -> None:
    for world_size in (2, 3, 4, 8):
        shares = torch.bincount(owner_of(torch.arange(100_000), world_size)) / 100_000
        assert len(shares) == world_size
        assert (shares * world_size - 1).abs().max() < 0.02


@pytest.mark.parametrize(("name", "width"), [("dense", 4), ("bf16", 2)])
def test_dense_and_bf16(ranks: Ranks, name: str, width: int) -> None:
    """Multiples of 12 up to 96 and their sums are exact in bfloat16 as well."""
    sent = ranks.run(2, reduce_given, name)
    numel = sum(torch.Size(shape).numel() for shape in SHAPES)
    assert sent == [width * numel] * 2


def test_bf16_rounds(ranks: Ranks) -> None:
    assert ranks.run(2, reduce_a_third) == [float(torch.tensor(1 / 3).bfloat16())] * 2


def reduce_a_third() -> float:
    module = DistributedDataParallel(Given(torch.zeros(8)))
    module.register_comm_hook(WireState(), baselines.bf16_hook)
    module({0: torch.full([8], 1 / 3)}).backward()
    return float(module.module.p[0].grad[0])


def reduce_coo_gradients(name: str, empty: bool) -> None:
    """A sparse embedding, whose gradients have rows twice and in any order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lookups = [torch.tensor([5, 2, 5, 90 + peer, peer]) for peer in range(world_size)]
    if empty:
        lookups = [lookup[:0] for lookup in lookups]
    module = DistributedDataParallel(nn.Embedding(100, WIDTH, sparse=True))
    if name != "gloo":
        module.register_comm_hook(RowsState(exchange(name)), baselines.rows_hook)
    expected = torch.zeros(100, WIDTH)
    for lookup in lookups:
        expected.index_add_(0, lookup, torch.full([len(lookup), WIDTH], 12.0 / world_size))
    for _ in range(STEPS):
        module.zero_grad()
        (module(lookups[rank]) * 12.0).sum().backward()
        gradient = module.module.weight.grad
        assert gradient.is_sparse
        assert torch.equal(gradient.to_dense(), expected)
        assert len(gradient.coalesce().indices()[0]) == len(torch.cat(lookups).unique())


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("name", ["coo", "zen", "gloo"])
def test_coo_gradients(ranks: Ranks, name: str, empty: bool) -> None:
    ranks.run(3 if name != "gloo" else 4, reduce_coo_gradients, name, empty)


def reduce_nothing() -> float:
    module = DistributedDataParallel(Given(torch.zeros(8)))
    module.register_comm_hook(None, baselines.none_hook)
    module({0: torch.full([8], dist.get_rank() + 1.0)}).backward()
    return float(module.module.p[0].grad[0])


def test_none_leaves_each_rank_its_own(ranks: Ranks) -> None:
    assert ranks.run(2, reduce_nothing) == [1.0, 2.0]


def refuse_tables(*shapes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tables must be float32"):
        RowsState(baselines.exchange_coo, [torch.empty(shape) for shape in shapes])


def test_tables_of_two_widths_are_refused(ranks: Ranks) -> None:
    ranks.run(1, refuse_tables, (3, 4), (3, 5))
    ranks.run(1, refuse_tables, (3,))


# ------------------------------------------------------------------------------------------------
# Measuring
# ------------------------------------------------------------------------------------------------


def test_the_clock_counts_overlapping_spans_once() -> None:
    clock = CollectiveClock()
    clock._spans = [(3.0, 5.0), (1.0, 2.0), (4.0, 4.5), (4.0, 7.0)]
    assert clock.take() == 5.0
    assert clock.take() == 0.0


def take_turns() -> tuple[list[str], dict[str, list[Sample]]]:
    calls: list[str] = []
    tensor = torch.ones(1000)

    def send() -> None:
        calls.append("send")
        dist.all_reduce(tensor)

    samples = interleave({"send": send, "rest": lambda: calls.append("rest")}, turns=4, warm_up=1)
    return calls, samples


def test_methods_take_turns(ranks: Ranks) -> None:
    (calls, samples), (_, others) = ranks.run(2, take_turns)
    assert samples == others
    assert calls == ["rest", "send", "send", "rest", "rest", "send", "send", "rest", "rest", "send"]
    assert [len(samples[name]) for name in ("send", "rest")] == [4, 4]
    assert all(0 < sample.wire < sample.seconds for sample in samples["send"])
    assert all(sample.wire == 0 for sample in samples["rest"])


def test_formulas_of_a_small_table() -> None:
    """64 rows of 16 floats; four ranks with 8 rows each, 20 in the union; a bitmap has 8 bytes."""
    point = Point(megabytes=64 * 16 * 4 / 1e6, row=16, density=1 / 8)
    assert (point.nrows, point.count(0), point.count(3)) == (64, 8, 8)
    expected = {
        "dense": (4 * 1.5 * 4096, 1.5 * 4096),
        "bf16": (2 * 1.5 * 4096, 0.75 * 4096),
        "gather": (12 * (8 + 8 * 64), 3 * (8 + 8 * 64)),
        "union": (4 * 1.5 * (20 * 64 + 8), 1.5 * (20 * 64 + 8)),
        "owner": (12 * 8 + (12 + 60) * 64, 3 * 8 + (12 + 60) * 64 / 4),
        "coo": (12 * 8 * 68, 3 * 8 * 68),
        "zen": (3 * (8 * 68 + 20 * 64 + 8), 3 / 4 * (8 * 68 + 20 * 64 + 8)),
    }
    for plan, figures in expected.items():
        assert formula(plan, point, 4, 20)[:2] == figures, plan


@pytest.mark.slow
def test_the_benches_run(tmp_path: Path) -> None:
    """On namespaces or on loopback, whatever there is."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def bench(script: str, *arguments: str) -> list[dict]:
        command = [
            sys.executable,
            str(ROOT / "benchmarks" / script),
            "--out",
            str(tmp_path / "out"),
        ]
        subprocess.run([*command, *arguments], env=environment, check=True, timeout=120)
        assert "| ---: |" in (tmp_path / "out.md").read_text()
        return json.loads((tmp_path / "out.json").read_text())["records"]

    sizes = ["--megabytes", "2", "--densities", "0.05", "--ranks", "3", "--skew", "1"]
    small = ["--quick", "--turns", "2", *sizes]
    records = bench("bench_allreduce.py", *small, "--plans", *BASELINES, *PLANS)
    assert len(records) == len(BASELINES) + len(PLANS)
    for record in records:
        if record["plan"] != "none":
            assert record["error"] < (1e-2 if record["plan"] == "bf16" else 1e-6)
        if record["kind"] == "namespaces":
            assert record["is_within"], record
    methods = ["none", "auto", "zen", "sparse:ddp"]
    arguments = ["--quick", "--models", "language-quick", "--turns", "2", "--methods", *methods]
    records = bench("bench_training.py", *arguments)
    assert [r["method"] for r in records][:3] == ["ddp", "none", "auto"] and len(records) == 6
    by_method = {r["method"]: r for r in records}
    if records[0]["kind"] == "namespaces":
        assert by_method["none"]["sent"] < 10_000
        assert by_method["auto"]["sent"] < by_method["ddp"]["sent"] / 2
