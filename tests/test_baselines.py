# SPDX-License-Identifier: MIT
"""The exchanges that s2reducer is compared with are right, and count what they send."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, world_sizes
from table_gradients import SHAPES, STEPS, WIDTH, live_rows, reduce_given
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import baselines
from baselines import RowsState, install
from baselines.formulas import Point, formula
from baselines.measure import CollectiveClock, Sample, interleave
from baselines.methods import BASELINES, PLANS
from baselines.rows import bitmap_nbytes
from baselines.zen import owner_of

ROOT = Path(__file__).resolve().parent.parent


def rest_nbytes(world_size: int) -> int:
    return 2 * (world_size - 1) * 4 * (7 * 5 + 11) // world_size


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 4, fast=2))
def test_coo(ranks: Ranks, world_size: int) -> None:
    sent = [nbytes for nbytes, _ in ranks.run(world_size, reduce_given, "coo")]
    counts = [sum(map(len, live_rows(rank, STEPS - 1))) for rank in range(world_size)]
    each = 8 + max(counts) * (4 + 4 * WIDTH)
    assert sent == [(world_size - 1) * each + rest_nbytes(world_size)] * world_size


@pytest.mark.parametrize("world_size", world_sizes(1, 2, 3, 4, fast=2))
def test_zen(ranks: Ranks, world_size: int) -> None:
    sent, orders = zip(*ranks.run(world_size, reduce_given, "zen"), strict=True)
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


@pytest.mark.parametrize(("name", "width"), [("dense", 4), ("bf16", 2), ("fp16", 2)])
def test_dense_and_half_types(ranks: Ranks, name: str, width: int) -> None:
    """Multiples of 60 up to 480 and their means are exact in both of them as well."""
    sent = [nbytes for nbytes, _ in ranks.run(2, reduce_given, name)]
    numel = sum(torch.Size(shape).numel() for shape in SHAPES)
    assert sent == [width * numel] * 2


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_types_round(ranks: Ranks, name: str, dtype: torch.dtype) -> None:
    assert ranks.run(2, reduce_a_third, name) == [float(torch.tensor(1 / 3).to(dtype))] * 2


def reduce_a_third(name: str) -> float:
    module = DistributedDataParallel(Given(torch.zeros(8)))
    install(module, name)
    module({0: torch.full([8], 1 / 3)}).backward()
    return float(module.module.p[0].grad[0])


def reduce_nothing() -> float:
    module = DistributedDataParallel(Given(torch.zeros(8)))
    method = install(module, "none")
    module({0: torch.full([8], dist.get_rank() + 1.0)}).backward()
    assert method.nbytes == 0
    return float(module.module.p[0].grad[0])


def test_none_leaves_each_rank_its_own(ranks: Ranks) -> None:
    assert ranks.run(2, reduce_nothing) == [1.0, 2.0]


def refuse_tables(*shapes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="tables must be float32"):
        RowsState(baselines.exchange_coo, [torch.empty(shape) for shape in shapes])


def test_tables_of_two_widths_are_refused(ranks: Ranks) -> None:
    ranks.run(1, refuse_tables, (3, 4), (3, 5))
    ranks.run(1, refuse_tables, (3,))


def install_a_plan() -> tuple[int, int]:
    """Two steps of s2reducer's, whose settings pass through."""
    module = DistributedDataParallel(Given(torch.zeros(640, WIDTH)))
    method = install(module, "owner", seed=3)
    gradient = torch.zeros(640, WIDTH)
    gradient[7] = 12.0
    sent = []
    for _ in range(2):
        before = method.nbytes
        module({0: gradient}).backward()
        sent.append(method.nbytes - before)
    assert method.state.report().plans["owner"].buckets == 2
    return tuple(sent)


def test_a_plan_of_s2reducer_is_installed_in_the_same_way(ranks: Ranks) -> None:
    """One row is sent by one of two ranks and comes back: with the headers, a few hundred bytes."""
    first, second = zip(*ranks.run(2, install_a_plan), strict=True)
    assert 4 * WIDTH * 2 <= sum(second) <= 1000
    assert sum(second) <= sum(first)


def install_with(name: str, settings: dict[str, int], message: str, error: type) -> None:
    module = DistributedDataParallel(Given(torch.zeros(8)))
    with pytest.raises(error, match=message):
        install(module, name, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("sparcmll", {}, ValueError, "plan must be one of"),
        ("dense", {"rank": 2}, TypeError, "rank"),
        ("powersgd", {"rank": 0}, ValueError, "rank must be at least 1, but is 0"),
        ("dgc", {"density": 1.5}, ValueError, "density must be above 0 and at most 1, but is 1.5"),
    ],
)
def test_what_is_not_known_is_refused(
    ranks: Ranks, name: str, settings: dict[str, int], error: type, message: str
) -> None:
    ranks.run(1, install_with, name, settings, message, error)


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
        "fp16": (4 * 1.5 * 2048, 1.5 * 2048),
        # Two ranks with an eighth each have 15/64 of the rows in the mean.
        "sparcml": (4 * (8 + 15) * 68, (8 + 15) * 68),
        "sparcml-split": (3 * (8 + 20) * 68, 3 / 4 * (8 + 20) * 68),
        "parallax": (3 * (8 + 20) * 68, 3 / 4 * (8 + 20) * 68),
        "powersgd": (4 * 1.5 * 2 * (64 + 16) * 4, 1.5 * 2 * (64 + 16) * 4),
        "dgc": (12 * 1.024 * 8, 3 * 1.024 * 8),
    }
    for plan, figures in expected.items():
        assert formula(plan, point, 4, 20)[:2] == pytest.approx(figures), plan
    # Of four blocks of 16 rows; one lane for each aggregator.
    live = 4 * (2 - (1 - 8 / 64) ** 16 - (1 - 20 / 64) ** 16)
    each = 3 / 4 * live * (1024 + 4) + 3 * 8
    assert formula("omnireduce", point, 4, 20)[:2] == pytest.approx((4 * each, each))


def test_the_formula_of_sparcml_beyond_a_power_of_two() -> None:
    """Three ranks with all of 10 rows in common, of 1000: rank 2 gives its rows to rank 0."""
    point = Point(megabytes=1000 * 16 * 4 / 1e6, row=16, density=0.01, overlap=1.0)
    each = 10 * 68
    assert formula("sparcml", point, 3, 10)[:2] == pytest.approx((4 * each, 2 * each))


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
            rough = {"bf16": 1e-2, "fp16": 1e-2, "powersgd": math.inf, "dgc": math.inf}
            assert record["error"] <= rough.get(record["plan"], 1e-6)
        if record["kind"] == "namespaces":
            assert record["is_within"], record
    methods = ["none", "auto", "zen", "dgc", "sparse:ddp", "sparse:sparcml"]
    arguments = ["--quick", "--models", "language-quick", "--turns", "2", "--methods", *methods]
    records = bench("bench_training.py", *arguments)
    assert [r["method"] for r in records][:3] == ["ddp", "none", "auto"] and len(records) == 8
    by_method = {r["method"]: r for r in records}
    if records[0]["kind"] == "namespaces":
        assert by_method["none"]["sent"] < 10_000
        assert by_method["auto"]["sent"] < by_method["ddp"]["sent"] / 2
