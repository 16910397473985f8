# SPDX-License-Identifier: MIT
"""The same training over lanes and over what is like NCCL, to be compared bit by bit."""

import itertools
import math
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from nccl_like import nccl_like
from ranks import EXACT_UNIT, Given, assert_same_on_all_ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer

SHAPES = [(3000, 16), (2000, 64), (500, 64), (300, 64), (333,), (40, 50), (12, 12)]
STEPS = 7


# Of the numbers in gradients; the other is more than bfloat16 can keep.
MOST, MOST_ON_THE_WIRE = 8, 4000


def gradient(
    shape: tuple[int, ...], dtype: torch.dtype, density: float, most: int, *seed: int
) -> Tensor:
    """Whole numbers in some rows, and zeros of either sign in the others."""
    numbers = torch.Generator().manual_seed(hash(seed) & 0xFFFF_FFFF)
    values = torch.randint(-most, most + 1, shape, generator=numbers) * float(EXACT_UNIT)
    dead = torch.rand(shape[0], generator=numbers) >= density
    values[dead] = 0.0
    values[dead & (torch.rand(shape[0], generator=numbers) < 0.1)] = -0.0
    return values.to(dtype)


def gradients(
    step: int, rank: int, seed: int, dtype: torch.dtype, most: int = MOST
) -> dict[int, Tensor]:
    """Of sparse tables, and of one that is dense; the union grows and shrinks."""
    density = (0.05, 0.04, 0.06, 0.05, 0.08, 0.03, 0.05)[step]
    sparse = {
        n: gradient(shape, dtype, density, most, seed, step, rank, n)
        for n, shape in enumerate(SHAPES[:-1])
    }
    return sparse | {len(SHAPES) - 1: gradient(SHAPES[-1], dtype, 1.0, most, seed, step, rank)}


def bits(tensors: list[Tensor]) -> bytes:
    return b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)


class Training:
    """A model with its state, some steps of which may be over lanes, or over what is like NCCL.

    Attributes:
        results: for each step the gradients and what is owed.
        reasons: for each step, how each parameter travelled, and why.
        nbuckets: up to each step.
    """

    def __init__(self, settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        model = Given(*(torch.zeros(shape, dtype=dtype) for shape in SHAPES))
        self._ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
        no_scale = torch.amp.GradScaler(enabled=False)
        settings = {"scaler": no_scale} | settings
        self.state = s2reducer.register(self._ddp, **settings)
        self._dtype = dtype
        self._most = MOST_ON_THE_WIRE if "wire" in settings else MOST
        self.results: list[tuple[list[Tensor], list[Any]]] = []
        self.reasons: list[list[str]] = []
        self.nbuckets: list[int] = []

    def step(self, step: int, seed: int, spoilt: bool = False, factor: float = 1.0) -> None:
        """Rank 1 has a NaN and an infinity in the third table where it is ``spoilt``.

        The fourth has blocks as long as those, and is in the same bucket.
        """
        given = gradients(step, dist.get_rank(), seed, self._dtype, self._most)
        given = {number: factor * gradient for number, gradient in given.items()}
        if spoilt and dist.get_rank() == 1:
            given[2][7, 3], given[2][9, 1] = math.nan, math.inf
        parameters = list(self._ddp.parameters())
        self._ddp.zero_grad()
        self._ddp(given).backward()
        grads = [parameter.grad.clone() for parameter in parameters]
        assert_same_on_all_ranks(grads)
        self.results.append((grads, [self.state.residual(parameter) for parameter in parameters]))
        report = self.state.report().as_dict()
        self.nbuckets.append(sum(plan["buckets"] for plan in report["plans"].values()))
        entries = report["parameters"]
        self.reasons.append([f"{entry['plan']}: {entry['reason']}" for entry in entries])

    def bits(self, step: int, signs: bool = True) -> bytes:
        """Of a step, but for which NaN a NaN is, or also for the signs of zeros."""
        grads, residuals = self.results[step]
        grads = grads if signs else [grad + 0.0 for grad in grads]
        owed = [part for one in residuals if one is not None for part in (one.blocks, one.rows)]
        return bits([grad.nan_to_num(1.0) for grad in grads] + owed)


def train_both(
    settings: dict[str, Any],
    dtype: torch.dtype,
    seed: int,
    spoilt: tuple[int, ...] = (),
    signs: bool = True,
) -> tuple[list[str], Training, Training]:
    """The events of the ordered engine; a training by lanes and one by it, of the same bits."""
    lanes = Training(settings, dtype)
    for step in range(STEPS):
        lanes.step(step, seed, step in spoilt)
    with nccl_like() as record:
        ordered = Training(settings, dtype)
        for step in range(STEPS):
            record.mark("step")
            ordered.step(step, seed, step in spoilt)
    for step in range(STEPS):
        same = ordered.bits(step, signs) == lanes.bits(step, signs)
        assert same, f"step {step}: {lanes.reasons[step]}"
    return record.events, lanes, ordered


class Scales(torch.amp.GradScaler):
    """Another scale in every step."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.step_number = 0

    def get_scale(self) -> float:
        return float(2.0 ** (3 + self.step_number % 3))


def scale(settings: dict[str, Any], seed: int) -> None:
    """Under another scale in every step, one of which is not finite."""
    trained = []
    for context in (nullcontext, nccl_like):
        with context():
            scaler = Scales()
            training = Training(settings | {"scaler": scaler})
            for step in range(STEPS):
                scaler.step_number = step
                training.step(step, seed, step == 4, scaler.get_scale())
            trained.append([training.bits(step) for step in range(STEPS)])
    assert trained[0] == trained[1]


def go_on(settings: dict[str, Any], seed: int) -> None:
    """Saved by either engine, and loaded by both, in the middle of a training."""
    saved, middle = [], 4
    for context in (nullcontext, nccl_like):
        with context():
            training = Training(settings)
            for step in range(middle):
                training.step(step, seed)
            saved.append(training.state.state_dict())
    for one, other in zip(*(state["parameters"] for state in saved), strict=True):
        assert one.keys() == other.keys()
        assert all(bits([one[name]]) == bits([other[name]]) for name in one if "owed" in name)
    assert any("owed" in name for one in saved[0]["parameters"] for name in one)
    trained = []
    for state, context in itertools.product(saved, (nullcontext, nccl_like)):
        with context():
            training = Training(settings)
            training.state.load_state_dict(state)
            for step in range(middle, STEPS):
                training.step(step, seed)
            trained.append([training.bits(number) for number in range(STEPS - middle)])
    assert all(one == trained[0] for one in trained)
