# SPDX-License-Identifier: MIT
"""Threads and process groups go with what they were made for, without the garbage collector."""

import gc
import os
import threading
import time
import weakref

import torch
import torch.distributed as dist
from ranks import Given, Ranks, own_ranks
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import engine
from s2reducer.transport import Transport, wait_until_released


def train(plan: str) -> None:
    gc.disable()
    ddp = DistributedDataParallel(Given(torch.zeros(5000, 16)))
    s2reducer.register(ddp, plan=plan)
    for _ in range(3):
        ddp.zero_grad()
        ddp({0: torch.ones(5000, 16)}).backward()


def count_threads() -> tuple[int, int]:
    """Those that Python knows, and all."""
    counts = threading.active_count(), len(os.listdir("/proc/self/task"))
    gc.enable()
    return counts


def test_threads_end_with_their_process_group(ranks: Ranks) -> None:
    counts = []
    for _ in range(2):
        for plan in ("owner", "union", "owner", "auto"):
            ranks.run(2, train, plan)
        counts.append(ranks.run(2, count_threads))
    assert counts[1] == counts[0]


# ------------------------------------------------------------------------------------------------
# Before the interpreter ends
# ------------------------------------------------------------------------------------------------


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def still_there(ended: set[str]) -> set[str]:
    """A thread that has been joined may be listed for a moment longer."""
    deadline = time.monotonic() + 10.0
    while (left := ended & threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def finish_all() -> tuple[int, set[str]]:
    """How many threads the engine starts, and which of them an exit leaves."""
    gradient = torch.ones(5000, 16)
    DistributedDataParallel(Given(torch.zeros(5000, 16)))({0: gradient}).backward()
    before = threads()
    ddp = DistributedDataParallel(Given(torch.zeros(5000, 16)))
    s2reducer.register(ddp, plan="owner")
    for _ in range(3):
        ddp({0: gradient}).backward()
    started = threads() - before
    engine._finish_all()
    return len(started), still_there(started)


def test_an_exit_joins_lanes_and_the_threads_of_private_groups() -> None:
    with own_ranks(2) as pool:  # or threads of an earlier case might just be ending
        for started, left in pool.run(2, finish_all):
            assert started >= 4  # two lanes, and one of each private group at least
            assert left == set()


def release() -> tuple[bool, bool, bool, list[float]]:
    """Rank 0 waits for gloo before and after the other rank takes part in an AllReduce."""
    store = dist.distributed_c10d._get_default_store()
    transport = Transport(dist.group.WORLD, torch.device("cpu"))
    tensor = torch.ones(3)

    def callback(future: Future[list[torch.Tensor]]) -> None:
        future.value()

    if dist.get_rank() != 0:
        store.wait(["looked"])
    transport.begin_sum(tensor).then(callback)
    reference = weakref.ref(callback)
    del callback
    early = dist.get_rank() == 0 and wait_until_released(time.monotonic())
    store.set("looked", "")
    late = wait_until_released(time.monotonic() + 20.0)
    return early, late, reference() is None, tensor.tolist()


def test_an_exit_waits_until_gloo_has_let_go_of_callbacks_and_tensors(ranks: Ranks) -> None:
    assert ranks.run(2, release) == [(False, True, True, [2.0] * 3)] * 2
