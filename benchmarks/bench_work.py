# SPDX-License-Identifier: MIT
"""What the hook computes in a step of the language model, beside a plain read of its gradient.

    python benchmarks/bench_work.py            # 4 hosts; two minutes
    python benchmarks/bench_work.py --quick    # a small model, to see it work

Ranks run on the hosts of ``netlab``.  Work is the processor's time in the hook's body and in the
two lanes: finding live blocks, planning, gathering, adding and scattering rows, and Python; not the
waiting for messages, nor gloo's own threads.  The read is ``torch.sum`` over every gradient, once
the step is done, on one thread.  Both are medians over steps, of the rank that has most.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import netlab
import torch
import torch.distributed as dist
from baselines.bench import (
    RESULTS,
    Record,
    Settings,
    measure_here,
    measure_on,
    say,
    write_results,
)
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import engine

PLANS = ("owner", "gather", "union", "auto")


class HookClock:
    """Processor seconds in the bodies of a hook."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        begun = time.thread_time()
        future = s2reducer.s2_hook(state, bucket)
        self.seconds += time.thread_time() - begun
        return future


def lanes_seconds(ddp: DistributedDataParallel) -> float:
    """Processor seconds of both lanes since they began."""
    own = engine.engine_of(ddp.process_group, torch.device("cpu"))
    clocks = (time.pthread_getcpuclockid(thread.ident) for thread in own.threads)
    return sum(map(time.clock_gettime, clocks))


def measure_plan(words: int, width: int, plan: str, steps: int) -> list[float]:
    """For each step and rank: seconds of the hook, of the lanes, and of a read; then the rank's
    share of live blocks."""
    task = models.language_model(words, width)
    ddp = DistributedDataParallel(task.module, gradient_as_bucket_view=True)
    clock = HookClock()

    def hook(state: Any, bucket) -> torch.futures.Future[torch.Tensor]:
        return clock(state, bucket)

    state = s2reducer.S2State(plan=plan)
    ddp.register_comm_hook(state, hook)
    learn = 66 if plan == "auto" else 3
    samples = []
    for step in range(learn + steps):
        hook_before = clock.seconds
        lanes_before = lanes_seconds(ddp) if step else 0.0
        ddp.zero_grad(set_to_none=True)
        ddp(*task.batch(dist.get_rank(), step)).backward()
        lanes = lanes_seconds(ddp) - lanes_before
        begun = time.thread_time()
        for parameter in ddp.parameters():
            parameter.grad.sum()
        read = time.thread_time() - begun
        if step >= learn:
            samples.append([clock.seconds - hook_before, lanes, read])
    own = torch.tensor([statistics.median(column) for column in zip(*samples, strict=True)])
    ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(ranks, own)
    most: list[float] = max(ranks, key=lambda rank: float(rank[0] + rank[1])).tolist()
    return most


def measure(settings: Settings) -> list[Record]:
    records: list[Record] = []
    for plan in settings["plans"]:
        hook, lanes, read = measure_plan(
            settings["words"], settings["width"], plan, settings["steps"]
        )
        records.append(
            {
                "words": settings["words"],
                "width": settings["width"],
                "ranks": dist.get_world_size(),
                "kind": os.environ["NETLAB_KIND"],
                "rate": os.environ["NETLAB_RATE"],
                "plan": plan,
                "hook_seconds": hook,
                "lanes_seconds": lanes,
                "read_seconds": read,
            }
        )
        say(plan)
    return records


def table_of(records: Sequence[Record]) -> str:
    """Markdown, a row for each plan."""
    columns = (
        "words | width | ranks | plan | hook, ms | lanes, ms | read, ms | work over a read, ms"
    )
    lines = [f"| {columns} |", "|" + " ---: |" * (columns.count("|") + 1)]
    for r in records:
        hook, lanes, read = (
            1e3 * r[name] for name in ("hook_seconds", "lanes_seconds", "read_seconds")
        )
        cells = [str(r[name]) for name in ("words", "width", "ranks", "plan")]
        cells += [f"{value:.2f}" for value in (hook, lanes, read, hook + lanes - read)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, to see it work")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", type=netlab.rate_argument, default="1gbit")
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=["owner", "union", "auto"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=RESULTS / "work", help="without suffix")
    parser.add_argument("--order", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order is not None:
        measure_here(options.order, measure)
    words, width = (5_000, 128) if options.quick else (50_000, 512)
    settings = {
        "words": words,
        "width": width,
        "plans": options.plans[:1] if options.quick else options.plans,
        "steps": 3 if options.quick else options.steps,
    }
    records = measure_on(__file__, options.ranks, options.rate, settings)
    write_results(options.out, "Work of the hook", records, table_of)


if __name__ == "__main__":
    main()
