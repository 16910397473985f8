# SPDX-License-Identifier: MIT
"""Plans: how a bucket crosses the network.

A plan is a function that takes a ``Job``, issues all its collectives from the hook's body in an
order that all ranks share, and returns what is left to do when the last of them is done.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer.config import Config
from s2reducer.segments import Layout
from s2reducer.transport import Transport


@dataclass
class Job:
    """One bucket in one step.

    ``bitmap`` are its live blocks, once it has been scanned, and ``has_negative_zeros`` whether
    there is a -0.0 among the others; ``nbytes`` is what this rank has sent for it from the hook,
    and ``lanes_nbytes`` in the lanes.
    ``plan`` and ``reason`` say how it travels and why, ``round`` what is under way, for errors.
    ``counts`` are the live blocks of this rank and of the union, int64 [S], where a plan counted.
    """

    buffer: Tensor
    layout: Layout
    config: Config
    transport: Transport
    step: int
    plan: str = "none"
    reason: str = ""
    round: str = "comparison of the ranks' settings"
    counts: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    bitmap: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8), repr=False)
    has_negative_zeros: bool = False
    nbytes: int = 0
    lanes_nbytes: int = 0


@dataclass(frozen=True)
class Pending:
    """The last collective of a job, and the local work that turns its outcome into the result.

    ``finish`` runs on whatever thread completes the future.  It waits for nothing, issues no
    collective, and holds whatever the collective still reads.
    """

    future: "Future[list[Tensor]] | None"  # None: nothing to wait for
    finish: Callable[[], Tensor]


def keep(job: Job) -> Pending:
    """The plan of a bucket that is its own mean: of a single rank, or without elements."""
    return Pending(None, lambda: job.buffer)
