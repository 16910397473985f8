# SPDX-License-Identifier: MIT
"""Pictures for docs/sketch.md."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor

COLOURS = ("#0b6e99", "#d9730d", "#448361", "#ad1a72")
THEORY = {"color": "#787774", "linestyle": "--", "linewidth": 1}


def write(
    folder: Path,
    stem: str,
    curve: Sequence[dict[str, Any]],
    errors: dict[str, dict[str, Tensor]],
    estimates: Sequence[dict[str, Any]],
    feedback: Sequence[dict[str, Any]],
) -> list[Path]:
    """Four files; ``errors`` are blocks' errors before and after repair, by the label of a case."""
    pictures = {
        "peeling": _peeling(curve),
        "errors": _errors(errors),
        "estimates": _estimates(estimates),
        "feedback": _feedback(feedback),
    }
    paths = []
    for name, figure in pictures.items():
        paths.append(folder / f"{stem}-{name}.png")
        # Without the version of matplotlib in it, a picture changes only when its figures do.
        figure.savefig(paths[-1], dpi=110, metadata={"Software": None})
    return paths


def _figure(naxes: int = 1) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.2 * naxes if naxes > 1 else 6.4, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, naxes, index + 1) for index in range(naxes)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    return figure, axes


def _peeling(curve: Sequence[dict[str, Any]]) -> Figure:
    figure, (whole, rounds) = _figure(2)
    by_blocks = defaultdict(list)
    for record in curve:
        by_blocks[record["blocks"]].append(record)
    for colour, (nblocks, records) in zip(COLOURS, by_blocks.items(), strict=False):
        cells = [record["cells_per_block"] for record in records]
        label = f"{nblocks:,} blocks"
        whole.plot(cells, [r["whole"] for r in records], ".-", color=colour, label=label)
        done = [r for r in records if r["whole"] > 0.5]
        rounds.plot(
            [r["cells_per_block"] for r in done], [r["rounds"] for r in done], ".-", color=colour
        )
    for axes in (whole, rounds):
        axes.axvline(1.222, **THEORY)
        axes.set_xlabel("cells for each block, three rows")
    whole.set_ylabel("share of seeds with no block stuck")
    whole.legend(frameon=False, fontsize=8)
    rounds.set_ylabel("rounds, median (where most seeds\nleave no block stuck)")
    rounds.set_ylim(bottom=0)
    return figure


def _errors(errors: dict[str, dict[str, Tensor]]) -> Figure:
    figure, (axes,) = _figure()
    for colour, (label, parts) in zip(COLOURS, errors.items(), strict=False):
        for name, style in (("before", "-"), ("after", ":")):
            relative = parts[name].clamp_min(1e-9).sort().values
            # One minus the rank, so that the few bad blocks are what is seen.
            share = 1 - torch.arange(relative.numel()) / relative.numel()
            axes.loglog(relative, share, style, color=colour, label=f"{label}, {name} repair")
    axes.axvline(2.0**-16, **THEORY)
    axes.set_xlabel("error of a block relative to its own norm (line: 2$^{-16}$)")
    axes.set_ylabel("share of blocks with more")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _estimates(estimates: Sequence[dict[str, Any]]) -> Figure:
    figure, (axes,) = _figure()
    by_rows = defaultdict(list)
    for record in estimates:
        by_rows[record["rows"]].append(record)
    for colour, (rows, records) in zip(COLOURS, by_rows.items(), strict=False):
        cells = [record["cells_per_block"] for record in records]
        label = "one row" if rows == 1 else f"median of {rows} rows"
        axes.loglog(cells, [r["error"] for r in records], "o-", color=colour, label=label)
    cells = [record["cells_per_block"] for record in records]
    axes.loglog(cells, [r["theory"] for r in records], label="$\\sqrt{K/c}$", **THEORY)
    for axis, ticks in ((axes.xaxis, cells), (axes.yaxis, (0.2, 0.5, 1, 2))):
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(ticks, [f"{one:g}" for one in ticks])
    axes.set_xlabel("cells for each block, in all rows together")
    axes.set_ylabel("error relative to the norm of all blocks")
    axes.legend(frameon=False)
    return figure


def _feedback(feedback: Sequence[dict[str, Any]]) -> Figure:
    figure, (axes,) = _figure()
    for index, record in enumerate(feedback):
        colour, style = COLOURS[index // 2], ":" if record["damped"] else "-"
        norms = [one if one < 1e6 else math.nan for one in record["norms"]]
        label = f"{'' if record['damped'] else 'not '}damped, {record['cells_per_block']:g} a block"
        axes.semilogy(range(1, len(norms) + 1), norms, style, color=colour, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("norm of what is owed\nrelative to a gradient's")
    axes.legend(frameon=False, fontsize=8, loc="center right")
    return figure
