# SPDX-License-Identifier: MIT
"""What was sent, what it saved, and why."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from s2reducer.chooser import Change
from s2reducer.segments import ParameterRecord

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``, without the name of torch."""
    return str(dtype).removeprefix("torch.")


def readable_bytes(nbytes: float) -> str:
    """Decimal units, three digits: 12.3 MB."""
    for size, unit in _UNITS:
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


@dataclass
class PlanTotals:
    """What went by a plan.

    Attributes:
        buckets: that did, as a whole or in part.
        bytes: that this rank sent for them.
        seconds: from the hook's call to the bucket's result; buckets overlap with one another and
            with the backward pass, so these add up to more than the time that passed.
        predicted_seconds: that the plan should have taken, by itself.
    """

    buckets: int = 0
    bytes: int = 0
    seconds: float = 0.0
    predicted_seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """The totals of one rank since its state began.

    Attributes:
        steps: backward passes that were reduced.
        world_size: ranks of the process group, 0 before the first step.
        seconds: sum over buckets of the time from the hook's call to the result.
        bytes_sent: by this rank, by the formulas of ``transport.py``.
        bytes_dense: what an AllReduce of every bucket would have sent.
        parameters: in the order in which they were first reduced.
        plans: totals by plan.
        changes: of the plan of a bucket, from the first that was chosen.
        settings: of the state, those that are not the defaults, by name.
    """

    steps: int
    world_size: int
    bytes_sent: int
    bytes_dense: int
    parameters: list[ParameterRecord] = field(repr=False)
    plans: dict[str, PlanTotals]
    changes: list[Change] = field(default_factory=list, repr=False)
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(plan.seconds for plan in self.plans.values())

    def as_dict(self) -> dict[str, Any]:
        """The same in plain types, ready for JSON; a density that was never counted is None."""
        return {
            "steps": self.steps,
            "world_size": self.world_size,
            "seconds": self.seconds,
            "bytes_sent": self.bytes_sent,
            "bytes_dense": self.bytes_dense,
            "parameters": [
                {
                    "name": record.name,
                    "shape": list(record.shape),
                    "dtype": dtype_name(record.dtype),
                    "block": record.block,
                    "density": record.density(),
                    "union_density": record.union_density(),
                    "plan": record.plan,
                    "reason": record.reason,
                }
                for record in self.parameters
            ],
            "plans": {name: plan.as_dict() for name, plan in self.plans.items()},
            "changes": [asdict(change) for change in self.changes],
            "settings": dict(self.settings),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.steps} steps on {self.world_size} ranks: sent "
            f"{readable_bytes(self.bytes_sent)} a rank, where dense AllReduce sends "
            f"{readable_bytes(self.bytes_dense)}"
        ]
        if self.settings:
            named = ", ".join(f"{name}={value}" for name, value in self.settings.items())
            lines.append(f"  with {named}")
        for name, plan in self.plans.items():
            mean, predicted = (
                1e3 * seconds / plan.buckets for seconds in (plan.seconds, plan.predicted_seconds)
            )
            lines.append(
                f"  {name}: {plan.buckets} buckets, {readable_bytes(plan.bytes)}, "
                f"{mean:.3g} ms each ({predicted:.3g} ms predicted)"
            )
        rows = [("parameter", "dtype", "block", "density", "union", "plan", "why")]
        rows += [
            (
                record.label(),
                dtype_name(record.dtype),
                str(record.block),
                _percent(record.density()),
                _percent(record.union_density()),
                record.plan,
                record.reason,
            )
            for record in self.parameters
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
