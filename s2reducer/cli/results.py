# SPDX-License-Identifier: MIT
"""From the ranks' figures of one run to the figures that the demo shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from s2reducer.cli.network import predicted_seconds, union_bytes
from s2reducer.cli.training import Settings
from s2reducer.transport import ring_nbytes

FLOAT32_BYTES = 4
# The training loss jumps from batch to batch; its mean over so many steps is shown.
LAST_STEPS = 20


@dataclass(frozen=True)
class ParameterDensity:
    """Shares of a parameter's blocks that are not zero: on one rank (mean over the ranks), and on
    at least one of the ranks; None where the plan never counted them."""

    name: str
    shape: list[int]
    block: int
    density: float | None
    union_density: float | None
    plan: str

    @property
    def numel(self) -> int:
        numel = 1
        for size in self.shape:
            numel *= size
        return numel


@dataclass(frozen=True)
class Summary:
    """One run; bytes are per rank and step, times are medians in seconds, means over the ranks."""

    losses: list[float]
    last_loss: float
    final_loss: float
    identical_replicas: bool
    step_seconds: float
    compute_seconds: float
    bytes_counted: float
    bytes_on_loopback: float | None
    parameter_count: int
    densities: list[ParameterDensity]

    def predicted_seconds(self, gbits: float) -> float:
        return predicted_seconds(self.compute_seconds, self.bytes_counted, gbits)

    def bytes_from_densities(self, ranks: int) -> float | None:
        """What the densities let one expect of the ``union`` plan."""
        parameters = [
            (p.numel, p.block, p.union_density)
            for p in self.densities
            if p.union_density is not None
        ]
        if len(parameters) < len(self.densities):
            return None
        return union_bytes(parameters, FLOAT32_BYTES, ranks)


@dataclass(frozen=True)
class Compute:
    """A step without communication, which is the same in both runs: the better of two measurements,
    since whatever else the machine does can only add to it."""

    seconds: float
    thread_seconds: float

    @classmethod
    def of_runs(cls, runs: Iterable[list[dict[str, Any]]]) -> "Compute":
        means = [
            (
                fmean(r["compute_seconds"] for r in results),
                fmean(r["compute_thread_seconds"] for r in results),
            )
            for results in runs
        ]
        seconds, thread_seconds = (min(column) for column in zip(*means, strict=True))
        return cls(seconds, thread_seconds)

    def with_communication(self, results: list[dict[str, Any]]) -> float:
        """And what the training thread and s2reducer's own threads compute on top of that for
        communication: copies into buckets; bitmaps, gather, scatter, sums; system calls. It is CPU
        time, so waiting is not in it."""
        thread_seconds = fmean(median(r["thread_seconds"]) for r in results)
        return self.seconds + max(thread_seconds - self.thread_seconds, 0.0)


def summarise(results: list[dict[str, Any]], settings: Settings, compute: Compute) -> Summary:
    """``results`` are the ``RunResult`` of all ranks, in rank order, as dictionaries."""
    first = results[0]
    losses = [fmean(step) for step in zip(*(r["losses"] for r in results), strict=True)]
    reports = [r["report"] for r in results if r["report"] is not None]
    if reports:
        counted = fmean(report["bytes_sent"] / report["steps"] for report in reports)
    else:
        counted = ring_nbytes(first["parameter_count"] * FLOAT32_BYTES, settings.ranks)
    on_loopback = first["loopback_bytes"]
    if on_loopback is not None:
        on_loopback /= first["window_steps"] * settings.ranks
    return Summary(
        losses=losses,
        last_loss=fmean(losses[-LAST_STEPS:]),
        final_loss=first["final_loss"],
        identical_replicas=len({r["parameters_sha256"] for r in results}) == 1,
        step_seconds=fmean(median(r["step_seconds"]) for r in results),
        compute_seconds=compute.with_communication(results),
        bytes_counted=counted,
        bytes_on_loopback=on_loopback,
        parameter_count=first["parameter_count"],
        densities=_densities(reports),
    )


def _densities(reports: list[dict[str, Any]]) -> list[ParameterDensity]:
    """Of rank 0's report, with the mean over the ranks of what differs between them."""
    of_ranks = [{p["name"]: p for p in report["parameters"]} for report in reports]
    return [
        ParameterDensity(
            name=name,
            shape=list(entry["shape"]),
            block=entry["block"],
            density=_mean_if_known([rank[name]["density"] for rank in of_ranks]),
            union_density=entry["union_density"],
            plan=entry["plan"],
        )
        for name, entry in (of_ranks[0] if of_ranks else {}).items()
    ]


def _mean_if_known(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None
