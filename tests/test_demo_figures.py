# SPDX-License-Identifier: MIT
"""The demo's figures: bytes, times, tables and the picture, from what the ranks report."""

import io
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the demo needs rich")
pytest.importorskip("matplotlib", reason="the demo needs matplotlib")

from rich.console import Console

from s2reducer.cli import network, plot, results, tables
from s2reducer.cli.training import Settings

SETTINGS = Settings(
    ranks=2,
    steps=8,
    vocabulary=100,
    width=16,
    batch=2,
    length=4,
    negatives=8,
    plan="auto",
    seed=0,
    words="",
    held_out="",
)


def test_bytes_of_the_union_plan() -> None:
    # 1000 rows of 64, a tenth alive; 8 blocks of 64, all alive; on 2 ranks each byte goes once.
    parameters = [(64_000, 64, 0.1), (512, 64, 1.0)]
    assert network.union_bytes(parameters, 4, 2) == (6400 + 512) * 4 + 1008 // 8
    # On 4 ranks each byte goes one and a half times: 2 (P-1)/P.
    assert network.union_bytes(parameters, 4, 4) == ((6400 + 512) * 4 + 1008 // 8) * 3 // 2


def test_predicted_time_is_compute_and_transfer() -> None:
    # 12.5 MB are 100 Mbit: a tenth of a second at 1 Gbit/s.
    assert network.predicted_seconds(0.02, 12.5e6, 1) == pytest.approx(0.12)
    assert network.predicted_seconds(0.02, 12.5e6, 100) == pytest.approx(0.021)


def run_result(rank: int, report: dict[str, object] | None = None) -> dict[str, object]:
    return {
        "losses": [4.0 + rank, 2.0 + rank],
        "step_seconds": [0.010, 0.012, 0.500],
        "thread_seconds": [0.009, 0.009, 0.020],
        "final_loss": 3.25,
        "parameters_sha256": "same",
        "parameter_count": 64_000,
        "loopback_bytes": 2_000_000,
        "window_steps": 5,
        "compute_seconds": 0.008,
        "compute_thread_seconds": 0.007,
        "report": report,
    }


def report(density: float | None, union_density: float | None, sent: int) -> dict[str, object]:
    table = {"name": "table", "shape": [1000, 64], "dtype": "float32", "block": 64}
    seen = {"density": density, "union_density": union_density, "plan": "union", "reason": ""}
    return {"steps": 10, "bytes_sent": sent, "parameters": [{**table, **seen}]}


def summaries() -> tuple[results.Summary, results.Summary]:
    plain = [run_result(rank) for rank in range(2)]
    reduced = [run_result(rank, report(0.05 + rank / 50, 0.1, 260_000)) for rank in range(2)]
    compute = results.Compute.of_runs([plain, reduced])
    return (
        results.summarise(plain, SETTINGS, compute),
        results.summarise(reduced, SETTINGS, compute),
    )


def test_summary_of_the_ranks() -> None:
    plain, reduced = summaries()
    assert plain.losses == [4.5, 2.5]
    assert plain.last_loss == 3.5
    assert plain.step_seconds == pytest.approx(0.012)
    # 8 ms without communication, and 2 ms of the thread's time that came with communication.
    assert plain.compute_seconds == pytest.approx(0.010)
    assert plain.bytes_counted == 256_000
    assert plain.bytes_on_loopback == 200_000
    assert reduced.bytes_counted == 26_000
    assert reduced.densities[0].density == pytest.approx(0.06)
    assert reduced.bytes_from_densities(2) == 25_725
    assert plain.identical_replicas


def test_ranks_with_different_parameters_are_noticed() -> None:
    ranks = [run_result(0), {**run_result(1), "parameters_sha256": "other"}]
    compute = results.Compute.of_runs([ranks])
    assert not results.summarise(ranks, SETTINGS, compute).identical_replicas


def test_rows_of_the_tables() -> None:
    plain, reduced = summaries()
    rows = {row[0]: row[1:] for row in tables.comparison(plain, reduced, SETTINGS).rows}
    assert rows["final loss, held-out text"] == ["3.250000", "3.250000", "differ by 0"]
    assert rows["bytes sent, counted"] == ["0.256 MB", "0.026 MB", "9.85 x less"]
    assert rows["bytes of the plan union"] == ["0.256 MB", "0.026 MB", "9.95 x less"]
    assert rows["ranks bitwise equal"] == ["yes", "yes", ""]
    assert tables.densities(reduced).rows == [
        ["table", "1000 x 64", "64", "6.00%", "10.00%", "union"]
    ]
    predicted = {row[0]: row[1:] for row in tables.predictions(plain, reduced).rows}
    assert list(predicted) == ["1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "100 Gbit/s"]
    assert predicted["1 Gbit/s"] == ["12.0 ms", "10.2 ms", "1.18 x faster"]


def test_a_worse_figure_is_called_worse() -> None:
    assert tables.times(10.0, 12.5, "less", "more") == "1.25 x more"
    assert tables.times(12.5, 10.0, "less", "more") == "1.25 x less"
    assert tables.times(0.0, 10.0, "less", "more") == "-"


def test_densities_that_the_plan_never_counted() -> None:
    ranks = [run_result(rank, report(None, None, 260_000)) for rank in range(2)]
    summary = results.summarise(ranks, SETTINGS, results.Compute.of_runs([ranks]))
    assert summary.bytes_from_densities(2) is None
    assert tables.densities(summary).rows[0][3:5] == ["not counted", "not counted"]


def test_a_table_is_printed_whole() -> None:
    plain, reduced = summaries()
    out = io.StringIO()
    tables.comparison(plain, reduced, SETTINGS).print(Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert "Training, 2 ranks, 8 steps" in lines[1]
    (counted,) = [line for line in lines if "bytes sent, counted" in line]
    assert counted.split()[-6:] == ["MB", "\u2502", "9.85", "x", "less", "\u2502"]


def test_picture_is_a_png(tmp_path: Path) -> None:
    plot.write(tmp_path / "p.png", *summaries(), "title")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
