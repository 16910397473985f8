# SPDX-License-Identifier: MIT
"""``benchmarks/reproduce.py``: what goes with what, what its tables say, and how it goes on."""

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Ranks

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import reproduce
from paired import write_json
from reproducing import accuracy, page, plots, settings, shaped, summary
from reproducing.resuming import Kept
from reproducing.rows import Range, has_diverged, largest_difference, rows_of
from reproducing.settings import METHODS, MODELS, PROFILES, applies

from s2reducer import SketchConfig, TopK

ROOT = Path(__file__).resolve().parent.parent

# ------------------------------------------------------------------------------------------------
# Models, methods, budgets
# ------------------------------------------------------------------------------------------------


def test_which_methods_go_with_which_models() -> None:
    rows = {"coo", "sparcml", "parallax", "zen", "sketch", "paper", "paper-feedback"}
    for name, model in MODELS.items():
        assert {method for method in METHODS if not applies(method, name)} == (
            set() if model.tables else rows
        )
    assert {name for name, way in METHODS.items() if way.exact} == {
        *("dense", "coo", "sparcml", "parallax", "omnireduce", "zen", "auto", "sketch")
    }


def test_profiles_name_what_there_is_and_begin_with_dense() -> None:
    for profile in PROFILES.values():
        for model, methods in profile.models.items():
            assert methods[0] == "dense"
            assert len(set(methods)) == len(methods)
            assert all(applies(method, model) for method in methods)
    assert list(PROFILES["full"].models) == list(MODELS)
    assert len(PROFILES["full"].models["gnmt-16"]) == len(METHODS) == 17
    assert {len(methods) for methods in PROFILES["default"].models.values()} == {5}


@pytest.mark.parametrize(("name", "minutes"), [("default", 60), ("quick", 8)])
def test_a_profile_takes_less_than_it_may(name: str, minutes: float) -> None:
    """By what its jobs should take on two idle cores, and with 30 % to spare for all else."""
    profile = PROFILES[name]
    jobs = [*reproduce.trainings(profile, []), *reproduce.timings(profile, [], "1gbit")]
    assert sum(job.seconds for job in jobs) / 60 < 0.7 * minutes


def test_the_order_of_a_training_has_all_that_it_depends_on() -> None:
    jobs = list(reproduce.trainings(PROFILES["quick"], ["/a/text"]))
    assert [job.name for job in jobs[:2]] == ["resnet-dense-0", "resnet-auto-0"]
    assert jobs[3].order == {
        "kind": "training",
        "model": "resnet",
        "script": "resnet_fashion_mnist",
        "flags": ["--depth=8", "--batch=64"],
        "steps": 90,
        "method": "topk",
        "settings": f"auto {{'select': {TopK(0.01)!r}}}",
        "seed": 0,
    }
    assert jobs[5].order["flags"][-3:] == ["--memory=32", "--text", "/a/text"]


def made(names: Sequence[str]) -> dict[str, tuple[str, Any]]:
    methods = {name: settings.make(name) for name in names}
    return {
        name: (type(method.state).__name__, getattr(method.state, "config", None))
        for name, method in methods.items()
    }


def test_methods_have_the_settings_that_the_page_says(ranks: Ranks) -> None:
    (states,) = ranks.run(1, made, [*METHODS, "none"])
    ours = {name for name, (kind, _) in states.items() if kind == "S2State"}
    assert ours == {name for name, way in METHODS.items() if way.what.startswith("s2reducer")} | {
        "paper-feedback",
        "topk-no-feedback",
    }
    assert states["topk"][1].select == TopK(0.01) == states["topk-no-feedback"][1].select
    assert states["topk"][1].error_feedback
    assert not states["topk-no-feedback"][1].error_feedback
    assert states["wire-bf16"][1].wire == "bf16"
    assert states["sketch"][1].sketch == SketchConfig()
    assert states["paper"][1].sketch == SketchConfig(
        rows=1, cells=0.25, margin=1.0, on_overflow="estimate", fixed=True
    )
    assert states["paper-feedback"][1].sketch.error_feedback
    assert states["coo"][0] == "RowsState"


# ------------------------------------------------------------------------------------------------
# From trainings to a table
# ------------------------------------------------------------------------------------------------

NUMEL, TABLE = 1000, 800


def training(
    method: str, seed: int, value: float | None, losses: Sequence[float | None], nbytes: float
) -> dict[str, Any]:
    return {
        "model": "transformer-xl",
        "method": method,
        "seed": seed,
        "ranks": 2,
        "metric": "validation perplexity",
        "value": value,
        "losses": list(losses),
        "steps": len(losses),
        "bytes": nbytes,
        "numel": NUMEL,
        "numel_of_tables": TABLE,
    }


def timing(method: str, nbytes: float, milliseconds: float, kind: str) -> dict[str, Any]:
    seconds = {"low": 0.9, "median": 1.0, "high": 1.1}
    return {
        "model": "transformer-xl",
        "method": method,
        "ranks": 4,
        "kind": kind,
        "counted": nbytes,
        "step_seconds": {name: x * milliseconds / 1e3 for name, x in seconds.items()},
        "of_ddp": {name: x * milliseconds / 200 for name, x in seconds.items()},
    }


DOWN = [4.0, 3.0, 2.0]
TRAININGS = [
    # Of two ranks, AllReduce sends 4 bytes an element: 800 of them belong to no table.
    training("dense", 0, 100.0, DOWN, 4000),
    training("dense", 1, 104.0, DOWN, 4000),
    training("coo", 0, 100.0, DOWN, 1000),
    training("coo", 1, 104.0, [4.0, 3.0, 2.0002], 1200),
    training("auto", 0, 101.0, [4.0, 3.000003, 2.0], 900),
    training("auto", 1, 103.0, DOWN, 920),
    training("paper", 0, None, [4.0, None, None], 850),
    training("paper", 1, 250.0, [4.0, 3.5, 3.75], 850),
    training("bf16", 0, 110.0, DOWN, 2000),
    training("bf16", 1, 112.0, DOWN, 2000),
    training("topk", 0, math.inf, [], 500),
    training("topk", 1, 90.0, [4.0, 3.0, 4.5], 500),
]


def timings(kind: str) -> list[dict[str, Any]]:
    return [
        timing("ddp", 0, 200, kind),
        timing("none", 0, 100, kind),
        timing("coo", 3600, 150, kind),
        timing("auto", 1980, 120, kind),
    ]


def test_rows_have_means_and_ranges_over_seeds() -> None:
    rows = {row.method: row for row in rows_of(TRAININGS, [])}
    assert list(rows) == ["dense", "coo", "auto", "paper", "bf16", "topk"]
    assert rows["dense"].value == Range(102.0, 100.0, 104.0)
    assert rows["auto"].value == Range(102.0, 101.0, 103.0)
    assert rows["auto"].difference == Range(0.0, -1.0, 1.0)
    assert rows["paper"].seeds == 2 and rows["paper"].diverged == 1
    assert rows["paper"].value == Range(250.0, 250.0, 250.0)
    assert rows["paper"].difference == Range(146.0, 146.0, 146.0)
    assert rows["topk"].diverged == 2 and rows["topk"].value is None


def test_rows_say_what_was_sent_for_tables() -> None:
    rows = {row.method: row for row in rows_of(TRAININGS, timings("namespaces"))}
    sparse = {name: row.trained.sparse for name, row in rows.items()}
    assert sparse == {
        "dense": 3200,
        "coo": 300,
        "auto": 110,
        "paper": 50,
        "bf16": 1600,
        "topk": None,
    }
    assert rows["auto"].trained.total == 910
    assert rows["auto"].trained.of_coo == pytest.approx(110 / 300)
    assert rows["topk"].trained.of_coo is None
    # On four ranks AllReduce sends 6 bytes an element.
    timed = rows["auto"].timed
    assert timed is not None and timed.total == 1980
    assert timed.sparse == 780 and timed.of_coo == pytest.approx(780 / 2400)
    dense = rows["dense"].timed
    assert dense is not None and dense.total == 6000 and dense.of_coo == 2.0
    assert rows["paper"].timed is None


def test_rows_compare_losses_of_exact_methods_with_dense() -> None:
    rows = {row.method: row for row in rows_of(TRAININGS, [])}
    assert rows["auto"].largest_difference == pytest.approx(1e-6)
    assert rows["coo"].largest_difference == pytest.approx(1e-4)
    assert rows["dense"].largest_difference is None
    assert rows["bf16"].largest_difference is None
    late = training("auto", 0, 1.0, [*[1.0] * 50, 2.0], 1)
    assert largest_difference(late, training("dense", 0, 1.0, [1.0] * 51, 1)) == 0
    assert largest_difference(training("auto", 0, None, [None], 1), TRAININGS[0]) == math.inf


def test_where_dense_diverges_there_is_no_difference() -> None:
    trainings = [training("dense", 0, None, [None], 1), training("auto", 0, 100.0, DOWN, 1)]
    _, auto = rows_of(trainings, [])
    assert auto.difference is None and auto.largest_difference == math.inf
    assert auto.value == Range(100.0, 100.0, 100.0)


def test_what_counts_as_diverged() -> None:
    assert not has_diverged(training("auto", 0, 1.0, [3.0] * 5 + [2.0] * 5, 1))
    assert has_diverged(training("auto", 0, 1.0, [3.0] * 9 + [3.1], 1))
    assert has_diverged(training("auto", 0, 1.0, [3.0, None, 1.0], 1))
    assert has_diverged(training("auto", 0, None, [3.0, 2.0], 1))
    assert has_diverged(training("auto", 0, 1.0, [], 1))


def test_the_table() -> None:
    head, _, *lines = page.table_of(rows_of(TRAININGS, timings("namespaces"))).splitlines()
    assert head == (
        "| method | validation perplexity | against dense | losses | MB a step, 2 ranks | "
        "sparse, saved | MB a step, 4 hosts | sparse, saved, 4 hosts | "
        "step, ms, 4 hosts at 1 Gbit/s | of dense |"
    )
    assert lines == [
        "| `dense` | 102.00 (100.00 to 104.00) | 0 | 0 | 0.004 | 10.7 times as much | 0.006 | "
        "2 times as much | 200 (180-220) | 1.00 (0.90-1.10) |",
        "| `coo` | 102.00 (100.00 to 104.00) | +0.00 (+0.00 to +0.00) | 1e-04 | 0.0011 | 0 % | "
        "0.0036 | 0 % | 150 (135-165) | 0.75 (0.68-0.82) |",
        "| `auto` | 102.00 (101.00 to 103.00) | +0.00 (-1.00 to +1.00) | 1e-06 | 0.00091 | 63 % | "
        "0.00198 | 68 % | 120 (108-132) | 0.60 (0.54-0.66) |",
        "| `paper` | 250.00 (250.00 to 250.00); 1 of 2 diverged | +146.00 (+146.00 to +146.00) | "
        "lossy | 0.00085 | 83 % | - | - | - | - |",
        "| `bf16` | 111.00 (110.00 to 112.00) | +9.00 (+8.00 to +10.00) | lossy | 0.002 | "
        "5.33 times as much | - | - | - | - |",
        "| `topk` | diverged | - | lossy | 0.0005 | - | - | - | - | - |",
    ]


def test_without_links_the_table_has_bytes_but_no_times() -> None:
    text = page.page_of(rows_of(TRAININGS, timings("loopback")), "command", "machine", "no root.")
    assert "**No times of steps**: no root.\n" in text
    assert "MB a step, 4 hosts" in text
    assert "step, ms" not in text
    without = page.page_of(rows_of(TRAININGS, []), "command", "machine", None)
    assert "No times" not in without and "4 hosts |" not in without
    assert without.startswith("# The paper's experiments\n\n`command` on machine.\n\nThe paper ")


def test_an_exact_method_that_is_not_exact_is_named() -> None:
    wrong = training("auto", 0, 100.0, [4.0, 3.003, 2.0], 900)
    (_, auto) = rows_of([TRAININGS[0], wrong], [])
    assert "| **differs**: 1e-03 |" in page.table_of([auto])


def test_the_summary() -> None:
    images = [
        {**training(method, 0, value, DOWN, 4e6), "model": "resnet", "numel_of_tables": 0}
        for method, value in (("dense", 0.875), ("topk", 0.8625))
    ]
    wrong = training("sketch", 0, 100.0, [4.0, 3.003, 2.0], 900)
    tables = summary.tables_of(rows_of([*TRAININGS, wrong, *images], timings("namespaces")))
    assert tables["trained"].splitlines() == [
        "| model | metric | plain DDP | `auto` | `sketch` | `paper` | `topk` |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| Transformer-XL | validation perplexity | 102.00 (100.00 to 104.00) | "
        "102.00 (101.00 to 103.00) | 100.00 **differs** | "
        "250.00 (250.00 to 250.00); 1 of 2 diverged | diverged |",
        "| ResNet-8 | test accuracy | 87.50 % | - | - | - | 86.25 % |",
    ]
    assert tables["timed"].splitlines()[2:] == [
        "| Transformer-XL | `coo` 0.75 (0.68-0.82) | 0.60 (0.54-0.66) | - | - | - | - |",
        "| ResNet-8 | - | - | - | - | - | - |",
    ]


def test_the_summary_names_the_fastest_of_the_four() -> None:
    methods = ("dense", "coo", "sparcml", "parallax", "paper")
    trained = [training(method, 0, 100.0, DOWN, 1000) for method in methods]
    times = {"ddp": 200, "coo": 150, "sparcml": 140, "parallax": 160, "paper": 120}
    timed = [timing(method, 3600, time, "namespaces") for method, time in times.items()]
    (*_, line) = summary.tables_of(rows_of(trained, timed))["timed"].splitlines()
    assert line == (
        "| Transformer-XL | `sparcml` 0.70 (0.63-0.77) | - | - | 0.60 (0.54-0.66) | - | 0 % |"
    )


def test_the_verdict_on_the_papers_figures() -> None:
    trained = [training(method, 0, 100.0, DOWN, 1000) for method in ("dense", "coo")]
    worse = [*trained, training("paper", 0, 101.0, DOWN, 1000)]
    # On four ranks, 1200 bytes belong to no table.
    timed = [timing("ddp", 0, 200, "namespaces"), timing("coo", 3600, 180, "namespaces")]
    slow = [*timed, timing("paper", 2400, 120, "namespaces")]
    assert summary.tables_of(rows_of(worse, slow))["verdict"].splitlines() == [
        "`paper` saves at most 50 % of the sparse bytes (Transformer-XL): the paper's 81 % is not "
        "reached.",
        "Its steps are at best 1.50 times as fast as those of the fastest of the four "
        "(Transformer-XL): the paper's 1.8 is not reached.",
        "With every seed it ends worse than plain DDP on: Transformer-XL.",
    ]
    as_good = [*trained, training("paper", 0, 100.0, DOWN, 1000)]
    fast = [*timed, timing("paper", 1500, 90, "namespaces")]
    first, second = summary.tables_of(rows_of(as_good, fast))["verdict"].splitlines()
    assert "88 % of the sparse bytes (Transformer-XL): the paper's 81 % is reached." in first
    assert "2.00 times as fast as those of the fastest of the four" in second
    assert "(Transformer-XL): the paper's 1.8 is reached." in second


def test_accuracies_are_percentages() -> None:
    runs = [
        {**training(method, 0, value, DOWN, 4e6), "model": "resnet", "numel_of_tables": 0}
        for method, value in (("dense", 0.875), ("topk", 0.8625))
    ]
    lines = page.table_of(rows_of(runs, [])).splitlines()
    assert lines[2:] == [
        "| `dense` | 87.50 % | 0 | 0 | 4 |",
        "| `topk` | 86.25 % | -1.25 | lossy | 4 |",
    ]


@pytest.mark.slow
def test_pictures_are_drawn_of_whatever_there_is(tmp_path: Path) -> None:
    for trainings in (
        TRAININGS,
        TRAININGS[6:7] + TRAININGS[:1],
        [training("dense", 0, None, [], 1)],
    ):
        paths = plots.write(tmp_path / "out", trainings, rows_of(trainings, []))
        assert [path.name for path in paths] == ["out-losses.png", "out-bytes.png"]
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_curves_are_smoothed_over_neighbours() -> None:
    assert plots.smoothed(torch.tensor([1.0, 3.0])).tolist() == [1.0, 3.0]
    assert plots.smoothed(torch.arange(60.0)).tolist() == [float(x) for x in range(1, 59)]


# ------------------------------------------------------------------------------------------------
# Going on
# ------------------------------------------------------------------------------------------------


def test_a_result_is_kept_for_the_order_that_it_came_from(tmp_path: Path) -> None:
    kept, calls = Kept(tmp_path / "new" / "folder"), []

    def do() -> int:
        calls.append(1)
        return len(calls)

    assert kept.get("a", {"x": 1}) is None
    assert [kept.get_or_do("a", {"x": (1, 2)}, do) for _ in range(2)] == [1, 1]
    assert Kept(kept.folder).get("a", {"x": (1, 2)}) == 1
    assert kept.get("a", {"x": 3}) is None
    assert kept.get_or_do("a", {"x": 3}, do) == 2
    assert kept.get("a", {"x": (1, 2)}) is None


def test_what_was_interrupted_is_done_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.get_or_do("a", {}, interrupted)
    with pytest.raises(ValueError, match="JSON compliant"):
        kept.get_or_do("a", {}, lambda: math.nan)
    assert kept.get_or_do("a", {}, lambda: 5) == 5


def start(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, last: str | None = None
) -> list[str]:
    """The jobs that ``main`` gives to ranks, until the one named ``last`` is interrupted."""
    done: list[str] = []

    def measure_on(script: str, ranks: int, rate: str, order: Any) -> list[dict[str, Any]]:
        name = Path(order["log"]).stem
        if name == last:
            raise KeyboardInterrupt
        done.append(name)
        return [{**training("dense", 0, 1.0, DOWN, 1.0), **order}]

    monkeypatch.setattr(reproduce, "measure_on", measure_on)
    monkeypatch.setattr(accuracy, "missing_data", lambda models, text: "")
    command = ["reproduce.py", "--folder", str(folder), "--no-links", *arguments]
    monkeypatch.setattr(sys, "argv", command)
    try:
        reproduce.main()
    except KeyboardInterrupt:
        assert last is not None
    return done


@pytest.mark.slow
def test_an_interrupted_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = ("--models", "resnet", "--methods", "topk", "--seeds", "2")
    every = [f"resnet-{method}-{seed}" for seed in range(2) for method in ("dense", "topk")]
    assert start(monkeypatch, tmp_path, *some, last=every[2]) == every[:2]
    assert not (tmp_path / "reproduce.md").exists()
    assert start(monkeypatch, tmp_path, *some) == every[2:]
    assert start(monkeypatch, tmp_path, *some) == []
    result = json.loads((tmp_path / "reproduce.json").read_text())
    assert [(row["method"], row["seeds"]) for row in result["rows"]] == [("dense", 2), ("topk", 2)]
    # Another method costs only itself; other steps are another training.
    more = start(monkeypatch, tmp_path, *some[:3], "topk", "auto", "--seeds", "1")
    assert more == ["resnet-auto-0"]
    assert start(monkeypatch, tmp_path, "--quick", *some[:4]) == every[:2]


def test_a_budget_is_only_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(monkeypatch, tmp_path, "--quick", "--models", "resnet", "--budget") == []
    said = capsys.readouterr().out
    assert said.startswith("5 jobs, 0 of them done before; the others should take 1 minutes")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0"], "argument --seeds: 0 is less than 1"),
        (
            ["--models", "resnet", "--methods", "coo"],
            "arguments --models and --methods: of these, nothing would be trained",
        ),
        (["--quick", "--full"], "argument --full: not allowed with argument --quick"),
    ],
)
def test_arguments_that_make_no_sense(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["reproduce.py", *arguments])
    with pytest.raises(SystemExit):
        reproduce.main()
    assert sentence in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accuracy, "_DATA", dict.fromkeys(accuracy._DATA, tmp_path / "not there"))
    assert accuracy.missing_data(["lstm", "transformer-xl"], []) == "dict-gcide"
    assert accuracy.missing_data(["lstm", "resnet"], ["text"]) == "dataset-fashion-mnist"
    monkeypatch.setattr(sys, "argv", ["reproduce.py", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"apt install dataset-fashion-mnist dict-gcide$"):
        reproduce.main()


def test_a_list_of_figures_takes_a_line(tmp_path: Path) -> None:
    result = {"a": [1, -2.5e-7, None], "b": [[], {"c": [[1], [2, 3]]}, "[1,\n2]"], "d": ["1"]}
    write_json(tmp_path / "new" / "result.json", result)
    text = (tmp_path / "new" / "result.json").read_text()
    assert json.loads(text) == result
    assert '"a": [ 1, -2.5e-07, null ],\n' in text and "\n    [ 2, 3 ]\n" in text


# ------------------------------------------------------------------------------------------------
# On ranks
# ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of words drawn one by one, some much more often than others, so that no package is
    needed, and what a model learns of them in its first steps holds everywhere in the file."""
    letters = "abcdefghij"
    words = [a + b + c for a in letters for b in letters for c in letters]
    drawn = random.Random(0).choices(words, [1 / (n + 1) for n in range(len(words))], k=20_000)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(drawn[n : n + 16]) for n in range(0, len(drawn), 16)))
    return str(path)


def smoke(folder: Path, text: str, *arguments: str) -> str:
    """What the command prints."""
    command = [ROOT / "benchmarks" / "reproduce.py", "--smoke", "--folder", folder, *arguments]
    done = subprocess.run(
        [sys.executable, *map(str, command), "--text", text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=600,  # some forty seconds of a processor, of which others may take most
        capture_output=True,
        text=True,
    )
    return done.stdout


@pytest.mark.slow
def test_the_smallest_run(tmp_path: Path, text: str) -> None:
    assert smoke(tmp_path, text).count("validation perplexity ") >= 6
    result = json.loads((tmp_path / "reproduce.json").read_text())
    rows = {(row["model"], row["method"]): row for row in result["rows"]}
    assert list(rows) == [
        *[("lstm", method) for method in ("dense", "auto", "topk")],
        *[("transformer-xl", method) for method in ("dense", "coo", "auto")],
    ]
    assert all(row["seeds"] == 1 and row["diverged"] == 0 for row in rows.values())
    for row in rows.values():
        if row["method"] in ("coo", "auto"):
            assert row["largest_difference"] < 1e-4
        assert row["method"] == "dense" or row["difference"] is not None
    trainings = {(one["model"], one["method"]): one for one in result["trainings"]}
    for one in trainings.values():
        assert one["ranks"] == 2
        assert len(one["losses"]) == one["steps"] == 36 if one["model"] == "lstm" else 30
    # Two ranks send a whole gradient each in an AllReduce, and an optimizer's choice in the others.
    for model in ("lstm", "transformer-xl"):
        dense = trainings[model, "dense"]
        assert dense["bytes"] == 4 * dense["numel"]
    xl = rows["transformer-xl", "coo"]
    rest = trainings["transformer-xl", "dense"]["numel"] - 600 * 16
    # A step has at most 4 x 8 words of each rank; with 8 bytes for their count.
    assert 0 < xl["trained"]["sparse"] <= 8 + 32 * (4 + 4 * 16)
    assert xl["trained"]["total"] == xl["trained"]["sparse"] + 4 * rest
    log = (tmp_path / "transformer-xl-coo-0.log").read_text()
    assert "step 30 of 30: loss " in log
    logs = (tmp_path / "reproduce-logs.txt").read_text()
    assert logs.count("==> ") == 6 and f"==> transformer-xl-coo-0 <==\n{log}" in logs
    (kept,) = json.loads((tmp_path / "lstm-topk-0.json").read_text())["result"]
    assert trainings["lstm", "topk"]["losses"] == pytest.approx(kept["losses"], rel=5e-6)

    again = smoke(tmp_path, text, "--out", str(tmp_path / "again"))
    assert again.count("(kept)") == 6
    assert json.loads((tmp_path / "again.json").read_text())["rows"] == result["rows"]


def train_by(methods: Sequence[str], flags: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        method: accuracy.train(accuracy.order_of("lstm", flags, 5, method, 0), os.devnull)
        for method in methods
    }


@pytest.mark.slow
def test_every_method_trains(ranks: Ranks, text: str) -> None:
    sizes = {"vocabulary": 800, "width": 16, "batch": 2, "length": 8}
    flags = [f"--{name}={size}" for name, size in sizes.items()]
    flags += ["--text", text]
    records, others = ranks.run(2, train_by, list(METHODS), flags, seconds=300)
    dense = records["dense"]
    assert dense["bytes"] == 4 * dense["numel"]
    for method, record in records.items():
        assert len(record["losses"]) == 5 and record["value"] > 1
        assert {**record, "seconds": 0, "seconds_per_step": 0} == {
            **others[method],
            "seconds": 0,
            "seconds_per_step": 0,
        }
        if METHODS[method].exact:
            assert largest_difference(record, dense) < 1e-5, method
    for method in ("bf16", "fp16"):
        assert records[method]["bytes"] == dense["bytes"] / 2
    # Of so small a table, headers are a part that differs between methods.
    assert max(records[method]["bytes"] for method in ("coo", "zen", "paper")) < dense["bytes"]


def links(order: dict[str, Any]) -> list[dict[str, Any]]:
    os.environ.update(NETLAB_KIND="loopback", NETLAB_RATE="loopback")
    return shaped.measure(order)


def numel_of(order: dict[str, Any]) -> int:
    text = [Path(name) for name in order["text"]]
    task = shaped.task_of(order["model"], order["sizes"], text)
    return sum(parameter.numel() for parameter in task.module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("resnet", ("dense", "topk")),
        ("lstm", tuple(METHODS)),
        ("transformer-xl", ("dense", "topk", "paper")),
    ],
)
def test_steps_are_those_of_the_same_models(
    ranks: Ranks, text: str, model: str, methods: tuple[str, ...]
) -> None:
    sizes = {**PROFILES["smoke"].sizes, "batch": 2}
    profile = settings.Profile({model: methods}, turns=2, sizes=sizes)
    (job,) = reproduce.timings(profile, [text], "loopback")
    records, others = ranks.run(2, links, job.order, seconds=300)
    assert records == others
    assert [record["method"] for record in records] == ["ddp", "none", *methods[1:]]
    counted = {record["method"]: record["counted"] for record in records}
    assert counted["none"] == 0
    numel = ranks.run(2, numel_of, job.order)[0]
    # Biases, norms and small matrices are sent whole.
    assert 0 < counted["topk"] < 0.9 * 4 * numel
    if "bf16" in methods:
        assert counted["bf16"] == 2 * numel
