# SPDX-License-Identifier: MIT
"""The page on the sketch says what the code does, and the bench behind its tables is right."""

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import bench_sketch
import pages
from sketching import decoding, errors, estimates

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "sketch.md"
RESULT = ROOT / "benchmarks" / "results" / "sketch.md"
TABLES = list(bench_sketch.COLUMNS)


def table_in(page: str, name: str) -> str:
    found = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.S)
    assert len(found) == 1, name
    return found[0].strip()


# ------------------------------------------------------------------------------------------------
# The page
# ------------------------------------------------------------------------------------------------


def test_the_example_of_the_page_prints_what_it_says() -> None:
    pairs = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(pairs) == PAGE.read_text().count("```python\n") == 7
    names: dict[str, object] = {}
    for code, expected in pairs:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        assert [line.rstrip() for line in printed.getvalue().splitlines()] == expected.splitlines()


def test_the_tables_of_the_page_are_those_of_the_result() -> None:
    page, result = PAGE.read_text(), RESULT.read_text()
    assert re.findall(r"^## (.*)$", result, re.M) == TABLES
    for name in TABLES:
        table = table_in(page, name)
        assert table.count("\n") >= 3
        assert f"## {name}\n\n{table}\n" in result


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text()))
def test_the_links_of_the_page_lead_somewhere(path: str) -> None:
    assert (PAGE.parent / path).exists()


def test_the_unions_for_which_the_page_calls_the_sketch_quicker() -> None:
    """A round of 100 microseconds, four ranks; and 1.43 are the cells that it is by default."""
    page = " ".join(PAGE.read_text().split())
    for gigabits in (10, 1):
        bytes_per_second = gigabits * 1e9 / 8
        megabytes = 100e-6 * bytes_per_second / (0.43 * 2 * 3 / 4) / 1e6
        assert f"below {megabytes:.2g} MB" in page
    case = decoding.Case.of_plan(1_000_000, 1)
    assert 3 * case.width / case.nblocks == pytest.approx(1.43, abs=1e-4)


def test_groups_of_stuck_blocks_are_listed_by_size() -> None:
    assert bench_sketch.histogram({}) == "-"
    assert bench_sketch.histogram({2: 5, 4: 1}) == "2: 5 x, 4: 1 x"
    assert bench_sketch.histogram({2: 5, 313: 1, 400: 2}) == "2: 5 x, 313 to 400: 3 x"


def test_only_a_page_with_one_place_for_each_table_is_renewed() -> None:
    page = "a\n<!-- insert -->\nold\n<!-- end -->\nb\n<!-- peel -->\n<!-- end -->\n"
    renewed = pages.renewed(page, {"insert": r"| \1 |", "peel": "| 2 |"})
    assert renewed == (
        "a\n<!-- insert -->\n\n| \\1 |\n\n<!-- end -->\nb\n<!-- peel -->\n\n| 2 |\n\n<!-- end -->\n"
    )
    assert pages.renewed(renewed, {"insert": r"| \1 |"}) == renewed
    with pytest.raises(SystemExit, match="0 places for the table 'plan'"):
        pages.renewed(page, {"plan": ""})
    with pytest.raises(SystemExit, match="2 places for the table 'peel'"):
        pages.renewed(page + page, {"peel": ""})


# ------------------------------------------------------------------------------------------------
# The bench
# ------------------------------------------------------------------------------------------------


def test_two_blocks_in_one_cell_of_each_row_stay_stuck() -> None:
    record = decoding.Case(nblocks=2, width=1, nseeds=10).measure()
    assert (record["whole"], record["not_whole"], record["stuck"]) == (0.0, 10, {2: 10})
    assert (record["pairs"], record["most_rounds"]) == (10.0, 0)
    record = decoding.Case(nblocks=1, width=1, nseeds=10).measure()
    assert (record["whole"], record["pairs"], record["rounds"]) == (1.0, 0.0, 1)


def test_stuck_pairs_are_as_many_as_expected() -> None:
    """20 blocks among 3 x 40 cells: 3 pairs in 1000 seeds' tables would be three deviations off."""
    record = decoding.Case(nblocks=20, width=20, nseeds=2000).measure()
    assert record["pairs"] == 190 / 8000 * 2000 == 47.5
    assert abs(record["not_whole"] - record["pairs"]) < 4 * math.sqrt(record["pairs"])


def test_the_error_of_one_row_and_of_more() -> None:
    for cells, theory in ((0.25, 2.0), (1.0, 1.0), (4.0, 0.5)):
        record = estimates.error(1, cells, nblocks=20_000, nseeds=3)
        assert record["theory"] == theory
        assert record["error"] == pytest.approx(theory, rel=0.05)
    few, many = (estimates.error(3, cells, 20_000, 3)["of_theory"] for cells in (0.25, 8.0))
    assert many < 0.8 < 1.05 < few


def test_damped_feedback_comes_to_rest_and_plain_feedback_does_not() -> None:
    damped, plain = (estimates.Feedback(0.25, damp, 2000, 15) for damp in (True, False))
    assert (damped.limit, plain.limit) == (2.0, math.inf)
    assert damped.measure()[-1] == pytest.approx(2.0, rel=0.1)
    norms = plain.measure()
    assert norms[-1] / norms[-2] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("case", errors.cases(quick=True), ids=lambda case: f"{case.sizes}")
def test_errors_of_peeling(case: errors.Case) -> None:
    record, blocks = case.measure()
    assert record["normwise"] < 1e-5
    assert record["most_after_repair"] < 2.0**-16
    assert float(blocks["before"].max()) == record["most"]
    assert (record["off_by_a_thousandth"] > 0) == (case.sizes == "six decades")
    assert record["zeros_not_zero"] < 0.01
    assert record["set_to_zero"] < 1e-3


@pytest.mark.slow
def test_the_bench_runs(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "quick"
    page.write_text(PAGE.read_text())
    script = str(ROOT / "benchmarks" / "bench_sketch.py")
    arguments = ["--quick", "--turns", "2", "--out", str(out), "--page", str(page)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, script, *arguments], env=environment, check=True, timeout=120)

    result = out.with_suffix(".md").read_text()
    records = json.loads(out.with_suffix(".json").read_text())
    for name in TABLES:
        assert f"## {name}\n\n{table_in(page.read_text(), name)}\n" in result
        assert table_in(page.read_text(), name).count("\n") == len(records[name]) + 1
    for name in ("peeling", "errors", "estimates", "feedback"):
        assert (tmp_path / f"quick-{name}.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert all(record["whole"] >= 0.9 for record in records["peeling"] + records["plan"])
    assert all(abs(record["in_standard_errors"]) < 4 for record in records["bias"])
    for record in records["insert"]:
        assert record["insert"] > 0 and record["of_memcpy"]["median"] > 0
    assert records["peel"][0]["peel_over_insert"]["median"] > 0
