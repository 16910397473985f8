# SPDX-License-Identifier: MIT
"""What methods should send of one table, whose live rows are drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from s2reducer import ops

from .dgc import DENSITY
from .omnireduce import BLOCK, LANES
from .powersgd import RANK
from .rows import INDEX_NBYTES, bitmap_nbytes

FLOAT_NBYTES = 4


@dataclass(frozen=True)
class Point:
    """One bucket: its table, and which rows of it the ranks have."""

    megabytes: float
    row: int
    density: float
    overlap: float = 0.0
    skew: float = 1.0

    @property
    def nrows(self) -> int:
        return int(self.megabytes * 1e6 / FLOAT_NBYTES / self.row)

    def count(self, rank: int) -> int:
        """Live rows of a rank."""
        share = self.density * (self.skew if rank == 0 else 1.0)
        return min(self.nrows, max(1, round(share * self.nrows)))

    def union(self, ranks: Sequence[int]) -> float:
        """Rows that any of these ranks has, as is to be expected."""
        common = round(self.overlap * self.count(1))
        rest = self.nrows - common
        missing = prod(1 - (self.count(rank) - common) / max(rest, 1) for rank in ranks)
        return common + rest * (1 - missing)


def formula(plan: str, point: Point, ranks: int, union: int) -> tuple[float, float, float]:
    """Bytes of all ranks, of the heaviest, and of all if ``owner`` gave even caps to all."""
    if plan == "owner":
        row, around = point.row * FLOAT_NBYTES, (ranks - 1) * _index_nbytes(point, ranks)
        counts = [point.count(rank) for rank in range(ranks)]
        total, heaviest, capped = (rows * row for rows in owner_rows(counts, union))
        return ranks * around + total, around + heaviest, ranks * around + capped
    each = [_sent(plan, point, ranks, union, rank) for rank in range(ranks)]
    return sum(each), max(each), sum(each)


def _sent(plan: str, point: Point, ranks: int, union: int, rank: int) -> float:
    """Bytes of one rank."""
    row, count = point.row * FLOAT_NBYTES, point.count(rank)
    numel = point.nrows * point.row
    others, share = ranks - 1, (ranks - 1) / ranks
    indexed = row + INDEX_NBYTES
    match plan:
        case "none":
            return 0.0
        case "dense":
            return 2 * share * numel * FLOAT_NBYTES
        case "bf16" | "fp16":
            return share * numel * FLOAT_NBYTES
        case "gather":
            return others * (_index_nbytes(point, ranks) + count * row)
        case "union":
            return 2 * share * (union * row + bitmap_nbytes(point.nrows))
        case "coo":
            return others * max(point.count(peer) for peer in range(ranks)) * indexed
        case "zen":
            return share * (count * indexed + union * row + point.nrows / 8)
        case "sparcml":
            return _doubling(point, ranks, rank)
        case "sparcml-split":
            return share * (count * indexed + min(union * indexed, point.nrows * row))
        case "parallax":
            return share * (count + union) * indexed
        case "omnireduce":
            blocks = _live_blocks(point, count) + _live_blocks(point, union)
            lanes = min(LANES, -(-numel // BLOCK // ranks))
            return share * blocks * (BLOCK * FLOAT_NBYTES + INDEX_NBYTES) + 8 * others * lanes
        case "powersgd":
            return 2 * share * min(RANK * (point.nrows + point.row), numel) * FLOAT_NBYTES
        case "dgc":
            return others * DENSITY * numel * (FLOAT_NBYTES + INDEX_NBYTES)
    raise ValueError(f"there is no formula of {plan}")


def _index_nbytes(point: Point, ranks: int) -> int:
    """Of s2reducer's index of a rank: a bitmap or the longest list."""
    bitmap = bitmap_nbytes(point.nrows)
    most = max(point.count(rank) for rank in range(ranks))
    return min(bitmap, ops.list_nbytes(8 * bitmap, most))


def _doubling(point: Point, ranks: int, rank: int) -> float:
    """SparCML's rounds, and what ranks beyond a power of two give and get."""
    row, power = point.row * FLOAT_NBYTES, 1 << (ranks.bit_length() - 1)

    def message(members: Sequence[int]) -> float:
        return min(point.union(members) * (row + INDEX_NBYTES), point.nrows * row)

    if rank >= power:
        return message([rank])
    sent, distance = 0.0, 1
    while distance < power:
        group = [peer for peer in range(power) if peer // distance == rank // distance]
        sent += message([*group, *(peer + power for peer in group if peer + power < ranks)])
        distance *= 2
    return sent + (message(range(ranks)) if rank + power < ranks else 0.0)


def _live_blocks(point: Point, rows: int) -> float:
    """Blocks of OmniReduce that have one of so many rows in them."""
    if point.row >= BLOCK:
        return rows * point.row / BLOCK
    blocks = point.nrows * point.row / BLOCK
    return blocks * (1 - (1 - rows / point.nrows) ** (BLOCK / point.row))


def owner_rows(counts: Sequence[int], union: int) -> tuple[float, float, float]:
    """Rows that all ranks send, that the heaviest sends, and that all would with even caps."""
    ranks, most = len(counts), max(counts)
    results = (ranks - 1) * union

    def rows(cap: float) -> float:
        """A rank that has more than it may own sends the rest away, and nobody else's matter."""
        return max(sum(counts) - union, most - cap) + results

    cap = 1.05 * union / ranks
    capped = rows(cap)
    level = (sum(counts) + results) / ranks
    if most > level:
        level = (sum(counts) - most) / (ranks - 1) + union
    if ranks < 3 or most + (ranks - 2) * cap <= 1.1 * max(most, level):
        return capped, max(capped / ranks, most - cap + results / ranks), capped
    return rows(max(0.0, level - most) / (ranks - 1)), max(most, level), capped


def is_within(sent: float, expected: float, ranks: int, factor: float = 1.10) -> bool:
    return sent <= factor * expected + 64 * 1024 + 1024 * ranks
