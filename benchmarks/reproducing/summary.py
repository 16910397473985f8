# SPDX-License-Identifier: MIT
"""Two small tables for the README: what trainings end with, and what their steps take."""

from collections.abc import Mapping, Sequence

from .page import differs, in_table, ratio, saved, value
from .rows import Row
from .settings import MODELS

# Of s2reducer; the others stand in the whole table.
SHOWN = ("auto", "sketch", "paper", "topk")

# What the paper compares itself with.
THE_FOUR = ("coo", "sparcml", "parallax", "omnireduce")


def tables_of(rows: Sequence[Row]) -> dict[str, str]:
    """By the name of their marks in the page."""
    models: dict[str, dict[str, Row]] = {}
    for row in rows:
        models.setdefault(row.model, {})[row.method] = row
    return {"trained": _trained(models), "timed": _timed(models)}


def _trained(models: Mapping[str, Mapping[str, Row]]) -> str:
    """The metric of each method; of an exact one whether its losses are those of dense."""
    head = ["model", "metric", "plain DDP", *(f"`{method}`" for method in SHOWN)]
    lines = []
    for model, methods in models.items():
        known = MODELS[model]
        cells = [known.title, known.metric, value(methods["dense"])]
        for method in SHOWN:
            row = methods.get(method)
            cells.append("-" if row is None else value(row) + " **differs**" * differs(row))
        lines.append(cells)
    return in_table(head, lines)


def _timed(models: Mapping[str, Mapping[str, Row]]) -> str:
    """Steps over those of plain DDP, and the bytes of embeddings that the paper's mode saves."""
    head = ["model", "fastest of the four", *(f"`{method}`" for method in SHOWN)]
    head.append("sparse bytes saved by `paper`")
    lines = []
    for model, methods in models.items():
        others = [methods[name] for name in THE_FOUR if name in methods]
        timed = [(row.of_dense["median"], row) for row in others if row.of_dense]
        fastest = min(timed, key=lambda pair: pair[0])[1] if timed else None
        cells = [MODELS[model].title, f"`{fastest.method}` {ratio(fastest)}" if fastest else "-"]
        cells += [ratio(methods[method]) if method in methods else "-" for method in SHOWN]
        cells.append(saved(methods["paper"].timed) if "paper" in methods else "-")
        lines.append(cells)
    return in_table(head, lines)
