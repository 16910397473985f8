# SPDX-License-Identifier: MIT
"""Sums of rows in rank order, divided and rounded once: the arithmetic of ``owner`` and ``gather``.

Sums are in float64 for float32 and float64, in float32 for the half types.  Where such a sum could
overflow although the mean does not, values are divided before they are added, by a power of two
where that is exact:

float64
    divided before they are added, as there is no wider type.
bfloat16
    has the range of float32, so its values are scaled by 1/256 (exact, subnormals included: they
    stay above float32's smallest), and the sum is divided by what is left.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.select_ops import owed_round

_SCALE = 256.0  # the most ranks that there can be

# Elements that are scaled at a time: they stay in a second-level cache on their way to the sums.  A
# device has no use for small pieces, each of which would be some launches.
_PIECE_NUMEL = 64 * 1024
_PIECE_NUMEL_ON_DEVICE = 64 * 1024 * 1024

# Is told what means lost when they were rounded: the segments and positions of the blocks, float32
# with what their elements lost, and how many times the ranks' own gradients this rank owes of it.
Rounded = Callable[[Tensor, Tensor, Tensor, float], None]


@dataclass(frozen=True)
class Arithmetic:
    """How values of a dtype become a mean.

    Attributes:
        sum_dtype: of the accumulator.
        before: what values are divided by before they are added.
        after: what the sum is divided by, when it is rounded.
    """

    sum_dtype: torch.dtype
    before: float
    after: float


def arithmetic(dtype: torch.dtype, divisor: float) -> Arithmetic:
    """Raises KeyError for a dtype that travels densely."""
    return {
        torch.float32: Arithmetic(torch.float64, 1.0, divisor),
        torch.float64: Arithmetic(torch.float64, divisor, 1.0),
        torch.float16: Arithmetic(torch.float32, 1.0, divisor),
        torch.bfloat16: Arithmetic(torch.float32, _SCALE, divisor / _SCALE),
    }[dtype]


class Sum:
    """The blocks of a layout, to which ranks' rows are added.

    Args:
        compact: segments of the blocks, without gaps.
        like: a tensor of the dtype of the rows and the result, on their device.
        divisor: of the sums: the number of ranks for a mean.
    """

    def __init__(self, compact: Tensor, like: Tensor, divisor: float) -> None:
        self._compact = compact
        self._arithmetic = arithmetic(like.dtype, divisor)
        self._ops = ops_for(like.device)
        numel, dtype = int(compact[:, 1].sum()), self._arithmetic.sum_dtype
        self._total = like.new_zeros(numel, dtype=dtype)

    def add(self, rows: Tensor, where: Tensor) -> None:
        """Adds a rank's rows to the blocks at the positions ``where`` of the compact layout."""
        before = self._arithmetic.before
        if before == 1.0:
            self._ops.blocks_add(rows, self._compact, where, self._total, parallel=False)
            return
        for part, places in self._pieces(rows, where):
            scaled = self._total.new_empty(part.numel())
            self._ops.values_convert(part, scaled, before, parallel=False)
            self._ops.blocks_add(scaled, self._compact, places, self._total, parallel=False)

    def _pieces(self, rows: Tensor, where: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows and their positions, a few at a time: scaled, they take up to twice as much."""
        ends = torch.searchsorted(where, self._compact[1:, 3].contiguous()).tolist()
        most = _PIECE_NUMEL if rows.device.type == "cpu" else _PIECE_NUMEL_ON_DEVICE
        begin, segments = 0, zip([0, *ends], [*ends, where.numel()], strict=True)
        for block, (first, last) in zip(self._compact[:, 2].tolist(), segments, strict=True):
            step = max(1, most // block)
            for at in range(first, last, step):
                places = where[at : min(at + step, last)]
                end = begin + places.numel() * block
                yield rows[begin:end], places
                begin = end

    def result(self, out: Tensor) -> None:
        """Writes the blocks' sums, divided, one behind the other."""
        self._ops.values_convert(self._total, out, self._arithmetic.after, parallel=False)

    def rounded(self, out: Tensor) -> Tensor:
        """The same; what ``out`` has lost, float32."""
        lost = torch.empty(out.numel())
        self._ops.values_convert(self._total, lost, self._arithmetic.after, parallel=False)
        owed_round(lost, out, parallel=False)
        return lost
