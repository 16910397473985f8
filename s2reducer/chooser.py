# SPDX-License-Identifier: MIT
"""When plans are compared, by which constants, and what was chosen.

The schedule is one of step numbers, which all ranks count alike:

probe
    every ``AGREE_EVERY`` steps: segments that stay dense are looked at again, and the first header
    of the step brings the figures from which new constants follow (``constants.py``);
dense step
    one in ``DENSE_EVERY`` goes dense as a whole, so that it is known what that takes.
"""

import statistics
import threading
from collections import deque
from dataclasses import dataclass, field, replace

from s2reducer.constants import NAMES, NFIGURES, Constants, Cost, agree, to_words
from s2reducer.plans.choice import Choice

AGREE_EVERY = 64
DENSE_EVERY = 256
_DENSE_AT = 32  # before constants are agreed on for the first time

# The median wait of this many steps, and the same of rounds, tells of now rather than of long ago.
_WINDOW = 64

# Smaller messages tell of latency, and larger ones of bandwidth.
_LARGE_NBYTES = 64 * 1024

# Waits below this are not worth a comparison: they are made of scheduling, not of communication.
_SHORTEST_WAIT = 1e-3

# How far measured waits may bend the prices.
_MOST_PENALTY = 4.0


class Meter:
    """Times of one rank.  Hooks, lanes and callbacks report to it, so it has a lock.

    A round ends when the slowest rank has come to it.  What ranks wait for one another is no
    property of a plan, so the lower quartile of the samples is taken.  Of small rounds it is the
    least: most of them wait for large messages that are on the same link.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: dict[str, deque[float]] = {}
        self._dense_free_at = 0.0  # when the last AllReduce had ended
        self._waits: dict[str, deque[float]] = {}
        self._costs: dict[str, Cost] = {}  # of the last step of each kind

    def round(self, nbytes: float, seconds: float) -> None:
        """A blocking collective of headers and indices, in which this rank sent so much."""
        if nbytes < _LARGE_NBYTES:
            self._add("round", seconds)

    def rows(self, nbytes: float, rounds: float, seconds: float) -> None:
        """The rounds of a sparse plan, in which the heaviest rank sent so much."""
        if nbytes >= _LARGE_NBYTES:
            self._add("wire", max(0.0, seconds - rounds * self._typical("round")) / nbytes)

    def dense(self, nbytes: float, begun: float, ended: float) -> None:
        """An AllReduce; several may be under way, and a later one waits for an earlier."""
        with self._lock:
            begun = max(begun, self._dense_free_at)
            self._dense_free_at = max(ended, self._dense_free_at)
        if nbytes >= _LARGE_NBYTES and ended > begun:
            seconds = ended - begun
            self._add("dense", max(seconds - self._typical("round"), 0.1 * seconds) / nbytes)

    def work(self, nbytes: float, seconds: float) -> None:
        """Gathering, adding and scattering rows of so many bytes."""
        if nbytes >= _LARGE_NBYTES:
            self._add("work", max(0.0, seconds) / nbytes)

    def scan(self, nbytes: float, seconds: float) -> None:
        """Looking for live blocks in so many bytes."""
        if nbytes >= _LARGE_NBYTES:
            self._add("scan", seconds / nbytes)

    def step(self, kind: str, wait: float, cost: Cost) -> None:
        """A step that was ``"dense"`` or ``"sparse"``.

        Args:
            wait: seconds from the last hook's call to the last bucket's result: the communication
                that no computation hid.
            cost: of the plans of all its buckets.
        """
        with self._lock:
            self._waits.setdefault(kind, deque(maxlen=_WINDOW)).append(wait)
            self._costs[kind] = cost

    def forget_steps(self) -> None:
        """Waits belong to a bucket layout, and end with it."""
        with self._lock:
            self._waits.clear()
            self._costs.clear()

    def figures(self, before: Constants) -> dict[str, float]:
        """By the names of ``Constants``; 0 for what is not known, where ``before`` holds on."""
        measured = {name: self._typical(name) for name in NAMES}
        known = {name: value for name, value in measured.items() if value > 0}
        return measured | {"sparse_penalty": self._penalty(replace(before, **known))}

    def _add(self, name: str, value: float) -> None:
        with self._lock:
            self._samples.setdefault(name, deque(maxlen=_WINDOW)).append(value)

    def _typical(self, name: str) -> float:
        with self._lock:
            samples = sorted(self._samples.get(name, ()))
        if not samples:
            return 0.0
        return samples[0 if name == "round" else len(samples) // 4]

    def _penalty(self, constants: Constants) -> float:
        """How the waits of sparse and dense steps compare, over how their costs do.

        One wait says little: only where several agree may they bend the prices far.
        """
        with self._lock:
            if not ("dense" in self._waits and "sparse" in self._waits):
                return 0.0
            waits = {kind: statistics.median(values) for kind, values in self._waits.items()}
            costs = dict(self._costs)
            fewest = min(map(len, self._waits.values()))
        predicted = {kind: constants.seconds(cost) for kind, cost in costs.items()}
        if min(predicted.values()) <= 0 or max(waits.values()) < _SHORTEST_WAIT:
            return 0.0
        measured = waits["sparse"] / max(waits["dense"], _SHORTEST_WAIT)
        penalty = measured * predicted["dense"] / predicted["sparse"]
        most = min(1 + fewest / 2, _MOST_PENALTY)
        return min(max(penalty, 1 / most), most)


@dataclass(frozen=True)
class Change:
    """From ``step`` on the bucket travelled by ``plan``, for the ``reason`` given."""

    step: int
    bucket: str
    plan: str
    reason: str


@dataclass
class Chooser:
    """Constants and choices of one state.

    Args:
        adapts: segments may go dense, and the schedule is followed: only under ``plan="auto"``.
        learns: constants follow what is measured: not under ``deterministic=True``.
    """

    adapts: bool
    learns: bool
    constants: Constants = field(default_factory=Constants)
    meter: Meter = field(default_factory=Meter)
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=1024))
    _agreed_at: int = 0

    def probes(self, step: int) -> bool:
        """Whether segments that stay dense are looked at again in this step."""
        return step % AGREE_EVERY == 0

    def is_dense(self, step: int) -> bool:
        """Whether all buckets of this step go dense."""
        return self.adapts and self.learns and step % DENSE_EVERY == _DENSE_AT

    def keep_to(self, constants: Constants) -> None:
        """Nothing is learned: where the host's clock does not tell what communication takes."""
        self.learns, self.constants = False, constants

    def words(self, step: int) -> list[int]:
        """This rank's figures, for a header; only in the steps in which they are taken."""
        if not (self.learns and self.probes(step)):
            return [0] * NFIGURES
        return to_words(self.meter.figures(self.constants))

    def learn(self, step: int, figures: list[list[int]]) -> None:
        """Takes what a header brought from all ranks, if it is time for it."""
        if self.learns and self.probes(step) and step > self._agreed_at:
            self._agreed_at = step
            self.constants = agree(figures, self.constants)

    def note(self, step: int, bucket: str, before: str, choice: Choice) -> None:
        """Keeps a choice that differs from the one ``before`` for the report."""
        if choice.plan != before:
            self.changes.append(Change(step, bucket, choice.plan, choice.reason))
