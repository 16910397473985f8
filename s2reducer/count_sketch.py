# SPDX-License-Identifier: MIT
"""A sum of blocks whose places need not be known, in a table that is not much larger than they."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.arguments import numbers, packed_blocks, saved, tensor_on_cpu, whole
from s2reducer.peeling import Peeled, peel
from s2reducer.sketch_config import MOST_ROWS

_VALUES = (torch.float32, torch.float16, torch.bfloat16)
_WIDEST = (1 << 32) - 1
_MOST_SKETCHES = 256  # S2_MAX_RANKS

# Cells for each of many blocks, with 2 to 8 rows, below which most of them cannot be peeled: blocks
# with r cells each in a table of c cells a block leave a core where c falls below the maximum over
# x > 0 of r (1 - exp(-x))^(r-1) / x.
_THRESHOLDS = {2: 2.0, 3: 1.222, 4: 1.295, 5: 1.425, 6: 1.57, 7: 1.719, 8: 1.87}

# So much of that is taken: 1.3 cells with three rows.
_ABOVE_THRESHOLD = 1.064

# Of a few hundred blocks there may be a core above the threshold too: more cells, times sqrt(n).
_SPARE_CELLS = 2.0

# The probability that two of the blocks share all their cells.
_SHARED = 0.01


class CountSketch:
    """Numbered blocks of floats, added up in a table that does not grow with their numbers.

    Each block is added, with a sign, to one cell in every row; a hash of its number picks them.  So
    the sum of two tables is the table of the sums: peers with different blocks add their tables,
    without a word on which blocks these are.  Who learns that (from ``Bitmap``, say) can read the
    sums, in two ways:

    peel
        gives the blocks themselves, up to rounding, if there are fewer of them than cells;
        ``for_blocks`` has the figures.
    estimate
        gives the median of a block's cells, whatever else is in them: of k blocks of one size in
        one row of w cells, about sqrt(k / w) of it is error, with a mean of zero over seeds.

    >>> one, two = (CountSketch.for_blocks(3, block=2, seed=1) for _ in range(2))
    >>> one.insert(torch.tensor([7, 1_000_000]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> two.insert(torch.tensor([42, 7]), torch.tensor([[5.0, 6.0], [10.0, 20.0]]))
    >>> one.merge(two)
    >>> one.peel(torch.tensor([7, 42, 1_000_000]), nsketches=2).values
    tensor([[11., 22.],
            [ 5.,  6.],
            [ 3.,  4.]])

    Over the ranks of a process group, all with the same shape and seed::

        dist.all_reduce(sketch.table)
        peeled = sketch.peel(union.positions(), nsketches=dist.get_world_size())

    where ``union`` is the bitmap of what any rank has inserted; ``Bitmap`` says how to get it.
    That is gloo; over NCCL a copy on the device is summed, and copied back into the table.

    Two blocks that share all their cells cannot be told apart, whatever the size of the table.  A
    fresh seed has fresh collisions: take another for every round of a protocol, so that no pair of
    blocks is unlucky for ever.

    Numbers of blocks, ``ids``, are int64, [n], from 0, in any order, without repeats.  Equal are
    sketches of one shape and seed whose tables are equal; a sketch can be changed, so it has no
    hash.  Methods that raise have changed nothing.

    Args:
        rows: of the table, 1 to 8; peeling wants two or more.
        width: cells of a row, 1 to 2**32 - 1.
        block: elements of a block, and of a cell.
        seed: of the hash, 0 to 2**64 - 1.

    Raises:
        TypeError, ValueError: one of them is not a whole number, or out of range.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: int, width: int, block: int, seed: int = 0) -> None:
        whole("rows", rows, 1, MOST_ROWS)
        whole("width", width, 1, _WIDEST)
        whole("block", block, 1, 1 << 40)
        self._seed = whole("seed", seed, 0, (1 << 64) - 1)
        self._table = torch.zeros(rows, width, block)

    @classmethod
    def for_blocks(
        cls, n: int, block: int, rows: int = 3, cells: float | None = None, seed: int = 0
    ) -> "CountSketch":
        """A sketch from which ``n`` blocks can be peeled, but for about 1 % of all seeds or fewer.

        Then, as a rule, two blocks share all their cells, which of n (n - 1) / 2 pairs happens with
        probability width^-rows to each.  So the width is at least what makes that 1 % in all, and
        at least ``(cells n + 2 sqrt(n)) / rows``.  Over 3000 seeds each, 0.8 to 1.3 % of the tables
        were not decoded to the end with 100 to 600 blocks in three rows, and 0.4 % with 1000
        blocks; from then on it is 6 / n.  With three rows that is 2.4 cells for each of 100 blocks,
        1.37 of 1000 and 1.3 of many; two rows always take 14.

        Args:
            n: blocks in the table that is read, so in all sketches merged into it; 0 or more.
            block: elements of a block.
            rows: 2 to 8.  Three take the fewest cells where there are many blocks.
            cells: for each block; None for 1.3 with three rows, and as many percent above what
                peeling needs at least with others (1.222 with three rows, 2.0, 1.295, 1.425, 1.57,
                1.719 and 1.87 with two and with four to eight).
            seed: of the hash.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind, or not among the accepted
                ones, such as cells for each block that are too few.
        """
        whole("n", n, 0, 1 << 40)
        whole("rows", rows, 2, MOST_ROWS)
        threshold = _THRESHOLDS[rows]
        if cells is None:
            cells = _ABOVE_THRESHOLD * threshold
        if not isinstance(cells, int | float) or isinstance(cells, bool):
            raise TypeError(f"cells must be a number or None, but is {cells!r}")
        if not threshold < cells <= 1000.0:
            raise ValueError(
                f"cells must lie above {threshold}, which {rows} rows need, and not above 1000, "
                f"but is {cells}"
            )
        enough = (cells * n + _SPARE_CELLS * math.sqrt(n)) / rows
        apart = (n * (n - 1) / 2 / _SHARED) ** (1 / rows)
        return cls(rows, max(1, math.ceil(max(enough, apart))), block, seed)

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self._table.shape[0]

    @property
    def width(self) -> int:
        """Cells of a row."""
        return self._table.shape[1]

    @property
    def block(self) -> int:
        """Elements of a block."""
        return self._table.shape[2]

    @property
    def seed(self) -> int:
        """Of the hash."""
        return self._seed

    @property
    def table(self) -> Tensor:
        """The cells themselves, to be sent or added up: float32, [rows, width, block]."""
        return self._table

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def insert(self, ids: Tensor, values: Tensor) -> None:
        """Adds blocks.

        Args:
            ids: their numbers.
            values: [n, block], float32, float16 or bfloat16; they are added in float32, in the
                order of their numbers.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind or shape, or a number repeats.
        """
        ascending, order = _ascending(ids)
        blocks = tensor_on_cpu("values", values, _VALUES)
        packed_blocks("values", blocks, ascending.numel(), self.block)
        if order is not None:
            blocks = blocks[order]
        blocks = blocks.to(torch.float32).contiguous()
        ops.sketch_insert(self._table, self._seed, ascending, blocks)

    def merge(self, other: "CountSketch") -> None:
        """Adds all that is in another sketch.

        Raises:
            TypeError, ValueError: it is no sketch, or has another shape or seed.
        """
        if not isinstance(other, CountSketch):
            raise TypeError(f"other must be a CountSketch, but is {type(other).__name__}")
        if self._kind() != other._kind():
            raise ValueError(f"other must have the shape and seed of {self!r}, but is {other!r}")
        ops.sketch_merge(self._table, self._seed, other._table, other._seed)

    def estimate(self, ids: Tensor) -> Tensor:
        """The median of each block's cells, element by element.

        Of an even number of rows it is the mean of the two in the middle.  A cell that is not
        finite counts as the largest or least, a NaN as more than an infinity.

        Returns:
            float32 [n, block].

        Raises:
            TypeError, ValueError: ``ids`` are of the wrong kind, or one repeats.
        """
        ascending, order = _ascending(ids)
        values = torch.empty(ascending.numel(), self.block)
        ops.sketch_estimate(self._table, self._seed, ascending, values)
        return _restored(values, order)

    def peel(self, ids: Tensor, nsketches: int = 1, consume: bool = False) -> Peeled:
        """Reads the blocks: those alone in a cell, then those that are so without them, and so on.

        Args:
            ids: the numbers of all blocks that are in the sketch.  They may name others too, which
                come out as zeros; but where one is missing, it ends up in blocks that are decoded.
            nsketches: how many sketches have been added up, 1 to 256, into none of which a block
                was inserted twice.  It tells the bounds how much was rounded; what sketches that
                cancel each other in one block have done to others is not in them.
            consume: whether the sketch may be used up, which saves a copy of the table.  Then cells
                with stuck blocks hold the sums of these, so that ``estimate`` of stuck blocks is
                better than before, and others hold nothing that means anything.

        Returns:
            The blocks, which of them were decoded, and bounds of their errors.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind, or the table has an infinity or
                a NaN, which would spread to blocks that have none.
        """
        ascending, order = _ascending(ids)
        whole("nsketches", nsketches, 1, _MOST_SKETCHES)
        if not ops.values_finite(self._table.view(-1)):
            raise ValueError("the table must be finite to be peeled, but has an infinity or a NaN")
        table = self._table if consume else self._table.clone()
        peeled = peel(table, self._seed, ascending, nsketches)
        return replace(
            peeled,
            values=_restored(peeled.values, order),
            decoded=_restored(peeled.decoded, order),
            bounds=_restored(peeled.bounds, order),
            norms=_restored(peeled.norms, order),
        )

    def clear(self) -> None:
        """Takes all blocks out."""
        self._table.zero_()

    def state_dict(self) -> dict[str, Any]:
        """``seed``, and ``table`` itself, not a copy."""
        return {"seed": self._seed, "table": self._table}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the blocks and the seed of a sketch of this shape.

        Raises:
            TypeError, ValueError: it is no such state.
        """
        seed, table = _fields_of(state)
        if table.shape != self._table.shape:
            raise ValueError(
                f"the state must have a table of the shape {list(self._table.shape)}, but it is "
                f"{list(table.shape)}"
            )
        self._seed = seed
        self._table.copy_(table)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, for ``load`` or for ``torch.load`` with ``weights_only=True``."""
        torch.save(self.state_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CountSketch":
        """The sketch that was saved there.

        Raises:
            TypeError, ValueError: something else was saved there; other errors are those of
                ``torch.load``.
        """
        seed, table = _fields_of(torch.load(path, map_location="cpu", weights_only=True))
        rows, width, block = table.shape
        sketch = cls(rows, width, block, seed)
        sketch._table.copy_(table)
        return sketch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CountSketch):
            return NotImplemented
        return self._kind() == other._kind() and torch.equal(self._table, other._table)

    def __repr__(self) -> str:
        rows, width, block = self._table.shape
        return f"CountSketch(rows={rows}, width={width}, block={block}, seed={self._seed})"

    def _kind(self) -> tuple[torch.Size, int]:
        return self._table.shape, self._seed


def _ascending(ids: object) -> tuple[Tensor, Tensor | None]:
    """The numbers in their order, and where they stood before, None where it was the same."""
    ascending, order = numbers("ids", ids).contiguous(), None
    if not bool((ascending[1:] > ascending[:-1]).all()):
        ascending, order = ascending.sort()
        repeated = ascending[1:][ascending[1:] == ascending[:-1]]
        if repeated.numel():
            raise ValueError(f"ids must not repeat, but {int(repeated[0])} does")
    return ascending, order


def _restored(results: Tensor, order: Tensor | None) -> Tensor:
    """Results of ascending numbers, back in the order of the caller's."""
    if order is None:
        return results
    restored = torch.empty_like(results)
    restored[order] = results
    return restored


def _fields_of(state: object) -> tuple[int, Tensor]:
    fields = saved("CountSketch", state, {"seed": int, "table": Tensor})
    seed = whole("seed", fields["seed"], 0, (1 << 64) - 1)
    table = tensor_on_cpu("table", fields["table"], (torch.float32,))
    if table.dim() != 3 or table.numel() == 0 or table.shape[0] > MOST_ROWS:
        raise ValueError(
            f"the table of a CountSketch must have the shape [rows, width, block] with 1 to "
            f"{MOST_ROWS} rows, but has {list(table.shape)}"
        )
    return seed, table
