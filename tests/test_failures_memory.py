# SPDX-License-Identifier: MIT
"""Scratch memory of a bucket beside the union of what is live, and that none of it stays."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks, cases, world_sizes
from seeds import SEED
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import s2reducer
from s2reducer import ops
from s2reducer.constants import NFIGURES
from s2reducer.engine import engine_of
from s2reducer.exchange import gather_index
from s2reducer.plans import gather
from s2reducer.segments import LayoutCache
from s2reducer.sender import Sender
from s2reducer.transport import Transport
from s2reducer.worker import Lane

ROWS, WIDTH, LIVE = 16_384, 64, 2048

# Bitmaps of all ranks and of the union; positions (int64) of what is sent, received and owned, in
# full and by peer; owners.
INDEX_NBYTES_A_BLOCK = 40
CONSTANT_NBYTES = 64 * 1024


@contextmanager
def spans() -> Iterator[None]:
    """Marks a bucket's way, all on this thread, which alone is profiled; and its collectives.

    What the backend allocates for itself is not ours to save, and is freed on its own threads.
    """
    put, scan, sending = Lane.put, Sender._scan, Transport._sending

    def marked_scan(self: Sender, *arguments: Any) -> Any:
        with record_function("bucket"):
            return scan(self, *arguments)

    @contextmanager
    def marked_sending(self: Transport, nbytes: int) -> Iterator[None]:
        with record_function("collective"), sending(self, nbytes):
            yield

    tasks: list[Any] = []

    def run_here(self: Lane, task: Any) -> None:
        tasks.append(task)
        if len(tasks) > 1:
            return  # what a task puts comes after it
        while tasks:
            tasks[0]()
            del tasks[0]

    Lane.put = run_here  # type: ignore[method-assign]
    Sender._scan = marked_scan  # type: ignore[method-assign]
    Transport._sending = marked_sending  # type: ignore[method-assign]
    try:
        yield
    finally:
        Lane.put, Sender._scan, Transport._sending = put, scan, sending  # type: ignore


def peak(profiled: profile) -> int:
    """The most bytes that were allocated at once in the bucket's span, outside of collectives."""
    events = profiled.profiler.kineto_results.events()
    times = {
        name: [(event.start_ns(), event.end_ns()) for event in events if event.name() == name]
        for name in ("bucket", "collective")
    }
    ((begin, end),) = times["bucket"]
    assert times["collective"]
    most = total = 0
    for when, nbytes in sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    ):
        inside = any(first <= when <= last for first, last in times["collective"])
        if begin <= when <= end and not inside:
            total += nbytes
            most = max(most, total)
    return most


@contextmanager
def chunks_of(nbytes_a_rank: int) -> Iterator[None]:
    """The least chunk of ``gather``, for each rank."""
    before = gather._CHUNK_NBYTES_A_RANK
    gather._CHUNK_NBYTES_A_RANK = nbytes_a_rank
    try:
        yield
    finally:
        gather._CHUNK_NBYTES_A_RANK = before


def measure(plan: str, dtype: torch.dtype, overlap: bool) -> tuple[int, int, int]:
    """Peak, bytes of the union, its blocks; supports are the same on all ranks, or disjoint."""
    rank = dist.get_rank()
    ddp = DistributedDataParallel(
        Given(torch.zeros(ROWS, WIDTH, dtype=dtype)), gradient_as_bucket_view=True
    )
    s2reducer.register(ddp, plan=plan)
    gradient = torch.zeros(ROWS, WIDTH, dtype=dtype)
    gradient[(0 if overlap else rank * LIVE) :][:LIVE] = EXACT_UNIT
    blocks = LIVE if overlap else LIVE * dist.get_world_size()
    peaks = []
    with spans(), chunks_of(4096):
        for step in range(5):
            ddp.zero_grad()
            loss = ddp({0: gradient})
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                loss.backward()
            if step > 1:
                peaks.append(peak(profiled))
    # A backend's thread may hold on to a piece of its for a moment longer than we do.
    return min(peaks), blocks * WIDTH * dtype.itemsize, blocks


MOST_UNIONS = 2.0


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("plan", "world_size"),
    cases([("owner", 4), ("union", 4), ("gather", 2), ("gather", 3), ("gather", 4)], ("gather", 3)),
)
def test_scratch_memory_is_bounded_by_the_union(
    ranks: Ranks, plan: str, world_size: int, dtype: torch.dtype, overlap: bool
) -> None:
    for most, union, blocks in ranks.run(world_size, measure, plan, dtype, overlap):
        index = (world_size + 1) * (ROWS // 8) + INDEX_NBYTES_A_BLOCK * blocks
        limit = MOST_UNIONS * union + index + CONSTANT_NBYTES
        # A chunk, of which there are P + 2, takes its rows once and its sums.
        least = union if plan != "gather" else 2 * union / (world_size + 2)
        assert least <= most <= limit


@pytest.mark.parametrize(("dtype", "most_unions"), [(torch.float32, 3.0), (torch.bfloat16, 6.0)])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_sketch_takes_its_table_and_the_decoded_union(
    ranks: Ranks, overlap: bool, dtype: torch.dtype, most_unions: float
) -> None:
    """Both in float32, and 1.43 cells with a count and a bound for each block."""
    for most, union, blocks in ranks.run(2, measure, "sketch", dtype, overlap):
        index = 3 * (ROWS // 8) + INDEX_NBYTES_A_BLOCK * blocks
        assert 2 * union <= most <= most_unions * union + index + CONSTANT_NBYTES


# ------------------------------------------------------------------------------------------------
# In chunks
# ------------------------------------------------------------------------------------------------


def given(seed: int, rank: int, support: str, dtype: torch.dtype) -> list[Tensor]:
    """Any values, in rows of several lengths, and a last block that is short."""
    generator = torch.Generator().manual_seed(seed + rank)
    tensors = []
    for shape in [(3000, 16), (400, 100), (6437,), (77, 640)]:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        rows = (shape[0], *[1] * (len(shape) - 1))
        values *= 10.0 ** torch.randint(-4, 4, rows, generator=generator)
        live = torch.rand(shape[0], generator=generator) < 0.4
        if support == "same":
            live = torch.arange(shape[0]) % 3 != 0
        if support == "disjoint":
            live = torch.arange(shape[0]) * dist.get_world_size() // shape[0] == rank
        values[~live] = 0.0
        tensors.append(values.to(dtype))
    return tensors


class Counting(Transport):
    """Counts the exchanges of rows."""

    exchanges = 0

    def all_gather_uneven(self, piece: Tensor, sizes: list[int]) -> list[Tensor]:
        self.exchanges += 1
        return super().all_gather_uneven(piece, sizes)


def reduce_in_chunks(seed: int, support: str, dtype: torch.dtype) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    buffers = [
        torch.cat([tensor.view(-1) for tensor in given(seed, peer, support, dtype)])
        for peer in range(world_size)
    ]
    layout = LayoutCache(None).layout(given(seed, 0, support, dtype))
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    ops.bitmap_from_nonzero(buffers[rank], layout.segments, bitmap, torch.empty(1).long())
    transport = Counting(dist.group.WORLD, torch.device("cpu"))
    index, _ = gather_index(transport, layout, dtype, 0, bitmap, [0] * NFIGURES)

    wide = torch.float64 if dtype.itemsize > 2 else torch.float32
    total = torch.zeros_like(buffers[0], dtype=wide)
    for buffer in buffers:
        total += buffer.to(wide) / (world_size if dtype == torch.float64 else 1)
    expected = (total / (1 if dtype == torch.float64 else world_size)).to(dtype)

    chunks = []
    for nbytes in (1 << 30, 4096):
        result, before = buffers[rank].clone(), transport.exchanges
        with chunks_of(nbytes):
            gather.reduce_gather(result, layout, index, transport, world_size)
        assert torch.equal(result, expected)
        assert_same_on_all_ranks([result])
        chunks.append(transport.exchanges - before)
    # Rows of 640 fill a chunk and more with a word of the bitmap.
    assert chunks[0] == 1 and world_size <= chunks[1] <= world_size + 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("support", cases(["same", "disjoint", "random"], "random"))
@pytest.mark.parametrize("world_size", world_sizes(2, 3, 4, fast=2))
def test_chunks_have_the_bits_of_the_whole(
    ranks: Ranks, world_size: int, support: str, dtype: torch.dtype
) -> None:
    print(f"S2_TEST_SEED={SEED}")  # pytest shows it where a test fails
    ranks.run(world_size, reduce_in_chunks, SEED, support, dtype)


def bytes_in_chunks(overlap: bool) -> tuple[int, int]:
    """Of the rows that this rank has sent, and by the formula."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    gradient = torch.zeros(ROWS, WIDTH)
    gradient[(0 if overlap else rank * LIVE) :][:LIVE] = EXACT_UNIT
    layout = LayoutCache(None).layout([gradient])
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    ops.bitmap_from_nonzero(gradient.view(-1), layout.segments, bitmap, torch.empty(1).long())
    transport = Transport(dist.group.WORLD, torch.device("cpu"))
    index, _ = gather_index(transport, layout, torch.float32, 0, bitmap, [0] * NFIGURES)
    before = transport.bytes_sent
    with chunks_of(4096):
        gather.reduce_gather(gradient.view(-1), layout, index, transport, world_size)
    return transport.bytes_sent - before, (world_size - 1) * LIVE * WIDTH * 4


@pytest.mark.parametrize("overlap", [True, False])
def test_chunks_send_no_more_than_the_whole(ranks: Ranks, overlap: bool) -> None:
    for sent, formula in ranks.run(3, bytes_in_chunks, overlap):
        assert sent == formula


# ------------------------------------------------------------------------------------------------
# Over many steps
# ------------------------------------------------------------------------------------------------


class Tables(nn.Module):
    """A sparse table, whose gradient is COO, and dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(3000, 16, sparse=True)
        self.dense = nn.ModuleList(nn.Embedding(1000, 32) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        total = self.sparse(rows).sum() * EXACT_UNIT
        for table in self.dense:
            total = total + table(rows).sum() * EXACT_UNIT
        return total


def tensors_held() -> tuple[int, int]:
    """Their number, and their bytes."""
    engine = engine_of(dist.group.WORLD, torch.device("cpu"))
    for lane in (engine._index_lane, engine._values_lane):
        idle = threading.Event()
        lane.put(idle.set)
        assert idle.wait(10)
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    dense = [tensor for tensor in tensors if not tensor.is_sparse]
    return len(tensors), sum(tensor.numel() * tensor.element_size() for tensor in dense)


def train_for_long(plan: str, steps: int) -> tuple[int, int]:
    """Growth of what is held, from an early step to the last; the least of several looks at each.

    gloo's own threads let go of the tensors of a call a little after it has ended.
    """
    ddp = DistributedDataParallel(Tables(), bucket_cap_mb=0.1)
    s2reducer.register(ddp, plan=plan, check_every=50)
    looks: dict[str, list[tuple[int, int]]] = {"first": [], "last": []}
    for step in range(steps):
        generator = torch.Generator().manual_seed(9 * (step % 20) + dist.get_rank())
        rows = torch.randint(1000, (20 + step % 7 * 40,), generator=generator)
        ddp.zero_grad()
        ddp(rows).backward()
        if 100 <= step < 105 or step >= steps - 5:
            looks["first" if step < 105 else "last"].append(tensors_held())
    assert_same_on_all_ranks([parameter.grad for parameter in ddp.parameters()])
    least = [tuple(map(min, zip(*looks[when], strict=True))) for when in ("first", "last")]
    return least[1][0] - least[0][0], least[1][1] - least[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["auto", "owner"])
def test_nothing_grows_over_five_hundred_steps(ranks: Ranks, plan: str) -> None:
    for tensors, nbytes in ranks.run(2, train_for_long, plan, 500, seconds=120):
        assert tensors <= 0
        assert nbytes <= 0
