# SPDX-License-Identifier: MIT
"""The chooser: one choice on all ranks, whatever each measures; what stays dense; probes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, exact_gradient, recorded_collectives
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import chooser, constants
from s2reducer.chooser import Meter
from s2reducer.constants import NAMES, Constants, Cost, agree, to_words
from s2reducer.plans.choice import choose

# ------------------------------------------------------------------------------------------------
# Constants
# ------------------------------------------------------------------------------------------------


def test_constants_are_medians_over_the_ranks_that_know() -> None:
    ranks = [
        to_words({"round": 1e-3, "wire": 8e-9}),
        to_words({"round": 3e-3, "wire": 2e-9}),
        to_words({"round": 2e-3}),
    ]
    before = Constants(scan=7e-10)
    after = agree(ranks, before)
    assert after.round == pytest.approx(2e-3) and after.wire == pytest.approx(5e-9)
    assert (after.dense, after.scan) == (before.dense, 7e-10)  # nobody knows


def test_figures_are_lower_quartiles_and_the_least_of_small_rounds() -> None:
    meter = Meter()
    for seconds in (5e-3, 1e-3, 2e-3, 9e-3):
        meter.round(100, seconds)
    meter.round(10**6, 1.0)  # too large to tell of latency
    for seconds in (0.012, 0.022, 0.032, 0.052):
        meter.rows(10**6, 2, seconds)
    meter.work(10**6, 0.5)
    meter.scan(10**6, 0.25)
    figures = meter.figures(Constants())
    assert figures["round"] == 1e-3
    assert figures["wire"] == pytest.approx(0.020 / 10**6)
    assert (figures["work"], figures["scan"]) == (0.5e-6, 0.25e-6)
    assert set(figures) == set(NAMES)


def test_an_allreduce_behind_another_is_timed_from_its_end() -> None:
    meter = Meter()
    meter.dense(10**6, 0.0, 1.0)
    meter.dense(10**6, 0.1, 1.5)
    assert sorted(meter._samples["dense"]) == [0.5e-6, 1e-6]


@pytest.mark.parametrize(
    ("sparse", "dense", "penalty"),
    [
        (0.02, 0.04, 1.0),  # as predicted: half
        (0.03, 0.04, 1.5),
        (0.04, 0.04, 2.0),
        (0.08, 0.02, 2.5),  # no further, by three waits
        (0.001, 0.9, 0.4),
        (0.0001, 0.0002, 0.0),  # too short to say
    ],
)
def test_waits_correct_predictions(sparse: float, dense: float, penalty: float) -> None:
    meter, constants = Meter(), Constants(round=0.5)

    def measured() -> float:
        return meter.figures(constants)["sparse_penalty"]

    assert measured() == 0.0
    for _ in range(3):
        meter.step("dense", dense, Cost(rounds=2))
    assert measured() == 0.0
    for _ in range(3):
        meter.step("sparse", sparse, Cost(rounds=1))
    assert measured() == pytest.approx(penalty)
    meter.forget_steps()
    assert measured() == 0.0


def test_a_choice_is_kept_until_another_is_better_by_a_margin() -> None:
    def cost(seconds: float) -> Cost:
        return Cost(rounds=seconds, wire=1.0)

    dense, constants = Cost(rounds=1.0, dense=2.0), Constants(round=1.0, wire=0.0, dense=0.0)

    def chosen(before: str, **seconds: float) -> str:
        candidates = {plan: cost(value) for plan, value in seconds.items()}
        return choose(candidates, dense, before, constants).plan

    assert chosen("none", owner=0.50, gather=0.48) == "gather"
    assert chosen("owner", owner=0.50, gather=0.48) == "owner"
    assert chosen("owner", owner=0.50, gather=0.44) == "gather"
    assert choose({"owner": cost(2.0)}, dense, "gather", constants).reason == "as set"
    both = {"owner": cost(0.5), "dense": dense}
    assert choose(both, dense, "none", constants).reason == "50 % of dense bytes"
    worse = replace(constants, sparse_penalty=2.5)
    assert choose(both, dense, "none", worse).plan == "dense"


# ------------------------------------------------------------------------------------------------
# Ranks that measure different things
# ------------------------------------------------------------------------------------------------


def believe(figures: dict[str, float]) -> None:
    """For the rest of this process: what every meter says."""
    Meter.figures = lambda self, before: figures  # type: ignore[method-assign]


def train_with_injected_times(steps: int) -> tuple[list[Any], list[tuple[str, str, int]]]:
    """Every rank believes in another network; some would go dense, others by each other plan."""
    rank = dist.get_rank()
    beliefs: list[dict[str, float]] = [
        {"round": 1e-6, "wire": 1e-7, "dense": 1e-10, "work": 1e-8, "scan": 1e-9},
        {"round": 1e-1, "wire": 1e-9, "dense": 1e-8},
        {"round": 1e-4, "wire": 1e-12, "dense": 1e-10, "sparse_penalty": 0.3},
    ]
    believe(beliefs[rank])
    ddp = DistributedDataParallel(
        Given(*(torch.zeros(600, 32) for _ in range(4))), bucket_cap_mb=0.1
    )
    state = s2reducer.register(ddp)
    with recorded_collectives() as calls:
        for step in range(1, steps + 1):
            ddp.zero_grad()
            gradients = {
                i: exact_gradient(p, (0.02, 0.9, 0.3)[(rank + step + i) % 3], step, rank, i)
                for i, p in enumerate(ddp.module.p)
            }
            ddp(gradients).backward()
    assert_same_on_all_ranks([p.grad for p in ddp.parameters()])
    report = state.report().as_dict()
    choices = [(entry["plan"], entry["reason"]) for entry in report["parameters"]]
    # Of an all-to-all each rank has sizes of its own.
    shared = sorted((name, dtype, 0 if "to_all" in name else n) for name, dtype, n in calls)
    return [choices, report["changes"], state._chooser.constants], shared


@pytest.mark.slow
def test_other_timings_on_each_rank_make_the_same_choices(ranks: Ranks) -> None:
    with_ranks = ranks.run(3, train_with_injected_times, 140, seconds=90)
    ranks.close()  # for they believe it still
    (first, calls), *others = with_ranks
    for choices, other_calls in others:
        assert choices == first and other_calls == calls
    agreed = first[2]
    assert agreed.round == pytest.approx(1e-4) and agreed.wire == pytest.approx(1e-9)
    assert agreed.sparse_penalty == pytest.approx(0.3)  # one rank knows
    assert len({change["plan"] for change in first[1]}) > 1


# ------------------------------------------------------------------------------------------------
# What stays dense
# ------------------------------------------------------------------------------------------------


def train_mixed(steps: int, falls_at: int) -> dict[int, tuple[list[tuple[str, int]], list[str]]]:
    """By step: the collectives, and the plans of a sparse table between two dense ones.

    From ``falls_at`` on the first of the dense ones is sparse, too.
    """
    rank = dist.get_rank()
    believe({})  # so that the choice rests on the constants of the beginning
    ddp = DistributedDataParallel(Given(*(torch.zeros(rows, 64) for rows in (700, 900, 800))))
    state = s2reducer.register(ddp)
    steps_seen = {}
    for step in range(1, steps + 1):
        gradients = {
            i: exact_gradient(
                p, 0.02 if i == 1 or (i == 0 and step >= falls_at) else 1.0, step, rank, i
            )
            for i, p in enumerate(ddp.module.p)
        }
        ddp.zero_grad()
        with recorded_collectives() as calls:
            ddp(gradients).backward()
        for i, parameter in enumerate(ddp.parameters()):
            total = sum(
                exact_gradient(
                    parameter,
                    0.02 if i == 1 or (i == 0 and step >= falls_at) else 1.0,
                    step,
                    r,
                    i,
                )
                for r in range(dist.get_world_size())
            )
            assert torch.equal(parameter.grad, total / dist.get_world_size()), (step, i)
        assert_same_on_all_ranks([p.grad for p in ddp.parameters()])
        plans = [entry["plan"] for entry in state.report().as_dict()["parameters"]]
        steps_seen[step] = ([(name, length) for name, _, length in calls], plans)
    return steps_seen


@pytest.mark.slow
def test_what_stays_dense_is_not_scanned_until_a_probe_finds_it_sparse(ranks: Ranks) -> None:
    answers = ranks.run(2, train_mixed, 70, 40, seconds=60)
    ranks.close()
    assert answers[0] == answers[1]
    steps = answers[0]
    index = 128 + 8 * sum((rows + 63) // 64 for rows in (700, 900, 800))
    assert ("all_gather", index) in steps[3][0]
    # Once dense for some steps in a row, two AllReduces on the user's group, and a short index.
    short = 128 + 8 * ((900 + 63) // 64)
    for step in (20, 45, 63):
        calls, plans = steps[step]
        assert sorted(n for name, n in calls if name == "all_reduce") == [700 * 64, 800 * 64]
        assert ("all_gather", short) in calls
        assert plans == ["dense", "gather", "dense"]
    assert steps[32][0] == [("all_reduce", 2400 * 64)]  # a step that shows what dense takes
    assert ("all_gather", index) in steps[64][0]  # a probe
    calls, plans = steps[66]
    assert plans[1:] == ["gather", "dense"] and plans[0] == "gather"
    assert [n for name, n in calls if name == "all_reduce"] == [800 * 64]


def train_dense(steps: int) -> dict[int, list[tuple[str, int]]]:
    ddp = DistributedDataParallel(Given(torch.zeros(900, 64), torch.zeros(300)))
    s2reducer.register(ddp)
    seen = {}
    for step in range(1, steps + 1):
        ddp.zero_grad()
        with recorded_collectives() as calls:
            ddp({0: torch.ones(900, 64), 1: torch.ones(300)}).backward()
        seen[step] = [(name, length) for name, _, length in calls]
    return seen


def test_a_dense_bucket_sends_no_header_between_probes(ranks: Ranks) -> None:
    for steps in ranks.run(2, train_dense, 66):
        for step in (10, 31, 63, 66):
            assert steps[step] == [("all_reduce", 900 * 64 + 300)]
        assert len(steps[1]) > 1 and len(steps[64]) == 2


def test_the_schedule() -> None:
    auto = chooser.Chooser(adapts=True, learns=True)
    assert [step for step in range(1, 300) if auto.probes(step)] == [64, 128, 192, 256]
    assert [step for step in range(1, 600) if auto.is_dense(step)] == [32, 288, 544]
    fixed = chooser.Chooser(adapts=False, learns=False)
    assert not any(fixed.is_dense(step) for step in range(600))
    known = [to_words({"round": 2.0})] * 3
    fixed.learn(64, known)
    assert fixed.constants == Constants() and fixed.words(64) == [0] * constants.NFIGURES
    auto.learn(63, known)
    assert auto.constants.round == Constants().round
    auto.learn(64, known)
    auto.learn(64, [to_words({"round": 3.0})] * 3)  # a later header of the same step
    assert auto.constants.round == 2.0
