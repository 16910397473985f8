# SPDX-License-Identifier: MIT
"""What a state keeps across a restart: its step, and what its parameters owe and are expected to.

Plans are not among it: ``auto`` measures anew, and the sums of ``owner`` and ``gather`` depend on
nothing but the gradients.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from s2reducer.config import Config
from s2reducer.lossy import owes_array
from s2reducer.residuals import Residuals
from s2reducer.segments import ParameterRecord

_FORMAT = 1


def save(
    step: int,
    place: tuple[int, int],
    records: Sequence[ParameterRecord],
    residuals: Residuals,
    config: Config,
) -> dict[str, Any]:
    """Plain types and tensors, which ``torch.save`` and checkpoints take.

    Arrays are there from the first step on, for a checkpoint to be loaded in place.  ``place`` is
    the rank and the world size, (0, 0) before the first step.
    """
    parameters = []
    for record in records:
        saved: dict[str, Any] = {
            "name": record.name,
            "shape": list(record.shape),
            "unions": list(record.unions),
        }
        parameters.append(saved | residuals.save(record, owes_array(config, record)))
    rank, world_size = place
    return {
        "format": _FORMAT,
        "step": step,
        "rank": rank,
        "world_size": world_size,
        "parameters": parameters,
    }


def _describe(name: str | None, shape: Sequence[int]) -> str:
    return f"{name or 'unnamed'} of {'x'.join(map(str, shape)) or 'one element'}"


@dataclass
class Resumption:
    """Gives the parameters what was saved of them, as they become known.

    They do so in the same order as in the run that was saved: that of the module, or of the first
    step's buckets where buckets come from something else.
    """

    saved: dict[str, Any]
    _done: int = field(default=0, init=False)

    @property
    def done(self) -> bool:
        """Whether all has been given."""
        return self._done >= len(self.saved["parameters"])

    def __post_init__(self) -> None:
        """Raises ValueError for what ``save`` did not make."""
        wanted = {"format", "step", "rank", "world_size", "parameters"}
        if not isinstance(self.saved, dict) or not wanted <= set(self.saved):
            raise ValueError(
                "the state to load must be what state_dict() gives, with "
                f"{', '.join(sorted(wanted))}"
            )
        if self.saved["format"] != _FORMAT:
            raise ValueError(
                f"the state to load has the format {self.saved['format']!r}, but this version "
                f"reads {_FORMAT}"
            )

    def check(self, records: Sequence[ParameterRecord]) -> None:
        """Raises ValueError unless what was saved is of these parameters, as far as known.

        Without anything to keep, as of exact plans, any model will do.
        """
        saved = self.saved["parameters"]
        if not any(one["unions"] or "owed" in one for one in saved):
            return
        for number, record in enumerate(records):
            if number >= len(saved):
                raise ValueError(
                    f"the state to load has {len(saved)} parameters, but {record.label()} is "
                    f"number {number + 1}"
                )
            there = saved[number]
            here = (record.name, record.shape)
            if here != (there["name"], tuple(there["shape"])):
                raise ValueError(
                    f"parameter {number + 1} of the state to load is "
                    f"{_describe(there['name'], there['shape'])}, but here it is {_describe(*here)}"
                )

    def give(
        self,
        records: Sequence[ParameterRecord],
        residuals: Residuals,
        place: tuple[int, int],
        config: Config,
        rows_are_exact: bool,
    ) -> None:
        """To the parameters that have become known since the last call.

        On another rank or world size nothing is owed: a rank's debts are in units of its own
        gradient, and in another world somebody else may have them or nobody.  Nor is what the
        settings would never deliver, as of COO gradients where ``rows_are_exact``.
        """
        self.check(records)
        rank, world_size = place
        there = (self.saved["rank"], self.saved["world_size"])
        dropped = unwanted = 0
        pairs = zip(records, self.saved["parameters"], strict=False)
        for record, saved in list(pairs)[self._done :]:
            record.unions = list(saved["unions"])
            owes_blocks = config.owes_blocks and not (record.is_table and rows_are_exact)
            if not any(name in saved and saved[name].any() for name in ("owed", "owed_rows")):
                continue
            if place != there:
                dropped += 1
            elif owes_array(config, record) if "owed" in saved else owes_blocks:
                residuals.load(record, saved)
            else:
                unwanted += 1
        if dropped:
            warnings.warn(
                f"this state was saved on rank {there[0]} of {there[1]} and goes on as rank {rank} "
                f"of {world_size}: what {dropped} parameters owed is dropped",
                stacklevel=2,
            )
        if unwanted:
            warnings.warn(
                f"this state was saved with other settings of what is sent later, or over another "
                f"backend: what {unwanted} parameters owed is dropped, as it would never be sent",
                stacklevel=2,
            )
        self._done = len(records)
