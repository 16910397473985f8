# SPDX-License-Identifier: MIT
"""The class ``Bitmap``, against Python's sets and slices."""

import doctest
import math
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import Ranks
from torch import Tensor

from s2reducer import Bitmap
from s2reducer import bitmap as module

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
pytestmark = pytest.mark.usefixtures("seed")


def bitmap_of(positions: set[int], nblocks: int, block: int = 1) -> Bitmap:
    return Bitmap.from_positions(torch.tensor(list(positions), dtype=torch.int64), nblocks, block)


def elements(bitmap: Bitmap) -> set[int]:
    return set(bitmap.positions().tolist())


def test_the_examples_of_the_documentation() -> None:
    failed, attempted = doctest.testmod(module)
    assert (failed, attempted) == (0, 7)


# ------------------------------------------------------------------------------------------------
# Sets
# ------------------------------------------------------------------------------------------------


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[int, set[int], set[int]]:
    nblocks = draw(st.sampled_from([1, 2, 7, 8, 63, 64, 65, 128, 1000]))
    subsets = st.sets(st.integers(0, nblocks - 1))
    return nblocks, draw(subsets), draw(subsets)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(two_sets())
def test_it_is_a_set(drawn: tuple[int, set[int], set[int]]) -> None:
    nblocks, a, b = drawn
    x, y = bitmap_of(a, nblocks), bitmap_of(b, nblocks)
    assert x.positions().tolist() == sorted(a)
    assert x.count() == len(x) == len(a)
    assert [number for number in range(-3, nblocks + 70) if number in x] == sorted(a)
    assert elements(x | y) == a | b
    assert elements(x - y) == a - b
    assert elements(x) == a and elements(y) == b
    assert (x == y) == (a == b)
    assert (x - y) | y == x | y
    kept = x
    x |= y
    assert x is kept and elements(kept) == a | b
    x -= y
    assert elements(x) == a - b
    assert x.nbytes == x.data.nbytes == (nblocks + 63) // 64 * 8


def test_a_bitmap_and_itself() -> None:
    x = bitmap_of({1, 64}, 100)
    x |= x
    assert elements(x) == {1, 64}
    assert elements(x - x) == set()


def test_positions_come_in_any_order_and_repeat() -> None:
    positions = torch.tensor([9, 1, 9, 0, 65, 1])
    assert Bitmap.from_positions(positions, 66).positions().tolist() == [0, 1, 9, 65]
    assert Bitmap.from_positions(positions[::2], 66).positions().tolist() == [9, 65]


def test_bits_lie_where_they_are_said_to() -> None:
    data = bitmap_of({0, 3, 8, 65}, 66).data
    assert data.dtype == torch.uint8
    assert data.tolist() == [9, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]


def test_what_is_equal() -> None:
    assert bitmap_of({1}, 10, 4) == bitmap_of({1}, 10, 4)
    assert bitmap_of({1}, 10, 4) != bitmap_of({2}, 10, 4)
    assert bitmap_of({1}, 10, 4) != bitmap_of({1}, 11, 4)
    assert bitmap_of({1}, 10, 4) != bitmap_of({1}, 10, 5)
    assert bitmap_of({1}, 10) != {1}
    with pytest.raises(TypeError, match="unhashable"):
        hash(bitmap_of({1}, 10))


def test_how_it_is_shown() -> None:
    assert repr(bitmap_of({1, 2}, 10, 4)) == "Bitmap(nblocks=10, block=4, count=2)"


@pytest.mark.parametrize("nblocks", [0, 1])
def test_no_blocks_and_one(nblocks: int) -> None:
    empty = Bitmap(nblocks)
    assert len(empty) == 0 and empty.positions().tolist() == [] and 0 not in empty
    assert (empty | empty) == (empty - empty) == empty
    assert empty.gather(torch.ones(nblocks)).shape == (0, 1)
    assert Bitmap.of(torch.zeros(nblocks)) == Bitmap(nblocks, block=1)
    assert len(Bitmap.of(torch.ones(nblocks))) == nblocks


# ------------------------------------------------------------------------------------------------
# Tensors
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("numel", "block"), [(1, 1), (10, 3), (64, 64), (65, 64), (1000, 7)])
def test_blocks_of_a_tensor_there_and_back(numel: int, block: int, dtype: torch.dtype) -> None:
    tensor = torch.randint(-9, 10, (numel,)).to(dtype)
    pieces = list(tensor.split(block))
    for piece in random.sample(pieces, len(pieces) // 2):
        piece.zero_()
    live = [number for number, piece in enumerate(pieces) if bool(piece.any())]
    bitmap = Bitmap.of(tensor, block)
    assert (bitmap.nblocks, bitmap.block) == (len(pieces), block)
    assert bitmap.positions().tolist() == live

    packed = bitmap.gather(tensor)
    assert packed.dtype == dtype and packed.shape == (len(live), block)
    for row, number in zip(packed, live, strict=True):
        piece = pieces[number]
        assert torch.equal(row[: len(piece)], piece)
        assert torch.equal(row[len(piece) :], torch.zeros(block - len(piece), dtype=dtype))

    out = torch.full_like(tensor, 77.0)
    packed[:, 0] += 1  # the only element of a last block of one
    assert bitmap.scatter(packed, out) is out
    expected = torch.full_like(tensor, 77.0)
    for number in live:
        expected.split(block)[number].copy_(pieces[number])
        expected.split(block)[number][0] += 1
    assert torch.equal(out, expected)


def test_which_values_make_a_block_live() -> None:
    tensor = torch.tensor([0.0, -0.0, math.nan, 1e-45, -math.inf, 0.0])
    assert Bitmap.of(tensor, 1).positions().tolist() == [2, 3, 4]


@pytest.mark.parametrize(
    ("shape", "block", "nblocks"),
    [
        ((100, 16), 16, 100),
        ((4, 5, 6), 30, 4),
        ((100, 7), 64, 11),
        ((3, 8193), 64, 385),
        ((100,), 64, 2),
        ((5,), 5, 1),
        ((), 1, 1),
        ((0, 16), 1, 0),
    ],
)
def test_the_blocks_that_are_taken(shape: tuple[int, ...], block: int, nblocks: int) -> None:
    bitmap = Bitmap.of(torch.zeros(shape))
    assert (bitmap.block, bitmap.nblocks) == (block, nblocks)


def test_a_block_that_is_set_is_longer_than_the_tensor() -> None:
    bitmap = Bitmap.of(torch.ones(3), block=5)
    assert (bitmap.block, bitmap.nblocks) == (5, 1)
    assert bitmap.gather(torch.ones(3)).tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0]]


def test_blocks_are_those_of_row_major_order_whatever_the_strides() -> None:
    tensor = torch.randint(1, 9, (8, 30)).float()
    tensor[[2, 5]] = 0.0
    transposed = tensor.t().contiguous().t()
    assert not transposed.is_contiguous()
    bitmap = Bitmap.of(transposed)
    assert bitmap == Bitmap.of(tensor)
    assert bitmap.positions().tolist() == [0, 1, 3, 4, 6, 7]
    assert torch.equal(bitmap.gather(transposed), tensor[[0, 1, 3, 4, 6, 7]])
    out = torch.zeros(30, 8).t()
    bitmap.scatter(bitmap.gather(tensor).repeat(1, 2)[:, :30], out)
    assert torch.equal(out, tensor)


def test_a_parameter_is_written_where_torch_would_write_it() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, 8))
    bitmap = bitmap_of({2}, 4, 8)
    with pytest.raises(ValueError, match="out must not require a gradient"):
        bitmap.scatter(torch.ones(1, 8), weight)
    assert not weight.any()
    with torch.no_grad():
        assert bitmap.scatter(torch.ones(1, 8), weight) is weight
    assert weight.sum(1).tolist() == [0.0, 0.0, 8.0, 0.0]
    assert not bitmap.gather(weight).requires_grad


# ------------------------------------------------------------------------------------------------
# States and files
# ------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    for saved in (bitmap_of({0, 63, 64, 99}, 100, 7), Bitmap(0), Bitmap(64)):
        saved.save(tmp_path / "bitmap.pt")
        loaded = Bitmap.load(tmp_path / "bitmap.pt")
        assert loaded == saved
        assert (loaded.nblocks, loaded.block) == (saved.nblocks, saved.block)
        loaded |= Bitmap.from_positions(torch.arange(saved.nblocks), saved.nblocks, saved.block)
        assert len(loaded) == saved.nblocks


def test_a_state_is_taken_over_in_place() -> None:
    bitmap, other = bitmap_of({1, 2}, 100, 4), bitmap_of({70}, 100, 4)
    data = bitmap.data
    bitmap.load_state_dict(other.state_dict())
    assert bitmap == other and bitmap.data is data and data is not other.data


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        {"nblocks": 100, "block": 4},
        {"nblocks": 100, "block": 4, "data": [0] * 16},
        {"nblocks": 100, "block": 4, "data": torch.zeros(8, dtype=torch.uint8)},
        {"nblocks": 101, "block": 4, "data": torch.zeros(16, dtype=torch.uint8)},
        {"nblocks": 100, "block": 5, "data": torch.zeros(16, dtype=torch.uint8)},
        {"nblocks": 100, "block": 4, "data": torch.full((16,), 255, dtype=torch.uint8)},
        {"nblocks": -1, "block": 4, "data": torch.zeros(0, dtype=torch.uint8)},
    ],
)
def test_a_state_that_is_none_of_it_changes_nothing(state: object) -> None:
    bitmap = bitmap_of({1, 2}, 100, 4)
    with pytest.raises(ValueError, match=r"Bitmap|bitmaps|nblocks"):
        bitmap.load_state_dict(state)  # type: ignore[arg-type]
    assert bitmap == bitmap_of({1, 2}, 100, 4)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="this is no state of a Bitmap, which has the keys"):
        Bitmap.load(tmp_path / "model.pt")


# ------------------------------------------------------------------------------------------------
# What is refused
# ------------------------------------------------------------------------------------------------


def test_two_bitmaps_of_different_blocks() -> None:
    x = bitmap_of({1}, 10, 4)
    for other in (bitmap_of({2}, 11, 4), bitmap_of({2}, 10, 5)):
        with pytest.raises(ValueError, match="one has 10 of 4 elements, the other"):
            x |= other
        with pytest.raises(ValueError, match="two bitmaps must have equally many blocks"):
            x | other
        with pytest.raises(ValueError, match="two bitmaps must have equally many blocks"):
            x - other
    for combine in (lambda: x | {2}, lambda: x - {2}):  # type: ignore[operator]
        with pytest.raises(TypeError, match="unsupported operand"):
            combine()
    assert elements(x) == {1}


@pytest.mark.parametrize(
    ("positions", "nblocks", "block", "error", "sentence"),
    [
        ([1], 10, 1, TypeError, "positions must be a tensor of int64, but is list"),
        (torch.ones(1), 10, 1, TypeError, "positions must be int64, but is float32"),
        (torch.ones(1, dtype=torch.int32), 10, 1, TypeError, "positions must be int64"),
        (torch.tensor(1), 10, 1, ValueError, "positions must have one dimension"),
        (torch.tensor([3, -1]), 10, 1, ValueError, "positions must be 0 or more, but one is -1"),
        (torch.tensor([3, 10]), 10, 1, ValueError, "positions must lie below 10, .* one is 10"),
        (torch.tensor([3]), 1.5, 1, TypeError, "nblocks must be a whole number, but is 1.5"),
        (torch.tensor([3]), True, 1, TypeError, "nblocks must be a whole number, but is True"),
        (torch.tensor([3]), -1, 1, ValueError, "nblocks must lie between 0 and"),
        (torch.tensor([3]), 10, 0, ValueError, "block must lie between 1 and"),
    ],
)
def test_wrong_positions(
    positions: Tensor, nblocks: int, block: int, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Bitmap.from_positions(positions, nblocks, block)


@pytest.mark.parametrize(
    ("tensor", "block", "error", "sentence"),
    [
        ([1.0], None, TypeError, "tensor must be a tensor of float32 or float64 or float16 or"),
        (torch.ones(3, dtype=torch.int64), None, TypeError, "tensor must be .*, but is int64"),
        (torch.ones(3).to_sparse(), None, ValueError, "must be dense and on the CPU, .* sparse"),
        (torch.ones(3, device="meta"), None, ValueError, "on the CPU, but is on meta"),
        (torch.ones(3), 0, ValueError, "block must lie between 1 and"),
        (torch.ones(3), 2.0, TypeError, "block must be a whole number, but is 2.0"),
    ],
)
def test_wrong_tensors(tensor: Tensor, block: int, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Bitmap.of(tensor, block)


@pytest.mark.parametrize(
    ("packed", "out", "error", "sentence"),
    [
        (torch.ones(2, 3), torch.ones(13), ValueError, "out must have 4 blocks of 3 .* has 5"),
        (torch.ones(2, 3), torch.ones(9), ValueError, "out must have 4 blocks of 3 .* has 3"),
        (torch.ones(2, 3).half(), torch.ones(10), TypeError, "packed must be float32, .* float16"),
        (torch.ones(2, 4), torch.ones(10), ValueError, r"packed must have the shape \[2, 3\]"),
        (torch.ones(6), torch.ones(10), ValueError, r"packed must have the shape \[2, 3\]"),
        (torch.ones(3, 3), torch.ones(10), ValueError, r"packed must have the shape \[2, 3\]"),
        (torch.ones(2, 3), torch.ones(10).long(), TypeError, "out must be .*, but is int64"),
    ],
)
def test_wrong_blocks_to_scatter(
    packed: Tensor, out: Tensor, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        bitmap_of({0, 3}, 4, 3).scatter(packed, out)
    assert bool((out == 1).all())


def test_wrong_tensors_to_gather_and_members() -> None:
    bitmap = bitmap_of({0, 3}, 4, 3)
    for numel in (9, 13):
        with pytest.raises(ValueError, match="tensor must have 4 blocks of 3 elements, but has"):
            bitmap.gather(torch.ones(numel))
    assert torch.tensor(3) in bitmap
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        assert 3.0 in bitmap


# ------------------------------------------------------------------------------------------------
# Ranks
# ------------------------------------------------------------------------------------------------


def united(everyone: bool) -> list[int]:
    """The two ways of the documentation."""
    rank = dist.get_rank()
    bitmap = bitmap_of({rank, 100, 127 - rank}, 128)
    if everyone:
        mine = bitmap.data.to("cpu")
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        for data in parts:
            bitmap.data.bitwise_or_(data.cpu())
    else:
        dist.all_reduce(bitmap.data.view(torch.int64), op=dist.ReduceOp.BOR)
    return bitmap.positions().tolist()


@pytest.mark.parametrize("everyone", [False, True])
def test_ranks_unite_their_bitmaps(ranks: Ranks, everyone: bool) -> None:
    expected = [0, 1, 2, 100, 125, 126, 127]
    assert ranks.run(3, united, everyone) == [expected] * 3
