# SPDX-License-Identifier: MIT
"""The sketch in plain PyTorch, beside ``reference.py`` and in its manner.

A table is float32 of the shape [rows, width, block], ``ids`` ascend strictly, and ``values`` are
float32 of the shape [n, block].  The rules are those of ``csrc/s2.h``, to the last bit.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from s2reducer.reference import hash64, hash_below


class Place(NamedTuple):
    """One of a block's cells, and the sign that it has there."""

    row: int
    cell: int
    sign: float


def places(seed: int, block_id: int, rows: int, width: int) -> list[Place]:
    """A block's cell in each row: one hash of the block, and one more for each row."""
    block_hash = hash64(seed, block_id)
    hashes = [hash64(block_hash, row) for row in range(rows)]
    return [
        Place(row, hash_below(value, width), -1.0 if value & 1 else 1.0)
        for row, value in enumerate(hashes)
    ]


def insert(table: Tensor, seed: int, ids: Sequence[int], values: Tensor) -> Tensor:
    """The table with these blocks added, in their order."""
    result = table.clone()
    for block_id, block in zip(ids, values, strict=True):
        for row, cell, sign in places(seed, block_id, *table.shape[:2]):
            result[row, cell] += sign * block
    return result


def weigh(magnitudes: Tensor, seed: int, ids: Sequence[int], values: Tensor) -> Tensor:
    """With the largest magnitude in each block added, in their order; float32, [rows, width]."""
    result = magnitudes.clone()
    for block_id, block in zip(ids, values, strict=True):
        for row, cell, _ in places(seed, block_id, *magnitudes.shape):
            result[row, cell] += block.abs().max()
    return result


def estimate(table: Tensor, seed: int, ids: Sequence[int]) -> Tensor:
    """The median of each block's cells; of an even number the mean of the middle two."""
    rows, width, block = table.shape
    result = table.new_zeros(len(ids), block)
    for index, block_id in enumerate(ids):
        where = places(seed, block_id, rows, width)
        cells = torch.stack(
            [-table[row, cell] if sign < 0 else table[row, cell] for row, cell, sign in where]
        )
        ordered = _ordered(_ordered(cells.view(torch.int32)).sort(0).values).view(torch.float32)
        upper, lower = ordered[rows // 2], ordered[(rows - 1) // 2]
        result[index] = upper if rows % 2 else 0.5 * lower + 0.5 * upper
    return result + 0.0  # zeros are +0.0


def _ordered(bits: Tensor) -> Tensor:
    """Integers in the order of the floats with these bits, and back; a NaN is at an end."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


class Peeled(NamedTuple):
    """What can be read from a table, and what is left of it."""

    values: Tensor
    decoded: list[bool]
    bounds: list[float]
    norms: list[float]  # the largest magnitudes in ``values``
    rounds: list[list[int]]  # which blocks, by their index in ``ids``
    table: Tensor


def peel(
    table: Tensor,
    seed: int,
    ids: Sequence[int],
    nranks: int = 1,
    magnitudes: Tensor | None = None,
    max_rounds: int = 0,
) -> Peeled:
    """Takes blocks that are alone in a cell, and those that are so without them, and so on."""
    rows, width, block = table.shape
    table = table.clone()
    where = [places(seed, block_id, rows, width) for block_id in ids]
    undecoded: dict[tuple[int, int], set[int]] = {}
    for index, cells in enumerate(where):
        for row, cell, _ in cells:
            undecoded.setdefault((row, cell), set()).add(index)
    loads = {cell: len(blocks) for cell, blocks in undecoded.items()}
    values = table.new_zeros(len(ids), block)
    norms, bounds = [0.0] * len(ids), [float("inf")] * len(ids)

    cell_bounds = dict.fromkeys(undecoded, 0.0)
    if magnitudes is not None:
        for at, load in loads.items():
            squares = _roundings(load, nranks, float(magnitudes[at])) / load
            cell_bounds[at] = _float32(math.sqrt(squares))

    rounds: list[list[int]] = []
    while not max_rounds or len(rounds) < max_rounds:
        sources = {
            index: [place for place in cells if undecoded[place[:2]] == {index}]
            for index, cells in enumerate(where)
        }
        taken = [index for index in sources if sources[index]]
        if not taken:
            break
        for index in taken:
            row, cell, sign = sources[index][0]
            values[index] = sign * table[row, cell] + 0.0
            norms[index] = float(values[index].abs().max())
            squares = _roundings(loads[row, cell], nranks, norms[index])
            bounds[index] = _float32(math.sqrt(cell_bounds[row, cell] ** 2 + squares))
        for index in taken:
            for row, cell, _ in where[index]:
                undecoded[row, cell].remove(index)
        for index in taken:
            for row, cell, sign in where[index]:
                if undecoded[row, cell]:
                    table[row, cell] -= sign * values[index]
                    squares = _roundings(loads[row, cell], nranks, norms[index])
                    squares = cell_bounds[row, cell] ** 2 + (bounds[index] ** 2 + squares)
                    cell_bounds[row, cell] = _float32(math.sqrt(squares))
        for index in taken if rounds else ():  # those of the first were alone from the start
            threshold = _float32(bounds[index] / math.sqrt(block))
            values[index][values[index].abs() <= threshold] = 0.0
            norms[index] = float(values[index].abs().max())
        rounds.append(taken)
    read = {index for taken in rounds for index in taken}
    decoded = [index in read for index in range(len(ids))]
    return Peeled(values, decoded, bounds, norms, rounds, table)


def _roundings(load: int, nranks: int, norm: float) -> float:
    """What a cell of so many blocks can have made of one of this magnitude, squared."""
    count = 2 * load + nranks - 3
    power = 1 << (count - 1).bit_length() if count else 0
    if math.isinf(norm):
        return math.inf
    return power * (2.0**-23 * norm) ** 2


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
