# SPDX-License-Identifier: MIT
"""``wire="bf16"``: what arrives, what is owed, and how many bytes it takes."""

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
from s2reducer import TopK

pytestmark = pytest.mark.usefixtures("seed")
SHAPES = [(200, 24), (50, 33), (129,)]
STEPS = 4
PLANS = ["auto", "owner", "gather", "union", "dense"]


def gradient(seed: int, step: int, rank: int, shape: tuple[int, ...]) -> Tensor:
    """Whole numbers of up to twelve bits, of which bfloat16 keeps eight, in a third of the rows:
    their sums, and means of two or four, are exact in float32."""
    numbers = torch.Generator().manual_seed(seed % 2**31 + 1000 * step + 10 * rank + len(shape))
    values = torch.randint(-4000, 4001, shape, generator=numbers).float()
    values[torch.rand(shape[0], generator=numbers) < 0.66] = 0.0
    return values


def owed(state: s2reducer.S2State, parameter: Tensor) -> Tensor:
    """float64, of the parameter's shape."""
    residual = state.residual(parameter)
    if residual is None:
        return torch.zeros(parameter.shape, dtype=torch.float64)
    block = residual.rows.shape[1]
    whole = torch.zeros(-(-parameter.numel() // block), block, dtype=torch.float64)
    whole[residual.blocks] = residual.rows.double()
    return whole.view(-1)[: parameter.numel()].view(parameter.shape)


def train(seed: int, settings: dict[str, Any]) -> list[str]:
    """What is wrong: of all that the ranks' gradients came to, what did not arrive is owed."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    model = Given(*(torch.zeros(shape) for shape in SHAPES))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    state = s2reducer.register(ddp, seed=seed, wire="bf16", **settings)
    came = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    arrived = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    wrong = []
    for step in range(STEPS):
        own = [gradient(seed, step, rank, shape) for shape in SHAPES]
        ddp.zero_grad()
        ddp(dict(enumerate(own))).backward()
        for number, parameter in enumerate(model.p):
            mean = parameter.grad
            assert mean is not None
            if not torch.equal(mean, mean.bfloat16().float()):
                wrong.append(f"step {step}, parameter {number}: more bits than were sent")
            arrived[number] += nranks * mean.double()
            total = own[number].double()
            dist.all_reduce(total)
            came[number] += total
            rest = owed(state, parameter)
            dist.all_reduce(rest)
            if not torch.equal(arrived[number] + rest, came[number]):
                wrong.append(f"step {step}, parameter {number}: something is lost")
            if step == 0 and not rest.any():
                wrong.append(f"parameter {number}: nothing was rounded")
        assert_same_on_all_ranks([parameter.grad for parameter in model.p])
    return wrong


@pytest.mark.parametrize("nranks", world_sizes(2, 4, fast=2))
@pytest.mark.parametrize("plan", PLANS)
def test_what_does_not_arrive_is_owed(ranks: Ranks, nranks: int, plan: str) -> None:
    assert ranks.run(nranks, train, SEED, {"plan": plan}) == [[]] * nranks


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("nranks", [2, 4])
def test_also_of_what_is_selected(ranks: Ranks, nranks: int, plan: str) -> None:
    settings = {"plan": plan, "select": TopK(0.3, block=8, least_numel=1000)}
    assert ranks.run(nranks, train, SEED, settings) == [[]] * nranks


def one_step(seed: int, plan: str, feedback: bool) -> tuple[list[Tensor], bool]:
    """The means of a step, and whether anything is owed."""
    model = Given(*(torch.zeros(shape) for shape in SHAPES))
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, plan=plan, wire="bf16", error_feedback=feedback)
    own = [gradient(seed, 0, dist.get_rank(), shape) for shape in SHAPES]
    ddp(dict(enumerate(own))).backward()
    return [p.grad for p in model.p], any(state.residual(p) is not None for p in model.p)


@pytest.mark.parametrize("plan", ["owner", "dense"])
@pytest.mark.parametrize("feedback", [True, False])
def test_sums_are_made_in_float32(ranks: Ranks, plan: str, feedback: bool) -> None:
    """Of three ranks' rounded gradients, and rounded once more."""
    results = ranks.run(3, one_step, SEED, plan, feedback)
    for number, shape in enumerate(SHAPES):
        total = sum(gradient(SEED, 0, rank, shape).bfloat16().float() for rank in range(3))
        mean = (total / 3).bfloat16().float()
        for means, owes in results:
            assert torch.equal(means[number], mean)
            assert owes == feedback


def nbytes(wire: str | None, density: float) -> float:
    """Sent of a step, over what a dense ring would send in float32."""
    torch.manual_seed(dist.get_rank())
    model = Given(torch.zeros(20_000, 64), torch.zeros(400, 400))
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, wire=wire)
    ring = 2 * (dist.get_world_size() - 1) / dist.get_world_size() * 4
    for _ in range(3):
        rows = torch.rand(20_000, 1) < density
        before = state.report().bytes_sent
        ddp.zero_grad()
        ddp({0: torch.randn(20_000, 64) * rows, 1: torch.randn(400, 400)}).backward()
        sent = state.report().bytes_sent - before
    return sent / (ring * (20_000 * 64 + 400 * 400))


@pytest.mark.parametrize("density", [0.0, 0.01, 1.0])
def test_half_the_bytes_are_sent_of_the_dense_part_too(ranks: Ranks, density: float) -> None:
    narrow = ranks.run(2, nbytes, "bf16", density)[0]
    wide = ranks.run(2, nbytes, None, density)[0]
    assert narrow == pytest.approx(wide / 2, rel=0.05)


def rows_that_travel() -> list[int]:
    """Rows of the union that were counted, each step, of a table whose rows come once."""
    model = Given(torch.zeros(1000, 64))
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, wire="bf16", plan="owner")
    counts = []
    before = 0
    for step in range(5):
        values = torch.zeros(1000, 64)
        values[10 * step : 10 * step + 10] = 1.0 + 2.0**-12
        ddp.zero_grad()
        ddp({0: values}).backward()
        (record,) = state.report().parameters
        counts.append(record.union_live - before)
        before = record.union_live
    return counts


def test_what_is_owed_of_a_row_waits_until_it_comes_again(ranks: Ranks) -> None:
    assert ranks.run(2, rows_that_travel) == [[10] * 5] * 2


def missing_of_sums(seed: int, plan: str, rows_of_ranks: list[tuple[int, int]]) -> list[float]:
    """After every tenth step, what the means so far lack of the gradients' sum, over one gradient's
    norm.  Each rank has the same rows in all steps, with the same values."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    model = Given(torch.zeros(300, 64))
    ddp = DistributedDataParallel(model)
    s2reducer.register(ddp, plan=plan, wire="bf16")
    begin, end = rows_of_ranks[rank]
    numbers = torch.Generator().manual_seed(seed % 2**31 + rank)
    own = torch.zeros(300, 64)
    own[begin:end] = 1.0 + torch.rand(end - begin, 64, generator=numbers)
    mean = own.double()
    dist.all_reduce(mean)
    mean /= nranks
    arrived, errors = torch.zeros_like(mean), []
    for step in range(1, 31):
        ddp.zero_grad()
        ddp({0: own}).backward()
        arrived += model.p[0].grad.double()
        if step % 10 == 0:
            errors.append(float((arrived - step * mean).norm() / mean.norm()))
    return errors


ROWS = {
    "of one rank each": [(0, 100), (100, 200), (200, 300)],
    "of one rank": [(0, 300), (0, 1), (0, 0)],
    "of some ranks": [(0, 200), (100, 290), (0, 10)],
}


@pytest.mark.parametrize("rows", cases([*ROWS], "of some ranks"))
@pytest.mark.parametrize("plan", cases(PLANS, "owner", "gather"))
def test_nothing_is_owed_for_ever(ranks: Ranks, plan: str, rows: str) -> None:
    """A rank that sums rows which it never has sends what it owes of them, too."""
    of_ranks = list(ROWS[rows])
    if plan == "dense" and rows == "of one rank":
        of_ranks[2] = (7, 8)  # where no index is sent, only a parameter that the rank uses itself
    for errors in ranks.run(3, missing_of_sums, SEED, plan, of_ranks):
        assert max(errors) < 2**-8


def others() -> list[bool]:
    """Whether COO, float64, float16 and bfloat16 gradients arrive as they would without it."""
    indices = torch.tensor([[1, 7]])
    values = torch.full((2, 16), 1.0 + 2.0**-20)
    table = torch.nn.EmbeddingBag(100, 16, sparse=True, mode="sum")
    torch.nn.init.zeros_(table.weight)
    parameters = {
        torch.float64: 1.0 + 2.0**-40,
        torch.float16: 1.0 + 2.0**-10,
        torch.bfloat16: 1.0 + 2.0**-7,
    }
    model = Given(*(torch.zeros(64, 64, dtype=dtype) for dtype in parameters))
    model.table = table
    model.forward = lambda gradients: (  # type: ignore[method-assign]
        Given.forward(model, gradients) + (table(indices) * values.sum(0)).sum()
    )
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, wire="bf16")
    given = {
        number: torch.full((64, 64), value, dtype=dtype)
        for number, (dtype, value) in enumerate(parameters.items())
    }
    ddp(given).backward()
    same = [torch.equal(p.grad, given[number]) for number, p in enumerate(model.p)]
    rows = table.weight.grad.coalesce()
    same.append(bool((rows.values() == 2.0 + 2.0**-19).all()) and len(rows.values()) == 2)
    return [*same, all(state.residual(p) is None for p in ddp.parameters())]


def test_other_gradients_arrive_as_they_are(ranks: Ranks) -> None:
    assert ranks.run(2, others) == [[True] * 5] * 2


def broken(plan: str) -> list[list[float]]:
    """What is owed after each of three steps, the second of which is not finite on one rank."""
    model = Given(torch.zeros(10, 32))
    ddp = DistributedDataParallel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    state = s2reducer.register(ddp, plan=plan, wire="bf16", scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    steps = []
    for step in range(3):
        own = torch.full((10, 32), 1.0 + 2.0**-10)
        if step == 1 and dist.get_rank() == 1:
            own[5, 3] = math.nan
        optimizer.zero_grad()
        scaler.scale(ddp({0: own})).backward()
        finite = bool(model.p[0].grad.isfinite().all())
        assert finite == (step != 1)
        scaler.step(optimizer)
        scaler.update()
        steps.append(owed(state, model.p[0])[:, 0].tolist())
    return steps


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_that_is_not_finite_is_undone(ranks: Ranks, plan: str) -> None:
    for steps in ranks.run(2, broken, plan):
        assert steps == [[2.0**-10] * 10, [2.0**-10] * 10, [2.0**-9] * 10]
