# SPDX-License-Identifier: MIT
"""One rank's part of one training run, with or without s2reducer, and what was measured in it."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from s2reducer.cli.batches import draw, held_out_windows
from s2reducer.cli.model import LanguageModel
from s2reducer.cli.network import loopback_sent

PLAIN, REDUCED = "plain DDP", "s2reducer"
# DDP regroups its buckets before step 1 and, the first time, allocates; no timing counts these.
WARM_UP_STEPS = 5
COMPUTE_STEPS = 40
HELD_OUT_WINDOWS = 64
# Windows whose scores over the whole vocabulary are in memory at once.
HELD_OUT_BATCH = 4
# Adagrad, as language models with sampled softmax are usually trained. The two rates and the start
# of its sums keep training from being chaotic: with 0.1 everywhere and sums that start at 0 (so a
# first step of +-0.1 whatever the gradient's size), a relative noise of 1e-7 in the gradients, the
# size of float rounding, changed the held-out loss by 2e-2 in 300 steps; with these, by < 1e-6.
TABLE_RATE, LSTM_RATE = 0.2, 0.02
INITIAL_ACCUMULATOR = 1e-6
# The rates grow from 0 over so many steps; without that the loss first jumps up.
RATE_WARM_UP_STEPS = 20
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Settings:
    """What every rank must know; ``words`` and ``held_out`` are files of int32 word numbers."""

    ranks: int
    steps: int
    vocabulary: int
    width: int
    batch: int
    length: int
    negatives: int
    plan: str
    seed: int
    words: str
    held_out: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class RunResult:
    """One rank's figures of one run; times in seconds, one entry a step."""

    losses: list[float]
    step_seconds: list[float]
    # CPU time of the training thread: what it computes in a step, waiting for the network excluded.
    thread_seconds: list[float]
    final_loss: float
    parameters_sha256: str
    parameter_count: int
    # Bytes that all ranks together sent over lo in ``window_steps`` steps; None if unknown.
    loopback_bytes: int | None
    window_steps: int
    # Median of wall time and of the thread's CPU time of steps without communication.
    compute_seconds: float
    compute_thread_seconds: float
    report: dict[str, Any] | None


def _threads_seconds() -> float:
    """CPU time so far of this thread and of the lanes on which s2reducer's rounds run."""
    lanes = [t for t in threading.enumerate() if t.name.startswith("s2reducer-")]
    return time.thread_time() + sum(
        time.clock_gettime(time.pthread_getcpuclockid(lane.ident)) for lane in lanes if lane.ident
    )


class Trainer:
    """A model in DDP and its optimizer; the start depends on the seed alone."""

    def __init__(self, settings: Settings, rank: int, words: Tensor) -> None:
        self.settings, self.rank, self.words = settings, rank, words
        torch.manual_seed(settings.seed)
        self.model = LanguageModel(settings.vocabulary, settings.width)
        self.ddp = DistributedDataParallel(self.model)
        tables = [self.model.input_words.weight, self.model.output_words.weight]
        self.optimizer = torch.optim.Adagrad(
            [
                {"params": tables, "lr": TABLE_RATE},
                {"params": list(self.model.lstm.parameters()), "lr": LSTM_RATE},
            ],
            initial_accumulator_value=INITIAL_ACCUMULATOR,
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / RATE_WARM_UP_STEPS)
        )

    def step(self, number: int) -> tuple[float, float, float]:
        """(loss, wall seconds, CPU seconds of this thread)"""
        s = self.settings
        batch = draw(
            self.words,
            seed=s.seed,
            step=number,
            rank=self.rank,
            batch=s.batch,
            length=s.length,
            negatives=s.negatives,
            vocabulary=s.vocabulary,
        )
        wall, thread = time.perf_counter(), _threads_seconds()
        self.optimizer.zero_grad()
        loss = self.ddp(batch.inputs, batch.targets, batch.negatives)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        self.optimizer.step()
        self.schedule.step()
        return loss.item(), time.perf_counter() - wall, _threads_seconds() - thread

    def parameters_sha256(self) -> str:
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        return digest.hexdigest()


def train(
    run: str,
    settings: Settings,
    rank: int,
    words: Tensor,
    held_out: Tensor,
    after_step: Callable[[int, float], None],
) -> RunResult:
    """Train for ``settings.steps`` steps; ``run`` says whether the hook is registered."""
    trainer = Trainer(settings, rank, words)
    state = None
    if run == REDUCED:
        # The only difference between the two runs.
        import s2reducer

        state = s2reducer.register(trainer.ddp, plan=settings.plan)
    measured: list[tuple[float, float, float]] = []
    sent_before = None
    for number in range(settings.steps):
        if number == WARM_UP_STEPS:
            sent_before = _loopback_sent_by_all()
        measured.append(trainer.step(number))
        after_step(number, measured[-1][0])
    sent_after = _loopback_sent_by_all()
    final_loss = trainer.model.exact_loss(
        held_out_windows(
            held_out, batch=HELD_OUT_BATCH, length=settings.length, most=HELD_OUT_WINDOWS
        )
    )
    sha256 = trainer.parameters_sha256()
    compute_seconds, compute_thread_seconds = _measure_compute(trainer)
    losses, step_seconds, thread_seconds = (list(column) for column in zip(*measured, strict=True))
    return RunResult(
        losses=losses,
        step_seconds=step_seconds[WARM_UP_STEPS:],
        thread_seconds=thread_seconds[WARM_UP_STEPS:],
        final_loss=final_loss,
        parameters_sha256=sha256,
        parameter_count=sum(p.numel() for p in trainer.model.parameters()),
        loopback_bytes=_difference(sent_before, sent_after),
        window_steps=settings.steps - WARM_UP_STEPS,
        compute_seconds=compute_seconds,
        compute_thread_seconds=compute_thread_seconds,
        report=state.report().as_dict() if state is not None else None,
    )


def _loopback_sent_by_all() -> int | None:
    """The counter of ``lo`` while no rank sends: after the first barrier every earlier step is done
    everywhere, before the second no rank starts the next one. The barriers' own few hundred bytes
    are in the window."""
    dist.barrier()
    sent = loopback_sent()
    dist.barrier()
    return sent


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _measure_compute(trainer: Trainer) -> tuple[float, float]:
    """Median step without communication, on all ranks at once; spoils the model, so it is last."""
    dist.barrier()
    with trainer.ddp.no_sync():
        measured = [trainer.step(number) for number in range(COMPUTE_STEPS)]
    _, wall, thread = (torch.tensor(c, dtype=torch.float64) for c in zip(*measured, strict=True))
    return float(wall.median()), float(thread.median())
