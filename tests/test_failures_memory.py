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
from ranks import EXACT_UNIT, Given, Ranks, assert_same_on_all_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

import s2reducer
from s2reducer.engine import engine_of
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

    Lane.put = lambda self, task: task()  # type: ignore[method-assign]
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
    with spans():
        for step in range(5):
            ddp.zero_grad()
            loss = ddp({0: gradient})
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                loss.backward()
            if step > 1:
                peaks.append(peak(profiled))
    # A backend's thread may hold on to a piece of its for a moment longer than we do.
    return min(peaks), blocks * WIDTH * dtype.itemsize, blocks


# In bytes of the union.  ``owner`` widens bfloat16 before it adds.
MOST = {"owner": {torch.bfloat16: 2.5}, "union": {}}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("plan", MOST)
def test_scratch_memory_is_bounded_by_the_union(
    ranks: Ranks, plan: str, dtype: torch.dtype, overlap: bool
) -> None:
    for most, union, blocks in ranks.run(4, measure, plan, dtype, overlap):
        index = 5 * (ROWS // 8) + INDEX_NBYTES_A_BLOCK * blocks
        assert union <= most <= MOST[plan].get(dtype, 2.0) * union + index + CONSTANT_NBYTES


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
