# SPDX-License-Identifier: MIT
"""Blocks, segments, and what is remembered of parameters while buckets change around them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from s2reducer import ops
from s2reducer.segments import LayoutCache, ParameterRecord, block_length, segments_of


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((100, 8), 8),  # the shortest row
        ((100, 7), 64),
        ((3, 8192), 8192),  # the longest
        ((3, 8193), 64),
        ((30, 4, 5), 20),
        ((16, 3, 3, 3), 27),
        ((1000,), 64),
        ((63,), 63),
        ((64,), 64),
        ((1,), 1),
        ((), 1),
        ((0,), 1),
        ((0, 30), 1),
        ((30, 0), 1),
        ((5, 2), 10),  # too few elements for a flat block
        ((1, 20), 20),
        ((20, 1), 20),
    ],
)
def test_the_rule_for_blocks(shape: tuple[int, ...], block: int) -> None:
    assert block_length(parameter(*shape)) == block


def test_rows_are_blocks_in_contiguous_parameters_only() -> None:
    image = torch.zeros(16, 24, 3, 3)
    assert block_length(image) == 216
    assert block_length(image.contiguous(memory_format=torch.channels_last)) == 64
    assert block_length(torch.zeros(100, 40).t()) == 64
    assert block_length(torch.zeros(4, 3).t()) == 12


@pytest.mark.parametrize(("override", "block"), [(1, 1), (5, 5), (800, 800), (10**6, 800)])
def test_an_override_wins_but_never_exceeds_the_parameter(override: int, block: int) -> None:
    assert block_length(parameter(100, 8), override) == block
    assert block_length(parameter(0, 8), override) == 1


def test_segments_begin_where_the_one_before_ends_and_at_words() -> None:
    segments = segments_of([640, 10, 0, 4096, 7], [10, 3, 1, 64, 7])
    assert segments.tolist() == [
        [0, 640, 10, 0],  # 64 blocks: a word exactly
        [640, 10, 3, 64],
        [650, 0, 1, 128],  # no block at all
        [650, 4096, 64, 128],
        [4746, 7, 7, 192],
    ]
    assert ops.bitmap_nbytes(segments) == 32
    assert segments_of([], []).shape == (0, 4)


def test_the_core_accepts_what_is_made_here() -> None:
    parameters = [parameter(*shape) for shape in ((100, 8), (5,), (0, 3), (), (3, 70), (64,))]
    layout = LayoutCache(None).layout(parameters)
    buffer = torch.ones(layout.numel)
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    zeros = torch.empty(1, dtype=torch.int64)
    ops.bitmap_from_nonzero(buffer, layout.segments, bitmap, zeros)
    counts = torch.empty_like(layout.blocks)
    ops.bitmap_count(bitmap, layout.segments, counts)
    assert counts.tolist() == [record.nblocks for record in layout.records] == [100, 1, 0, 1, 3, 1]
    assert layout.packed_numel(counts.tolist()) == layout.numel


def test_layouts_are_made_once_for_the_same_parameters_in_the_same_order() -> None:
    cache = LayoutCache(None)
    one, two = parameter(10, 8), parameter(8, 10)
    layout = cache.layout([one, two])
    assert cache.layout([one, two]) is layout
    other = cache.layout([two, one])
    assert other is not layout
    assert other.segments.tolist() != layout.segments.tolist()


def test_equal_sizes_do_not_make_equal_buckets() -> None:
    cache = LayoutCache(None)
    layouts = [cache.layout([p]) for p in (parameter(16, 64), parameter(64, 16), parameter(1024))]
    assert [layout.blocks.tolist() for layout in layouts] == [[64], [16], [64]]
    assert len({id(layout.records[0]) for layout in layouts}) == 3


def test_a_rebuild_keeps_records_and_drops_layouts() -> None:
    cache = LayoutCache(None)
    parameters = [parameter(10, 8) for _ in range(6)]
    whole = cache.layout(parameters)
    whole.records[0].live = 7
    halves = [cache.layout(parameters[:3]), cache.layout(parameters[3:])]
    assert halves[0].records[0].live == 7
    assert list(cache._layouts.values()) == halves
    assert len(cache.records()) == 6


def test_segments_are_pinned_once_for_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[Tensor] = []

    def pin_memory(tensor: Tensor) -> Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    with FakeTensorMode():
        one, two, three = (torch.empty(40, 16, device="cuda") for _ in range(3))
    cache = LayoutCache(None)
    pair, single = cache.layout([one, two]), cache.layout([three])
    group, part = cache.group([pair, single]), pair.part([False, True])
    for layout, kept in zip([pair, single, group, part], pinned, strict=True):
        assert layout.segments is kept and layout.device == torch.device("cuda", 0)
    assert pair.segments.tolist() == [[0, 640, 16, 0], [640, 640, 16, 64]]
    assert part.segments.tolist() == [[640, 640, 16, 0]]

    assert cache.layout([one, two]) is pair and cache.group([pair, single]) is group
    assert pair.part([False, True]) is part and pair.part([True, True]) is pair
    assert LayoutCache(None).layout([torch.zeros(40, 16)]).device == torch.device("cpu")
    assert len(pinned) == 4


def test_a_parameter_is_recognised_wherever_its_memory_lies() -> None:
    cache = LayoutCache(None)
    one = parameter(10, 8)
    record = cache.record(one)
    one.data = torch.ones(10, 8)
    assert cache.record(one) is record


def test_models_are_not_kept_alive_and_their_ids_not_mistaken() -> None:
    cache = LayoutCache(None)
    reused = 0
    storages = [torch.zeros(10, 8), torch.zeros(40, 20)]
    for number in range(200):
        fresh = nn.Parameter(storages[number % 2])
        reused += id(fresh) in cache._records
        assert cache.record(fresh).shape == fresh.shape
        del fresh
    assert reused  # or this test has shown nothing
    assert len(cache.records()) < 200


def test_names_and_labels() -> None:
    cache = LayoutCache(None)
    named = parameter(3, 4)
    cache.record(named, "encoder.weight")
    others = [parameter(5, 6), parameter(7), parameter()]
    layout = cache.layout([named, *others])
    assert [record.label() for record in layout.records] == ["encoder.weight", "5x6", "7", "scalar"]
    assert layout.describe() == "bucket of encoder.weight, 5x6, 7 and 1 more"
    assert cache.layout(others).describe() == "bucket of 5x6, 7, scalar"


def record_of(**values: Any) -> ParameterRecord:
    return ParameterRecord(None, (4,), torch.float32, 1, **values)


def test_densities_are_means_over_steps() -> None:
    assert record_of(nblocks=4).density() is None
    record = record_of(nblocks=4, steps=3, live=3, union_live=6)
    assert record.density() == 0.25 and record.union_density() == 0.5
    assert record_of(nblocks=0, steps=3).density() == 0.0


def test_the_memory_order_of_a_bucket_is_that_of_its_parameters() -> None:
    """Blocks of a channels_last parameter are runs of its memory, not of its logical order."""
    image = nn.Parameter(torch.zeros(16, 24, 3, 3).contiguous(memory_format=torch.channels_last))
    layout = LayoutCache(None).layout([image])
    buffer = torch.zeros(layout.numel)
    view: Tensor = buffer.as_strided(image.shape, image.stride())
    view[3] = 1.0  # 216 elements of memory in one piece
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    ops.bitmap_from_nonzero(buffer, layout.segments, bitmap, torch.empty(1, dtype=torch.int64))
    counts = torch.empty_like(layout.blocks)
    ops.bitmap_count(bitmap, layout.segments, counts)
    assert 4 <= int(counts) <= 5
