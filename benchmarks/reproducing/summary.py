# SPDX-License-Identifier: MIT
"""For the README: what trainings end with, what their steps take, and what became of the paper's
figures."""

from collections.abc import Mapping, Sequence

from .page import differs, in_table, ratio, saved, value
from .rows import Range, Row
from .settings import MODELS

# Of s2reducer; the others stand in the whole table.
SHOWN = ("auto", "sketch", "paper", "topk")

# What the paper compares itself with, and what it reports at best.
THE_FOUR = ("coo", "sparcml", "parallax", "omnireduce")
PAPER_SAVES, PAPER_SPEED_UP = 0.81, 1.8

Models = Mapping[str, Mapping[str, Row]]


def tables_of(rows: Sequence[Row]) -> dict[str, str]:
    """By the name of their marks in the page."""
    models: dict[str, dict[str, Row]] = {}
    for row in rows:
        models.setdefault(row.model, {})[row.method] = row
    return {"trained": _trained(models), "timed": _timed(models), "verdict": _verdict(models)}


def _trained(models: Models) -> str:
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


def _timed(models: Models) -> str:
    """Steps over those of plain DDP, and the bytes of embeddings that the paper's mode saves."""
    head = ["model", "fastest of the four", *(f"`{method}`" for method in SHOWN)]
    head.append("sparse bytes saved by `paper`")
    lines = []
    for model, methods in models.items():
        fastest = _fastest(methods)
        cells = [MODELS[model].title, f"`{fastest.method}` {ratio(fastest)}" if fastest else "-"]
        cells += [ratio(methods[method]) if method in methods else "-" for method in SHOWN]
        cells.append(saved(methods["paper"].timed) if "paper" in methods else "-")
        lines.append(cells)
    return in_table(head, lines)


def _fastest(methods: Mapping[str, Row]) -> Row | None:
    """Of the four, by the median of its steps; None where none of them was timed."""
    timed = [methods[name] for name in THE_FOUR if name in methods and methods[name].of_dense]
    return min(timed, key=_step) if timed else None


def _step(row: Row) -> float:
    assert row.of_dense is not None
    return row.of_dense["median"]


def _verdict(models: Models) -> str:
    """Sentences on the paper's mode: whether it reaches here what the paper reports."""
    saved_by, speed_up_by, worse = {}, {}, []
    for model, methods in models.items():
        paper, fastest = methods.get("paper"), _fastest(methods)
        if paper is None:
            continue
        title = MODELS[model].title
        if paper.timed and paper.timed.of_coo is not None:
            saved_by[title] = 1 - paper.timed.of_coo
        if paper.of_dense and fastest:
            speed_up_by[title] = _step(fastest) / _step(paper)
        if paper.diverged == paper.seeds or (
            paper.difference and _is_worse(model, paper.difference)
        ):
            worse.append(title)
    sentences = []
    if saved_by:
        title, most = max(saved_by.items(), key=lambda pair: pair[1])
        sentences.append(
            f"`paper` saves at most {100 * most:.0f} % of the sparse bytes ({title}): the "
            f"paper's {100 * PAPER_SAVES:.0f} % is {'' if most >= PAPER_SAVES else 'not '}reached."
        )
    if speed_up_by:
        title, most = max(speed_up_by.items(), key=lambda pair: pair[1])
        sentences.append(
            f"Its steps are at best {most:.2f} times as fast as those of the fastest of the four "
            f"({title}): the paper's {PAPER_SPEED_UP} is "
            f"{'' if most >= PAPER_SPEED_UP else 'not '}reached."
        )
    if worse:
        sentences.append(f"With every seed it ends worse than plain DDP on: {'; '.join(worse)}.")
    return "\n".join(sentences)


def _is_worse(model: str, difference: Range) -> bool:
    """With every seed."""
    is_lower = difference.high < 0
    return is_lower if MODELS[model].higher_is_better else difference.low > 0
