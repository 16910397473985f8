# SPDX-License-Identifier: MIT
"""The operators on tensors of a real device beside those on the CPU: the same bits."""

from typing import Any

import pytest
import torch
from test_device_blocks import DTYPES, WIDE, Bucket, assert_same_bits
from torch import Tensor

from s2reducer import ops

OPERATORS = torch.ops.s2reducer
SHAPES = [(1000, 64), (0, 4), (77, 1), (640, 8), (10, 64), (513, 100), (70_000, 3)]
# The CPU stands for a device, to show that a test works.
on_devices = pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
)
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def check(device: str, name: str, *arguments: Any) -> list[Tensor]:
    """Calls an operator twice; all its tensors, as they are after the call, and on the CPU."""
    operator = getattr(OPERATORS, name).default
    names = [argument.name for argument in operator._schema.arguments]

    def copies(to: str) -> list[Any]:
        places = ["cpu" if name in ("segments", "lengths") else to for name in names]
        return [
            argument.clone().to(place) if isinstance(argument, Tensor) else argument
            for argument, place in zip(arguments, places, strict=False)
        ]

    wanted, got = copies("cpu"), copies(device)
    operator(*wanted)
    operator(*got)
    results = [tensor for tensor in wanted if isinstance(tensor, Tensor)]
    for result, tensor in zip(results, (x for x in got if isinstance(x, Tensor)), strict=True):
        assert_same_bits(tensor.cpu(), result)
    return results


def longs(*shape: int) -> Tensor:
    return torch.full(shape, -7)


@on_devices
@dtypes
def test_blocks(device: str, dtype: torch.dtype) -> None:
    bucket = Bucket(SHAPES, dtype, seed=4)
    values, segments, positions = bucket.values, bucket.segments, bucket.positions
    bitmap = torch.full((bucket.nbytes,), 255, dtype=torch.uint8)
    _, _, bitmap, _ = check(device, "bitmap_from_nonzero", values, segments, bitmap, longs(1))
    *_, counts = check(device, "bitmap_count", bitmap, segments, longs(len(segments)))
    *_, live = check(device, "bitmap_positions", bitmap, longs(int(counts.sum())))
    check(device, "bitmap_from_positions", live, torch.full_like(bitmap, 255))
    packed = bucket.packed(dtype)
    check(device, "blocks_gather", values, segments, positions, torch.empty_like(packed))
    check(device, "blocks_scatter", packed, segments, positions, values)
    check(device, "blocks_add", packed, segments, positions, values.to(WIDE[dtype][0]))
    check(device, "blocks_clear_dead", bitmap, segments, values)
    check(device, "values_convert", values, torch.empty_like(values))


@on_devices
@dtypes
def test_sums_of_rows(device: str, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(5)
    indices = torch.randint(300, (1000,), generator=random)
    values = torch.randn(1000, 33, generator=random).to(dtype)
    order, rows, starts = longs(1000), longs(1000), longs(1001)
    nunique = ops.coo_sort(indices, 1 << 30, order, rows, starts)
    sums = torch.empty(nunique, 33, dtype=dtype)
    check(device, "coo_sum", values, order, starts[: nunique + 1], sums)


@on_devices
def test_sketch(device: str) -> None:
    """At 1.5 cells a block all are decoded, but for two that share all their cells."""
    random = torch.Generator().manual_seed(6)
    ids = torch.arange(0, 4000, 2)
    values = torch.randn(len(ids), 64, generator=random)
    table = torch.zeros(3, len(ids) // 2, 64)
    table, *_ = check(device, "sketch_insert", table, 9, ids, values)
    check(device, "sketch_estimate", table, 9, ids, torch.empty_like(values))
    outputs = [torch.empty_like(values), torch.empty(len(ids), dtype=torch.bool)]
    outputs += [torch.empty(len(ids)) for _ in range(2)]
    scratch = torch.zeros(ops.sketch_scratch_nbytes(table, len(ids)), dtype=torch.uint8)
    arguments = (ids, 1, None, 50, *outputs, scratch, longs(2))
    OPERATORS.sketch_peel.default(table.clone(), 9, *arguments)
    expected = [tensor.clone() for tensor in (*outputs, arguments[-1])]
    assert expected[1].float().mean() > 0.99
    moved = [x.to(device) if isinstance(x, Tensor) else x for x in (table, 9, *arguments)]
    OPERATORS.sketch_peel.default(*moved)
    for result, tensor in zip(expected, (*moved[6:10], moved[-1]), strict=True):
        assert_same_bits(tensor.cpu(), result)
