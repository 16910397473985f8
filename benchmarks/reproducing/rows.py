# SPDX-License-Identifier: MIT
"""From single trainings, and from steps on the links, to the rows of the tables."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .settings import METHODS, MODELS

Record = dict[str, Any]

# Exact methods differ from dense in the order of sums, hence in last bits, which training then
# makes larger and larger: after so many steps they are still far below the tolerance.
COMPARED_STEPS = 50
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Range:
    """The mean over seeds, the least and the most."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Range":
        return cls(statistics.fmean(figures), min(figures), max(figures))


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends in a step.

    Attributes:
        total: of all parameters.
        sparse: of tables, which is what is left without the AllReduce of all others; None where
            these travel in another way, or where there are no tables.
        of_coo: sparse, over that of the method ``coo``.
    """

    total: float
    sparse: float | None
    of_coo: float | None


@dataclass(frozen=True)
class Row:
    """A method, trained on a model.

    Attributes:
        seeds: that were trained.
        diverged: of these.
        value: of the metric, over the seeds that did not diverge; None if all did.
        difference: from dense with the same seed.
        trained: what was sent in the trainings.
        largest_difference: of a loss from dense's, relative, in the first ``COMPARED_STEPS`` of
            any seed; None for dense itself and for lossy methods.
        timed: what was sent on the links; None if they were not there.
        step_seconds, of_dense: of ``bench_training``, low, median and high; None on loopback.
    """

    model: str
    method: str
    seeds: int
    diverged: int
    value: Range | None
    difference: Range | None
    trained: Sent
    largest_difference: float | None
    timed: Sent | None
    step_seconds: dict[str, float] | None
    of_dense: dict[str, float] | None


def rows_of(trainings: Sequence[Record], timings: Sequence[Record]) -> list[Row]:
    """In the order of the trainings; each model has ``dense`` among its methods."""
    grouped: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in trainings:
        grouped[record["model"], record["method"]].append(record)
    timed = {(record["model"], record["method"]): record for record in timings}
    return [
        _row(group, grouped[model, "dense"], grouped.get((model, "coo")), timed)
        for (model, _), group in grouped.items()
    ]


def _row(
    group: Sequence[Record],
    dense: Sequence[Record],
    coo: Sequence[Record] | None,
    timed: dict[tuple[str, str], Record],
) -> Row:
    model, method = group[0]["model"], group[0]["method"]
    by_seed = {record["seed"]: record for record in dense}
    good = [record for record in group if not has_diverged(record)]
    pairs = [(record, by_seed[record["seed"]]) for record in good]
    both_good = [(own, other) for own, other in pairs if not has_diverged(other)]
    timing = timed.get((model, "ddp" if method == "dense" else method))
    of_coo = timed.get((model, "coo"))
    shaped = timing is not None and timing["kind"] != "loopback"
    return Row(
        model=model,
        method=method,
        seeds=len(group),
        diverged=len(group) - len(good),
        value=Range.of([record["value"] for record in good]) if good else None,
        difference=(
            Range.of([own["value"] - other["value"] for own, other in both_good])
            if both_good
            else None
        ),
        trained=_sent(group[0], _mean_bytes(group), group[0]["ranks"], coo and _mean_bytes(coo)),
        largest_difference=(
            max(map(largest_difference, group, (by_seed[r["seed"]] for r in group)))
            if METHODS[method].exact and method != "dense"
            else None
        ),
        timed=(
            None
            if timing is None
            else _sent(
                group[0],
                _counted(timing, group[0]),
                timing["ranks"],
                of_coo and of_coo["counted"],
            )
        ),
        step_seconds=timing["step_seconds"] if shaped else None,
        of_dense=timing["of_ddp"] if shaped else None,
    )


def has_diverged(training: Record) -> bool:
    """Not finite at some point, or worse in the last tenth of the steps than in the first."""
    losses = training["losses"]
    if training["value"] is None or not losses or None in losses:
        return True
    tenth = max(1, len(losses) // 10)
    return statistics.fmean(losses[-tenth:]) > statistics.fmean(losses[:tenth])


def largest_difference(training: Record, dense: Record) -> float:
    """Of the first losses, relative; infinite where one of the two is not finite."""
    pairs = list(zip(training["losses"], dense["losses"], strict=False))[:COMPARED_STEPS]
    if not pairs or any(None in pair for pair in pairs):
        return float("inf")
    return max(abs(own - other) / abs(other) for own, other in pairs)


def _mean_bytes(group: Sequence[Record]) -> float:
    return statistics.fmean(record["bytes"] for record in group)


def _counted(timing: Record, training: Record) -> float:
    """DDP without a hook counts nothing: an AllReduce of all parameters."""
    if timing["method"] == "ddp":
        return _all_reduce(training["numel"], timing["ranks"], 4)
    return float(timing["counted"])


def _all_reduce(numel: int, ranks: int, nbytes: int) -> float:
    """Bytes that a rank sends, of elements of ``nbytes``."""
    return 2 * (ranks - 1) / ranks * numel * nbytes


def _sent(training: Record, total: float, ranks: int, total_of_coo: float | None) -> Sent:
    rest = training["numel"] - training["numel_of_tables"]
    width = METHODS[training["method"]].rest
    if width is None or not MODELS[training["model"]].tables:
        return Sent(total, None, None)
    sparse = total - _all_reduce(rest, ranks, width)
    if total_of_coo is None:
        return Sent(total, sparse, None)
    return Sent(total, sparse, sparse / (total_of_coo - _all_reduce(rest, ranks, 4)))
