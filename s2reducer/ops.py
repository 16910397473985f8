# SPDX-License-Identifier: MIT
"""The operators of the C core, one documented function each.

The picture, with a worked example, is at the top of ``csrc/s2.h``.  Arguments of the same name are
the same thing everywhere:

values
    a bucket: contiguous, 1-D, on the CPU; float32, float64, float16 or bfloat16.
segments
    int64, shape [S, 4], a row for each segment: its offset and its number of elements in the
    bucket, its block length, and the bit where its blocks begin in the bitmap, a multiple of 64.
    Segments ascend and do not overlap.
bitmap
    uint8, one bit a block, least significant bit first; its size is ``bitmap_nbytes(segments)``.
positions
    int64, the numbers of set bits, strictly ascending.
packed
    the blocks at ``positions``, one behind the other; a short last block is filled up with zeros.
table
    of a sketch: float32, contiguous, shape [rows, width, block]; made of zeros, and with a seed of
    64 bits that all calls on it share.  1 to 8 rows, a width below 2^32.
ids
    int64, [n], strictly ascending from 0 or more: the numbers of blocks in a sketch, which with
    their values, float32, [n, block], are the sketch's packed blocks.
parallel
    whether torch's threads may be used; False inside callbacks that run on other threads.

All of them write into arguments, and some return counts beside.  A wrong argument raises
RuntimeError with one sentence that names it, before anything is written (but ``plan_owners`` and
``plan_lists`` may have begun to write).  Arguments that are written must not be part of an autograd
graph, which is not told of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from s2reducer import _C as _C  # registers the operators

_ops: Any = torch.ops.s2reducer


def signed(seed: int) -> int:
    """The same 64 bits as an int64, which is what an operator takes."""
    return seed - (1 << 64) if seed >> 63 else seed


def bitmap_nbytes(segments: Tensor) -> int:
    """Bytes of the bitmap that goes with ``segments``: the end of the last one's bits, in words."""
    if segments.numel() == 0:
        return 0
    _, numel, block, first_bit = segments[-1].tolist()
    if block < 1:
        raise RuntimeError(f"segments must have blocks of at least 1 element, but one has {block}")
    nblocks = -(-numel // block)
    return int((first_bit + nblocks + 63) // 64 * 8)


def bitmap_from_nonzero(
    values: Tensor, segments: Tensor, bitmap: Tensor, negative_zeros: Tensor, parallel: bool = True
) -> None:
    """Sets the bit of each block that has an element other than +0.0 and -0.0, clears all others.

    ``negative_zeros`` (int64, one element) becomes the number of blocks without a bit that hold a
    -0.0; see ``blocks_clear_dead``.
    """
    _ops.bitmap_from_nonzero.default(values, segments, bitmap, negative_zeros, parallel)


def bitmap_or(bitmap: Tensor, other: Tensor) -> None:
    """``bitmap |= other``; both have the same multiple of 8 bytes."""
    _ops.bitmap_or.default(bitmap, other)


def bitmap_andnot(bitmap: Tensor, other: Tensor) -> None:
    """``bitmap &= ~other``; both have the same multiple of 8 bytes."""
    _ops.bitmap_andnot.default(bitmap, other)


def bitmap_count(bitmap: Tensor, segments: Tensor, counts: Tensor) -> None:
    """``counts`` (int64, [S]) becomes the number of set bits of each segment."""
    _ops.bitmap_count.default(bitmap, segments, counts)


def bitmap_unite(bitmaps: Tensor, segments: Tensor, bitmap: Tensor, counts: Tensor) -> None:
    """``bitmap`` becomes the union of ``bitmaps`` (uint8, [P, bytes], those of all ranks).

    ``counts`` (int64, [P + 1, S]) becomes the number of set bits of each segment, in each rank's
    bitmap and, in the last row, in the union.
    """
    _ops.bitmap_unite.default(bitmaps, segments, bitmap, counts)


def bitmap_positions(bitmap: Tensor, positions: Tensor) -> None:
    """``positions`` becomes the numbers of the set bits; it has exactly one element for each."""
    _ops.bitmap_positions.default(bitmap, positions)


def bitmap_from_positions(positions: Tensor, bitmap: Tensor) -> None:
    """``bitmap`` becomes the one whose set bits these are."""
    _ops.bitmap_from_positions.default(positions, bitmap)


def blocks_gather(
    values: Tensor,
    segments: Tensor,
    positions: Tensor,
    packed: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``packed = values / divisor`` in the blocks at ``positions``; dtypes: ``values_convert``."""
    _ops.blocks_gather.default(values, segments, positions, packed, divisor, parallel)


def blocks_scatter(
    packed: Tensor,
    segments: Tensor,
    positions: Tensor,
    values: Tensor,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``values = packed / divisor`` in the blocks at ``positions``; other blocks are left alone."""
    _ops.blocks_scatter.default(packed, segments, positions, values, divisor, parallel)


def blocks_add(
    packed: Tensor, segments: Tensor, positions: Tensor, accumulator: Tensor, parallel: bool = True
) -> None:
    """``accumulator += packed`` in the blocks at ``positions``, in the accumulator's arithmetic.

    The accumulator is float64 for float32 and float64, or float32 for float32, float16, bfloat16.
    """
    _ops.blocks_add.default(packed, segments, positions, accumulator, parallel)


def blocks_sum(
    packed: Sequence[Tensor],
    segments: Tensor,
    positions: Sequence[Tensor],
    sums: Tensor,
    lost: Tensor | None = None,
    divisor: float = 1.0,
    parallel: bool = True,
) -> None:
    """``sums = (the sum of the ranks' blocks) / divisor``, added in rank order and rounded once.

    ``packed`` and ``positions`` have a tensor for each of 1 to 256 ranks; the dtype and the layout
    are those of ``sums``, which become +0.0 where no rank has a block.  float32 is summed in
    float64, the half types in float32, and no partial sum overflows unless the result does: see
    ``s2.h``.  ``lost`` (float32, as long as ``sums``) becomes what they have lost by being rounded.
    """
    _ops.blocks_sum.default(packed, segments, positions, sums, lost, divisor, parallel)


def blocks_clear_dead(
    bitmap: Tensor, segments: Tensor, values: Tensor, parallel: bool = True
) -> None:
    """Sets to +0.0 every element of every block whose bit is clear."""
    _ops.blocks_clear_dead.default(bitmap, segments, values, parallel)


def values_convert(src: Tensor, dst: Tensor, divisor: float = 1.0, parallel: bool = True) -> None:
    """``dst = src / divisor``, divided in the wider of the two dtypes and rounded once.

    From float16 and bfloat16 to float32, from float32 to any, from float64 to float64 or float32,
    and, with a divisor of 1, from any to itself.
    """
    _ops.values_convert.default(src, dst, divisor, parallel)


def values_finite(values: Tensor, parallel: bool = True) -> bool:
    """Whether no element of ``values`` is infinite or a NaN."""
    finite = torch.empty(1, dtype=torch.int64)
    _ops.values_finite.default(values, finite, parallel)
    return bool(finite)


def list_nbytes(nbits: int, count: int) -> int:
    """Bytes of a list of ``count`` positions below ``nbits``; ``s2.h`` has its layout."""
    if count == 0:
        return 0
    low_bits = (nbits // count).bit_length() - 1
    low = (count * low_bits + 63) // 64 * 8
    high = (count + ((nbits - 1) >> low_bits) + 63) // 64 * 8
    return low + high


def list_encode(positions: Tensor, nbits: int, lists: Tensor) -> None:
    """``lists`` (uint8, of ``list_nbytes``) becomes the packed form of the positions."""
    _ops.list_encode.default(positions, nbits, lists)


def list_decode(lists: Tensor, nbits: int, positions: Tensor) -> None:
    """The way back; raises RuntimeError where the bytes are no such list."""
    _ops.list_decode.default(lists, nbits, positions)


def plan_owners(
    bitmaps: Tensor, segments: Tensor, positions: Tensor, seed: int, owners: Tensor
) -> None:
    """``owners`` (int16) becomes the rank that sums each block of the union.

    ``bitmaps`` (uint8, [P, bytes]) are those of all ranks, ``positions`` those of their union; 1 to
    256 ranks.  The rule is in ``s2.h``, and once more in ``reference.py``.
    """
    _ops.plan_owners.default(bitmaps, segments, positions, signed(seed), owners)


def plan_exchanges(
    bitmaps: Tensor,
    segments: Tensor,
    positions: Tensor,
    owners: Tensor,
    rank: int,
    exchanges: Tensor,
) -> None:
    """``exchanges`` (int64, [P, 6]) becomes what ``rank`` exchanges with each rank.

    Columns: blocks and elements that it sends, that it receives, and that the other owns.
    """
    _ops.plan_exchanges.default(bitmaps, segments, positions, owners, rank, exchanges)


def plan_lists(
    bitmaps: Tensor,
    segments: Tensor,
    positions: Tensor,
    owners: Tensor,
    rank: int,
    exchanges: Tensor,
    sent: Tensor,
    received: Tensor,
    owned: Tensor,
    compact: Tensor,
) -> None:
    """The lists that go with those exchanges, a part for each rank; see ``s2.h``."""
    _ops.plan_lists.default(
        bitmaps,
        segments,
        positions,
        owners,
        rank,
        exchanges,
        sent,
        received,
        owned,
        compact,
    )


def coo_sort(indices: Tensor, nrows: int, order: Tensor, rows: Tensor, starts: Tensor) -> int:
    """Sorts the row numbers of a COO gradient; returns how many distinct ones there are, K.

    ``indices`` (int64, [n], of 0 to ``nrows`` - 1, at most 2^40 rows) may be unsorted and repeat.
    ``order`` and ``rows`` (int64, [n]) and ``starts`` (int64, [n + 1]) are written: the first K
    of ``rows`` become the distinct numbers, ascending; row k is that of the indices at
    ``order[starts[k]:starts[k + 1]]``, in the order of appearance.  What lies behind K, or K + 1 of
    ``starts``, is undefined.
    """
    count = torch.empty(1, dtype=torch.int64)
    _ops.coo_sort.default(indices, nrows, order, rows, starts, count)
    return int(count)


def coo_sum(
    values: Tensor, order: Tensor, starts: Tensor, sums: Tensor, parallel: bool = True
) -> None:
    """``sums`` ([K, width]) becomes the sums of the rows of ``values`` ([n, width]) that repeat.

    ``order`` is that of ``coo_sort``, ``starts`` its first K + 1.  Repeats are added in the order
    of appearance, in float64 for float32 and float64 and in float32 for the half types, and rounded
    once to the one dtype of ``values`` and ``sums``.
    """
    _ops.coo_sum.default(values, order, starts, sums, parallel)


def coo_unite(lists: Tensor, lengths: Tensor, nrows: int, rows: Tensor, entries: Tensor) -> int:
    """Unites the ranks' lists of rows; returns how many rows the union has, K.

    ``lists`` (int64, [n]) are those of all ranks, one behind the other, ``lengths`` (int64, [P])
    their sizes; each ascends strictly within 0 to ``nrows`` - 1.  ``rows`` and ``entries`` (int64,
    [n]) are written: the first K of ``rows`` become the union, ascending (what lies behind is
    undefined), ``entries`` what ``coo_bitmaps`` wants.
    """
    count = torch.empty(1, dtype=torch.int64)
    _ops.coo_unite.default(lists, lengths, nrows, rows, entries, count)
    return int(count)


def coo_bitmaps(entries: Tensor, nunion: int, bitmaps: Tensor) -> None:
    """Bit k of ``bitmaps[r]`` becomes whether row k of the union is in the list of rank r.

    ``bitmaps`` is uint8, [P, 8 ceil(nunion / 64)].
    """
    _ops.coo_bitmaps.default(entries, nunion, bitmaps)


def sketch_insert(table: Tensor, seed: int, ids: Tensor, values: Tensor) -> None:
    """Adds each block of ``values`` to its cell in every row of ``table``, with a sign."""
    _ops.sketch_insert.default(table, signed(seed), ids, values)


def sketch_subtract(table: Tensor, seed: int, ids: Tensor, values: Tensor) -> None:
    """Takes the blocks away again."""
    _ops.sketch_subtract.default(table, signed(seed), ids, values)


def sketch_weigh(magnitudes: Tensor, seed: int, ids: Tensor, values: Tensor) -> None:
    """Adds the largest magnitude in each block to its cell in every row of ``magnitudes``.

    They are float32, [rows, width], one for each cell of a table, and begin as zeros.
    """
    _ops.sketch_weigh.default(magnitudes, signed(seed), ids, values)


def sketch_estimate(table: Tensor, seed: int, ids: Tensor, values: Tensor) -> None:
    """``values`` becomes the median of each block's cells, element by element."""
    _ops.sketch_estimate.default(table, signed(seed), ids, values)


def sketch_merge(table: Tensor, seed: int, other: Tensor, other_seed: int) -> None:
    """``table += other``; raises RuntimeError unless they have the same shape and seed."""
    _ops.sketch_merge.default(table, signed(seed), other, signed(other_seed))


def sketch_scratch_nbytes(table: Tensor, n: int) -> int:
    """Bytes of the scratch for ``sketch_peel``: 16 a cell, 4 a block and 8 for each 64 of them."""
    rows, width, _ = table.shape
    return 16 * rows * width + 4 * n + 8 * ((n + 63) // 64)


def sketch_peel(
    table: Tensor,
    seed: int,
    ids: Tensor,
    nranks: int,
    magnitudes: Tensor | None,
    values: Tensor,
    decoded: Tensor,
    bounds: Tensor,
    norms: Tensor,
    scratch: Tensor,
    max_rounds: int = 0,
) -> tuple[int, int]:
    """Reads from ``table``, the sum of ``nranks`` tables, all blocks that can be told apart.

    ``ids`` must name all blocks that are in it.  ``magnitudes`` are the sum of what the ranks have
    weighed (``sketch_weigh``), or None where that is not known: then bounds miss what ranks that
    cancel each other leave behind.  Written are, of each block,

    - ``values``: the block, or +0.0 where it is stuck;
    - ``decoded`` (bool, [n]): whether it is not;
    - ``bounds`` (float32, [n]): how far its elements are likely to be from the exact sums at most,
      infinite where it is stuck; ``s2.h`` derives it;
    - ``norms`` (float32, [n]): the largest magnitude in ``values``.

    In blocks that were not alone in a cell to begin with, elements of a magnitude of
    ``bound / sqrt(block)`` or less are set to +0.0, which comes on top of the bound.
    ``scratch`` is uint8, of ``sketch_scratch_nbytes``, and begins at a multiple of 8 bytes.
    ``max_rounds`` of 0 means until no block is alone in a cell.  The table is used up: cells with
    stuck blocks hold the sums of these, others nothing that means anything.

    Returns how many blocks were decoded, and in how many rounds.
    """
    counts = torch.empty(2, dtype=torch.int64)
    _ops.sketch_peel.default(
        table,
        signed(seed),
        ids,
        nranks,
        magnitudes,
        max_rounds,
        values,
        decoded,
        bounds,
        norms,
        scratch,
        counts,
    )
    ndecoded, nrounds = counts.tolist()
    return ndecoded, nrounds


def _writes_into_arguments(*arguments: object) -> None:
    """What every operator looks like to a tracer: no result, and sizes that stay."""
    lists = (argument if isinstance(argument, list) else [argument] for argument in arguments)
    devices = {thing.device for things in lists for thing in things if isinstance(thing, Tensor)}
    if len(devices) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise RuntimeError(f"the tensors of an s2reducer operator are on several devices: {listed}")


def register_fakes(*names: str) -> None:
    register: Callable[..., Any] = torch.library.register_fake
    for name in names:
        register(f"s2reducer::{name}")(_writes_into_arguments)


register_fakes(
    "bitmap_from_nonzero",
    "bitmap_or",
    "bitmap_andnot",
    "bitmap_count",
    "bitmap_unite",
    "bitmap_positions",
    "bitmap_from_positions",
    "blocks_gather",
    "blocks_scatter",
    "blocks_add",
    "blocks_sum",
    "blocks_clear_dead",
    "values_convert",
    "values_finite",
    "list_encode",
    "list_decode",
    "plan_owners",
    "plan_exchanges",
    "plan_lists",
    "coo_sort",
    "coo_sum",
    "coo_unite",
    "coo_bitmaps",
    "sketch_insert",
    "sketch_subtract",
    "sketch_weigh",
    "sketch_estimate",
    "sketch_merge",
    "sketch_peel",
)
