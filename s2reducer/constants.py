# SPDX-License-Identifier: MIT
"""What communication and work cost, in numbers that all ranks share.

Ranks measure different times, so no rank may act on its own.  Each sends its figures with every
header, and all of them take the median over ranks (``chooser.py`` says when).
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Cost:
    """What communication takes, in amounts that ``Constants`` have prices for.

    Attributes:
        rounds: that wait for one another.
        wire: bytes that the heaviest rank sends of indices and rows, whatever the collective.
        dense: bytes that a rank sends in AllReduces of what is not looked at.
        work: bytes of rows that are gathered, added and scattered.
        scan: bytes in which live blocks are looked for.
    """

    rounds: float = 0.0
    wire: float = 0.0
    dense: float = 0.0
    work: float = 0.0
    scan: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rounds + other.rounds,
            self.wire + other.wire,
            self.dense + other.dense,
            self.work + other.work,
            self.scan + other.scan,
        )

    @property
    def nbytes(self) -> float:
        """Sent by the heaviest rank."""
        return self.wire + self.dense


@dataclass(frozen=True)
class Constants:
    """What a second buys; equal on all ranks.

    The defaults are for 1 Gbit/s, the slowest link worth a thought, and a processor of today: they
    hold until something has been measured, and where nothing may be (``deterministic=True``).

    Attributes:
        round: seconds that a small collective takes.
        wire: seconds a byte in the rounds that carry rows.
        dense: seconds a byte in an AllReduce.
        work: seconds a byte of gathering, adding and scattering rows.
        scan: seconds a byte of looking for live blocks.
        sparse_penalty: by how much more the sparse plans have cost, beside dense, than these say.
    """

    round: float = 130e-6
    wire: float = 8e-9
    dense: float = 8e-9
    work: float = 5e-10
    scan: float = 1e-10
    sparse_penalty: float = 1.0

    def seconds(self, cost: Cost) -> float:
        """Without the penalty, which is for comparisons."""
        rounds, rows = self.round * cost.rounds, self.wire * cost.wire + self.work * cost.work
        return rounds + rows + self.dense * cost.dense + self.scan * cost.scan


# Where nothing is measured yet: over NCCL, whose collectives have only been enqueued when a call
# returns.  For 100 Gbit/s, a round of 30 microseconds, and a device that moves 1 TB/s.
ON_DEVICES = Constants(round=30e-6, wire=8e-11, dense=8e-11, work=4e-12, scan=1e-12)

# Below this size a bucket goes dense under "auto", without an index.  The index takes the latency
# of one more small collective, some 100 microseconds on Ethernet.  No plan can save more than the
# whole dense message, and of 16 KiB that is 131 microseconds at 1 Gbit/s, the slowest link worth a
# thought, and a tenth of it at 10 Gbit/s.
FLOOR_NBYTES = 16 * 1024

NAMES = tuple(field.name for field in fields(Constants))
NFIGURES = len(NAMES)

# Figures travel as whole numbers of this many parts: 10**-15 seconds, for those that are times.
_PARTS = 10**15


def to_words(figures: dict[str, float]) -> list[int]:
    """A rank's figures for a header, by the names of ``Constants``; 0 for what is not known."""
    return [round(figures.get(name, 0.0) * _PARTS) for name in NAMES]


def agree(words: Sequence[Sequence[int]], before: Constants) -> Constants:
    """The constants that follow from every rank's words: medians over the ranks that know."""
    known = {}
    for name, column in zip(NAMES, zip(*words, strict=True), strict=True):
        values = [value / _PARTS for value in column if value > 0]
        if values:
            known[name] = statistics.median(values)
    return replace(before, **known)
