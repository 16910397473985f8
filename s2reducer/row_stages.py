# SPDX-License-Identifier: MIT
"""The two stages of COO gradients, of one table or of several that travel together.

They never go dense: nothing of a table's length is allocated.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.device import to_device
from s2reducer.exchange import Header, Index, identity
from s2reducer.job import Job
from s2reducer.plans.choice import Choice, choose, costs, dense_cost
from s2reducer.rows import Table, coalesced, gather_rows, rows_of, spread, table_of
from s2reducer.segments import layout_of
from s2reducer.stages import Problem, allowed, remember, sparse_stage
from s2reducer.transport import Transport


def rows_stage(job: Job, transport: Transport) -> Callable[[Transport], list[Tensor]]:
    """The first stage of ``job.tables``; the second gives their coalesced sums, divided."""
    job.plan, job.round = job.config.plan, "index"
    chooser, dtype = job.chooser, job.tables[0].dtype
    tables = [table_of(tensor) for tensor in job.tables]
    pairs = zip(job.tables, tables, strict=True)
    own = [coalesced(*rows_of(tensor, table), table.nrows) for tensor, table in pairs]
    rows, values = ([part[i] for part in own] for i in (0, 1))
    header = Header(
        identity(job.layout, dtype),
        job.step,
        live=sum(map(len, rows)),
        figures=tuple(chooser.words(job.step)),
    )
    unions, index, headers = gather_rows(transport, tables, rows, header)
    chooser.learn(job.step, headers.figures)
    return plan_rows(job, transport.rank, tables, values, unions, index)


def plan_rows(
    job: Job,
    rank: int,
    tables: Sequence[Table],
    values: Sequence[Tensor],
    unions: Sequence[Tensor],
    index: Index,
) -> Callable[[Transport], list[Tensor]]:
    """The second stage, as it follows from the index; ``values`` are this rank's, coalesced."""
    chooser, dtype = job.chooser, job.tables[0].dtype
    job.counts = (index.counts[rank], index.union_counts)
    buffer, segments = spread(values, index, rank)
    problem = Problem(buffer, layout_of(segments, job.layout.records), index)
    every = costs(problem.layout, index, dtype)
    candidates = allowed(every, job.config, ("union",))
    dense = dense_cost(job.layout.numel, dtype, index.world_size)
    if candidates:
        choice = choose(candidates, dense, job.layout.memory.plan, chooser.constants)
    else:
        reason = f"in place of {job.config.plan}, which COO gradients cannot take here"
        choice = Choice("owner", reason, every["owner"])
    remember(job, job.layout, choice)
    if choice.plan == "union":  # which adds what this rank does not have, too
        ops_for(buffer.device).blocks_clear_dead(
            index.bitmaps[rank], segments, buffer, parallel=False
        )
    stage = sparse_stage(job, rank, problem, choice, [True] * len(tables))

    def result(transport: Transport) -> list[Tensor]:
        stage(transport)
        parts = torch.split_with_sizes(buffer, segments[:, 1].tolist())
        return [
            table.tensor(to_device(union, part.device), part)
            for table, union, part in zip(tables, unions, parts, strict=True)
        ]

    return result
