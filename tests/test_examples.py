# SPDX-License-Identifier: MIT
"""The example as the README starts it, and the benchmark of the kernels on a small bucket."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from json import loads
from pathlib import Path

import pytest
import torch

import s2reducer
from s2reducer import _C

ROOT = Path(__file__).resolve().parent.parent


def torchrun(*arguments: str) -> str:
    """What rank 0 printed."""
    package = str(Path(s2reducer.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        # --standalone finds a free port instead of taking the one that everybody takes.
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_example_learns_and_sends_less() -> None:
    command = re.search(r"bin/torchrun\s+([^`]*)`", (ROOT / "README.md").read_text())
    assert command
    printed = torchrun(*command[1].split())

    losses = re.findall(r"^step (\d+): loss ([\d.]+)$", printed, re.MULTILINE)
    assert [int(step) for step, _ in losses] == [50, 100, 150, 200]
    assert float(losses[-1][1]) < 0.9 * float(losses[0][1])

    total = re.search(
        r"^200 steps on 2 ranks: sent ([\d.]+) MB a rank, where dense AllReduce sends ([\d.]+) MB$",
        printed,
        re.MULTILINE,
    )
    assert total
    sent, dense = float(total[1]), float(total[2])
    elements = 20_000 * 32 + 5_000 * 32 + 1  # on 2 ranks each byte is sent once
    assert dense == pytest.approx(200 * elements * 4 / 1e6, rel=0.01)
    assert sent < dense  # by how much depends on what this machine's loopback makes of it

    for table, rows in (("users.weight", 20_000), ("items.weight", 5_000)):
        line = re.search(rf"^{table} +float32 +32 +([\d.]+) % +([\d.]+) %", printed, re.MULTILINE)
        assert line
        density, union = float(line[1]) / 100, float(line[2]) / 100
        # 256 ratings name 256 rows at the most, since the popular ones come several times.
        assert 100 / rows < density <= 256 / rows
        assert density < union < 2 * density


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What the benchmark sets for its process is set back."""
    threads, variant = torch.get_num_threads(), _C.cpu_variant_current()
    yield
    torch.set_num_threads(threads)
    _C.cpu_variant_force(variant)


@pytest.mark.usefixtures("one_thread")
def test_the_benchmark_of_the_kernels_prints_every_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run_benchmark(
        monkeypatch, "--megabytes", "0.5", "--turns", "3", "--calls", "3", json=tmp_path / "f.json"
    )
    printed = capsys.readouterr().out
    scans = [f"bitmap, blocks of {block}" for block in (1, 8, 64, 512)]
    moves = [
        f"{kernel}, {density} of rows of 512"
        for density in ("1%", "10%")
        for kernel in ("Tensor.copy_", "gather", "scatter")
    ]
    assert [row["kernel"] for row in figures["scans"]] == scans
    assert [row["kernel"] for row in figures["moves"]] == moves
    selections = [
        f"{kernel} {share}" for share in ("1%", "10%") for kernel in ("top", "above the top")
    ]
    selections += [f"energies, blocks of {block}" for block in (8, 64, 512)]
    assert [row["kernel"] for row in figures["selections"]] == selections
    feedback = [
        f"{kernel} {dtype}"
        for dtype in ("float32", "bfloat16")
        for kernel in ("add", "deliver all as", "deliver 10% as")
    ]
    assert [row["kernel"] for row in figures["feedback"]] == feedback
    assert set(figures["call_microseconds"]) == {"bitmap_or", "blocks_gather"}
    tables = ("scans", "moves", "selections", "feedback")
    for row in [row for table in tables for row in figures[table]]:
        yardsticks = {"read"} if row["kernel"] in scans + selections else {"copy", "rows"}
        if row["kernel"] in feedback or row["kernel"].startswith("Tensor.copy_"):
            yardsticks = {"copy"}
        assert set(row) == {"kernel", "gigabytes_per_second"} | yardsticks
        (line,) = re.findall(rf"^{re.escape(row['kernel'])} +(.*)$", printed, re.MULTILINE)
        shown = f"{row['gigabytes_per_second']:.1f}"
        for name in sorted(yardsticks):
            share = row[name]["kernel_over_it"]
            assert 0 < share["low"] <= share["median"] <= share["high"]
            shown += f" {row[name]['gigabytes_per_second']:.1f} {share['median']:.2f}"
            shown += f" ({share['low']:.2f}-{share['high']:.2f})"
        assert line.split() == shown.split()
    for name, microseconds in figures["call_microseconds"].items():
        assert f"\na call of {name}: {microseconds:.2f} microseconds\n" in printed


def run_benchmark(monkeypatch: pytest.MonkeyPatch, *options: str, json: Path) -> dict[str, list]:
    script = ROOT / "benchmarks" / "bench_kernels.py"
    monkeypatch.setattr(sys, "argv", [str(script), *options, "--json", str(json)])
    monkeypatch.syspath_prepend(script.parent)  # as when a script is started
    runpy.run_path(str(script), run_name="__main__")
    return loads(json.read_text())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--megabytes", "0.1"], "argument --megabytes: the bucket has less than 100 rows"),
        (["--turns", "1"], "argument --turns: 1 is less than 2"),
        (["--variant", "fast"], "argument --variant: invalid choice: 'fast'"),
    ],
)
def test_options_that_the_benchmark_cannot_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    with pytest.raises(SystemExit) as error:
        run_benchmark(monkeypatch, *options, json=tmp_path / "f.json")
    assert error.value.code == 2
    assert sentence in capsys.readouterr().err
