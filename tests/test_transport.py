# SPDX-License-Identifier: MIT
"""The collectives, the bytes that are counted for them, and the backends that are accepted."""

import pytest
import torch
import torch.distributed as dist
from nccl_like import nccl_like
from ranks import Ranks
from torch.testing._internal.distributed.fake_pg import FakeStore

from s2reducer.transport import Transport, backend_of

CPU = torch.device("cpu")


def or_own_bitmap(nbytes: int) -> tuple[list[int], int]:
    transport = Transport(dist.group.WORLD, CPU)
    generator = torch.Generator().manual_seed(dist.get_rank())
    bitmap = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
    transport.or_bitmap(bitmap)
    return bitmap.tolist(), transport.bytes_sent


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("nbytes", [8, 64, 8000])
def test_the_union_of_bitmaps(ranks: Ranks, count: int, nbytes: int) -> None:
    expected = torch.zeros(nbytes, dtype=torch.uint8)
    for rank in range(count):
        generator = torch.Generator().manual_seed(rank)
        expected |= torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
    for bitmap, sent in ranks.run(count, or_own_bitmap, nbytes):
        assert bitmap == expected.tolist()
        assert sent == 2 * (count - 1) * nbytes // count


def or_own_bitmap_by_slices(nbytes: int) -> tuple[list[int], int]:
    with nccl_like():
        return or_own_bitmap(nbytes)


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("nbytes", [8, 8000])
def test_the_union_without_an_or_of_the_backends(ranks: Ranks, count: int, nbytes: int) -> None:
    plain = ranks.run(count, or_own_bitmap, nbytes)
    slices = 8 * -(-nbytes // (8 * count))
    for (bitmap, sent), (expected, _) in zip(
        ranks.run(count, or_own_bitmap_by_slices, nbytes), plain, strict=True
    ):
        assert bitmap == expected
        assert sent == 2 * (count - 1) * slices


def or_top_bits() -> list[int]:
    """All bits of a word, its sign among them, set on one rank or on all."""
    bitmap = torch.zeros(16, dtype=torch.uint8)
    bitmap[:8] = 255
    bitmap[8 + 7] = 128 if dist.get_rank() else 0
    Transport(dist.group.WORLD, CPU).or_bitmap(bitmap)
    return bitmap.tolist()


def test_no_bit_carries_into_its_neighbour(ranks: Ranks) -> None:
    assert ranks.run(2, or_top_bits) == [[255] * 8 + [0] * 7 + [128]] * 2


def gather_records() -> tuple[list[bytes], int]:
    transport = Transport(dist.group.WORLD, CPU)
    record = bytes([transport.rank, 255, 0]) * 100
    return transport.all_gather_records(record, CPU), transport.bytes_sent


def test_records_come_in_rank_order(ranks: Ranks) -> None:
    for records, sent in ranks.run(3, gather_records):
        assert records == [bytes([rank, 255, 0]) * 100 for rank in range(3)]
        assert sent == 2 * 300


def gather_uneven(sizes: list[int]) -> tuple[bool, int]:
    transport = Transport(dist.group.WORLD, CPU)
    pieces = [torch.arange(size) + 100 * rank for rank, size in enumerate(sizes)]
    own = pieces[transport.rank]
    # Longer than it says on some ranks, as long as the longest or longer.
    own = torch.cat([own, torch.full((transport.rank % 3 * max(sizes),), -1)])
    gathered = transport.all_gather_uneven(own, sizes)
    right = all(torch.equal(one, other) for one, other in zip(gathered, pieces, strict=True))
    return right and len(gathered) == len(sizes), transport.bytes_sent


@pytest.mark.parametrize(
    ("sizes", "filled"),
    [
        ([10_000, 9_990, 9_900], True),
        ([3, 0, 90], True),  # rounds would take longer
        ([0, 0, 0], True),
        ([50_000, 1_000, 0], False),
        ([0, 100_000, 0, 0], False),
        ([100_000, 2], False),
    ],
)
def test_pieces_that_differ(ranks: Ranks, sizes: list[int], filled: bool) -> None:
    for rank, (right, sent) in enumerate(ranks.run(len(sizes), gather_uneven, sizes)):
        assert right
        assert sent == 8 * (len(sizes) - 1) * (max(sizes) if filled else sizes[rank])


def sum_in_place(dtype: torch.dtype) -> tuple[bool, int]:
    transport = Transport(dist.group.WORLD, CPU)
    tensor = torch.arange(1000).to(dtype)
    future = transport.begin_sum(tensor)
    result = future.wait()[0]
    expected = torch.arange(1000).to(dtype) * 3
    return torch.equal(tensor, expected) and torch.equal(result, tensor), transport.bytes_sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums(ranks: Ranks, dtype: torch.dtype) -> None:
    for right, sent in ranks.run(3, sum_in_place, dtype):
        assert right
        assert sent == 2 * 2 * 1000 * dtype.itemsize // 3


def sum_sparse() -> tuple[list[list[float]], int]:
    transport = Transport(dist.group.WORLD, CPU)
    rows = torch.tensor([[0, 3][: dist.get_rank() + 1]])
    tensor = torch.sparse_coo_tensor(rows, torch.ones(rows.shape[1], 2), (4, 2)).coalesce()
    result = transport.begin_sum_of_sparse(tensor).wait()[0]
    return result.to_dense().tolist(), transport.bytes_sent


def test_sparse_sums(ranks: Ranks) -> None:
    results = ranks.run(2, sum_sparse)
    assert [result for result, _ in results] == [[[2, 2], [0, 0], [0, 0], [1, 1]]] * 2
    assert [sent for _, sent in results] == [8 + 8, 2 * (8 + 8)]


def backends(name: str) -> list[str]:
    dist.destroy_process_group()
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    try:
        devices = map(torch.device, ("cpu", "cuda"))
        return [backend_of(dist.group.WORLD, device) for device in devices]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("fake", ["fake", "fake"]), ("cpu:gloo,cuda:fake", ["gloo", "fake"]), ("gloo", ["gloo"] * 2)],
)
def test_the_backend_is_that_of_the_device(ranks: Ranks, name: str, expected: list[str]) -> None:
    assert ranks.run(1, backends, name)[0] == expected


def refuse_backend() -> str:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        Transport(dist.group.WORLD, CPU)
    except RuntimeError as error:
        return str(error)
    finally:
        dist.destroy_process_group()
    return "no error"


def test_other_backends_are_refused(ranks: Ranks) -> None:
    assert ranks.run(1, refuse_backend)[0] == (
        "s2reducer works with the backends gloo and nccl, but this process group uses 'fake' for "
        "tensors on cpu"
    )
