# SPDX-License-Identifier: MIT
"""DDP beside the straight path: join, groups, accumulation, unused layers, forked workers."""

import multiprocessing
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pairs import FLAGS, LEAST_BUCKETS, STEPS, Pair, given, make_tables
from ranks import EXACT_UNIT, SKETCH, Given, Ranks, assert_same_on_all_ranks, cases, exact_gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import s2reducer
from s2reducer import S2State, s2_hook

# ------------------------------------------------------------------------------------------------
# Uneven inputs
# ------------------------------------------------------------------------------------------------


def join_unevenly(plan: str, flags: dict[str, Any], batches: list[int]) -> None:
    """Ranks that are done follow the others with zeros."""
    pair = Pair(make_tables, {"plan": plan}, **flags)
    grads: list[list[Tensor]] = []
    for model in (pair.plain, pair.hooked):
        grads.append([])
        with model.join():
            for step in range(batches[dist.get_rank()]):
                model.zero_grad()
                model(given(pair.plain.module, step)).backward()
                grads[-1] += [parameter.grad.clone() for parameter in model.parameters()]
    assert len(grads[0]) == 8 * batches[dist.get_rank()]
    assert all(map(torch.equal, *grads))
    pair.assert_trained()


@pytest.mark.parametrize("plan", ["auto", "gather", "owner"])
def test_ranks_that_have_joined_do_not_disturb(ranks: Ranks, plan: str) -> None:
    ranks.run(3, join_unevenly, plan, {}, [2, 4, STEPS])


@pytest.mark.parametrize("flags", ["find_unused_parameters", "gradient_as_bucket_view"])
def test_joining_with_other_flags(ranks: Ranks, flags: str) -> None:
    ranks.run(2, join_unevenly, "owner", FLAGS[flags], [STEPS, 3])


def join_by_those_who_are_left(way: str, batches: list[int]) -> tuple[str, list[float]]:
    """The error, and the gradient of each step: all that still have a batch bring 12."""
    ddp = DistributedDataParallel(Given(torch.zeros(400, 32)))
    if way == "register":
        s2reducer.register(ddp, plan="owner")
    else:
        ddp.register_comm_hook(S2State(plan="owner"), s2_hook)
    means = []
    try:
        with ddp.join(divide_by_initial_world_size=False):
            for _ in range(batches[dist.get_rank()]):
                ddp.zero_grad()
                ddp({0: torch.full((400, 32), 12.0)}).backward()
                means.append(float(ddp.module.p[0].grad[0, 0]))
    except RuntimeError as error:
        return str(error), means
    return "", means


@pytest.mark.parametrize("way", ["register", "by hand"])
@pytest.mark.parametrize("batches", [[3, 1, 2], [0, 2, 2]])
def test_a_mean_over_those_who_are_left_is_refused(
    ranks: Ranks, batches: list[int], way: str
) -> None:
    for text, means in ranks.run(3, join_by_those_who_are_left, way, batches):
        assert "step 1: join(divide_by_initial_world_size=False) is not supported" in text
        assert means == []


class Reentrant(nn.Module):
    """Two tables, one of them behind a checkpoint with a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = (nn.Embedding(400, 8, sparse=True) for _ in range(2))

    def forward(self, rows: Tensor, factor: Tensor) -> Tensor:
        outer = self.outer(rows)  # whose gradient comes after that of what is computed later
        inner = checkpoint(lambda by: self.inner(rows) * by, factor, use_reentrant=True)
        return (inner + outer).sum()


def join_with_an_inner_backward_pass(batches: list[int]) -> list[float]:
    """What the rows that all ranks have got in each step, of a sum of two tables."""
    ddp = DistributedDataParallel(Reentrant())
    s2reducer.register(ddp, plan="owner")
    means = []
    with ddp.join():
        for step in range(batches[dist.get_rank()]):
            ddp.zero_grad()
            rows = torch.tensor([3, 5 + step + dist.get_rank()])
            ddp(rows, torch.full((1,), 2.0, requires_grad=True)).backward()
            grads = [ddp.module.inner.weight.grad, ddp.module.outer.weight.grad]
            means.append(sum(float(grad.to_dense()[3, 0]) for grad in grads))
    return means


def test_joining_where_a_backward_pass_has_another_inside(ranks: Ranks) -> None:
    """Tables do not wait for one another: the inner pass would end their waiting on some ranks."""
    assert ranks.run(2, join_with_an_inner_backward_pass, [STEPS, 2]) == [
        [3.0, 3.0, *[1.5] * (STEPS - 2)],
        [3.0, 3.0],
    ]


# ------------------------------------------------------------------------------------------------
# Groups of some ranks
# ------------------------------------------------------------------------------------------------


def train_in_groups(members: list[list[int]], plan: str) -> list[float]:
    """The mean of the members' ranks, in each step; none where a rank is no member."""
    groups = [dist.new_group(part) for part in members]
    means = []
    for group, part in zip(groups, members, strict=True):
        if dist.get_rank() in part:
            ddp = DistributedDataParallel(Given(torch.zeros(400, 32)), process_group=group)
            state = s2reducer.register(ddp, plan=plan)
            assert state.process_group is group
            for _ in range(STEPS):
                ddp.zero_grad()
                ddp({0: torch.full((400, 32), 12.0 * dist.get_rank())}).backward()
                means.append(float(ddp.module.p[0].grad.unique()))
    return means


@pytest.mark.parametrize("plan", ["auto", "owner"])
@pytest.mark.parametrize("members", [[[0, 1], [2, 3]], [[1, 3]]])
def test_register_takes_the_modules_group(
    ranks: Ranks, members: list[list[int]], plan: str
) -> None:
    expected: list[list[float]] = [[] for _ in range(4)]
    for part in members:
        for rank in part:
            expected[rank] = [12.0 * sum(part) / len(part)] * STEPS
    assert ranks.run(4, train_in_groups, members, plan) == expected


def give_another_group(members: list[list[int]], announced: bool, wrong: bool) -> str:
    """What a module over its own group says to a state over all ranks."""
    groups = [dist.new_group(part) for part in members]
    for group, part in zip(groups, members, strict=True):
        if dist.get_rank() in part:
            ddp = DistributedDataParallel(Given(torch.zeros(400, 32)), process_group=group)
            state = S2State(dist.group.WORLD if wrong else None)
            if announced:
                state._module.set(ddp)

            def hook(state: S2State, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
                return s2_hook(state, bucket)

            ddp.register_comm_hook(state, hook)
            with pytest.raises(RuntimeError) as raised:
                ddp({0: torch.ones(400, 32)}).backward()
            return str(raised.value)
    return ""


@pytest.mark.parametrize("members", [[[0, 1], [2, 3]], [[1, 3]]])
@pytest.mark.parametrize("announced", [False, True])
def test_a_state_that_would_reduce_over_other_ranks(
    ranks: Ranks, members: list[list[int]], announced: bool
) -> None:
    for wrong in (False, True):
        texts = ranks.run(4, give_another_group, members, announced, wrong)
        for part in members:
            for rank in part:
                assert f"reduces over the ranks {part}" in texts[rank]
                assert "but its S2State over [0, 1, 2, 3]: give" in texts[rank]


def keep_to_the_default_group() -> bool:
    """Other groups alone are no reason to refuse, nor is it that one rank has more of them."""
    for part in ([0], [0, 1]):
        dist.new_group(part)
    pair = Pair(make_tables, {"plan": "owner"})
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step))
        pair.assert_equal()
    pair.assert_trained()
    return pair.state._module._module() is pair.hooked


def test_a_state_finds_its_module_among_others(ranks: Ranks) -> None:
    assert all(ranks.run(2, keep_to_the_default_group))


# ------------------------------------------------------------------------------------------------
# Accumulation and layers that are not used
# ------------------------------------------------------------------------------------------------


def accumulate(plan: str, flags: dict[str, Any], only: set[int] | None) -> None:
    """Two micro-batches, the first without sync; the second leaves some tables out."""
    pair = Pair(make_tables, {"plan": plan}, **flags)
    static = bool(flags.get("static_graph"))
    for step in range(STEPS):
        model = pair.plain.module
        # DDP itself wants the first backward of a static graph to be synchronised.
        pair.step(given(model, 10 * step, 0.1), sync=static and step == 0)
        pair.step(given(model, 10 * step + 1, 0.1, only=only), zero_grad=False)
        pair.assert_equal()
    assert len(pair.gradients()) == 8
    assert pair.state.step == STEPS + static
    assert len(pair.last_buckets()) >= LEAST_BUCKETS


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("plan", cases(["auto", "owner"], "owner"))
def test_micro_batches_are_counted_once(ranks: Ranks, plan: str, flags: str) -> None:
    ranks.run(2, accumulate, plan, FLAGS[flags], None)


@pytest.mark.parametrize("plan", ["auto", "owner", "union", SKETCH])
def test_what_only_an_unsynced_micro_batch_uses_is_reduced_too(ranks: Ranks, plan: str) -> None:
    ranks.run(2, accumulate, plan, FLAGS["find_unused_parameters"], {0, 1, 3, 5, 6, 7})


def use_some(plan: str, users: list[set[int]]) -> None:
    """A rank uses the tables of its set; what nobody uses has no gradient, and does not move."""
    pair = Pair(make_tables, {"plan": plan}, find_unused_parameters=True)
    models = (pair.plain, pair.hooked)
    optimizers = [
        torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5, weight_decay=0.5)
        for model in models
    ]
    nobody = set(range(8)) - set.union(*users)
    start = [parameter.detach().clone() for parameter in pair.hooked.module.p]
    for step in range(STEPS):
        pair.step(given(pair.plain.module, step, only=users[dist.get_rank()]))
        pair.assert_equal()
        for optimizer in optimizers:
            optimizer.step()
    for index, parameter in enumerate(pair.hooked.module.p):
        assert torch.equal(parameter, pair.plain.module.p[index])
        assert torch.equal(parameter, start[index]) == (index in nobody)
        assert (parameter.grad is None) == (index in nobody)
    assert_same_on_all_ranks(list(pair.hooked.parameters()))


@pytest.mark.parametrize("plan", ["auto", "gather", "owner"])
@pytest.mark.parametrize("users", [[{0, 1, 3, 5, 6}, {0, 2, 6}], [{0}, {0, 1, 2, 3, 5}]])
def test_tables_that_some_ranks_or_none_use(ranks: Ranks, plan: str, users: list[set[int]]) -> None:
    ranks.run(2, use_some, plan, users)


# ------------------------------------------------------------------------------------------------
# COO gradients over several backward passes
# ------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Two sparse tables and two dense ones; the gradient of a row is what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(13)
        self.sparse = nn.ModuleList(
            nn.Embedding(100, 8, sparse=True, padding_idx=0) for _ in range(2)
        )
        self.dense = nn.ModuleList(nn.Embedding(600, 16) for _ in range(2))

    def forward(self, rows: Tensor, values: Tensor) -> Tensor:
        total = torch.zeros(())
        for table in (*self.sparse, *self.dense):
            total = total + (table(rows) * values[:, None]).sum()
        return total


def accumulate_rows(plan: str) -> None:
    pair = Pair(Mixed, {"plan": plan})
    optimizers = [
        (torch.optim.SparseAdam(list(m.module.sparse.parameters()), 1e-2),
         torch.optim.SGD(m.module.dense.parameters(), 2.0**-6))
        for m in (pair.plain, pair.hooked)
    ]  # fmt: skip
    rank = dist.get_rank()
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(2 * step + rank)
        for micro in range(2):
            rows = torch.randint(100, (30,), generator=generator)  # some of them twice
            if step == 2 and rank == 0:
                rows.zero_()  # padding alone: no row of the sparse tables
            values = torch.randint(-4, 5, (30,), generator=generator) * float(EXACT_UNIT)
            # The second adds to the gradients of the first, whose rows it repeats.
            pair.step(rows, values, zero_grad=micro == 0, sync=micro == 1 or step == 4)
        for plain, hooked in pair.gradients():
            assert plain.is_sparse == hooked.is_sparse
            assert torch.equal(plain.to_dense(), hooked.to_dense())
        if step != 4:
            assert all(t.weight.grad.is_coalesced() for t in pair.hooked.module.sparse)
        for pairs in optimizers:
            for optimizer in pairs:
                optimizer.step()
        for plain, hooked in zip(pair.plain.parameters(), pair.hooked.parameters(), strict=True):
            assert torch.equal(plain, hooked)
    assert_same_on_all_ranks(list(pair.hooked.parameters()))


@pytest.mark.parametrize("plan", ["auto", "owner", "union", SKETCH])
def test_sparse_gradients_accumulate(ranks: Ranks, plan: str) -> None:
    ranks.run(2, accumulate_rows, plan)


def join_with_sparse_tables() -> None:
    """Tables of COO gradients, whose rounds may wait for one another, on a rank that has joined."""
    pair = Pair(Mixed, {"plan": "owner"})
    rows = torch.arange(0, 90, 3) + dist.get_rank()
    grads: list[list[Tensor]] = []
    for model in (pair.plain, pair.hooked):
        grads.append([])
        with model.join():
            for step in range((STEPS, 3)[dist.get_rank()]):
                model.zero_grad()
                model(rows, torch.full((30,), float(EXACT_UNIT * (step + 1)))).backward()
                grads[-1] += [parameter.grad.to_dense() for parameter in model.parameters()]
    assert all(map(torch.equal, *grads))


def test_joining_with_sparse_gradients(ranks: Ranks) -> None:
    ranks.run(2, join_with_sparse_tables)


# ------------------------------------------------------------------------------------------------
# Workers that are forked while the lanes are at work
# ------------------------------------------------------------------------------------------------


class Words(Dataset[tuple[int, Tensor]]):
    """Rows of a table, with the process that picked them."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        gradient = exact_gradient(torch.zeros(300, 32), 0.1, index)
        return os.getpid(), gradient @ torch.eye(32)  # which takes torch's threads


def train_with_forked_workers(persistent: bool) -> int:
    """How many processes have read the data."""
    pair = Pair(make_tables, {"plan": "owner"})
    for step in range(2):  # the lanes run before the first fork
        pair.step(given(pair.plain.module, step))
    # A pool's processes are daemons, which may have no children; these end with their loader.
    multiprocessing.current_process()._config["daemon"] = False
    ddp = DistributedDataParallel(Given(torch.zeros(300, 32), torch.zeros(300, 32)))
    s2reducer.register(ddp, plan="owner")
    readers = set()
    try:
        loader = DataLoader(
            Words(),
            batch_size=4,
            num_workers=2,
            multiprocessing_context="fork",
            persistent_workers=persistent,
        )
        for _ in range(2):
            for pids, batch in loader:
                readers |= set(pids.tolist())
                gradient = batch.sum(0) * (dist.get_rank() + 1)
                ddp.zero_grad()
                ddp({0: gradient, 1: gradient}).backward()
                expected = batch.sum(0) * 3 / 2
                assert all(torch.equal(p.grad, expected) for p in ddp.parameters())
                pair.step(given(pair.plain.module, 0))
                pair.assert_equal()
        del loader
    finally:
        multiprocessing.current_process()._config["daemon"] = True
    assert os.getpid() not in readers
    return len(readers)


@pytest.mark.parametrize("persistent", cases([False, True], True))
def test_workers_forked_beside_the_lanes(ranks: Ranks, persistent: bool) -> None:
    assert ranks.run(2, train_with_forked_workers, persistent) == [2 if persistent else 4] * 2
