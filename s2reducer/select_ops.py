# SPDX-License-Identifier: MIT
"""The operators of the C core for selection and error feedback, one documented function each.

They follow the rules of ``ops.py``: all tensors are contiguous, 1-D and on the CPU, results are
written into arguments, and a wrong argument raises RuntimeError with one sentence that names it,
before anything is written.  ``csrc/s2.h`` has the arithmetic, bit by bit.

scores
    float32, of which the magnitudes count: an energy for each block, or the elements themselves.
    A NaN is above all others.
owed
    float32, what a parameter still owes, in the units of its true gradient.
bitmap
    uint8, one bit a score or block, least significant bit first; its size is
    ``selected_nbytes(n)``.  Bits behind the last one are zero.
"""

from typing import Any

import torch
from torch import Tensor

from s2reducer.ops import register_fakes, signed

_ops: Any = torch.ops.s2reducer


def selected_nbytes(n: int) -> int:
    """Bytes of a bitmap of ``n`` bits: 8 for each 64 of them or part of them."""
    return (n + 63) // 64 * 8


def select_scratch_nbytes(n: int) -> int:
    """Bytes of the scratch for ``select_top`` of ``n`` scores."""
    return 8 * (n if n <= 65536 else max(65536, n // 8))


def select_top(
    scores: Tensor, keep: int, bitmap: Tensor, scratch: Tensor, parallel: bool = True
) -> float:
    """Selects the ``keep`` scores of largest magnitude, of equal ones the first.

    ``keep`` lies between 0 and the number of scores, of which there are 2^33 at most.  ``scratch``
    is uint8, of ``select_scratch_nbytes``, and begins at a multiple of 8 bytes.  Returns the least
    magnitude that was selected, a NaN where ``keep`` is 0.
    """
    threshold = torch.empty(1, dtype=torch.float32)
    _ops.select_top.default(scores, keep, bitmap, threshold, scratch, parallel)
    return float(threshold)


def select_above(scores: Tensor, threshold: float, bitmap: Tensor, parallel: bool = True) -> int:
    """Selects the scores whose magnitude is ``threshold``, 0 or more, or above; returns how many.

    The threshold is rounded to float32.  NaNs are selected, unless it is one itself.
    """
    count = torch.empty(1, dtype=torch.int64)
    _ops.select_above.default(scores, threshold, bitmap, count, parallel)
    return int(count)


def select_random(seed: int, numel: int, keep: int, bitmap: Tensor) -> None:
    """Selects ``keep`` of ``numel``, all choices equally likely: the same ones for the same seed.

    ``seed`` has 64 bits.
    """
    _ops.select_random.default(signed(seed), numel, keep, bitmap)


def owed_add(
    values: Tensor,
    before: Tensor | None,
    owed: Tensor,
    factor: float = 1.0,
    parallel: bool = True,
) -> bool:
    """``owed = before + values * factor``; returns whether any of ``values`` was not zero.

    ``values`` have any float dtype, and are rounded to float32 first; ``before`` is float32, or
    None for zeros, and other memory than ``owed``.
    """
    touched = torch.empty(1, dtype=torch.int64)
    _ops.owed_add.default(values, before, owed, touched, factor, parallel)
    return bool(touched)


def owed_energies(owed: Tensor, block: int, energies: Tensor, parallel: bool = True) -> None:
    """``energies`` (float32) become the sums of the squares in each ``block`` elements of ``owed``.

    The last block may be short.  Finite elements have finite sums, at most the largest float32.
    """
    _ops.owed_energies.default(owed, block, energies, parallel)


def owed_deliver(
    owed: Tensor,
    block: int,
    bitmap: Tensor | None,
    values: Tensor,
    scale: float = 1.0,
    parallel: bool = True,
) -> None:
    """``values = owed * scale`` in the selected blocks, which then owe what rounding has left.

    All blocks are selected where ``bitmap`` is None.  ``values`` have any float dtype; in blocks
    that are not selected they become +0.0, and what is owed stays.  It also stays where a value
    is too large for the dtype: then that is delivered as an infinity, and who undoes the step has
    lost nothing.
    """
    _ops.owed_deliver.default(owed, block, bitmap, values, scale, parallel)


def owed_round(owed: Tensor, values: Tensor, scale: float = 1.0, parallel: bool = True) -> None:
    """``owed_deliver`` of everything, of which there may be nothing."""
    owed_deliver(owed, max(1, owed.numel()), None, values, scale, parallel)


register_fakes(
    "select_top",
    "select_above",
    "select_random",
    "owed_add",
    "owed_energies",
    "owed_deliver",
)
