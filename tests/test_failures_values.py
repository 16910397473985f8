# SPDX-License-Identifier: MIT
"""Values that are lost, spread or replaced by other hooks: NaN, Inf, the largest, the smallest."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import STEPS, Pair, given, make_tables
from ranks import EXACT_UNIT, SKETCH, Given, Ranks, assert_same_on_all_ranks, cases, exact_gradient
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

PLANS = ["auto", "dense", "gather", "owner", "union", SKETCH]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BAD_STEP = 3


def assert_equal_with_nan(pair: Pair) -> None:
    """On NaN too, whose bits other arithmetic may set otherwise; but not from rank to rank."""
    for plain, hooked in pair.gradients():
        torch.testing.assert_close(
            hooked.to_dense(), plain.to_dense(), rtol=0, atol=0, equal_nan=True
        )
    assert_same_on_all_ranks([hooked for _, hooked in pair.gradients()])


# ------------------------------------------------------------------------------------------------
# NaN and infinities
# ------------------------------------------------------------------------------------------------


def spoil_one_step(plan: str, dtype: torch.dtype) -> list[tuple[int, int]]:
    """NaNs and infinities of each step's gradients."""
    rank = dist.get_rank()
    # Two tables a bucket, which is above the size below which "auto" goes dense.
    cap = 0.03 if dtype == torch.float32 else 0.0155
    pair = Pair(lambda: make_tables().to(dtype), {"plan": plan}, bucket_cap_mb=cap)
    found = []
    for step in range(STEPS):
        gradients = given(pair.plain.module, step, 0.05)
        if step == BAD_STEP and rank == 0:
            gradients[0][3, 7] = -math.inf
        if step == BAD_STEP and rank == 1:
            gradients[0][3, 7] = math.inf  # together with rank 0's: NaN
            gradients[0][4, 0] = math.nan
            gradients[5][255, 15] = math.inf  # the last block and element of another bucket
        pair.step(gradients)
        assert_equal_with_nan(pair)
        hooked = [gradient for _, gradient in pair.gradients()]
        found.append(
            (sum(int(g.isnan().sum()) for g in hooked), sum(int(g.isinf().sum()) for g in hooked))
        )
    pair.assert_trained()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("plan", cases(["auto", "gather", "owner"], "owner"))
def test_non_finite_elements_stay_alone(ranks: Ranks, plan: str, dtype: torch.dtype) -> None:
    for found in ranks.run(3, spoil_one_step, plan, dtype):
        assert found == [(2, 1) if step == BAD_STEP else (0, 0) for step in range(STEPS)]


class Rows(nn.Module):
    """Two tables with COO gradients: the rows and values that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(400, 12, sparse=True) for _ in range(2))

    def forward(self, rows: Tensor, values: Tensor) -> Tensor:
        return sum((table(rows) * values).sum() for table in self.tables)


def spoil_sparse_gradients(plan: str) -> list[int]:
    """Elements that are not finite, by step."""
    rank = dist.get_rank()
    pair = Pair(Rows, {"plan": plan})
    found = []
    for step in range(STEPS):
        rows = torch.arange(6) * (rank + 1) + step
        values = torch.full((6, 12), float(EXACT_UNIT * (rank + 1)))
        if step == BAD_STEP and rank == 1:
            values[0, 2], values[5, 11] = math.nan, math.inf
        pair.step(rows, values)
        assert_equal_with_nan(pair)
        found.append(sum(int((~g.to_dense().isfinite()).sum()) for _, g in pair.gradients()))
    return found


@pytest.mark.parametrize("plan", ["auto", "owner", "union", SKETCH])
def test_non_finite_elements_of_sparse_gradients_stay_alone(ranks: Ranks, plan: str) -> None:
    for found in ranks.run(2, spoil_sparse_gradients, plan):
        assert found == [4 if step == BAD_STEP else 0 for step in range(STEPS)]


# ------------------------------------------------------------------------------------------------
# AMP
# ------------------------------------------------------------------------------------------------


def train_with_scaler(plan: str) -> tuple[list[float], list[bool]]:
    """The scale after each step, and whether the step moved the parameters."""
    pair = Pair(make_tables, {"plan": plan})
    models = (pair.plain, pair.hooked)
    scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=2.0**-10) for model in models]
    scales, moved = [], []
    for step in range(STEPS):
        gradients = given(pair.plain.module, step, 0.05)
        if step == BAD_STEP and dist.get_rank() == 1:
            gradients[2][9, 100] = math.inf
        before = [parameter.detach().clone() for parameter in pair.hooked.parameters()]
        for model, scaler, optimizer in zip(models, scalers, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(model(gradients)).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        for plain, hooked in zip(pair.plain.parameters(), pair.hooked.parameters(), strict=True):
            assert torch.equal(plain, hooked)
        assert_same_on_all_ranks(list(pair.hooked.parameters()))
        scales.append(scalers[1].get_scale())
        moved.append(not all(map(torch.equal, before, pair.hooked.parameters())))
    pair.assert_trained()
    return scales, moved


@pytest.mark.parametrize("plan", PLANS)
def test_an_infinity_on_one_rank_skips_one_step_on_all(ranks: Ranks, plan: str) -> None:
    for scales, moved in ranks.run(2, train_with_scaler, plan):
        assert moved == [step != BAD_STEP for step in range(STEPS)]
        assert scales == [4.0 if step < BAD_STEP else 2.0 for step in range(STEPS)]


# ------------------------------------------------------------------------------------------------
# The largest and the smallest
# ------------------------------------------------------------------------------------------------

HUGE = {torch.float32: 3e38, torch.float64: 1.7e308, torch.float16: 30000.0, torch.bfloat16: 3e38}


def make_mixed(dtype: torch.dtype) -> Given:
    """A bucket of three, the second of which stays sparse."""
    return Given(*(torch.zeros(rows, 64, dtype=dtype) for rows in (2000, 3000, 1000)))


def huge_everywhere(dtype: torch.dtype) -> dict[str, set[str]]:
    """The plans of each table of a bucket that is partly dense."""
    pair = Pair(lambda: make_mixed(dtype), bucket_cap_mb=25)
    plans: dict[str, set[str]] = {}
    for _ in range(STEPS + 2):
        gradients = {i: torch.full_like(p, HUGE[dtype]) for i, p in enumerate(pair.plain.module.p)}
        gradients[1][9:] = 0.0
        pair.step({index: gradient.detach() for index, gradient in gradients.items()})
        for (_, hooked), gradient in zip(pair.gradients(), gradients.values(), strict=True):
            assert torch.equal(hooked, gradient)
        for number, entry in enumerate(pair.state.report().as_dict()["parameters"]):
            plans.setdefault(str(number), set()).add(f"{entry['plan']}: {entry['reason']}")
    return plans


@pytest.mark.parametrize("dtype", cases([*DTYPES], torch.float16))
def test_no_overflow_beside_segments_that_stay_dense(ranks: Ranks, dtype: torch.dtype) -> None:
    for plans in ranks.run(4, huge_everywhere, dtype):
        reasons = [reason for table in plans.values() for reason in table]
        assert "dense: stays dense" in reasons  # begun in the hook's body
        assert "dense: too many live blocks" in reasons  # in the lane of the values
        assert any(not reason.startswith("dense") for reason in reasons)


def smallest_on_one_rank(plan: str) -> list[list[float]]:
    """What remains of float16's smallest numbers, a few multiples of 6e-8, on rank 1 alone."""
    pair = Pair(lambda: Given(torch.zeros(512, 32, dtype=torch.float16)), {"plan": plan})
    results = []
    for multiple in (1, 2, 3, 6, 8):
        gradient = torch.zeros(512, 32, dtype=torch.float16)
        if dist.get_rank() == 1:
            gradient[::10, 5] = multiple * 2.0**-24
        pair.step({0: gradient})
        ((plain, hooked),) = pair.gradients()
        assert_same_on_all_ranks([hooked])
        assert int(hooked.count_nonzero()) in (0, 52)
        results.append([float(plain[0, 5]) * 2.0**24, float(hooked[0, 5]) * 2.0**24])
    return results


@pytest.mark.parametrize("plan", PLANS)
def test_values_that_underflow_are_rounded_and_no_more(ranks: Ranks, plan: str) -> None:
    exact = [multiple / 4 for multiple in (1, 2, 3, 6, 8)]
    for results in ranks.run(4, smallest_on_one_rank, plan):
        for mean, (plain, hooked) in zip(exact, results, strict=True):
            assert hooked == plain == round(mean)  # to even, as one rounding does


# ------------------------------------------------------------------------------------------------
# torch's wrappers around hooks
# ------------------------------------------------------------------------------------------------


def bf16_wrapper(hook: Any) -> Any:
    """torch refuses its own, by its name, where there is no NCCL."""
    wrapped = default_hooks.bf16_compress_wrapper(hook)
    wrapped.__name__ = "wrapped"
    return wrapped


WRAPPERS = {torch.float16: default_hooks.fp16_compress_wrapper, torch.bfloat16: bf16_wrapper}


def train_in_wrapper(plan: str, dtype: torch.dtype) -> set[str]:
    pair = Pair(make_tables, {"plan": plan}, wrap=WRAPPERS[dtype])
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step, 0.1))
        pair.assert_equal()  # the values are exact in both types
    pair.assert_trained()
    assert {bucket[3] for bucket in pair.buckets} == {dtype}
    return set(pair.state.report().plans)


@pytest.mark.parametrize("dtype", WRAPPERS)
@pytest.mark.parametrize("plan", cases(["auto", "dense", "owner"], "auto"))
def test_inside_the_wrappers_that_compress(ranks: Ranks, plan: str, dtype: torch.dtype) -> None:
    for plans in ranks.run(4, train_in_wrapper, plan, dtype):
        assert plans == {plan} or (plan == "auto" and plans)


def huge_in_wrapper(plan: str, dtype: torch.dtype) -> bool:
    """Whether a mean is finite whose sum is not."""
    pair = Pair(make_tables, {"plan": plan}, wrap=WRAPPERS[dtype])
    gradient = {i: torch.zeros_like(p) for i, p in enumerate(pair.plain.module.p)}
    for tensor in gradient.values():
        tensor[::3] = HUGE[dtype]
    for _ in range(STEPS):
        pair.step({index: tensor.detach() for index, tensor in gradient.items()})
        for index, (_, hooked) in enumerate(pair.gradients()):
            expected = gradient[index].to(dtype).float()
            if not torch.equal(hooked, expected):
                return False
    return True


@pytest.mark.parametrize("dtype", WRAPPERS)
@pytest.mark.parametrize("plan", cases(["dense", "owner", "union"], "owner"))
def test_no_overflow_inside_the_wrappers(ranks: Ranks, plan: str, dtype: torch.dtype) -> None:
    assert all(ranks.run(4, huge_in_wrapper, plan, dtype))


def sparse_in_wrapper(plan: str, dtype: torch.dtype) -> Any:
    pair = Pair(Rows, {"plan": plan}, wrap=WRAPPERS[dtype])
    for step in range(STEPS):
        rows = torch.arange(6) * (dist.get_rank() + 1) + step
        pair.step(rows, torch.full((6, 12), float(EXACT_UNIT * (dist.get_rank() + 1))))
        for plain, hooked in pair.gradients():
            assert hooked.is_sparse and hooked.dtype == torch.float32
            assert torch.equal(plain.to_dense(), hooked.to_dense())
        assert_same_on_all_ranks([hooked for _, hooked in pair.gradients()])


@pytest.mark.parametrize("dtype", WRAPPERS)
@pytest.mark.parametrize("plan", ["auto", "owner", "union", SKETCH])
def test_sparse_gradients_inside_the_wrappers(ranks: Ranks, plan: str, dtype: torch.dtype) -> None:
    ranks.run(2, sparse_in_wrapper, plan, dtype)


# ------------------------------------------------------------------------------------------------
# Zeros
# ------------------------------------------------------------------------------------------------


def train_beside_unused_rows(plan: str) -> None:
    """Rows of which no rank's gradient is ever anything but zero, under Adam."""
    pair = Pair(make_tables, {"plan": plan})
    start = [parameter.detach().clone() for parameter in pair.hooked.parameters()]
    optimizer = torch.optim.Adam(pair.hooked.parameters(), lr=1e-2)
    for step in range(3 * STEPS):
        gradients = {}
        for index, parameter in enumerate(pair.plain.module.p):
            gradients[index] = exact_gradient(parameter, 0.3, step, index, dist.get_rank())
            gradients[index][len(parameter) // 4 :] = 0.0
        pair.step(gradients)
        pair.assert_equal()
        optimizer.step()
    for before, parameter in zip(start, pair.hooked.parameters(), strict=True):
        unused = len(parameter) // 4
        assert torch.equal(before[unused:], parameter[unused:])
        assert not parameter.grad[unused:].any()
        assert not torch.equal(before[:unused], parameter[:unused])


@pytest.mark.parametrize("plan", cases(["auto", "gather", "owner"], "auto"))
def test_what_is_zero_everywhere_never_moves(ranks: Ranks, plan: str) -> None:
    ranks.run(2, train_beside_unused_rows, plan)


def be_silent_in_turns(plan: str) -> list[str]:
    """A rank without any gradient at all, another one in each step, from the first on."""
    pair = Pair(make_tables, {"plan": plan})
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        density = 0.0 if step % (world_size + 1) in (rank, world_size) else 0.2
        pair.step(given(pair.plain.module, step, density))
        pair.assert_equal()
    pair.assert_trained()
    return [f"{entry['plan']}" for entry in pair.state.report().as_dict()["parameters"]]


@pytest.mark.parametrize("plan", ["gather", "owner"])
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_that_have_nothing_in_turns(ranks: Ranks, count: int, plan: str) -> None:
    assert ranks.run(count, be_silent_in_turns, plan) == [[plan] * 8] * count
