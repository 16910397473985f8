# SPDX-License-Identifier: MIT
"""Trainings on real data, by the scripts in ``examples``, end where theory says.

Exact plans have the losses of dense AllReduce; lossy modes that should converge do, and those that
should not do not.  Tests say what other seeds have given, from which their margins come.
"""

import importlib
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import corpora
from baselines.hooks import pieces_of
from reproducing import accuracy

import s2reducer
from s2reducer import S2State, TopK, s2_hook

RESNET, XL = "resnet_fashion_mnist", "transformer_xl"
TEXT_BYTES = 2 * 2**20


def needs(model: str) -> pytest.MarkDecorator:
    """On CI the data are always there."""
    missing = accuracy.missing_data([model], [])
    return pytest.mark.skipif(bool(missing), reason=f"Debian's {missing} is not installed")


pytestmark = pytest.mark.slow

Install = Callable[[DistributedDataParallel], Any]


def train(script: str, flags: Sequence[str], install: Install | None = None) -> dict[str, Any]:
    """What the script's ``main`` returns; without ``install``, by DDP alone."""
    result: dict[str, Any] = importlib.import_module(script).main(
        [*flags, "--no-s2reducer"], install
    )
    return result


def by_settings(
    script: str, flags: Sequence[str], *settings: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """One training after another; None is plain DDP."""

    def install(one: dict[str, Any]) -> Install:
        return lambda ddp: s2reducer.register(ddp, **one)

    return [train(script, flags, None if one is None else install(one)) for one in settings]


def mean_of_last(result: dict[str, Any], steps: int) -> float:
    return statistics.fmean(result["losses"][-steps:])


@pytest.fixture(scope="module")
def xl_flags(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A small Transformer-XL that reads the first letter of a dictionary."""
    prose = corpora.without_markup(corpora.read_dictionary("gcide", TEXT_BYTES))
    text = tmp_path_factory.mktemp("text") / "text"
    text.write_text(prose)
    sizes = {"vocabulary": 8000, "width": 64, "layers": 2, "batch": 8, "length": 24, "memory": 24}
    return [*(f"--{name}={size}" for name, size in sizes.items()), "--text", str(text)]


# ------------------------------------------------------------------------------------------------
# Exact plans
# ------------------------------------------------------------------------------------------------

STEPS = 40


def assert_same_curves(
    ranks: Ranks, script: str, flags: Sequence[str], *plans: str, within: float
) -> None:
    """On three ranks: with two, a mean has one order of sums, and every plan has the same bits.

    A sum in another order differs in its last bit.  Training makes that larger from step to step,
    with batch norm and a rate of 0.1 by half in each.  So it is for some tens of steps, and on
    images at a low rate, that the curves can be compared.
    """
    settings = [None, *({"plan": plan} for plan in plans)]
    dense, *others = ranks.run(
        3, by_settings, script, [*flags, f"--steps={STEPS}"], *settings, seconds=400
    )[0]
    assert mean_of_last(dense, 5) < 0.96 * dense["losses"][0]
    for plan, other in zip(plans, others, strict=True):
        assert other["losses"] == pytest.approx(dense["losses"], rel=within), plan
        assert other["value"] == pytest.approx(dense["value"], rel=1e-2), plan


@needs("resnet")
def test_exact_plans_have_the_losses_of_dense_on_images(ranks: Ranks) -> None:
    """These give 4e-6; the rate 0.1 gave 1e-2."""
    flags = ["--batch=32", "--rate=0.005"]
    assert_same_curves(ranks, RESNET, flags, "owner", "union", within=1e-4)


@needs("transformer-xl")
def test_exact_plans_have_the_losses_of_dense_on_text(ranks: Ranks, xl_flags: list[str]) -> None:
    """These give 1e-7, and 6e-7 after three times as many steps; a wire of bfloat16 gives 2e-5."""
    assert_same_curves(ranks, XL, xl_flags, "gather", "auto", within=1e-6)


# ------------------------------------------------------------------------------------------------
# Selection
# ------------------------------------------------------------------------------------------------


@needs("resnet")
def test_the_largest_hundredth_suffices_with_feedback_and_not_without(ranks: Ranks) -> None:
    """A block waits for a hundred steps in the mean, so a training must be much longer than that.

    Seeds 0 and 1 ended at 85.2 and 86.1 % with dense, 0.4 points below with feedback, and seed 1
    4.8 points below without.  In half of the steps feedback came to 0.6 and 1.3 points below.
    """
    flags = ["--batch=8", "--rate=0.02", "--steps=2400"]
    top = {"select": TopK(0.01)}
    dense, fed_back, lost = ranks.run(
        2, by_settings, RESNET, flags, None, top, {**top, "error_feedback": False}, seconds=900
    )[0]
    assert fed_back["value"] > dense["value"] - 0.01
    assert lost["value"] < dense["value"] - 0.02


# ------------------------------------------------------------------------------------------------
# The paper's estimates
# ------------------------------------------------------------------------------------------------


class Estimates:
    """The paper's hook on two ranks, with the exact mean of the table beside it.

    Attributes:
        errors: of the table's gradient, relative to its norm, in each step.
        theory: sqrt(K / c) for the K rows of the step and the c cells of the table of sums.
    """

    def __init__(self) -> None:
        self.errors: list[float] = []
        self.theory: list[float] = []
        self._cells = 0

    def install(self, ddp: DistributedDataParallel) -> S2State:
        (table,) = accuracy.tables_of(ddp.module)
        state = S2State.paper(ddp.process_group)

        def hook(state, bucket):  # DDP accepts no other annotations than its own
            exact = bucket.buffer() / dist.get_world_size()
            dist.all_reduce(exact)
            offsets = [offset for one, offset, _ in pieces_of(bucket) if one is table]

            def compare(done: torch.futures.Future[Tensor]) -> Tensor:
                for offset in offsets:
                    part = slice(offset, offset + table.numel())
                    self._add(done.value()[part].view_as(table), exact[part].view_as(table))
                return done.value()

            return s2_hook(state, bucket).then(compare)

        ddp.register_comm_hook(state, hook)
        return state

    def _add(self, estimate: Tensor, exact: Tensor) -> None:
        live = int(exact.any(1).sum())
        self._cells = self._cells or math.ceil(0.25 * live)  # fixed, for the first step's rows
        self.errors.append(float((estimate - exact).norm() / exact.norm()))
        self.theory.append(math.sqrt((live - 1) / self._cells))


def with_estimates(flags: Sequence[str]) -> tuple[Estimates, dict[str, Any], dict[str, Any]]:
    estimates = Estimates()
    estimated = train(XL, flags, estimates.install)
    return estimates, estimated, train(XL, flags)


def root_mean_square(figures: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(figure**2 for figure in figures))


@needs("transformer-xl")
def test_a_quarter_of_a_cell_for_each_row_misses_by_twice_the_gradient(
    ranks: Ranks, xl_flags: list[str]
) -> None:
    flags = [*xl_flags, "--steps=150"]
    estimates, estimated, dense = ranks.run(2, with_estimates, flags, seconds=400)[0]
    assert len(estimates.errors) == 150
    ratios = [
        error / theory for error, theory in zip(estimates.errors, estimates.theory, strict=True)
    ]
    # Seeds 0 to 2 gave 1.01 to 1.02, and 1.96 to 2.11: some batches have more rows than the first.
    assert root_mean_square(ratios) == pytest.approx(1.0, abs=0.1)
    assert root_mean_square(estimates.errors) == pytest.approx(2.0, abs=0.3)
    # They gave losses that were 0.09 to 0.10 higher, and perplexities 9 to 11 % higher.
    assert mean_of_last(estimated, 20) > mean_of_last(dense, 20) + 0.04
    assert estimated["value"] > 1.04 * dense["value"]
