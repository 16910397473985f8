# SPDX-License-Identifier: MIT
"""A set of the blocks of a tensor, one bit for each."""

import operator
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.arguments import numbers, packed_blocks, saved, tensor_on_cpu, whole
from s2reducer.segments import block_length, segments_of

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MOST_BLOCKS = 1 << 40
_LONGEST_BLOCK = (1 << 40) - 1


class Bitmap:
    """Which blocks of a tensor are of interest: those that changed, those that a peer asks for.

    A block is ``block`` consecutive elements of the tensor in row-major order; the last one may be
    short.  Blocks are known by their numbers, which count from 0.  A row of a table is a block, of
    whatever table, if ``block`` is the length of a row.

    >>> before, after = torch.zeros(1000, 16), torch.zeros(1000, 16)
    >>> after[[3, 141]] = 1.0
    >>> changed = Bitmap.of(after - before)
    >>> changed
    Bitmap(nblocks=1000, block=16, count=2)
    >>> changed.positions()
    tensor([  3, 141])
    >>> delta = changed.gather(after)  # [2, 16], to be sent with changed.data: 128 + 128 bytes
    >>> changed.scatter(delta, before).equal(after)
    True

    What any rank has is the OR of the bitmaps.  Over gloo that is an AllReduce, of words::

        dist.all_reduce(bitmap.data.view(torch.int64), op=dist.ReduceOp.BOR)

    and over NCCL, which has no OR and takes tensors of its own device, an all-gather::

        mine = bitmap.data.to(device)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        for data in everyone:
            bitmap.data.bitwise_or_(data.cpu())

    Equal are bitmaps of the same blocks, of the same length, out of equally many.  A bitmap can be
    changed, so it has no hash.  Methods that raise have changed nothing.

    Args:
        nblocks: how many blocks there are; none is in the set at first.
        block: elements of a block, for ``gather`` and ``scatter``.

    Raises:
        TypeError, ValueError: one of them is not a whole number, or out of range.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, nblocks: int, block: int = 1) -> None:
        self._nblocks = whole("nblocks", nblocks, 0, _MOST_BLOCKS)
        self._block = whole("block", block, 1, _LONGEST_BLOCK)
        self._bits = segments_of([nblocks], [1])
        self._data = torch.zeros(ops.bitmap_nbytes(self._bits), dtype=torch.uint8)

    @classmethod
    def of(cls, tensor: Tensor, block: int | None = None) -> "Bitmap":
        """The blocks of a tensor that are not zero throughout; a NaN is not zero, but -0.0 is.

        Args:
            tensor: float32, float64, float16 or bfloat16, on the CPU, of any shape and strides.
            block: elements of a block; None for a row (``numel / shape[0]``) of a tensor of two or
                more dimensions whose rows have 8 to 8192 elements, and for 64 elements of others,
                or all where there are fewer.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind, or not among the accepted ones.
        """
        values = tensor_on_cpu("tensor", tensor, _FLOATS).contiguous()
        if block is None:
            block = block_length(values)
        whole("block", block, 1, _LONGEST_BLOCK)
        bitmap = cls(-(-values.numel() // block), block)
        negative_zeros = torch.empty(1, dtype=torch.int64)
        segments = segments_of([values.numel()], [block])
        ops.bitmap_from_nonzero(values.view(-1), segments, bitmap._data, negative_zeros)
        return bitmap

    @classmethod
    def from_positions(cls, positions: Tensor, nblocks: int, block: int = 1) -> "Bitmap":
        """The blocks with these numbers: int64, [n], in any order, where repeats count once.

        Raises:
            TypeError, ValueError: an argument is of the wrong kind, or there is no such block.
        """
        bitmap = cls(nblocks, block)
        ascending = torch.unique(numbers("positions", positions))
        if ascending.numel() and int(ascending[-1]) >= nblocks:
            raise ValueError(
                f"positions must lie below {nblocks}, the number of blocks, but one is "
                f"{int(ascending[-1])}"
            )
        ops.bitmap_from_positions(ascending, bitmap._data)
        return bitmap

    @property
    def nblocks(self) -> int:
        """How many blocks there are, in the set or not."""
        return self._nblocks

    @property
    def block(self) -> int:
        """Elements of a block."""
        return self._block

    @property
    def data(self) -> Tensor:
        """The bits themselves, to be sent or combined: uint8, [``nbytes``].

        Block b is bit ``b % 8``, least significant first, of byte ``b // 8``.  They end at a word
        of 64 bits, and those of no block must stay zero.
        """
        return self._data

    @property
    def nbytes(self) -> int:
        """Bytes of ``data``: 8 for every 64 blocks or part of them."""
        return self._data.nbytes

    def count(self) -> int:
        """How many blocks are in the set."""
        counts = torch.empty(1, dtype=torch.int64)
        ops.bitmap_count(self._data, self._bits, counts)
        return int(counts)

    def positions(self) -> Tensor:
        """Their numbers: int64, [count], ascending."""
        positions = torch.empty(self.count(), dtype=torch.int64)
        ops.bitmap_positions(self._data, positions)
        return positions

    def gather(self, tensor: Tensor) -> Tensor:
        """The blocks of a tensor that are in the set, one behind the other.

        Args:
            tensor: float32, float64, float16 or bfloat16, of ``nblocks`` blocks.

        Returns:
            [count, block], in the order of their positions and in the tensor's dtype; a short last
            block is filled up with zeros.

        Raises:
            TypeError, ValueError: the tensor is of another kind, or has not so many blocks.
        """
        values = tensor_on_cpu("tensor", tensor, _FLOATS).contiguous()
        segments = self._segments("tensor", values)
        positions = self.positions()
        packed = values.new_empty(positions.numel(), self._block)
        ops.blocks_gather(values.view(-1), segments, positions, packed.view(-1))
        return packed

    def scatter(self, packed: Tensor, out: Tensor) -> Tensor:
        """The way back: writes these blocks to where they belong, and leaves all others alone.

        Args:
            packed: [count, block], of the dtype of ``out``.  What fills up a short last block is
                ignored.
            out: as ``gather`` takes it.  In a graph of autograd it may be written where torch
                would allow that, under ``torch.no_grad()``.

        Returns:
            ``out``.

        Raises:
            TypeError, ValueError: a tensor is of another kind or size.
        """
        into = tensor_on_cpu("out", out, _FLOATS)
        blocks = tensor_on_cpu("packed", packed, (into.dtype,)).contiguous()
        segments = self._segments("out", into)
        positions = self.positions()
        packed_blocks("packed", blocks, positions.numel(), self._block)
        if out.requires_grad and torch.is_grad_enabled():
            raise ValueError("out must not require a gradient, except under torch.no_grad()")
        whole_tensor = into.contiguous()
        ops.blocks_scatter(blocks.view(-1), segments, positions, whole_tensor.view(-1))
        if not into.is_contiguous():
            into.copy_(whole_tensor)
        return out

    def state_dict(self) -> dict[str, Any]:
        """``nblocks``, ``block``, and ``data`` itself, not a copy."""
        return {"nblocks": self._nblocks, "block": self._block, "data": self._data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over the blocks of a bitmap of equally many, of the same length.

        Raises:
            ValueError: it is no such state.
        """
        self._require_same(_from_state(state))
        self._data.copy_(state["data"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, for ``load`` or for ``torch.load`` with ``weights_only=True``."""
        torch.save(self.state_dict(), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Bitmap":
        """The bitmap that was saved there.

        Raises:
            ValueError: something else was saved there; other errors are those of ``torch.load``.
        """
        return _from_state(torch.load(path, map_location="cpu", weights_only=True))

    def __contains__(self, position: object) -> bool:
        number = operator.index(position)  # type: ignore[arg-type]  # which says what it takes
        if not 0 <= number < self._nblocks:
            return False
        return bool(int(self._data[number // 8]) >> number % 8 & 1)

    def __len__(self) -> int:
        return self.count()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bitmap):
            return NotImplemented
        same = (self._nblocks, self._block) == (other._nblocks, other._block)
        return same and torch.equal(self._data, other._data)

    def __or__(self, other: "Bitmap") -> "Bitmap":
        """Blocks of either."""
        if not isinstance(other, Bitmap):
            return NotImplemented
        result = self._copy()
        result |= other
        return result

    def __ior__(self, other: "Bitmap") -> "Bitmap":
        if not isinstance(other, Bitmap):
            return NotImplemented
        self._require_same(other)
        ops.bitmap_or(self._data, other._data)
        return self

    def __sub__(self, other: "Bitmap") -> "Bitmap":
        """Blocks of this one that are not in the other."""
        if not isinstance(other, Bitmap):
            return NotImplemented
        self._require_same(other)
        result = self._copy()
        ops.bitmap_andnot(result._data, other._data)
        return result

    def __repr__(self) -> str:
        return f"Bitmap(nblocks={self._nblocks}, block={self._block}, count={self.count()})"

    def _copy(self) -> "Bitmap":
        result = Bitmap(self._nblocks, self._block)
        result._data.copy_(self._data)
        return result

    def _require_same(self, other: "Bitmap") -> None:
        if (self._nblocks, self._block) != (other._nblocks, other._block):
            raise ValueError(
                "two bitmaps must have equally many blocks of one length, but one has "
                f"{self._nblocks} of {self._block} elements, the other {other._nblocks} of "
                f"{other._block}"
            )

    def _segments(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor as the operators see it: one segment of all blocks."""
        nblocks = -(-tensor.numel() // self._block)
        if nblocks != self._nblocks:
            raise ValueError(
                f"{name} must have {self._nblocks} blocks of {self._block} elements, but has "
                f"{nblocks}"
            )
        return segments_of([tensor.numel()], [self._block])


def _from_state(state: object) -> Bitmap:
    fields = saved("Bitmap", state, {"nblocks": int, "block": int, "data": Tensor})
    bitmap = Bitmap(fields["nblocks"], fields["block"])
    data = tensor_on_cpu("data of a Bitmap", fields["data"], (torch.uint8,))
    if data.shape != bitmap._data.shape:
        raise ValueError(
            f"data of a Bitmap of {bitmap.nblocks} blocks must have the shape [{bitmap.nbytes}], "
            f"but has {list(data.shape)}"
        )
    bitmap._data.copy_(data)
    used = bitmap.nblocks % 64  # bits of the last word, or all
    if used and int(bitmap._data.view(torch.int64)[-1]) >> used:
        raise ValueError(f"data of a Bitmap of {bitmap.nblocks} blocks must have no bits beyond")
    return bitmap
