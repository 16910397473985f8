# SPDX-License-Identifier: MIT
"""Threads and process groups go with what they were made for, without the garbage collector."""

import gc
import os
import threading

import torch
from ranks import Given, Ranks
from torch.nn.parallel import DistributedDataParallel

import s2reducer


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
