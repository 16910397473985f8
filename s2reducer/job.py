# SPDX-License-Identifier: MIT
"""What the hook, the engine and the books hand one another for each bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2reducer.chooser import Chooser
from s2reducer.config import Config
from s2reducer.constants import Cost
from s2reducer.plans.owner import Rounded
from s2reducer.residuals import Residuals
from s2reducer.segments import Layout, ParameterRecord
from s2reducer.transport import Transport

Debts = Callable[[Tensor], None]


@dataclass(frozen=True)
class Part:
    """The segments of a bucket that travel by one plan.

    ``nbytes`` is what this rank sent, ``cost`` what that was expected to take.
    """

    plan: str
    reason: str
    records: Sequence[ParameterRecord]
    nbytes: int = 0
    cost: Cost = field(default_factory=Cost)


@dataclass
class Job:
    """One bucket in one step, or one tensor outside of DDP.

    Attributes:
        buffer: flat, or a COO tensor.
        tables: the COO tensors that travel together; empty for a flat buffer.
        layout: of all that travels.
        compared: of the segments that may travel sparsely.
        transport: of the user's process group.
        divisor: of the sums: the number of ranks for a mean.
        bitmap, has_negative_zeros: live blocks of the segments that are compared, and whether there
            is a -0.0 among the others.
        plan, round: by which it travels, as far as is known, and what is under way; for errors.
        parts: how it has travelled, of what went through the lanes.
        dense_nbytes: of an AllReduce of all of it, begun in the hook's body.
        residuals: what this rank's parameters owe of steps before.
        counts: live blocks of this rank and of the union, in each segment that was compared.
        narrow: sums are made of ``buffer`` and rounded to its dtype by the plans ``owner`` and
            ``gather`` alone, whatever the plan's name, as an AllReduce would round at every rank.
        rounded: is told what the sums have lost by being rounded.
        debts: is told which blocks of the union this rank will sum, as bits of the layout: it adds
            what the rank owes of those that it has not.
        union: of the blocks that have travelled; None where all did.
    """

    buffer: Tensor
    layout: Layout
    compared: Layout
    config: Config
    transport: Transport
    chooser: Chooser
    step: int
    divisor: float
    tables: Sequence[Tensor] = ()
    plan: str = "none"
    round: str = "comparison of the ranks' settings"
    bitmap: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8), repr=False)
    has_negative_zeros: bool = False
    parts: list[Part] = field(default_factory=list)
    dense_nbytes: int = 0
    residuals: Residuals = field(default_factory=Residuals, repr=False)
    counts: tuple[list[int], list[int]] | None = field(default=None, repr=False)
    narrow: bool = False
    rounded: Rounded | None = field(default=None, repr=False)
    debts: Debts | None = field(default=None, repr=False)
    union: Tensor | None = field(default=None, repr=False)

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @property
    def warm(self) -> bool:
        """Whether its times say something: the first step opens connections and touches memory."""
        return self.step > 1
