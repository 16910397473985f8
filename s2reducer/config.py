# SPDX-License-Identifier: MIT
"""The settings of a state: checked one by one, and compared between ranks."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from s2reducer import _C
from s2reducer.selection import SELECTIONS, Selection, SharedTopK
from s2reducer.sketch_config import SketchConfig

WIRES = (None, "bf16")

# Whose bitmaps a plan can take: S2_MAX_RANKS of s2.h.
MAX_RANKS = 256

PLANS = ("auto", "dense", "gather", "owner", "sketch", "union")

# Ranks compare their settings before anything else, so the record has a size that no setting and
# no version of this package changes: it is the first collective, and must match by itself.
RECORD_NBYTES = 1024
_MAGIC = "s2reducer"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Config:
    """What all ranks must set alike.

    Attributes:
        plan: how a bucket crosses the network, one of ``PLANS``.
        block: elements of a block, for every parameter; None for the rule in ``segments.py``.
        seed: of every hash, 0 to 2**64 - 1.
        deterministic: results have the same bits whatever the buckets and the run: only ``owner``
            and ``gather`` are used, which sum in one order.
        check_every: steps from one comparison of the ranks' results to the next; 0 for none.
        sketch: the tables of the plan ``sketch``.
        select: which blocks of a dense gradient are sent; None for all that are not zero.
        wire: the dtype in which float32 gradients travel, one of ``WIRES``; None for their own.
        error_feedback: what ``select`` and ``wire`` keep from the other ranks is added to the next
            gradient.

    Raises:
        TypeError, ValueError: a setting is not of its kind, or not one of the accepted values.
    """

    plan: str = "auto"
    block: int | None = None
    seed: int = 0
    deterministic: bool = False
    check_every: int = 0
    sketch: SketchConfig = field(default_factory=SketchConfig)
    select: Selection | None = None
    wire: str | None = None
    error_feedback: bool = True

    def __post_init__(self) -> None:
        if self.plan not in PLANS:
            accepted = ", ".join(repr(plan) for plan in PLANS)
            raise ValueError(f"plan must be one of {accepted}, but is {self.plan!r}")
        if self.block is not None:
            if not _is_integer(self.block):
                raise TypeError(f"block must be a whole number or None, but is {self.block!r}")
            if not 1 <= self.block < 1 << 40:
                raise ValueError(f"block must lie between 1 and 2**40 - 1, but is {self.block}")
        if not _is_integer(self.seed):
            raise TypeError(f"seed must be a whole number, but is {self.seed!r}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must lie between 0 and 2**64 - 1, but is {self.seed}")
        if not isinstance(self.deterministic, bool):
            raise TypeError(f"deterministic must be True or False, but is {self.deterministic!r}")
        if self.deterministic and self.plan in ("dense", "sketch", "union"):
            raise ValueError(
                f'deterministic=True goes with the plans "auto", "gather" and "owner", but plan is '
                f"{self.plan!r}"
            )

        if not _is_integer(self.check_every):
            raise TypeError(f"check_every must be a whole number, but is {self.check_every!r}")
        if self.check_every < 0:
            raise ValueError(f"check_every must be 0 or more, but is {self.check_every}")
        if not isinstance(self.sketch, SketchConfig):
            raise TypeError(f"sketch must be a SketchConfig, but is {self.sketch!r}")
        self._check_what_is_lost()

    def _check_what_is_lost(self) -> None:
        if self.select is not None and not isinstance(self.select, SELECTIONS):
            raise TypeError(
                "select must be a TopK, SharedTopK, RandomK or Threshold, or None, but is "
                f"{self.select!r}"
            )
        if isinstance(self.select, SharedTopK) and self.block == 1:
            raise ValueError(
                "block must be 2 or more with SharedTopK, but is 1: the squares of single elements "
                "are as many as the elements"
            )
        if self.wire not in WIRES:
            accepted = " or ".join(map(repr, WIRES))
            raise ValueError(f"wire must be {accepted}, but is {self.wire!r}")
        if not isinstance(self.error_feedback, bool):
            raise TypeError(f"error_feedback must be True or False, but is {self.error_feedback!r}")
        if self.plan != "sketch":
            return
        if self.wire is not None:
            raise ValueError(
                f'wire must be None with the plan "sketch", but is {self.wire!r}: cells are sums '
                "from which blocks are subtracted again"
            )
        if self.select is not None and self.sketch.owes:
            raise ValueError(
                'select goes with sketches whose on_overflow is "repair" or "estimate" without '
                "error_feedback: else a block would be owed twice"
            )

    @property
    def lossy(self) -> bool:
        """Whether dense gradients are changed before they are sent."""
        return self.select is not None or self.wire is not None

    @property
    def takes_kernels(self) -> bool:
        """Whether a device needs kernels of this package for them, which may not be built."""
        return self.plan == "sketch" or self.select is not None

    @property
    def owes(self) -> bool:
        """Whether a step may leave something for the next."""
        return self.owes_blocks or (self.lossy and self.error_feedback)

    @property
    def owes_blocks(self) -> bool:
        """Whether it may be what a sketch left."""
        return self.plan == "sketch" and self.sketch.owes

    @property
    def knows_index(self) -> bool:
        """Whether all ranks know without an index what travels, with ``select`` or ``wire``."""
        return self.plan == "dense" or isinstance(self.select, SharedTopK)

    def dense_reason(self, dtype: torch.dtype) -> str | None:
        """Why these settings send gradients of ``dtype`` densely; None where they do not."""
        if self.plan == "dense":
            return "as set"
        if self.plan == "sketch" and dtype == torch.float64:
            return "float64, for which a sketch has no cells"
        return None

    def plain(self) -> dict[str, Any]:
        """Every setting by name, those of the sketch as ``sketch rows``, ready for JSON."""
        settings = asdict(self) | {"select": self.select and str(self.select)}
        tables = {f"sketch {name}": value for name, value in settings.pop("sketch").items()}
        return settings | tables

    def changed(self) -> dict[str, Any]:
        """Those of ``plain`` that are not the defaults."""
        defaults = Config().plain()
        return {name: value for name, value in self.plain().items() if value != defaults[name]}

    def check_world_size(self, world_size: int) -> None:
        """Raises ValueError where these settings need the bitmaps of more than ``MAX_RANKS``."""
        needs = [f"plan={self.plan!r}"] if self.plan in ("gather", "owner") else []
        needs += ["deterministic=True"] if self.deterministic else []
        needs += ["wire"] if self.wire else []
        needs += ["select"] if self.select and self.plan == "auto" else []
        if world_size > MAX_RANKS and needs:
            raise ValueError(
                f"{needs[0]} is for up to {MAX_RANKS} ranks, but the process group has "
                f'{world_size}: the plans "dense", "sketch" and "union" are for any number'
            )

    def too_many(self, world_size: int, is_sparse: bool) -> str | None:
        """Why gradients go dense among so many ranks, where these settings are not refused."""
        if world_size > MAX_RANKS and (is_sparse or self.plan == "auto"):
            return f"on more than {MAX_RANKS} ranks, where only dense is supported"
        return None

    def record(self, is_whole: bool = True, has_scaler: bool = False) -> bytes:
        """The package's version and the settings, in ``RECORD_NBYTES`` bytes.

        A rank whose package is not whole lacks kernels that these settings take.  It does without,
        and would not send what the others do.  One that has no scaler would take another's units
        for its own where something is owed.
        """
        build = "whole" if is_whole else "without CUDA kernels"
        fields = {"magic": _MAGIC, "version": _C.version(), "build": build, **self.plain()}
        if self.owes:
            fields["scaler"] = "given" if has_scaler else "none"
        record = json.dumps(fields).encode().ljust(RECORD_NBYTES)
        assert len(record) == RECORD_NBYTES, "the settings have outgrown their record"
        return record


def first_difference(records: Sequence[bytes]) -> str | None:
    """A sentence on the first setting that the ranks' records do not share, or None.

    Every rank has all records, so every rank gets the same sentence.
    """
    parsed = [_parse(record) for record in records]
    strangers = [rank for rank, fields in enumerate(parsed) if not fields]
    if strangers:
        return f"{_ranks(strangers)} sent no settings of an S2State: do all ranks use s2_hook?"
    for name in dict.fromkeys(name for fields in parsed for name in fields):
        holders: dict[str, list[int]] = {}
        for rank, fields in enumerate(parsed):
            holders.setdefault(repr(fields.get(name)), []).append(rank)
        if len(holders) > 1:
            values = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in holders.items())
            return f"all ranks must have the same {name}, but it is {values}"
    return None


def _parse(record: bytes) -> dict[str, object]:
    """The fields of a record; none where the bytes are not a record at all."""
    try:
        fields = json.loads(record)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) and fields.get("magic") == _MAGIC else {}


def _ranks(ranks: Sequence[int], most: int = 8) -> str:
    """``rank 3``, or ``ranks 0, 1, 2``, shortened where there are hundreds."""
    listed = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}{more}"
