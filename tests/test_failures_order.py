# SPDX-License-Identifier: MIT
"""Chained rounds: who issues them and waits for them, what travels, and that lengths fit.

What goes wrong in a hook that issues its second collective from a callback of the first, that packs
what is not zero on this rank alone, or that draws on generators which differ from rank to rank.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import MODELS, STEPS, Pair, given
from ranks import (
    COLLECTIVES,
    EXACT_UNIT,
    SKETCH,
    Given,
    Ranks,
    assert_same_on_all_ranks,
    cases,
    recorded_collectives,
)
from torch import Tensor, nn
from torch.futures import Future

from s2reducer import collectives
from s2reducer.transport import Transport

PLANS = ["auto", "gather", "owner", "union", SKETCH]
LANES = {"s2reducer-index", "s2reducer-values"}


@contextmanager
def wrapped(owner: Any, names: tuple[str, ...], wrap: Callable[[str, Any], Any]) -> Iterator[None]:
    """Puts ``wrap(name, function)`` in the place of functions, for a while."""
    originals = {name: getattr(owner, name) for name in names}
    try:
        for name, function in originals.items():
            setattr(owner, name, wrap(name, function))
        yield
    finally:
        for name, function in originals.items():
            setattr(owner, name, function)


# ------------------------------------------------------------------------------------------------
# Threads
# ------------------------------------------------------------------------------------------------


def make_layers() -> Given:
    """Weights of eight layers, each above the cap on a bucket."""
    torch.manual_seed(11)
    return Given(*(torch.randn(300, 300) for _ in range(8)))


def train_with_delays(plan: str, seed: int) -> tuple[set[str], list[str]]:
    """The threads that issued collectives, and what was issued or awaited in callbacks.

    Every rank dawdles before each collective in its own way, so that many buckets are in flight and
    callbacks run late, early, and at once.
    """
    delays = random.Random(seed + dist.get_rank())
    threads: set[str] = set()
    in_callbacks: list[str] = []
    here = threading.local()

    def slow(name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            threads.add(threading.current_thread().name)
            if getattr(here, "callback", False):
                in_callbacks.append(name)
            time.sleep(delays.random() * 4e-3)
            return function(*arguments, **options)

        return call

    def waiting(name: str, function: Any) -> Any:
        def call(future: Future[Any]) -> Any:
            if getattr(here, "callback", False) and not future.done():
                in_callbacks.append(name)
            return function(future)

        return call

    def marking(name: str, function: Any) -> Any:
        def then(future: Future[Any], callback: Callable[[Future[Any]], Any]) -> Future[Any]:
            def marked(done: Future[Any]) -> Any:
                here.callback = True
                try:
                    return callback(done)
                finally:
                    here.callback = False

            return function(future, marked)

        return then

    pair = Pair(make_layers, {"plan": plan}, bucket_cap_mb=0.3)
    with (
        wrapped(collectives, COLLECTIVES, slow),
        wrapped(Future, ("wait",), waiting),
        wrapped(Future, ("then",), marking),
    ):
        for step in range(STEPS):
            pair.step(given(pair.plain.module, step, 0.05))
            pair.assert_equal()
    pair.assert_trained()
    return threads, in_callbacks


@pytest.mark.parametrize(
    ("count", "plan"),
    [
        (2, "auto"),
        (2, "union"),
        pytest.param(2, "sketch", marks=pytest.mark.slow),
        pytest.param(4, "owner", marks=pytest.mark.slow),
    ],
)
def test_no_callback_issues_a_collective_or_waits(ranks: Ranks, count: int, plan: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    for threads, in_callbacks in ranks.run(count, train_with_delays, plan, seed):
        assert threads == {"MainThread"} | LANES
        assert in_callbacks == []


# ------------------------------------------------------------------------------------------------
# Lengths
# ------------------------------------------------------------------------------------------------


def gradient_at(places: str, rank: int, step: int) -> Tensor:
    """1000 floats; positions differ between ranks, their number may too."""
    gradient = torch.zeros(1000)
    live = {
        "other counts": (slice(0, None, 2), slice(0, None, 3)),
        "equal counts": (slice(0, 100), slice(900, 1000)),
        "empty and full": (slice(0, 0), slice(0, 1000)),
    }[places][rank]
    gradient[live] = EXACT_UNIT * (torch.arange(1000)[live] % 8 + step + rank + 1).float()
    return gradient


def train_on_positions(places: str, plan: str) -> tuple[list[Any], list[list[Any]]]:
    """Collectives that take one length on all ranks, and the sizes of those that do not."""
    sizes: list[list[Any]] = []

    def recorded(name: str, function: Any) -> Any:
        def call(self: Transport, into: Tensor, out: Tensor, *pieces: list[int]) -> None:
            sizes.append(list(pieces))
            function(self, into, out, *pieces)

        return call

    rank = dist.get_rank()
    pair = Pair(
        lambda: Given(*(torch.zeros(1000) for _ in range(4))),
        {"plan": plan, "block": 1},
        bucket_cap_mb=0.003,
    )
    with recorded_collectives() as calls, wrapped(Transport, ("all_to_all",), recorded):
        for step in range(STEPS):
            pair.step(dict.fromkeys(range(4), gradient_at(places, rank, step)))
            pair.assert_equal()
            expected = (gradient_at(places, 0, step) + gradient_at(places, 1, step)) / 2
            assert all(torch.equal(p.grad, expected) for p in pair.hooked.parameters())
    pair.assert_trained()
    return sorted(call for call in calls if "to_all" not in call[0]), sizes


@pytest.mark.parametrize("places", ["other counts", "equal counts", "empty and full"])
@pytest.mark.parametrize("plan", cases(["gather", "owner", "union"], "owner"))
def test_ranks_bring_equal_lengths(ranks: Ranks, plan: str, places: str) -> None:
    (calls, sizes), (other_calls, other_sizes) = ranks.run(2, train_on_positions, places, plan)
    assert calls == other_calls
    assert len(sizes) == len(other_sizes) and bool(sizes) == (plan == "owner")
    for (awaited, sent), (other_awaited, other_sent) in zip(sizes, other_sizes, strict=True):
        assert sent[1] == other_awaited[0] and other_sent[0] == awaited[1]


# ------------------------------------------------------------------------------------------------
# Operators and dtypes
# ------------------------------------------------------------------------------------------------

BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)


def train_without_bitwise(plan: str) -> set[str]:
    """On a backend that has no bitwise operators, as NCCL; the dtypes that travelled."""

    def refusing(name: str, function: Any) -> Any:
        def call(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
            if op in BITWISE:
                raise ValueError("Cannot use ReduceOp.BOR with NCCL")
            assert tensor.is_floating_point(), "a sum carries from one rank's bit into the next"
            return function(tensor, op=op, **options)

        return call

    pair = Pair(MODELS["dtypes"], {"plan": plan})
    with wrapped(collectives, ("all_reduce",), refusing), recorded_collectives() as calls:
        for step in range(STEPS):
            gradients = given(pair.plain.module, step)
            for model in (pair.plain, pair.hooked):
                model.zero_grad()
                model(gradients).backward()
            pair.assert_equal()
    pair.assert_trained()
    return {dtype for _, dtype, _ in calls}


@pytest.mark.parametrize("plan", ["auto", "gather", "owner"])
def test_other_plans_than_union_need_no_bitwise_operator(ranks: Ranks, plan: str) -> None:
    floats = {f"torch.{name}" for name in ("float16", "bfloat16", "float32", "float64")}
    for dtypes in ranks.run(3, train_without_bitwise, plan):
        # What backends refuse, in one version or another: bool, int16.
        assert dtypes <= floats | {"torch.uint8", "torch.int64"}
        assert "torch.uint8" in dtypes


def reduce_bitmaps() -> set[tuple[str, bool]]:
    """Of the AllReduces of ``union``: the operator, and whether it is of whole numbers."""
    seen = set()

    def watched(name: str, function: Any) -> Any:
        def call(tensor: Tensor, op: Any = dist.ReduceOp.SUM, **options: Any) -> Any:
            seen.add(("BOR" if op == dist.ReduceOp.BOR else str(op), tensor.is_floating_point()))
            return function(tensor, op=op, **options)

        return call

    pair = Pair(MODELS["dtypes"], {"plan": "union"})
    with wrapped(collectives, ("all_reduce",), watched):
        pair.step(given(pair.plain.module, 0))
    pair.assert_equal()
    return seen


def test_bitmaps_are_never_summed(ranks: Ranks) -> None:
    for seen in ranks.run(2, reduce_bitmaps):
        assert {op for op, floating in seen if not floating} == {"BOR"}
        assert "BOR" not in {op for op, floating in seen if floating}


# ------------------------------------------------------------------------------------------------
# Generators and hash seeds that differ from rank to rank
# ------------------------------------------------------------------------------------------------


class Dropping(nn.Module):
    """Tables behind a dropout, whose mask shows in every gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(12)
        self.tables = nn.ModuleList(nn.Embedding(500, 32) for _ in range(5))
        self.dropout = nn.Dropout(0.5)

    def forward(self, words: Tensor) -> Tensor:
        rows = [self.dropout(table(words)) for table in self.tables]
        return torch.stack(rows).square().sum()


def train_with_seeds_by_rank(plan: str) -> int:
    """A number that differs between processes whose Python hashes strings by other seeds."""
    rank = dist.get_rank()
    torch.manual_seed(1234 + rank)
    random.seed(rank)
    pair = Pair(Dropping, {"plan": plan}, bucket_cap_mb=0.05)
    for step in range(STEPS):
        words = torch.randint(500, (20,), generator=torch.Generator().manual_seed(8 * step + rank))
        states = []
        for model in (pair.plain, pair.hooked):
            torch.manual_seed(1234 + 8 * step + rank)
            before = random.getstate()
            model.zero_grad()
            model(words).backward()
            states.append(torch.get_rng_state())
            assert random.getstate() == before
        assert torch.equal(*states)
        if plan == "sketch":  # is not exact, but no rank's hashes may be others
            assert_same_on_all_ranks([hooked for _, hooked in pair.gradients()])
        else:
            pair.assert_equal()  # of two ranks any order of summation has the same bits
    pair.assert_trained()
    return hash("s2reducer")


@pytest.mark.parametrize("plan", PLANS)
def test_seeds_of_a_rank_neither_matter_nor_change(ranks: Ranks, plan: str) -> None:
    hashes = ranks.run(2, train_with_seeds_by_rank, plan)
    assert "PYTHONHASHSEED" in os.environ or hashes[0] != hashes[1]
