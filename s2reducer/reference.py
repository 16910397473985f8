# SPDX-License-Identifier: MIT
"""The algorithms in plain PyTorch: to be read, and to be compared with.

Nothing here is quick, and nothing of it runs in training.  ``segments`` and the other words are
those of ``s2reducer/ops.py``.  Every function returns a new result and leaves its arguments alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def blocks(segments: Tensor) -> Iterator[tuple[int, slice, int]]:
    """Position, elements in the bucket and full length of every block, in order."""
    for offset, numel, block, first_bit in segments.tolist():
        for index, begin in enumerate(range(0, numel, block)):
            end = min(begin + block, numel)
            yield first_bit + index, slice(offset + begin, offset + end), block


def live_positions(values: Tensor, segments: Tensor) -> list[int]:
    """The blocks with an element other than a zero; a NaN is not a zero."""
    return [
        position
        for position, elements, _ in blocks(segments)
        if bool((values[elements] != 0).any())
    ]


def bitmap(positions: Sequence[int], nbytes: int) -> Tensor:
    """One bit a position, least significant bit of the first byte first."""
    result = [0] * nbytes
    for position in positions:
        result[position // 8] |= 1 << position % 8
    return torch.tensor(result, dtype=torch.uint8)


def positions(bitmap: Tensor) -> list[int]:
    """The numbers of the set bits, ascending."""
    return [
        8 * number + bit
        for number, byte in enumerate(bitmap.tolist())
        for bit in range(8)
        if byte >> bit & 1
    ]


def gather(values: Tensor, segments: Tensor, positions: Sequence[int]) -> Tensor:
    """The blocks at these positions, one behind the other, a short one filled up with zeros."""
    wanted = set(positions)
    parts = [values.new_zeros(0)]
    for position, elements, block in blocks(segments):
        if position in wanted:
            part = values.new_zeros(block)
            part[: elements.stop - elements.start] = values[elements]
            parts.append(part)
    return torch.cat(parts)


def scatter(packed: Tensor, segments: Tensor, positions: Sequence[int], values: Tensor) -> Tensor:
    """``values`` with these blocks replaced by the packed ones."""
    wanted = set(positions)
    result, at = values.clone(), 0
    for position, elements, block in blocks(segments):
        if position in wanted:
            result[elements] = packed[at : at + elements.stop - elements.start].to(values.dtype)
            at += block
    return result


def add(packed: Tensor, segments: Tensor, positions: Sequence[int], accumulator: Tensor) -> Tensor:
    """``accumulator`` with the packed blocks added, in its own dtype."""
    zeros = torch.zeros_like(accumulator)
    return accumulator + scatter(packed.to(accumulator.dtype), segments, positions, zeros)


def union_mean(ranks: Sequence[Tensor], segments: Tensor) -> Tensor:
    """What ``plan="union"`` gives every rank, from the buckets of all ranks.

    Divided and summed in float32, or in float64 for float64, in rank order.  An AllReduce has an
    order of its own, so only sums that are exact can be compared bit for bit.
    """
    wide = torch.float64 if ranks[0].dtype == torch.float64 else torch.float32
    union = sorted({position for values in ranks for position in live_positions(values, segments)})
    total = torch.zeros_like(gather(ranks[0], segments, union), dtype=wide)
    for values in ranks:
        total += gather(values, segments, union).to(wide) / len(ranks)
    return scatter(total, segments, union, torch.zeros_like(ranks[0]))


def mean(ranks: Sequence[Tensor]) -> Tensor:
    """The mean of the ranks' tensors, summed in rank order in float64 and rounded once."""
    total = torch.zeros_like(ranks[0], dtype=torch.float64)
    for values in ranks:
        total += values
    return (total / len(ranks)).to(ranks[0].dtype)


_MASK = (1 << 64) - 1


def hash64(seed: int, number: int) -> int:
    """SplitMix64's output number ``number + 1`` from ``seed``; ``csrc/hash.h`` has the sources."""
    z = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def hash_below(value: int, n: int) -> int:
    """A number below ``n`` from a hash: its upper half as a fraction of ``n``."""
    return (value >> 32) * n >> 32


def _caps(live: Sequence[int], numel: int) -> list[int]:
    """What each rank may own, before it is rounded up to whole blocks."""
    nranks = len(live)
    share = (numel + numel // 20) // nranks + 1
    if nranks < 3:
        return [share] * nranks

    def caps_at(level: int) -> list[int]:
        return [(level - n) // (nranks - 1) + 1 if n < level else 0 for n in live]

    level = bisect_left(range(2 * numel + nranks), numel, key=lambda level: sum(caps_at(level)))
    if max(live) + (nranks - 2) * share <= level + level // 10:
        return [share] * nranks
    return caps_at(level)


def owners(touched: Sequence[Sequence[int]], segments: Tensor, seed: int) -> list[int]:
    """Who sums each block of the union, by the three steps of ``s2.h``.

    ``touched`` are the positions of each rank's live blocks.
    """
    nranks = len(touched)
    ranks_of: dict[int, list[int]] = {}
    for rank, where in enumerate(touched):
        for position in where:
            ranks_of.setdefault(position, []).append(rank)
    lengths = {position: block for position, _, block in blocks(segments)}
    union = sorted(ranks_of)
    numel, longest = sum(lengths[p] for p in union), max([lengths[p] for p in union], default=1)
    live = [sum(lengths[p] for p in where) for where in touched]
    caps = [-(-cap // longest) * longest for cap in _caps(live, numel)]

    result: list[int | None] = []
    candidates, loads = [0] * nranks, [0] * nranks
    for position in union:
        those = ranks_of[position]
        candidate = those[hash_below(hash64(seed, position), len(those))]
        candidates[candidate] += lengths[position]
        if candidates[candidate] <= caps[candidate]:
            loads[candidate] = candidates[candidate]
            result.append(candidate)
        else:
            result.append(None)

    # By free element.
    room = [rank for rank in range(nranks) for _ in range(caps[rank] - loads[rank])]
    at = 0
    for index, position in enumerate(union):
        if result[index] is None:
            result[index] = room[at]
            at += lengths[position]
    return [owner for owner in result if owner is not None]


def coalesce(indices: Tensor, values: Tensor) -> tuple[list[int], Tensor]:
    """The distinct rows of a COO gradient, ascending, and their sums.

    Repeats are added in the order of appearance, in float64 for float32 and float64 and in float32
    for the half types, and rounded once.  bfloat16 is scaled down so that no partial sum overflows.
    """
    wide = torch.float64 if values.dtype in (torch.float32, torch.float64) else torch.float32
    scale = 65536 if values.dtype == torch.bfloat16 else 1
    sums: dict[int, Tensor] = {}
    for row, value in zip(indices.tolist(), values.to(wide) / scale, strict=True):
        sums[row] = sums[row] + value if row in sums else value
    rows = sorted(sums)
    total = torch.stack([sums[row] for row in rows]) if rows else values[:0].to(wide)
    return rows, (total * scale).to(values.dtype)


def unite(lists: Sequence[Sequence[int]]) -> tuple[list[int], Tensor]:
    """The union of the ranks' rows, and a bitmap over its indices for each rank."""
    union = sorted({row for rows in lists for row in rows})
    nbytes = (len(union) + 63) // 64 * 8
    index = {row: number for number, row in enumerate(union)}
    return union, torch.stack([bitmap([index[row] for row in rows], nbytes) for rows in lists])
