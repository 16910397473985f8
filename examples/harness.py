# SPDX-License-Identifier: MIT
"""What the training scripts share: flags, ranks and seeds, checkpoints, and what a run reports.

The steps themselves stand in the scripts: model, DDP, s2reducer, optimizer, loop, validation.
"""

import math
import os
import statistics
import time
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.deterministic
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import s2reducer
from s2reducer.config import PLANS

# DDP regroups its buckets after the first step, and allocates; no timing counts these.
UNTIMED_STEPS = 5
# What may differ between a run and the one that goes on from its checkpoint.
_FREE = {"checkpoint", "checkpoint_every", "data", "log_every", "plan", "s2reducer"}


def flags(description: str | None, *, steps: int, batch: int) -> ArgumentParser:
    """A parser with the flags that all scripts have, and these defaults."""
    parser = ArgumentParser(description=(description or "").partition("\n")[0])
    add = parser.add_argument
    add("--steps", type=at_least(1), default=steps, help="of all ranks together (%(default)s)")
    add("--batch", type=at_least(1), default=batch, help="of each rank (%(default)s)")
    add("--seed", type=int, default=0, help="of the model's start and of the batches (%(default)s)")
    add("--plan", choices=PLANS, default="auto", help="of s2reducer (%(default)s)")
    add("--s2reducer", action=BooleanOptionalAction, default=True, help="plain DDP if not")
    add("--checkpoint", type=Path, metavar="FILE", help="goes on from this file where it exists")
    add("--checkpoint-every", type=at_least(1), metavar="N", help="steps; without it, at the end")
    add("--log-every", type=at_least(1), default=50, metavar="N", help="steps (%(default)s)")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """The ``type`` of a flag: whole numbers from ``least`` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return parse


@contextmanager
def ranks(seed: int) -> Iterator[tuple[int, int]]:
    """(rank, ranks) in the group that is there, that torchrun describes, or that is one process.

    In the meantime torch keeps to algorithms that give the same bits in every run.
    """
    joins = not dist.is_initialized()
    if joins and "RANK" in os.environ:
        dist.init_process_group("gloo")
    elif joins:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # That is for finding programs that read what they have not written, and takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(seed)
    try:
        yield dist.get_rank(), dist.get_world_size()
        if joins:
            dist.barrier()  # who closes its sockets first would fail a rank that still reads
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(deterministic)
        if joins:
            dist.destroy_process_group()


def sum_over_ranks(*values: float) -> list[float]:
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total)
    return total.tolist()


@torch.no_grad()
def perplexity(model: nn.Module, text: Any, carried: Any) -> float:
    """Of all ranks together, each on its own part of ``text``, a ``corpora.Streams``.

    ``model`` is called with a window's words, the words that follow them, and what it carries from
    window to window, ``carried`` at first; it gives the mean loss and what it carries next.
    """
    model.eval()
    total = 0.0
    for window in range(len(text)):
        words, targets, _ = text.at(window)
        loss, carried = model(words, targets, carried)
        total += loss.item()
    model.train()
    total, windows = sum_over_ranks(total, len(text))
    return perplexity_of(total / windows)


def perplexity_of(loss: float) -> float:
    """Infinite where it exceeds all floats, as a diverged model's does."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def schedule(optimizer: Optimizer, steps: int) -> LambdaLR:
    """The rate rises in a tenth of the steps, at most 50, and then falls to 0 as a cosine."""
    warm_up = min(50, steps // 10)

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))

    return LambdaLR(optimizer, factor)


def rest_of(model: nn.Module, tables: Sequence[Tensor]) -> list[nn.Parameter]:
    """The parameters of ``model`` that are none of ``tables``."""
    known = {id(table) for table in tables}
    return [parameter for parameter in model.parameters() if id(parameter) not in known]


class Run:
    """The steps of one training, from the first or from those of a checkpoint on.

    Args:
        args: of ``flags``.
        state: of the hook, or None; each rank has its own, which is saved where it can be.
        parts: model, optimizers, schedules: whatever has a ``state_dict`` that ranks share.

    Attributes:
        carried: tensors that this rank takes along from step to step, such as a memory.
        losses: of each step, the mean over the ranks; complete after ``result``.
    """

    def __init__(self, args: Namespace, state: Any, parts: Sequence[Any]) -> None:
        self.args, self.state, self.parts = args, state, parts
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.done = 0
        self.carried: list[Tensor] = []
        self.losses: list[float] = []
        self._own_losses: list[float] = []  # of the steps since ``losses``
        self._seconds: list[float] = []
        if args.checkpoint is not None and args.checkpoint.exists():
            self._load(args.checkpoint)
        # Each rank drops other units, and so needs numbers of its own; those of a checkpoint go on.
        elif self.rank:
            torch.manual_seed(args.seed + self.rank)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are to be done; what is done in between is timed."""
        args = self.args
        for step in range(self.done, args.steps):
            began = time.perf_counter()
            yield step
            self._seconds.append(time.perf_counter() - began)
            self.done = step + 1
            if self.done % args.log_every == 0 or self.done == args.steps:
                self._log()
            often = args.checkpoint_every is not None and self.done % args.checkpoint_every == 0
            if args.checkpoint is not None and (often or self.done == args.steps):
                self._save(args.checkpoint)

    def add_loss(self, loss: Tensor) -> None:
        """This rank's, of the step."""
        self._own_losses.append(loss.item())

    def say(self, line: str) -> None:
        """Once, not on each rank."""
        if self.rank == 0:
            print(line, flush=True)

    def result(self, metric: str, value: float, **others: float) -> dict[str, Any]:
        """What ``main`` returns; prints the metric, and what the hook has sent."""
        self._gather_losses()
        for name, number in {metric: value, **others}.items():
            self.say(f"{name}: {number:.4g}")
        if isinstance(self.state, s2reducer.S2State) and self._seconds:
            self.say(str(self.state.report()))
        return {
            "losses": self.losses,
            "metric": metric,
            "value": value,
            "seconds_per_step": self._seconds_per_step(),
            "steps": self.done,
            **others,
        }

    def _log(self) -> None:
        self._gather_losses()
        recent = self.losses[-self.args.log_every :]
        self.say(
            f"step {self.done} of {self.args.steps}: loss {statistics.fmean(recent):.4f}, "
            f"{1e3 * self._seconds_per_step():.1f} ms a step"
        )

    def _seconds_per_step(self) -> float:
        timed = self._seconds[UNTIMED_STEPS:] or self._seconds
        return statistics.median(timed) if timed else math.nan

    def _gather_losses(self) -> None:
        # Losses are float32, so sums in float64 have the same bits in whatever order.
        sums = sum_over_ranks(*self._own_losses)
        self.losses += [total / self.ranks for total in sums]
        self._own_losses.clear()

    def _settings(self) -> dict[str, str]:
        return {name: str(v) for name, v in vars(self.args).items() if name not in _FREE}

    def _save(self, path: Path) -> None:
        """One file for all ranks, which replaces the former one only when it is complete."""
        self._gather_losses()
        own = {
            "carried": self.carried,
            "random": torch.get_rng_state(),
            "hook": self.state.state_dict() if hasattr(self.state, "state_dict") else None,
        }
        all_own: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(own, all_own)
        if self.rank == 0:
            saved = {
                "settings": self._settings(),
                "step": self.done,
                "losses": self.losses,
                "parts": [part.state_dict() for part in self.parts],
                "ranks": all_own,
            }
            unfinished = path.with_name(path.name + ".unfinished")
            torch.save(saved, unfinished)
            unfinished.replace(path)
        dist.barrier()  # now every rank may rely on the file

    def _load(self, path: Path) -> None:
        saved = torch.load(path)
        self._compare(path, saved["settings"])
        for part, of_part in zip(self.parts, saved["parts"], strict=True):
            part.load_state_dict(of_part)
        self.done, self.losses = saved["step"], saved["losses"]
        own = saved["ranks"][self.rank % len(saved["ranks"])]
        if own["hook"] is not None and hasattr(self.state, "load_state_dict"):
            self.state.load_state_dict(own["hook"])
        torch.set_rng_state(own["random"])
        # With another number of ranks each one sees other text than this was the memory of.
        if len(saved["ranks"]) == self.ranks:
            self.carried = own["carried"]
        self.say(f"{path}: goes on after step {self.done}")

    def _compare(self, path: Path, before: dict[str, str]) -> None:
        now = self._settings()
        for name in sorted(set(now) | set(before)):
            if now.get(name) != before.get(name):
                flag = name.replace("_", "-")
                raise SystemExit(
                    f"{path} was written with --{flag} {before.get(name)}, but here it is "
                    f"{now.get(name)}: give the same, or another --checkpoint"
                )
