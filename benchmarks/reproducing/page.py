# SPDX-License-Identifier: MIT
"""The tables in Markdown, and what they say about themselves."""

from collections.abc import Callable, Sequence

from .rows import COMPARED_STEPS, TOLERANCE, Row, Sent
from .settings import HOSTS, METHODS, MODELS, RANKS

# arXiv 2110.02140, abstract.
PAPER = (
    "The paper (S2 Reducer, arXiv 2110.02140) reports up to 81 % less sparse communication and a\n"
    "speed-up of 1.8 over four other methods on five models, on GPUs and without loss of accuracy."
)

NOTES = f"""\
- **trained on {RANKS} ranks**: real ranks on this machine over loopback, by the scripts in
  [`examples`](../../examples). The metric is the mean over seeds, with the least and the most in
  brackets; so is its difference, which is taken seed by seed. *Diverged*: a loss was not finite, or
  they were higher in the last tenth of the steps than in the first.
- **MB a step**: sent by a rank, in the mean, by the formulas of rings. `auto` goes by what it
  measures of the network, and loopback has no rate: the links below show what it saves.
- **sparse, saved**: of the bytes that belong to embeddings, against `coo`, the all-gather of rows
  that frameworks use for sparse gradients. They are what is left of the total without an AllReduce
  of all other parameters; "-" where these travel in another way.
- **losses**: of the exact methods, the largest relative difference from dense in the first
  {COMPARED_STEPS} steps of any seed; above {TOLERANCE:g} it says so. The sum of two ranks has one
  order only, so most of them have dense's bits.
- **step**: forward, backward and SGD on hosts with shaped links, median and quartiles, and the same
  over DDP without a hook in the same turns. All hosts share this machine's cores, which makes the
  computing part longer than it would be on hosts of their own, and ratios more even.
"""

Cell = Callable[[Row], str]


def page_of(
    rows: Sequence[Row], command: str, machine: str, why_no_times: str | None, verdict: str = ""
) -> str:
    """All of it, for one run; the verdict is on the paper's figures."""
    parts = [
        "# The paper's experiments",
        f"`{command}` on {machine}.",
        f"{PAPER}\n{verdict}".rstrip(),
        NOTES.rstrip(),
    ]
    if why_no_times:
        parts.append(f"**No times of steps**: {why_no_times}")
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        parts += [f"## {MODELS[model].title}", table_of(of_model)]
    used = {row.method for row in rows}
    what = "\n".join(f"- `{name}`: {way.what}" for name, way in METHODS.items() if name in used)
    parts += ["## Methods", what]
    return "\n\n".join(parts) + "\n"


def table_of(rows: Sequence[Row]) -> str:
    """Of one model."""
    model = MODELS[rows[0].model]
    columns: dict[str, Cell] = {
        "method": lambda row: f"`{row.method}`",
        model.metric: value,
        "against dense": lambda row: _difference(row),
        "losses": _losses,
        f"MB a step, {RANKS} ranks": lambda row: _megabytes(row.trained),
    }
    if model.tables:
        columns["sparse, saved"] = lambda row: saved(row.trained)
    if any(row.timed for row in rows):
        columns[f"MB a step, {HOSTS} hosts"] = lambda row: _megabytes(row.timed)
        if model.tables:
            columns[f"sparse, saved, {HOSTS} hosts"] = lambda row: saved(row.timed)
    if any(row.step_seconds for row in rows):
        columns[f"step, ms, {HOSTS} hosts at 1 Gbit/s"] = _step
        columns["of dense"] = ratio
    return in_table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


def in_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first column is of words, the others of figures."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruler, *lines))


def value(row: Row) -> str:
    """Of the metric, with its range over seeds."""
    if row.value is None:
        return "diverged"
    some = f"; {row.diverged} of {row.seeds} diverged" if row.diverged else ""
    accuracy = MODELS[row.model].higher_is_better
    mean, low, high = (
        f"{100 * figure:.2f} %" if accuracy else f"{figure:.2f}"
        for figure in (row.value.mean, row.value.low, row.value.high)
    )
    return f"{mean} ({low} to {high}){some}" if row.seeds > 1 else f"{mean}{some}"


def _difference(row: Row) -> str:
    if row.method == "dense":
        return "0"
    if row.difference is None:
        return "-"
    accuracy = MODELS[row.model].higher_is_better
    mean, low, high = (
        f"{100 * figure:+.2f}" if accuracy else f"{figure:+.2f}"
        for figure in (row.difference.mean, row.difference.low, row.difference.high)
    )
    return f"{mean} ({low} to {high})" if row.seeds > 1 else mean


def _losses(row: Row) -> str:
    if row.method == "dense":
        return "0"
    if row.largest_difference is None:
        return "lossy"
    if row.largest_difference == 0:
        return "0"
    figure = f"{row.largest_difference:.0e}"
    return f"**differs**: {figure}" if differs(row) else figure


def differs(row: Row) -> bool:
    """Whether an exact method's losses are not those of dense."""
    return row.largest_difference is not None and row.largest_difference > TOLERANCE


def _megabytes(sent: Sent | None) -> str:
    return "-" if sent is None else f"{sent.total / 1e6:.3g}"


def saved(sent: Sent | None) -> str:
    """Of the bytes of embeddings that ``coo`` sends."""
    if sent is None or sent.of_coo is None:
        return "-"
    if sent.of_coo > 1.005:
        return f"{sent.of_coo:.3g} times as much"
    return f"{round(100 * (1 - sent.of_coo))} %"


def _step(row: Row) -> str:
    if row.step_seconds is None:
        return "-"
    low, median, high = (row.step_seconds[name] * 1e3 for name in ("low", "median", "high"))
    return f"{median:.0f} ({low:.0f}-{high:.0f})"


def ratio(row: Row) -> str:
    """Of steps to those of dense, with its quartiles."""
    if row.of_dense is None:
        return "-"
    low, median, high = (row.of_dense[name] for name in ("low", "median", "high"))
    return f"{median:.2f} ({low:.2f}-{high:.2f})"
