# SPDX-License-Identifier: MIT
"""Lossy modes with feedback on a quadratic: they reach its optimum, at the rate that is said.

The functions are h/2 |x - c|^2 with a centre c on each rank, so that a dense step of the length
``lr`` takes the distance from the mean centre to (1 - lr h) of itself.
"""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import RandomK, SharedTopK, SketchConfig, Threshold, TopK
from s2reducer.selection import Selection

DENSITY = 0.1
SHAPE = (500, 16)
PAPER = SketchConfig(
    rows=1, cells=0.25, margin=1.0, on_overflow="estimate", fixed=True, error_feedback=True
)
SETTINGS: dict[str, dict[str, Any]] = {
    "top": {"select": TopK(DENSITY)},
    "elements": {"select": TopK(DENSITY, block=1)},
    "shared": {"select": SharedTopK(DENSITY)},
    "random": {"select": RandomK(DENSITY)},
    "threshold": {"select": Threshold(2.0)},
    "narrow": {"wire": "bf16"},
    "top and narrow": {"select": TopK(DENSITY), "wire": "bf16"},
    "defer": {
        "plan": "sketch",
        "sketch": SketchConfig(cells=0.5, margin=1.0, on_overflow="defer"),
    },
    "paper": {"plan": "sketch", "sketch": PAPER},
}


class Descent:
    """A descent with h = 1 from zero.

    ``shared`` is whether ranks have one centre.  ``rows`` of ten are in turn: the gradient of the
    others is zero.
    """

    def __init__(self, settings: dict[str, Any], lr: float, shared: bool, rows: int) -> None:
        self.centres = [
            torch.randn(SHAPE, generator=torch.Generator().manual_seed(0 if shared else 1 + rank))
            for rank in range(dist.get_world_size())
        ]
        self.centre = torch.stack(self.centres).mean(0)
        model = Given(torch.zeros(SHAPE))
        self.x = model.p[0]
        self.ddp = DistributedDataParallel(model)
        self.state = s2reducer.register(self.ddp, **settings)
        self.lr, self.rows, self.steps = lr, rows, 0

    def gradient(self, centre: Tensor) -> Tensor:
        turn = (torch.arange(SHAPE[0]) + self.steps) % 10 < self.rows
        return (self.x.detach() - centre) * turn[:, None]

    def step(self) -> None:
        self.ddp.zero_grad()
        self.ddp({0: self.gradient(self.centres[dist.get_rank()])}).backward()
        assert self.x.grad is not None
        self.x.data -= self.lr * self.x.grad
        self.steps += 1

    def distance(self) -> float:
        """From the optimum, over that from the start."""
        return float((self.x.detach() - self.centre).norm() / self.centre.norm())

    def owed(self) -> Tensor:
        """The mean of the ranks."""
        flat = torch.zeros(self.x.numel())
        residual = self.state.residual(self.x)
        if residual is not None:
            flat.view(-1, residual.rows.shape[1])[residual.blocks] = residual.rows
        dist.all_reduce(flat)
        return flat.view(SHAPE) / dist.get_world_size()


def drift(settings: dict[str, Any], rows: int) -> tuple[float, float]:
    """How far the point without what is owed leaves its own descent, and how much is owed."""
    descent = Descent(settings, 0.02, shared=False, rows=rows)
    wanted = descent.x.detach().clone()
    worst = most = 0.0
    for _ in range(40):
        wanted -= descent.lr * descent.gradient(descent.centre)
        descent.step()
        owed = descent.owed()
        virtual = descent.x.detach() - descent.lr * owed
        worst = max(worst, float((virtual - wanted).abs().max()))
        most = max(most, float(owed.abs().max()))
    return worst, most


# One of each kind of residual in daily work.
DAILY = ("top", "narrow", "defer")


@pytest.mark.parametrize(
    "name",
    [name if name in DAILY else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS],
)
def test_without_what_is_owed_it_is_a_descent_like_any(ranks: Ranks, name: str) -> None:
    """x minus lr times the mean debt moves by the gradients at x, exactly but for rounding."""
    rows = 1 if "plan" in SETTINGS[name] else 10
    worst, most = ranks.run(2, drift, SETTINGS[name], rows)[0]
    assert most > 1e-3
    assert worst < 2e-5


def reach(settings: dict[str, Any], lr: float, steps: int, shared: bool, rows: int = 10) -> float:
    descent = Descent(settings, lr, shared, rows)
    for _ in range(steps):
        descent.step()
    return descent.distance()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top", "elements", "shared", "random", "narrow"])
def test_with_one_centre_the_rate_is_that_of_dense(ranks: Ranks, name: str) -> None:
    """Where lr h / density is well below 2: here it is 0.2."""
    steps = 300
    distance = ranks.run(2, reach, SETTINGS[name], 0.02, steps, True)[0]
    dense = 0.98**steps
    assert 0.8 < math.log(distance) / math.log(dense) < 1.4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "random"])
def test_what_all_ranks_choose_reaches_the_optimum_of_all(ranks: Ranks, name: str) -> None:
    assert ranks.run(2, reach, SETTINGS[name], 0.02, 400, False)[0] < 2 * 0.98**400


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top", "top and narrow", "narrow"])
def test_others_stay_as_far_away_as_a_step_is_long(ranks: Ranks, name: str) -> None:
    """What is owed does not shrink where ranks pull in different ways: halve lr, halve it."""
    far = ranks.run(2, reach, SETTINGS[name], 0.02, 400, False)[0]
    near = ranks.run(2, reach, SETTINGS[name], 0.01, 800, False)[0]
    assert near < 0.7 * far + 2 * 0.98**400


@pytest.mark.slow
@pytest.mark.parametrize("name", ["top", "random", "shared"])
def test_steps_that_are_too_long_diverge(ranks: Ranks, name: str) -> None:
    """A block that is sent every 1 / density steps moves by so many steps at once."""
    assert ranks.run(2, reach, SETTINGS[name], 0.3, 100, True)[0] > 1.0
    assert ranks.run(2, reach, {}, 0.3, 100, True)[0] < 1e-6


@pytest.mark.slow
def test_a_threshold_stops_a_step_away(ranks: Ranks) -> None:
    distance = ranks.run(2, reach, SETTINGS["threshold"], 0.02, 400, True)[0]
    assert 1e-3 < distance <= 0.02 * 2.0  # centres have a root mean square of 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["defer", "paper"])
def test_sketches_reach_it_too(ranks: Ranks, name: str) -> None:
    """The estimates of four blocks in a cell are damped to a fifth: lr h times 5 is 0.25."""
    dense = ranks.run(2, reach, {}, 0.05, 900, True, 1)[0]
    assert dense == pytest.approx(0.95**90, rel=1e-3)
    distance = ranks.run(2, reach, SETTINGS[name], 0.05, 900, True, 1)[0]
    assert 0.8 < math.log(distance) / math.log(dense) < 1.4


def without_feedback(select: Selection) -> float:
    return reach({"select": select, "error_feedback": False}, 0.02, 400, False)


@pytest.mark.slow
def test_without_feedback_the_optimum_is_missed(ranks: Ranks) -> None:
    """Where ranks pull in different ways, the largest of each are not the largest of the sum."""
    assert ranks.run(2, without_feedback, TopK(DENSITY))[0] > 0.1
