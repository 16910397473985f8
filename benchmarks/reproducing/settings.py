# SPDX-License-Identifier: MIT
"""Models and methods by name, which of them go together, and how much of it a run takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baselines.methods import Method, make_method
from torch import Tensor

import s2reducer
from s2reducer import S2State, TopK

RANKS = 2  # of a training
HOSTS, RATE = 4, "1gbit"  # where steps are timed

# ------------------------------------------------------------------------------------------------
# Models
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A script of ``examples`` and its flags.

    Attributes:
        title: as in the tables.
        script: in ``examples``, without its suffix.
        metric: what the script reports.
        sizes: flags that say what is trained; the others keep the script's defaults.
        steps: of a training.
        tables: whether it has embeddings, so that rows of its gradient are zero.
        data: Debian's package.
        start_seconds, step_seconds: what a training takes for all but its steps, and for a step, on
            two cores of an AMD EPYC (2026) that do nothing else.
    """

    title: str
    script: str
    metric: str
    sizes: Mapping[str, int]
    steps: int
    tables: bool
    data: str
    start_seconds: float
    step_seconds: float

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "test accuracy"


PERPLEXITY = "validation perplexity"
_READING = {"vocabulary": 30_000, "width": 128, "batch": 16, "length": 32}
_TRANSLATING = {"vocabulary": 20_000, "width": 96, "batch": 32, "longest": 20}
TEXT, IMAGES, PAIRS = "dict-gcide", "dataset-fashion-mnist", "dict-freedict-deu-eng"

MODELS = {
    "resnet": Model(
        title="ResNet-8",
        script="resnet_fashion_mnist",
        metric="test accuracy",
        sizes={"depth": 8, "batch": 64},
        steps=600,
        tables=False,
        data=IMAGES,
        start_seconds=8.0,
        step_seconds=0.08,
    ),
    "lstm": Model(
        title="LSTM language model",
        script="lstm_language_model",
        metric=PERPLEXITY,
        sizes={**_READING, "layers": 1},
        steps=600,
        tables=True,
        data=TEXT,
        start_seconds=8.0,
        step_seconds=0.08,
    ),
    "transformer-xl": Model(
        title="Transformer-XL",
        script="transformer_xl",
        metric=PERPLEXITY,
        sizes={**_READING, "layers": 3, "heads": 4, "memory": 32},
        steps=500,
        tables=True,
        data=TEXT,
        start_seconds=9.0,
        step_seconds=0.15,
    ),
    "gnmt-8": Model(
        title="GNMT, 8 layers",
        script="gnmt",
        metric=PERPLEXITY,
        sizes={**_TRANSLATING, "layers": 8},
        steps=250,
        tables=True,
        data=PAIRS,
        start_seconds=9.0,
        step_seconds=0.12,
    ),
    "gnmt-16": Model(
        title="GNMT, 16 layers",
        script="gnmt",
        metric=PERPLEXITY,
        sizes={**_TRANSLATING, "layers": 16},
        steps=250,
        tables=True,
        data=PAIRS,
        start_seconds=11.0,
        step_seconds=0.2,
    ),
}

# ------------------------------------------------------------------------------------------------
# Methods
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """A method with its settings.

    Attributes:
        what: for the page.
        base: a name of ``baselines``, or ``"paper"`` for ``S2State.paper``.
        settings: of it.
        steady: the same where steps are timed, for what else would be in its warm-up then.
        exact: gives the mean of the gradients but for rounding, so that losses are those of dense.
        rest: bytes of an element in the AllReduce by which parameters that are no tables travel;
            None where they travel in another way.
        only: "tables" or "no tables", where it makes sense for these models alone.
    """

    what: str
    base: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    steady: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    rest: int | None = 4
    only: str | None = None


_ROWS: dict[str, Any] = {"exact": True, "only": "tables"}

METHODS = {
    "dense": Way("AllReduce of everything, as DDP does it", "dense", exact=True),
    "coo": Way("all-gather of rows and their numbers", "coo", **_ROWS),
    "sparcml": Way("SparCML, recursive doubling", "sparcml", **_ROWS),
    "parallax": Way("Parallax, parameter servers beside the workers", "parallax", **_ROWS),
    "omnireduce": Way(
        "OmniReduce, non-zero blocks of all parameters", "omnireduce", exact=True, rest=None
    ),
    "zen": Way("ZEN, hashed owners", "zen", **_ROWS),
    "auto": Way("s2reducer's default", "auto", exact=True),
    "sketch": Way(
        's2reducer, `plan="sketch"`: peeled, and repaired', "sketch", exact=True, only="tables"
    ),
    "paper": Way("s2reducer, `S2State.paper()`: estimates", "paper", only="tables"),
    "paper-feedback": Way(
        "the same with error feedback", "paper", {"error_feedback": True}, only="tables"
    ),
    "fp16": Way("AllReduce in float16", "fp16", rest=2),
    "bf16": Way("AllReduce in bfloat16", "bf16", rest=2),
    "wire-bf16": Way('s2reducer, `wire="bf16"`', "auto", {"wire": "bf16"}, rest=None),
    "topk": Way("s2reducer, `select=TopK(0.01)`", "auto", {"select": TopK(0.01)}, rest=None),
    "topk-no-feedback": Way(
        "the same with `error_feedback=False`",
        "auto",
        {"select": TopK(0.01), "error_feedback": False},
        rest=None,
    ),
    "powersgd": Way("PowerSGD of rank 2", "powersgd", rest=None),
    # The scripts' optimizers have their own momentum.
    "dgc": Way(
        "Deep Gradient Compression, 0.1 %, without its momentum; timed behind its warm-up",
        "dgc",
        {"momentum": 0.0, "warm_up": 20},
        {"warm_up": 0},
        rest=None,
    ),
}


def applies(method: str, model: str) -> bool:
    """Whether a method makes sense for a model."""
    only = METHODS[method].only
    return only is None or (only == "tables") == MODELS[model].tables


def make(
    name: str, tables: Iterable[Tensor] = (), group: Any = None, is_timed: bool = False
) -> Method:
    """A method of ``METHODS``, or another of ``baselines``, with a state of its own."""
    if name not in METHODS:
        return make_method(name, tables, group)
    way = METHODS[name]
    settings = {**way.settings, **(way.steady if is_timed else {})}
    if way.base == "paper":
        return Method(name, S2State.paper(group, **settings), s2reducer.s2_hook)
    method = make_method(way.base, tables, group, **settings)
    return Method(name, method.state, method.hook)


# ------------------------------------------------------------------------------------------------
# How much of it
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """What one command trains and times.

    Attributes:
        models: by name, each with its methods; the first is ``dense``.
        seeds: of the trainings.
        share: of the models' steps that are done.
        turns: in which steps are timed on the links; 0 for none.
        sizes: flags instead of the models' own, where a model has them.
    """

    models: Mapping[str, Sequence[str]]
    seeds: int = 3
    share: float = 1.0
    turns: int = 12
    sizes: Mapping[str, int] = field(default_factory=dict)

    def sizes_of(self, model: str) -> dict[str, int]:
        own = MODELS[model].sizes
        return {name: self.sizes.get(name, size) for name, size in own.items()}

    def steps_of(self, model: str) -> int:
        return max(1, round(self.share * MODELS[model].steps))


_FEW = {
    "resnet": ("dense", "auto", "wire-bf16", "topk", "topk-no-feedback"),
    "transformer-xl": ("dense", "coo", "auto", "sketch", "paper"),
}
PROFILES = {
    "default": Profile(_FEW),
    "quick": Profile(_FEW, seeds=1, share=0.15, turns=5),
    "full": Profile(
        {model: tuple(name for name in METHODS if applies(name, model)) for model in MODELS}
    ),
    "smoke": Profile(
        {"lstm": ("dense", "auto", "topk"), "transformer-xl": ("dense", "coo", "auto")},
        seeds=1,
        share=0.06,
        turns=0,
        sizes={"vocabulary": 600, "width": 16, "batch": 4, "length": 8, "memory": 8},
    ),
}
