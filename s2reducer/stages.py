# SPDX-License-Identifier: MIT
"""The two stages of a bucket in the lanes: to learn who has what, and to move the values.

The first ends with a plan and all that can be computed before the values move.  What it gives is
the second, which runs in the lane of the values.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer import ops
from s2reducer.block_ops import ops_for
from s2reducer.config import Config
from s2reducer.constants import Cost
from s2reducer.exchange import Index, gather_index, gather_union, shared_index
from s2reducer.job import Debts, Job, Part
from s2reducer.plans.choice import (
    Choice,
    choose,
    costs,
    dense_cost,
    narrow_cost,
    stay_sparse,
)
from s2reducer.plans.dense import begin_ranges
from s2reducer.plans.gather import reduce_gather
from s2reducer.plans.owner import choose_owners, choose_owners_apart, make_plan, reduce_owner
from s2reducer.plans.union import reduce_union
from s2reducer.segments import Layout, all_blocks
from s2reducer.transport import Transport

Stage = Callable[[Transport], Tensor]

EXACT = ("owner", "gather")


@dataclass(frozen=True)
class Problem:
    """What a sparse plan reduces: blocks of a flat buffer, and who has them."""

    buffer: Tensor
    layout: Layout
    index: Index


def scan(job: Job) -> None:
    """Finds the live blocks of what is compared."""
    job.round = "scan"
    begun = time.perf_counter()
    layout = job.compared
    job.bitmap, job.has_negative_zeros = live_blocks(job.buffer, layout)
    if job.warm:
        nbytes = layout.numel * job.buffer.element_size()
        job.chooser.meter.scan(nbytes, time.perf_counter() - begun)


def live_blocks(buffer: Tensor, layout: Layout) -> tuple[Tensor, bool]:
    """The bits of the blocks that are not zero, and whether there is a -0.0 in the others."""
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    negative_zeros = torch.empty(1, dtype=torch.int64)
    ops.bitmap_from_nonzero(buffer, layout.segments, bitmap, negative_zeros)
    return bitmap, bool(negative_zeros.item())


def blocks_stage(job: Job, transport: Transport, index: Index | None = None) -> Stage:
    """The first stage of a bucket that has been scanned, or whose ``index`` is known.

    Some segments may turn out to be cheaper in an AllReduce: those go there, the rest sparse.
    """
    job.plan, job.round = job.config.plan, "index"
    return plan_blocks(job, transport.rank, index or _gather_index(job, transport))


def plan_blocks(job: Job, rank: int, index: Index) -> Stage:
    """The second stage, as it follows from the index."""
    layout, chooser = job.compared, job.chooser
    dtype = job.buffer.dtype
    constants = chooser.constants  # the header may have brought new ones
    own = rank if len(index.counts) > 1 else 0
    job.counts = (index.counts[own], index.union_counts)

    kept = [True] * len(layout.records)
    if chooser.adapts:
        kept = stay_sparse(layout, index, dtype, constants)
    dense = dense_cost(layout.numel, dtype, index.world_size)
    choice = Choice("dense", "too many live blocks", dense)
    if any(kept):
        problem = Problem(job.buffer, layout.part(kept), index.part(layout, kept))
        candidates = costs(problem.layout, problem.index, dtype)
        whole = narrow_cost if job.narrow else dense_cost
        rest = whole(problem.layout.numel, dtype, index.world_size)
        # Narrow sums are made by owners: of blocks that ranks do not have, too, by "union".
        inexact = ("dense",) if job.narrow else ("dense", "union")
        candidates = allowed(candidates | {"dense": rest}, job.config, inexact)
        choice = choose(candidates, dense, layout.memory.plan, constants)
    if choice.plan == "dense" and not job.narrow:
        kept = [False] * len(kept)
    remember(job, layout, choice)
    for record, keep in zip(layout.records, kept, strict=True):
        record.dense_in_a_row = 0 if keep else record.dense_in_a_row + 1
    if choice.plan == "dense" and not job.narrow:
        return dense_stage(job, choice.reason)
    job.union = None if choice.plan == "dense" else index.union
    return sparse_stage(job, rank, problem, choice, kept)


def _gather_index(job: Job, transport: Transport) -> Index:
    layout, dtype, chooser = job.compared, job.buffer.dtype, job.chooser
    seconds_before = transport.seconds
    if job.config.plan == "union":
        index = gather_union(transport, layout, dtype, job.step, job.bitmap)
    else:
        words = chooser.words(job.step)
        index, headers = gather_index(transport, layout, dtype, job.step, job.bitmap, words)
        chooser.learn(job.step, headers.figures)
    if job.warm:
        chooser.meter.round(index.nbytes, (transport.seconds - seconds_before) / index.rounds)
    return index


def dense_stage(job: Job, reason: str) -> Stage:
    """An AllReduce of all that was compared."""
    layout, world_size = job.compared, job.transport.world_size
    cost = dense_cost(layout.numel, job.buffer.dtype, world_size)

    def stage(transport: Transport) -> Tensor:
        job.round = "AllReduce"
        begun, sent_before = time.perf_counter(), transport.bytes_sent
        for future in _begin_dense(job, transport, [True] * len(layout.records)):
            future.wait()
        sent = transport.bytes_sent - sent_before
        if job.warm:
            job.chooser.meter.dense(cost.nbytes, begun, time.perf_counter())
        job.parts.append(Part("dense", reason, layout.records, sent, cost))
        return job.buffer

    job.plan = "dense"
    return stage


# ------------------------------------------------------------------------------------------------
# What the stages of COO gradients share
# ------------------------------------------------------------------------------------------------


def allowed(
    candidates: dict[str, Cost], config: Config, inexact: tuple[str, ...]
) -> dict[str, Cost]:
    """What the settings leave of them; ``inexact`` are those of another arithmetic."""
    names: tuple[str, ...] = (config.plan,)
    if config.plan == "auto" and config.deterministic and config.wire:
        names = ("owner",)  # as others owe what their sums have lost under "gather"
    elif config.plan == "auto":
        names = EXACT if config.deterministic else (*EXACT, *inexact)
    return {name: cost for name, cost in candidates.items() if name in names}


def remember(job: Job, layout: Layout, choice: Choice) -> None:
    """Keeps a choice for the report and for the next step."""
    job.chooser.note(job.step, layout.describe(), layout.memory.plan, choice)
    layout.memory.plan = choice.plan


def sparse_stage(job: Job, rank: int, problem: Problem, choice: Choice, kept: list[bool]) -> Stage:
    """Plans the rounds of the values, and gives the stage that takes them."""
    job.plan, job.round = choice.plan, "planning"
    begun = time.perf_counter()
    reduce = _prepare(job, problem, choice.plan, rank)
    planning = time.perf_counter() - begun
    dense = [not keep for keep in kept]

    def stage(transport: Transport) -> Tensor:
        job.round = "values"
        begun, seconds_before = time.perf_counter(), transport.seconds
        sent = [transport.bytes_sent]
        futures = _begin_dense(job, transport, dense)
        sent.append(transport.bytes_sent)
        reduce(transport)
        sent.append(transport.bytes_sent)
        in_rounds = transport.seconds - seconds_before
        work = planning + time.perf_counter() - begun - in_rounds
        for future in futures:
            future.wait()
        if job.has_negative_zeros:
            segments, buffer = problem.layout.segments, problem.buffer
            ops_for(buffer.device).blocks_clear_dead(
                problem.index.union, segments, buffer, parallel=False
            )
        if job.warm and not futures:
            job.chooser.meter.work(choice.cost.work, work)
            rows = choice.cost.wire - problem.index.nbytes
            job.chooser.meter.rows(rows, choice.cost.rounds - problem.index.rounds, in_rounds)
        _add_parts(job, problem, choice, kept, sent)
        return problem.buffer

    return stage


def _prepare(job: Job, problem: Problem, plan: str, rank: int) -> Callable[[Transport], None]:
    """What is left of a plan, with all computed that needs no values."""
    buffer, layout, index = problem.buffer, problem.layout, problem.index
    divisor = job.divisor
    if job.narrow and plan in ("dense", "union"):
        union = all_blocks(layout) if plan == "dense" else index.union
        index, plan = shared_index(layout, union, index.world_size), "owner"
    if index.positions.numel() == 0:
        return _nothing
    if plan == "owner":
        choose_by = choose_owners_apart if job.rounded else choose_owners
        owners = choose_by(layout, index, job.config.seed)
        if job.debts is not None:
            index = _with_debts(job.debts, problem.index.union, index, owners, rank)
        owner_plan = make_plan(layout, index, owners, rank)
        return lambda transport: reduce_owner(
            buffer, layout, owner_plan, transport, divisor, job.rounded
        )
    if plan == "gather":
        return lambda transport: reduce_gather(
            buffer, layout, index, transport, divisor, job.rounded
        )
    return lambda transport: reduce_union(buffer, layout, index, transport, divisor)


def _with_debts(debts: Debts, union: Tensor, index: Index, owners: Tensor, rank: int) -> Index:
    """The same with this rank among those that have the blocks which it owns: what it owes of them
    is a row like any other, which it sends to itself."""
    owned = torch.empty_like(union)
    ops.bitmap_from_positions(index.positions[owners == rank], owned)
    owned &= union
    debts(owned)
    bitmaps = index.bitmaps.clone()
    bitmaps[rank] |= owned
    return replace(index, bitmaps=bitmaps)


def _nothing(transport: Transport) -> None:
    """Where all ranks are all zero they all know it, and none sends anything."""


def _begin_dense(
    job: Job, transport: Transport, dense: Sequence[bool]
) -> list[Future[list[Tensor]]]:
    return begin_ranges(job.buffer, job.compared.ranges(dense), transport, job.divisor)


def _add_parts(
    job: Job, problem: Problem, choice: Choice, kept: list[bool], sent: list[int]
) -> None:
    """``sent`` are this rank's bytes before, between and after the dense and the sparse rounds."""
    sparse = sent[2] - sent[1] + problem.index.nbytes
    job.parts.append(Part(choice.plan, choice.reason, problem.layout.records, sparse, choice.cost))
    if not all(kept):
        records = [r for r, keep in zip(job.compared.records, kept, strict=True) if not keep]
        numel = job.compared.numel - problem.layout.numel
        cost = dense_cost(numel, job.buffer.dtype, problem.index.world_size)
        job.parts.append(Part("dense", "too many live blocks", records, sent[1] - sent[0], cost))
