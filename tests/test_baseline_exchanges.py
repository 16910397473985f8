# SPDX-License-Identifier: MIT
"""The baselines without loss give the exact mean, and send what their papers' formulas say."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks
from table_gradients import STEPS, WIDTH, reduce_given
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from baselines import (
    OmniReduceExchange,
    ParallaxExchange,
    Wire,
    ZenExchange,
    exchange_coo,
    exchange_recursive,
    exchange_split,
    install,
)
from baselines.hooks import Exchange
from baselines.methods import BY_ROWS
from baselines.rows import Rows, Source

slow = pytest.mark.slow


# Of coo and zen test_baselines.py knows the bytes as well.
@pytest.mark.parametrize("name", ["sparcml", "sparcml-split", "parallax", "omnireduce"])
@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=() if n == 3 else slow) for n in (1, 2, 3, 4, 5)]
)
def test_means(ranks: Ranks, name: str, world_size: int) -> None:
    """Dense gradients in buckets; one rank has no row, and sizes are odd."""
    ranks.run(world_size, reduce_given, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_ROWS)
def test_means_of_several_buckets(ranks: Ranks, name: str) -> None:
    """Dense rests and exchanges of several buckets are under way at the same time."""
    ranks.run(3, reduce_given, name, 0.001)


def reduce_coo_gradients(name: str, empty: bool) -> None:
    """A sparse embedding, whose gradients have rows twice and in any order."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lookups = [torch.tensor([5, 2, 5, 90 + peer, peer]) for peer in range(world_size)]
    if empty:
        lookups = [lookup[:0] for lookup in lookups]
    module = DistributedDataParallel(nn.Embedding(100, WIDTH, sparse=True))
    if name != "gloo":
        install(module, name)
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
@pytest.mark.parametrize("name", [*BY_ROWS, "gloo"])
def test_coo_gradients(ranks: Ranks, name: str, empty: bool) -> None:
    ranks.run(3 if name != "gloo" else 4, reduce_coo_gradients, name, empty)


def reduce_what_cancels(name: str) -> int:
    """A table of 130 rows of one number, most of them there, and some that add up to zero."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    module = DistributedDataParallel(Given(torch.zeros(130, 1)))
    method = install(module, name, [module.module.p[0]])
    gradient = torch.full([130, 1], 12.0)
    gradient[10:20] *= (-1.0) ** rank
    gradient[20:30] = 0.0
    module({0: gradient}).backward()
    expected = torch.full([130, 1], 12.0)
    expected[10:20] *= world_size % 2 / world_size
    expected[20:30] = 0.0
    result = module.module.p[0].grad
    assert torch.equal(result, expected)
    assert_same_on_all_ranks([result])
    return method.nbytes


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_that_cancel_become_zero(ranks: Ranks, name: str) -> None:
    sent = ranks.run(2, reduce_what_cancels, name)
    if name == "sparcml":  # as a table: with its last bits filled up to 192
        assert sent == [8 + 4 * 192] * 2


# ------------------------------------------------------------------------------------------------
# Formulas
# ------------------------------------------------------------------------------------------------

NROWS = 20_000
INDEX = 4


def rows_of(rank: int, density: float, width: int) -> Rows:
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randperm(NROWS, generator=generator)[: round(density * NROWS)].sort().values
    values = torch.randint(-8, 9, (numbers.numel() * width,), generator=generator)
    return Rows(numbers, 12.0 * values)


def exchanges() -> dict[str, tuple[Exchange, int]]:
    """Each, and the elements of a row or block."""
    return {
        "coo": (exchange_coo, WIDTH),
        "zen": (ZenExchange(), WIDTH),
        "sparcml": (exchange_recursive, WIDTH),
        "sparcml-split": (exchange_split, WIDTH),
        "parallax": (ParallaxExchange(ranges=5), WIDTH),
        "omnireduce": (OmniReduceExchange(lanes=64), 256),
    }


def exchange_rows(name: str, density: float) -> int:
    """Exchanges a table by itself; gives the bytes sent."""
    exchange, width = exchanges()[name]
    world_size = dist.get_world_size()
    everyone = [rows_of(rank, density, width) for rank in range(world_size)]
    own = everyone[dist.get_rank()]

    def read(some: Tensor, out: Tensor) -> None:
        where = torch.searchsorted(own.numbers, some)
        torch.index_select(own.values.view(-1, width), 0, where, out=out.view(-1, width))

    wire = Wire()
    parts = exchange(Source(own.numbers, NROWS, width, read), wire)
    result, expected = torch.zeros(NROWS, width), torch.zeros(NROWS, width)
    for part in parts:
        assert (part.numbers[1:] > part.numbers[:-1]).all()
        result[part.numbers] = part.values.view(-1, width)
    for rows in everyone:
        expected.index_add_(0, rows.numbers, rows.values.view(-1, width))
    assert torch.equal(result, expected / world_size)
    return wire.nbytes


def union(ranks: range, density: float) -> int:
    return len(torch.cat([rows_of(rank, density, 0).numbers for rank in ranks]).unique())


def formula(name: str, world_size: int, density: float) -> float:
    """Bytes a rank sends in the mean, as the papers have it."""
    k, share = round(density * NROWS), (world_size - 1) / world_size
    row = 4 * exchanges()[name][1]
    total = union(range(world_size), density)
    if name == "coo":
        return (world_size - 1) * k * (row + INDEX)
    if name == "zen":
        return share * (k * (row + INDEX) + total * row + NROWS / 8)
    if name == "sparcml":
        sent, together = 0.0, 1
        while together < world_size:
            groups = range(0, world_size, together)
            unions = [union(range(first, first + together), density) for first in groups]
            sent += sum(unions) / len(unions) * (row + INDEX)
            together *= 2
        return sent
    return share * (k + total) * (row + INDEX)


@pytest.mark.parametrize("density", [0.02, 0.2])
@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize(
    "world_size", [pytest.param(n, marks=() if n == 2 else slow) for n in (2, 4, 8)]
)
def test_formulas(ranks: Ranks, name: str, density: float, world_size: int) -> None:
    sent = ranks.run(world_size, exchange_rows, name, density)
    expected = formula(name, world_size, density)
    # ZEN fills up to the owner that has most.
    assert sum(sent) / world_size == pytest.approx(expected, rel=0.1 if name == "zen" else 0.02)
    assert max(sent) < 1.1 * expected


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "rounds"), [(3, 1), (5, 2)])
def test_ranks_beyond_a_power_of_two_fold_in(ranks: Ranks, world_size: int, rounds: int) -> None:
    """The last rank sends its rows and nothing else; rank 0 sends it all rows in the end."""
    sent = ranks.run(world_size, exchange_rows, "sparcml", 0.02)
    row = 4 * WIDTH + INDEX
    k, power = round(0.02 * NROWS), world_size - 1
    assert sent[-1] == 8 + k * row
    together = [range(1), range(2)][:rounds]
    first = sum(8 + union_with_extra(group, power) * row for group in together)
    assert sent[0] == first + 8 + union(range(world_size), 0.02) * row


def union_with_extra(group: range, power: int) -> int:
    """Of a group that rank 0 is in, which has the rows of the extra rank from the beginning."""
    numbers = [rows_of(rank, 0.02, 0).numbers for rank in (*group, power)]
    return len(torch.cat(numbers).unique())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparcml", "sparcml-split"])
def test_streams_become_dense(ranks: Ranks, name: str) -> None:
    """Where nearly all rows are there, what is sent of sums is the table."""
    sent = ranks.run(4, exchange_rows, name, 0.95)
    table, row = 4 * WIDTH * NROWS, 4 * WIDTH + INDEX
    k = round(0.95 * NROWS)
    if name == "sparcml":
        assert sent == [2 * 8 + 2 * table] * 4
    else:
        own = [
            int((rows_of(rank, 0.95, 0).numbers * 4 // NROWS == rank).sum()) for rank in range(4)
        ]
        pushed = [(k - count) * row for count in own]
        assert sent == [3 * 8 + 3 * 8 + nbytes + 3 * table // 4 for nbytes in pushed]
