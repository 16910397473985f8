# SPDX-License-Identifier: MIT
"""``select``: what is sent, what is owed, and when, against all ranks in one place."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, cases, world_sizes
from seeds import SEED
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import RandomK, SharedTopK, Threshold, TopK
from s2reducer.reference_lossy import LossyRanks
from s2reducer.selection import Selection

pytestmark = pytest.mark.usefixtures("seed")
SHAPES = [(90, 50), (4, 33, 7), (64, 3), (70,)]  # the last is a vector and travels whole
STEPS = 5

SELECTIONS: dict[str, Selection] = {
    "top": TopK(0.1, block=16, least_numel=100),
    "elements": TopK(0.05, block=1, least_numel=100),
    "warm": TopK(0.1, block=5, least_numel=100, warmup_steps=3),
    "shared": SharedTopK(0.1, block=16, least_numel=100),
    "random": RandomK(0.2, block=16, least_numel=100),
    "threshold": Threshold(50.0, block=16, least_numel=100),
}


def gradient(seed: int, step: int, rank: int, shape: tuple[int, ...]) -> Tensor:
    """Multiples of 12: sums over steps and ranks, and means of up to four, are exact."""
    numbers = torch.Generator().manual_seed(seed % 2**31 + 1000 * step + 10 * rank + len(shape))
    values = 12.0 * torch.randint(-9, 10, shape, generator=numbers)
    values[torch.rand(shape[0], generator=numbers) < 0.2] = 0.0
    return values


def train(
    seed: int, settings: dict[str, Any], dtype: torch.dtype, feedback: bool
) -> tuple[bool, bool]:
    """Whether means and debts of all steps are those of the reference, to the bit."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    model = Given(*(torch.zeros(shape, dtype=dtype) for shape in SHAPES))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    state = s2reducer.register(ddp, seed=seed, error_feedback=feedback, **settings)
    select = settings["select"]
    wanted = [
        LossyRanks(name, tuple(parameter.shape), select, nranks, seed, feedback)
        if select.selects_from(tuple(parameter.shape))
        else None
        for name, parameter in model.named_parameters()
    ]
    equal = owed_equal = True
    for step in range(STEPS):
        every = [
            [gradient(seed, step, one, shape).to(dtype) for shape in SHAPES]
            for one in range(nranks)
        ]
        ddp.zero_grad()
        ddp(dict(enumerate(every[rank]))).backward()
        for number, (parameter, reference) in enumerate(zip(model.p, wanted, strict=True)):
            of_all = [gradients[number] for gradients in every]
            mean = torch.stack([one.double() for one in of_all]).mean(0).to(dtype)
            if reference is not None:
                mean = reference.reduce(of_all).view(mean.shape)
            assert parameter.grad is not None
            equal &= torch.equal(parameter.grad, mean)
            owed = torch.zeros(parameter.numel())
            residual = state.residual(parameter)
            if residual is not None:
                block = residual.rows.shape[1]
                whole = torch.zeros(-(-parameter.numel() // block), block)
                whole[residual.blocks] = residual.rows
                owed = whole.view(-1)[: parameter.numel()]
            own = reference.owed[rank] if reference is not None and feedback else torch.zeros(())
            owed_equal &= bool((owed == own).all())
        assert_same_on_all_ranks([parameter.grad for parameter in model.p])
    return equal, owed_equal


@pytest.mark.parametrize("nranks", world_sizes(2, 3, 4, fast=2))
@pytest.mark.parametrize("name", cases([*SELECTIONS], "top", "shared", "threshold"))
def test_means_and_debts_are_those_of_the_reference(ranks: Ranks, nranks: int, name: str) -> None:
    settings = {"select": SELECTIONS[name]}
    assert set(ranks.run(nranks, train, SEED, settings, torch.float32, True)) == {(True, True)}


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["owner", "gather", "union", "dense", "sketch"])
@pytest.mark.parametrize("name", ["top", "shared"])
def test_every_plan_sends_what_is_selected(ranks: Ranks, plan: str, name: str) -> None:
    settings = {"select": SELECTIONS[name], "plan": plan}
    assert set(ranks.run(2, train, SEED, settings, torch.float32, True)) == {(True, True)}


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTIONS)
def test_without_feedback_nothing_is_owed(ranks: Ranks, name: str) -> None:
    settings = {"select": SELECTIONS[name]}
    assert set(ranks.run(3, train, SEED, settings, torch.float32, False)) == {(True, True)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_owe_what_rounding_left(ranks: Ranks, dtype: torch.dtype) -> None:
    settings = {"select": SELECTIONS["top"], "deterministic": True}
    assert set(ranks.run(2, train, SEED, settings, dtype, True)) == {(True, True)}


def sent(select: Selection | None) -> tuple[int, int]:
    """Bytes of a step, and of its largest bucket's index and energies where they are shared."""
    model = Given(torch.zeros(1000, 640))
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, select=select)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        before = state.report().bytes_sent
        ddp.zero_grad()
        ddp({0: torch.randn(1000, 640, generator=numbers)}).backward()
        after = state.report().bytes_sent
    return after - before, model.p[0].numel()


def test_a_shared_selection_sends_no_index(ranks: Ranks) -> None:
    ((nbytes, numel), *_) = ranks.run(4, sent, SharedTopK(0.01))
    blocks = numel // 64
    values, energies = 2 * 3 / 4 * 100 * 64 * 4, 2 * 3 / 4 * blocks * 4
    assert blocks == 10_000
    assert abs(nbytes - values - energies) <= 0.06 * values + 4096  # the owners' caps, a header


def test_top_k_sends_its_density(ranks: Ranks) -> None:
    ((nbytes, numel), *_) = ranks.run(2, sent, TopK(0.01))
    k = numel // 100
    assert 4 * k <= nbytes <= 1.1 * 4 * k + numel // 64 // 8 + 4096


class Skips(torch.nn.Module):
    """Uses its second parameter in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(64, 64))
        self.second = torch.nn.Parameter(torch.zeros(64, 64))

    def forward(self, uses: bool, scale: Tensor) -> Tensor:
        loss = (self.first * scale).sum()
        return loss + (self.second * scale).sum() if uses else loss


def skip() -> list[float]:
    """What has arrived of the second parameter's gradients after each step, and what is owed."""
    model = Skips()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    state = s2reducer.register(ddp, select=TopK(0.5, block=64, least_numel=100))
    arrived, totals = 0.0, []
    scale = torch.arange(64.0 * 64).view(64, 64)
    for uses in (True, False, False, True):
        model.first.grad = model.second.grad = None
        ddp(uses, scale).backward()
        if model.second.grad is not None:
            arrived += float(model.second.grad.double().sum())
        residual = state.residual(model.second)
        owed = 0.0 if residual is None else float(residual.rows.double().sum())
        totals.append(arrived + owed)
    return totals


def test_what_is_owed_of_an_unused_parameter_waits(ranks: Ranks) -> None:
    once = float(torch.arange(64.0 * 64).double().sum())
    assert ranks.run(2, skip) == [[once, once, once, 2 * once]] * 2


def broken(kind: str) -> list[tuple[bool, list[float]]]:
    """Whether a step came out finite, and what was owed after it."""
    model = Given(torch.zeros(8, 64))
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "scaler", init_scale=1024.0)
    state = s2reducer.register(
        ddp,
        select=RandomK(0.25, least_numel=100),
        scaler=scaler if kind != "none" else None,
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    steps = []
    for step in range(4):
        own = torch.full((8, 64), float(8 + step))
        if step == 2 and dist.get_rank() == 1:
            own[5, 3] = math.inf
        optimizer.zero_grad()
        scaler.scale(ddp({0: own})).backward()
        finite = bool(model.p[0].grad.isfinite().all())
        residual = state.residual(model.p[0])
        assert residual is not None
        owed = torch.zeros(8)
        owed[residual.blocks] = residual.rows[:, 7]
        if finite or kind == "scaler":
            scaler.step(optimizer)  # which skips what is not finite
        scaler.update()
        steps.append((finite, owed.tolist()))
    return steps


@pytest.mark.parametrize("kind", ["scaler", "disabled"])
def test_a_step_that_is_not_finite_is_undone(ranks: Ranks, kind: str) -> None:
    """And what is owed is in the gradient's own units, whatever its scale."""
    for steps in ranks.run(2, broken, kind):
        assert [finite for finite, _ in steps] == [True, True, False, True]
        assert steps[2][1] == steps[1][1]
        sums = [sum(owed) for _, owed in steps]
        assert sums[0] == 6 * 8.0
        assert all(owed in (0.0, 8.0) for owed in steps[0][1])
        # Each row owes the gradients since it was sent last, of steps 0, 1 and 3.
        assert set(steps[3][1]) <= {0.0, 11.0, 9.0 + 11.0, 8.0 + 9.0 + 11.0}
        assert steps[3][1].count(0.0) == 2


def test_a_step_that_was_skipped_needs_the_scaler(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match=r"give it as S2State\(scaler=\.\.\.\)"):
        ranks.run(2, broken, "none")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0.0), "density must be above 0 and at most 1"),
        (lambda: TopK(1.5), "density must be above 0 and at most 1"),
        (lambda: TopK("a"), "density must be a number"),
        (lambda: TopK(0.1, block=0), "block of a selection must lie between 1 and"),
        (lambda: TopK(0.1, warmup_steps=-1), "warmup_steps must lie between 0 and"),
        (lambda: TopK(0.1, vectors=1), "vectors of a selection must be True or False"),
        (lambda: SharedTopK(0.1, block=1), "block of SharedTopK must be 2 or more"),
        (
            lambda: s2reducer.S2State(select=SharedTopK(0.1), block=1),
            "block must be 2 or more with",
        ),
        (lambda: Threshold(math.inf), "threshold must be above 0 and finite"),
        (lambda: s2reducer.S2State(select=0.1), "select must be a TopK"),
        (lambda: s2reducer.S2State(select=Selection()), "select must be a TopK"),
        (lambda: s2reducer.S2State(wire="fp8"), "wire must be None or 'bf16'"),
        (lambda: s2reducer.S2State(wire="bf16", plan="sketch"), "wire must be None with the plan"),
        (lambda: s2reducer.S2State(error_feedback=None), "error_feedback must be True or False"),
        (lambda: s2reducer.S2State(scaler=1.0), "scaler must be a torch.amp.GradScaler"),
    ],
)
def test_settings_are_checked(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message.replace("(", r"\(")):
        make()


def test_the_density_falls_by_the_same_factor() -> None:
    select = TopK(0.01, warmup_steps=4)
    kept = [select.keep(100_000_000, step) / 1e8 for step in range(1, 7)]
    assert kept == pytest.approx([1.0, 0.01**0.25, 0.1, 0.01**0.75, 0.01, 0.01], abs=1e-7)
    assert [TopK(0.07).keep(n, 1) for n in (1, 7, 8, 100)] == [1, 1, 1, 7]


def choices_in_buckets(seed: int, before: list[int], deterministic: bool) -> list[bool]:
    """Whether the same blocks are chosen behind so many others of the same bucket.

    Their energies add up to one over the ranks, up to a last bit that the order of the sum decides.
    """
    rank, nranks = dist.get_rank(), dist.get_world_size()
    numbers = torch.Generator().manual_seed(seed % 2**31)
    shares = torch.rand(nranks, 1000, generator=numbers)
    own = torch.randn(1000, 64, generator=numbers.manual_seed(seed % 2**31 + rank))
    own *= (shares[rank] / shares.sum(0)).sqrt().unsqueeze(1) / own.norm(dim=1, keepdim=True)
    results = []
    for count in before:
        ddp = DistributedDataParallel(Given(torch.zeros(1000, 64), torch.zeros(count, 64)))
        select = SharedTopK(0.3, least_numel=1)
        s2reducer.register(ddp, select=select, deterministic=deterministic, error_feedback=False)
        ddp({0: own, 1: torch.ones(count, 64)}).backward()
        results.append(ddp.module.p[0].grad)
    return [torch.equal(result, results[0]) for result in results]


def test_shared_choices_do_not_depend_on_the_buckets_where_that_is_asked_for(ranks: Ranks) -> None:
    counts = [64, 1500, 2000]
    assert ranks.run(3, choices_in_buckets, SEED, counts, True) == [[True] * 3] * 3
