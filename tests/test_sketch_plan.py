# SPDX-License-Identifier: MIT
"""The plan ``sketch``: its sums beside dense ones, its rounds, and what becomes of stuck blocks."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks, assert_same_on_all_ranks, recorded_collectives, world_sizes
from seeds import SEED
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, SketchConfig, s2_hook

pytestmark = pytest.mark.usefixtures("seed")
TOLERANCE = 2.0**-16  # of each row's norm
SHAPES = [(3000, 16), (2000, 64), (500, 64), (333,), (40, 50), (12, 12)]


def gradient(
    shape: tuple[int, ...], *seed: int, density: float = 0.05, spread: float = 0.0
) -> Tensor:
    """Some rows, whose sizes are log-normal with that spread, in powers of e."""
    numbers = torch.Generator().manual_seed(hash(seed) & 0xFFFF_FFFF)
    values = torch.randn(shape, generator=numbers)
    rows = (shape[0], *[1] * (len(shape) - 1))
    values *= torch.exp(spread * torch.randn(rows, generator=numbers))
    values[torch.rand(shape[0], generator=numbers) >= density] = 0.0
    return values


def gradients(step: int, rank: int, *seed: int, **kind: float) -> dict[int, Tensor]:
    """The tables are sparse, with other rows in every step; the last is dense."""
    grads = {n: gradient(s, step, rank, n, *seed, **kind) for n, s in enumerate(SHAPES[:-1])}
    return grads | {len(SHAPES) - 1: gradient(SHAPES[-1], step, rank, *seed, density=1.0)}


def make(dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Any, S2State]:
    model = Given(*(torch.zeros(shape, dtype=dtype) for shape in SHAPES))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.3)
    return ddp, s2reducer.register(ddp, plan="sketch", **settings)


def backward(ddp: Any, grads: dict[int, Tensor]) -> list[Tensor]:
    ddp.zero_grad()
    ddp(grads).backward()
    return [parameter.grad for parameter in ddp.parameters()]


def mean_of(step: int, *seed: int, **kind: float) -> list[Tensor]:
    """In float64."""
    world_size = dist.get_world_size()
    ranks = [gradients(step, rank, *seed, **kind) for rank in range(world_size)]
    return [sum(r[n].double() for r in ranks) / world_size for n in range(len(SHAPES))]


def assert_close(results: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for result, exact in zip(results, expected, strict=True):
        found, wanted = (tensor.double().view(len(tensor), -1) for tensor in (result, exact))
        assert torch.equal(found[wanted.abs().amax(1) == 0], wanted[wanted.abs().amax(1) == 0])
        if result.dim() == 1:  # blocks of 64
            found, wanted = (
                nn.functional.pad(t.T, (0, -len(t) % 64)).view(-1, 64) for t in (found, wanted)
            )
        difference = (found - wanted).norm(dim=1)
        assert (difference <= tolerance * wanted.norm(dim=1)).all()


# ------------------------------------------------------------------------------------------------
# Beside dense
# ------------------------------------------------------------------------------------------------


def train_beside_dense(seed: int, spread: float) -> None:
    ddp, state = make()
    for step in range(10):
        results = backward(ddp, gradients(step, dist.get_rank(), seed, spread=spread))
        assert_close(results, mean_of(step, seed, spread=spread), TOLERANCE)
        assert_same_on_all_ranks(results)
    assert {record["plan"] for record in state.report().as_dict()["parameters"]} == {"sketch"}


@pytest.mark.parametrize("world_size", world_sizes(2, 3, 4, fast=2))
@pytest.mark.parametrize("spread", [0.0, 2.3])  # the latter is six decades for these many rows
def test_repair_equals_dense_within_2_to_the_minus_16_of_each_row(
    ranks: Ranks, world_size: int, spread: float
) -> None:
    ranks.run(world_size, train_beside_dense, SEED, spread)


def train_half(seed: int, dtype: torch.dtype) -> None:
    ddp, _ = make(dtype)
    rank = dist.get_rank()
    for step in range(4):
        given = {n: g.to(dtype) for n, g in gradients(step, rank, seed).items()}
        results = backward(ddp, given)
        expected = [
            sum(gradients(step, r, seed)[n].to(dtype).double() for r in range(3)) / 3
            for n in range(len(SHAPES))
        ]
        assert_close(results, expected, 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10)
        assert all(result.dtype == dtype for result in results)
        assert_same_on_all_ranks(results)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_summed_in_float32(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(3, train_half, SEED, dtype)


def float64_goes_dense() -> tuple[str, str]:
    ddp, state = make(torch.float64)
    backward(ddp, {n: g.double() for n, g in gradients(0, dist.get_rank(), 0).items()})
    record = state.report().as_dict()["parameters"][0]
    return record["plan"], record["reason"]


def test_float64_goes_dense_and_the_report_says_so(ranks: Ranks) -> None:
    for plan, reason in ranks.run(2, float64_goes_dense):
        assert (plan, reason) == ("dense", "float64, for which a sketch has no cells")


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tables = nn.ModuleList(
            nn.Embedding(rows, width, sparse=sparse) for rows, width in ((900, 16), (700, 24))
        )
        self.out = nn.Linear(40, 5)

    def forward(self, words: Tensor) -> Tensor:
        both = [table(words % table.num_embeddings).mean(1) for table in self.tables]
        return self.out(torch.cat(both, 1))


def train_adam(seed: int, sparse: bool) -> float:
    """The largest distance between weights trained with and without the hook, over the largest
    distance that they have gone."""
    ends = []
    for hooked in (False, True):
        ddp = DistributedDataParallel(Words(sparse))
        start = [parameter.detach().clone() for parameter in ddp.parameters()]
        if hooked:
            s2reducer.register(ddp, plan="sketch")
        kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
        optimizers = [
            kind(ddp.module.tables.parameters(), lr=1e-2),
            torch.optim.Adam(ddp.module.out.parameters(), lr=1e-2),
        ]
        for step in range(30):
            numbers = torch.Generator().manual_seed(seed + 100 * step + dist.get_rank())
            words = (torch.rand(16, 8, generator=numbers) ** 3 * 900).long()
            classes = words.sum(1) % 5
            ddp.zero_grad()
            nn.functional.cross_entropy(ddp(words), classes).backward()
            for optimizer in optimizers:
                optimizer.step()
        weights = [parameter.detach() for parameter in ddp.parameters()]
        assert_same_on_all_ranks(weights)
        ends.append(weights)
    way = max(float((w - s).abs().max()) for w, s in zip(ends[0], start, strict=True))
    apart = max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))
    return apart / way


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_adam_ends_where_dense_adam_ends(ranks: Ranks, sparse: bool) -> None:
    for apart in ranks.run(3, train_adam, SEED, sparse):
        assert apart < 1e-3


# ------------------------------------------------------------------------------------------------
# Rounds and bytes
# ------------------------------------------------------------------------------------------------


def count_rounds(seed: int) -> list[tuple[int, str]]:
    """Collectives of each step, and what became of the blocks: of one bucket with one support."""
    ddp = DistributedDataParallel(Given(torch.zeros(4000, 64)))
    state = s2reducer.register(ddp, plan="sketch")
    numbers = torch.Generator().manual_seed(seed)
    live = torch.rand(4000, generator=numbers) < 0.05
    steps = []
    for _ in range(8):
        values = torch.randn(4000, 64, generator=numbers) * live.unsqueeze(1)
        with recorded_collectives() as calls:
            ddp.zero_grad()
            ddp({0: values}).backward()
        assert {name for name, _, _ in calls} <= {"all_reduce", "all_gather"}
        steps.append((len(calls), state.report().as_dict()["parameters"][0]["reason"]))
    return steps


def test_one_bucket_takes_one_round_once_its_size_is_known(ranks: Ranks) -> None:
    """The OR and the sum wait for nothing, hence not for each other: see below.

    In 1 or 2 of 100 steps two blocks share all their cells, and are repaired by one call more.
    """
    for steps in ranks.run(2, count_rounds, SEED):
        later = steps[2:]  # the first step compares settings, the second has rebuilt buckets
        for calls, reason in later:
            assert calls == (3 if "repaired" in reason else 2), reason
        assert sum("repaired" not in reason for _, reason in later) >= 3


def hold_back_the_bitmaps(seed: int) -> list[str]:
    """Rank 0's bitmap comes only when its table is there; were there an order, they would wait for
    ever."""
    import threading

    from s2reducer.transport import Transport

    sum_done = threading.Event()
    order: list[str] = []
    transport_sum, transport_or = Transport.sum, Transport.or_bitmap
    late = False

    def sum_first(self: Transport, tensor: Tensor) -> None:
        transport_sum(self, tensor)
        order.append("sum")
        sum_done.set()

    def or_second(self: Transport, bitmap: Tensor) -> None:
        if late:
            assert sum_done.wait(20.0)
        transport_or(self, bitmap)
        order.append("or")

    Transport.sum, Transport.or_bitmap = sum_first, or_second  # type: ignore[method-assign]
    try:
        ddp = DistributedDataParallel(Given(torch.zeros(4000, 16)))
        s2reducer.register(ddp, plan="sketch")
        for step in range(4):
            late = step >= 2
            order.clear()
            sum_done.clear()
            ddp({0: gradient((4000, 16), seed, step, dist.get_rank())}).backward()
    finally:
        Transport.sum = transport_sum  # type: ignore[method-assign]
        Transport.or_bitmap = transport_or  # type: ignore[method-assign]
    return order[:2]


def test_tables_do_not_wait_for_bitmaps(ranks: Ranks) -> None:
    assert ranks.run(2, hold_back_the_bitmaps, SEED) == [["sum", "or"]] * 2


def sent_bytes(seed: int) -> tuple[int, int, float]:
    """In one step: what was sent, what an AllReduce of all would, and the union's share."""
    rows, width = 20_000, 64
    ddp = DistributedDataParallel(Given(torch.zeros(rows, width)))
    state = s2reducer.register(ddp, plan="sketch")
    before = 0
    for step in range(4):
        before = state.report().bytes_sent
        parts = [gradient((rows, width), seed, step, rank, density=0.02) for rank in range(2)]
        ddp.zero_grad()
        ddp({0: parts[dist.get_rank()]}).backward()
    union = int((parts[0].abs().amax(1) + parts[1].abs().amax(1) > 0).sum())
    return state.report().bytes_sent - before, rows * width * 4, union * width * 4


def test_bytes_follow_from_the_union(ranks: Ranks) -> None:
    """1.3 cells a block, a tenth for more blocks than before, and at most a tenth repaired."""
    for sent, dense, union in ranks.run(2, sent_bytes, SEED):
        assert union < sent < 1.75 * union < dense / 5


# ------------------------------------------------------------------------------------------------
# Overflow
# ------------------------------------------------------------------------------------------------

POLICIES = ("repair", "defer", "estimate")


def whole_gradient(step: int, rank: int, seed: int) -> Tensor:
    """Multiples of the number of ranks, so that means are whole, too."""
    numbers = torch.Generator().manual_seed(seed + 1000 * step + rank)
    values = torch.randint(-9, 10, (1500, 16), generator=numbers) * dist.get_world_size()
    return values * (torch.rand(1500, 1, generator=numbers) < 0.1)


def defer(seed: int, cells: float, dtype: torch.dtype, sparse: bool) -> int:
    """What was applied and what is owed are together what there was; returns what was deferred."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = nn.Embedding(1500, 16, sparse=True).to(dtype) if sparse else None
    ddp = DistributedDataParallel(model or Given(torch.zeros(1500, 16, dtype=dtype)))
    config = SketchConfig(cells=cells, margin=1.0, on_overflow="defer")
    state = s2reducer.register(ddp, plan="sketch", sketch=config)
    (parameter,) = ddp.parameters()
    applied, given = torch.zeros(1500, 16).double(), torch.zeros(1500, 16).double()
    owed = 0
    for step in range(8):
        ddp.zero_grad()
        own = whole_gradient(step, rank, seed).to(dtype)
        given += sum(whole_gradient(step, r, seed).double() for r in range(world_size))
        if sparse:
            rows = own.abs().amax(1).nonzero().flatten()
            (ddp(rows) * own[rows]).sum().backward()
            applied += parameter.grad.to_dense().double() * world_size
        else:
            ddp({0: own}).backward()
            applied += parameter.grad.double() * world_size
        residual = state.residual(parameter)
        rest = torch.zeros(1500, 16).double()
        if residual is not None:
            rest[residual.blocks] = residual.rows.double()
            owed += residual.blocks.numel()
        dist.all_reduce(rest)
        assert torch.equal(applied + rest, given), step
    return owed


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cells", [0.4, pytest.param(1.0, marks=pytest.mark.slow)])
def test_deferred_blocks_are_never_lost(
    ranks: Ranks, cells: float, dtype: torch.dtype, sparse: bool
) -> None:
    for world_size in (2, 3):
        assert min(ranks.run(world_size, defer, SEED, cells, dtype, sparse)) > 0


def overflow(seed: int, policy: str, cells: float) -> str:
    """Every block of the result is exact, or is 0, or is said to be an estimate."""
    config = SketchConfig(cells=cells, margin=1.0, on_overflow=policy)
    ddp = DistributedDataParallel(Given(torch.zeros(1500, 16)))
    state = s2reducer.register(ddp, plan="sketch", sketch=config)
    world_size = dist.get_world_size()
    ddp({0: whole_gradient(0, dist.get_rank(), seed).float()}).backward()
    (result,) = [parameter.grad for parameter in ddp.parameters()]
    parts = [whole_gradient(0, rank, seed) for rank in range(world_size)]
    live = sum(part.abs().amax(1) for part in parts) > 0
    exact = sum(parts) / world_size
    wrong = (result != exact).any(1)
    assert not result[~live].any()
    if policy == "repair":
        assert not wrong.any()
    if policy == "defer":
        assert not result[wrong].any()
    reason: str = state.report().as_dict()["parameters"][0]["reason"]
    numbers = {word: int(n) for n, word in (part.split() for part in reason.split(", "))}
    assert numbers["blocks"] == int(live.sum())
    changed = {"repair": "repaired", "defer": "deferred", "estimate": "estimated"}[policy]
    assert int(wrong.sum()) <= numbers.get(changed, 0)
    return changed if numbers.get(changed) else ""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cells", [1e-6, pytest.param(0.5, marks=pytest.mark.slow)])
def test_too_small_a_table_is_never_taken_for_exact(
    ranks: Ranks, policy: str, cells: float
) -> None:
    changed = {"repair": "repaired", "defer": "deferred", "estimate": "estimated"}[policy]
    assert set(ranks.run(2, overflow, SEED, policy, cells)) == {changed}


def estimate_error(seed: int, compression: float) -> tuple[float, float]:
    """Relative error of the estimate by one row, and the share that theory says, squared."""
    rows, world_size = 4000, dist.get_world_size()
    ddp = DistributedDataParallel(Given(torch.zeros(rows, 16)))
    state = S2State.paper(compression=compression, seed=seed % 1000)
    ddp.register_comm_hook(state, s2_hook)
    squares, errors = 0.0, 0.0
    for step in range(5):
        parts = [gradient((rows, 16), seed, step, r, density=0.05) for r in range(world_size)]
        ddp.zero_grad()
        ddp({0: parts[dist.get_rank()]}).backward()
        exact = sum(part.double() for part in parts) / world_size
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        squares += float(exact.square().sum())
        errors += float((result.double() - exact).square().sum())
    return errors / squares, 1 / compression


@pytest.mark.parametrize("compression", [0.25, pytest.param(4.0, marks=pytest.mark.slow)])
def test_the_papers_estimate_has_the_error_that_theory_says(
    ranks: Ranks, compression: float
) -> None:
    for found, expected in ranks.run(2, estimate_error, SEED, compression):
        assert math.sqrt(found) == pytest.approx(math.sqrt(expected), rel=0.1)


STEPS_OF_FEEDBACK = 60


def feed_back(seed: int) -> tuple[float, float]:
    """The same gradient in every step: the mean of what was applied comes close to it."""
    rows = 600
    ddp = DistributedDataParallel(Given(torch.zeros(rows, 16)))
    state = S2State.paper(compression=0.5, error_feedback=True)
    ddp.register_comm_hook(state, s2_hook)
    parts = [gradient((rows, 16), seed, r, density=0.4) for r in range(dist.get_world_size())]
    exact = sum(part.double() for part in parts) / len(parts)
    applied = torch.zeros(rows, 16).double()
    (parameter,) = ddp.parameters()
    for _ in range(STEPS_OF_FEEDBACK):
        ddp.zero_grad()
        ddp({0: parts[dist.get_rank()]}).backward()
        applied += parameter.grad.double()
    residual = state.residual(parameter)
    assert residual is not None
    rest = torch.zeros(rows, 16).double()
    rest[residual.blocks] = residual.rows.double()
    dist.all_reduce(rest)
    own = float(residual.rows.double().norm() / (exact.norm() + 1e-30))
    assert own < 10.0  # no rank's own grows with the number of steps, each of which adds about one
    both = applied + rest / len(parts)
    all_of_it = STEPS_OF_FEEDBACK * exact
    lost = float((both - all_of_it).norm() / all_of_it.norm())
    return lost, float((applied - all_of_it).norm() / all_of_it.norm())


@pytest.mark.slow
def test_error_feedback_gives_back_what_estimates_miss(ranks: Ranks) -> None:
    for lost, apart in ranks.run(2, feed_back, SEED):
        assert lost < 1e-5
        assert apart < 0.25  # one step is 1.4 apart


# ------------------------------------------------------------------------------------------------
# Values that are not finite
# ------------------------------------------------------------------------------------------------


def spoil(seed: int, policy: str) -> None:
    """Rank 1 has a NaN and an infinity in one table; the others' blocks stay clean."""
    # Nothing is skipped here, and nothing scaled: what is deferred is in the gradients' own units.
    no_scale = torch.amp.GradScaler(enabled=False)
    ddp, _ = make(sketch=SketchConfig(on_overflow=policy), scaler=no_scale)
    for step in range(3):
        parts = [gradients(step, rank, seed) for rank in range(dist.get_world_size())]
        if step == 1:
            parts[1][1][7, 3], parts[1][1][9, 1] = math.nan, math.inf
        results = backward(ddp, parts[dist.get_rank()])
        assert_same_on_all_ranks(results)
        for number, result in enumerate(results):
            exact = sum(part[number].double() for part in parts) / len(parts)
            bad = ~exact.isfinite()
            assert torch.equal(result[bad].double().nan_to_num(1.0), exact[bad].nan_to_num(1.0))
            assert int((~result.isfinite()).sum()) == (2 if step == 1 and number == 1 else 0)
            if policy == "repair":
                assert_close([result.nan_to_num(0, 0, 0)], [exact.nan_to_num(0, 0, 0)], TOLERANCE)


@pytest.mark.parametrize("policy", POLICIES)
def test_non_finite_values_arrive_and_do_not_spread(ranks: Ranks, policy: str) -> None:
    ranks.run(3, spoil, SEED, policy)


def overflow_in_a_cell() -> list[float]:
    """Blocks of 3e38 whose sum in a cell is infinite, though each mean is finite."""
    ddp = DistributedDataParallel(Given(torch.zeros(3000, 16)))
    s2reducer.register(ddp, plan="sketch")
    values = torch.zeros(3000, 16)
    values[::9] = 3e38
    results = []
    for _ in range(3):
        ddp.zero_grad()
        ddp({0: values}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        results.append(float((result - values).abs().max()))
    return results


def test_an_overflow_in_a_cell_is_repaired(ranks: Ranks) -> None:
    for differences in ranks.run(2, overflow_in_a_cell):
        assert differences == [0.0, 0.0, 0.0]


def cancelling() -> list[float]:
    """Rows that two ranks cancel, a million times larger than the others: what those lose."""
    rank = dist.get_rank()
    ddp = DistributedDataParallel(Given(torch.zeros(3000, 16)))
    s2reducer.register(ddp, plan="sketch")
    results = []
    for _ in range(4):
        values = torch.zeros(3000, 16)
        values[::20] = 1e6 if rank == 0 else -1e6
        values[7::20] = 0.3 * (rank == 0)
        ddp.zero_grad()
        ddp({0: values}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        assert not result[::20].any()
        results.append(float((result[7::20] - 0.15).abs().max()))
    return results


def test_ranks_that_cancel_each_other_cost_others_nothing(ranks: Ranks) -> None:
    for errors in ranks.run(2, cancelling):
        assert max(errors) < 0.15 * TOLERANCE


def overflow_while_peeling() -> None:
    """Each cell is finite, but not without some of its blocks."""
    ddp = DistributedDataParallel(Given(torch.zeros(2000, 16)))
    s2reducer.register(ddp, plan="sketch")
    values = torch.zeros(2000, 16)
    values[::16] = 2e38
    values[8::16] = -2e38
    for _ in range(6):
        ddp.zero_grad()
        ddp({0: values}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        assert torch.equal(result, values)


def test_an_overflow_while_peeling_is_repaired(ranks: Ranks) -> None:
    ranks.run(2, overflow_while_peeling)


def large_beside_small() -> None:
    """An element of one beside one of 2^23 in its row: small, but exact."""
    ddp = DistributedDataParallel(Given(torch.zeros(3000, 16)))
    s2reducer.register(ddp, plan="sketch")
    values = torch.zeros(3000, 16)
    values[5, 0], values[5, 1] = 2.0**23, 1.0
    for _ in range(4):
        ddp.zero_grad()
        ddp({0: values}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        assert torch.equal(result, values)


def test_small_elements_of_a_lone_row_are_kept(ranks: Ranks) -> None:
    ranks.run(2, large_beside_small)


# ------------------------------------------------------------------------------------------------
# Sizes
# ------------------------------------------------------------------------------------------------


def reduce_live(nblocks: int, live: int) -> None:
    values = torch.zeros(nblocks, 16)
    values[torch.linspace(0, nblocks - 1, live).long()] = 2.0
    ddp = DistributedDataParallel(Given(torch.zeros(nblocks, 16)))
    s2reducer.register(ddp, plan="sketch")
    for _ in range(3):
        ddp.zero_grad()
        ddp({0: values}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        assert torch.equal(result, values)


@pytest.mark.parametrize("live", [0, 1, 690, 1000])  # the last as they are, without a table
def test_none_one_and_all_blocks(ranks: Ranks, live: int) -> None:
    ranks.run(2, reduce_live, 1000, live)


def huge_table(seed: int) -> int:
    """A billion rows: nothing as long could be allocated.  Returns the longest message."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    numbers = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, 10**9, (world_size, 30), generator=numbers)
    rows[:, 0] = 10**9 - 1
    ones = torch.ones(30, 4)
    own = torch.sparse_coo_tensor(rows[rank : rank + 1], ones * (rank + 1), (10**9, 4))
    with recorded_collectives() as calls:
        result = s2reducer.all_reduce(own, op="sum", plan="sketch")
    where = {int(row): n for n, row in enumerate(result.indices()[0])}
    expected = torch.zeros(len(where), 4)
    for other in range(world_size):
        for row in rows[other].tolist():
            expected[where[row]] += other + 1
    assert torch.equal(result.values(), expected)
    return max(length for _, _, length in calls)


def test_row_numbers_up_to_a_billion(ranks: Ranks) -> None:
    assert max(ranks.run(3, huge_table, SEED)) < 10_000


def grow(seed: int) -> list[str]:
    """Ten times as many blocks as ever before, and far fewer again."""
    ddp = DistributedDataParallel(Given(torch.zeros(5000, 16)))
    state = s2reducer.register(ddp, plan="sketch")
    reasons = []
    for step, density in enumerate([0.01, 0.01, 0.1, 0.1, 0.01]):
        parts = [gradient((5000, 16), seed, step, r, density=density) for r in range(2)]
        ddp.zero_grad()
        ddp({0: parts[dist.get_rank()]}).backward()
        (result,) = [parameter.grad for parameter in ddp.parameters()]
        assert_close([result], [(parts[0].double() + parts[1].double()) / 2], TOLERANCE)
        reasons.append(state.report().as_dict()["parameters"][0]["reason"])
    return reasons


@pytest.mark.slow
def test_more_blocks_than_expected_are_repaired(ranks: Ranks) -> None:
    for reasons in ranks.run(2, grow, SEED):
        blocks, repaired = (int(part.split()[0]) for part in reasons[2].split(", "))
        assert repaired > blocks / 2  # nothing was told of them


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"rows": 0}, ValueError, "sketch rows must lie between 1 and 8, but is 0"),
        ({"rows": 9}, ValueError, "sketch rows must lie between 1 and 8, but is 9"),
        ({"peel_rounds": 0}, ValueError, "sketch peel_rounds must lie between 1 and 2147483647"),
        ({"rows": 2.0}, TypeError, "sketch rows must be a whole number, but is 2.0"),
        ({"cells": 0.0}, ValueError, "sketch cells must be above 0 and at most 1000, but is 0.0"),
        ({"cells": math.nan}, ValueError, "sketch cells must be above 0"),
        ({"margin": 0.9}, ValueError, "sketch margin must be at least 1 and at most 1000"),
        ({"margin": "2"}, TypeError, "sketch margin must be a number, but is '2'"),
        ({"on_overflow": "drop"}, ValueError, "must be one of 'repair', 'defer', 'estimate'"),
        ({"fixed": 1}, TypeError, "sketch fixed must be True or False, but is 1"),
        ({"error_feedback": True}, ValueError, 'goes with on_overflow="estimate"'),
        (
            {"error_feedback": True, "on_overflow": "estimate"},
            ValueError,
            "sketch error_feedback goes with one row, but rows is 3",
        ),
    ],
)
def test_settings_that_are_refused(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        SketchConfig(**settings)
    with pytest.raises(TypeError, match="sketch must be a SketchConfig, but is 3"):
        S2State(plan="sketch", sketch=3)  # type: ignore[arg-type]
