# SPDX-License-Identifier: MIT
"""The demo's picture: two loss curves, and the bytes of both runs."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2reducer.cli.results import Summary
from s2reducer.cli.training import PLAIN, REDUCED

_COLOURS = {PLAIN: "#e69f00", REDUCED: "#0072b2"}


def write(path: Path, plain: Summary, reduced: Summary, title: str) -> None:
    """A PNG at ``path``, drawn without pyplot: the user's choice of a backend does not matter."""
    figure = Figure(figsize=(11, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    curves, bars = figure.subplots(1, 2, width_ratios=[3, 2])
    _draw_losses(curves, plain, reduced)
    _draw_bytes(bars, plain, reduced)
    figure.savefig(path, format="png")


def _draw_losses(axes: Axes, plain: Summary, reduced: Summary) -> None:
    # The curves lie on each other: the second one is thin and dashed so that both can be seen.
    axes.plot(plain.losses, color=_COLOURS[PLAIN], linewidth=3, alpha=0.6, label=PLAIN)
    axes.plot(
        reduced.losses, color=_COLOURS[REDUCED], linewidth=0.9, linestyle=(0, (4, 2)), label=REDUCED
    )
    axes.set_xlabel("step")
    axes.set_ylabel("training loss (sampled softmax), nats a word")
    axes.set_title(f"Final loss, held-out: {plain.final_loss:.4f} and {reduced.final_loss:.4f}")
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_bytes(axes: Axes, plain: Summary, reduced: Summary) -> None:
    groups = {"counted": (plain.bytes_counted, reduced.bytes_counted)}
    if plain.bytes_on_loopback is not None and reduced.bytes_on_loopback is not None:
        groups["by interface lo"] = (plain.bytes_on_loopback, reduced.bytes_on_loopback)
    for offset, name in ((-0.2, PLAIN), (0.2, REDUCED)):
        heights = [pair[name == REDUCED] / 1e6 for pair in groups.values()]
        places = [place + offset for place in range(len(groups))]
        bars = axes.bar(places, heights, width=0.38, color=_COLOURS[name], label=name)
        axes.bar_label(bars, fmt="%.2f")
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel("MB sent per rank and step")
    axes.set_title("Bytes")
    # Room for the legend above the bars.
    axes.margins(y=0.3)
    axes.legend(loc="upper right")
