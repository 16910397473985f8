# SPDX-License-Identifier: MIT
"""The pictures: losses by step, and the metric by bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from torch import Tensor

from .rows import Row, has_diverged
from .settings import HOSTS, METHODS, MODELS, RANKS

_COLUMNS = 3
_MARKERS = "os^vD"
_SMOOTHED = 20  # a line has so many times as many steps as its mean goes over


def write(out: Path, trainings: Sequence[dict[str, Any]], rows: Sequence[Row]) -> list[Path]:
    """``OUT-losses.png`` and ``OUT-bytes.png``."""
    models = list(dict.fromkeys(row.model for row in rows))
    methods = [name for name in METHODS if any(row.method == name for row in rows)]
    columns = min(len(models), _COLUMNS)
    lines = -(-len(models) // columns)
    paths = []
    for name, draw in (("losses", _losses), ("bytes", _bytes)):
        figure = Figure(figsize=(5.6 * columns, 4.4 * lines + 0.7), layout="constrained")
        FigureCanvasAgg(figure)
        shown: dict[str, Artist] = {}
        for place, model in enumerate(models, 1):
            axes = figure.add_subplot(lines, columns, place)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.set_title(MODELS[model].title)
            draw(
                axes,
                [one for one in trainings if one["model"] == model],
                [row for row in rows if row.model == model],
            )
            shown |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        labels = [method for method in methods if method in shown]
        figure.legend(
            [shown[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=3 * columns,
            frameon=False,
            fontsize=8,
        )
        paths.append(out.with_name(f"{out.name}-{name}.png"))
        # Without the version of matplotlib in it, a picture changes only when its figures do.
        figure.savefig(paths[-1], dpi=110, metadata={"Software": None})
    return paths


def _say_diverged(axes: Axes, methods: Sequence[str]) -> None:
    if methods:
        axes.text(
            0.98,
            0.98,
            f"diverged: {', '.join(methods)}",
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=8,
        )


def _style(method: str) -> dict[str, Any]:
    """The same in all pictures."""
    return {"color": colormaps["tab20"](_number(method) % 20)}


def _number(method: str) -> int:
    return list(METHODS).index(method)


def smoothed(losses: Tensor) -> Tensor:
    """Means over neighbours, from [steps] or [seeds, steps]; as many as fit."""
    width = max(1, losses.shape[-1] // _SMOOTHED)
    return losses.unfold(-1, width, 1).mean(-1)


def _losses(axes: Axes, trainings: Sequence[dict[str, Any]], rows: Sequence[Row]) -> None:
    diverged = []
    for row in rows:
        curves = [
            one["losses"]
            for one in trainings
            if one["method"] == row.method and not has_diverged(one)
        ]
        if not curves:
            diverged.append(row.method)
            continue
        seeds = smoothed(torch.tensor(curves))
        first = len(curves[0]) - seeds.shape[1] + 1
        steps = range(first, len(curves[0]) + 1)
        # Methods that are exact lie on one another: a dash lets the one below be seen.
        line = "-" if row.method == "dense" else "--" if METHODS[row.method].exact else "-"
        axes.plot(steps, seeds.mean(0), line, linewidth=1.2, label=row.method, **_style(row.method))
        axes.fill_between(
            steps, seeds.amin(0), seeds.amax(0), alpha=0.12, linewidth=0, **_style(row.method)
        )
    _say_diverged(axes, diverged)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, mean over neighbours and seeds")


def _bytes(axes: Axes, trainings: Sequence[dict[str, Any]], rows: Sequence[Row]) -> None:
    hosts = all(row.timed for row in rows)
    diverged = []
    for row in rows:
        sent = row.timed if hosts and row.timed else row.trained
        if row.value is None:
            diverged.append(row.method)
            continue
        spread = [[row.value.mean - row.value.low], [row.value.high - row.value.mean]]
        axes.errorbar(
            sent.total / 1e6,
            row.value.mean,
            spread,
            linestyle="none",
            capsize=3,
            label=row.method,
            marker=_MARKERS[_number(row.method) % len(_MARKERS)],
            **_style(row.method),
        )
    _say_diverged(axes, diverged)
    if any(row.value for row in rows):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"MB that a rank sends in a step, of {HOSTS if hosts else RANKS}")
    axes.set_ylabel(MODELS[rows[0].model].metric)
