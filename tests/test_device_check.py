# SPDX-License-Identifier: MIT
"""scripts/device_check.sh where there is no device, and what it records of steps that stand in."""

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "device_check.sh"
NO_DEVICE = 77


def put(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def check(programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With these programs before all others."""
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
    }
    return subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, timeout=100
    )


def test_without_a_device(tmp_path: Path) -> None:
    put(tmp_path / "nvidia-smi", "echo 'No devices were found'; exit 6")
    file = tmp_path / "device.json"
    done = check(tmp_path, str(file))
    assert done.returncode == NO_DEVICE and not file.exists() and done.stdout == ""
    assert done.stderr == ("device_check.sh needs a CUDA device, and nvidia-smi finds none here.\n")


@pytest.fixture
def device_check(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import device_check

    return device_check


def record_of(
    steps: list[list[tuple[str, float, str]]],
    file: Path,
    device_check: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """What the script writes when these are its steps, each a command of the shell."""

    def stages(figures: Path) -> list[list[Any]]:
        def made(name: str, seconds: float, text: str) -> Any:
            return device_check.Step(name, seconds, ["sh", "-c", text, "sh", str(figures)])

        return [[made(*step) for step in stage] for stage in steps]

    monkeypatch.setattr(device_check, "stages", stages)
    monkeypatch.setattr(sys, "argv", ["device_check.py", "--device", "A device, 1.2", str(file)])
    status = device_check.main()
    record = json.loads(file.read_text())
    assert status == (0 if record["passed"] else 1)
    assert record["device"] == "A device, 1.2"
    return record


def test_all_steps_pass(device_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [[("one", 9, "true")], [("two", 9, """echo '{"copy": 1.5}' > "$1"; echo noise""")]]
    record = record_of(steps, tmp_path / "new" / "device.json", device_check, monkeypatch)
    assert record["passed"] and record["bench"] == {"copy": 1.5}
    assert [(step["name"], step["status"], step["output"]) for step in record["steps"]] == [
        ("one", 0, ""),
        ("two", 0, ""),
    ]


@pytest.mark.slow
def test_a_step_that_fails_does_not_stop_the_others(
    device_check: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [
        [("fails", 9, "echo why >&2; exit 3"), ("lasts", 0.2, "sleep 60")],
        [("passes", 9, "true")],
    ]
    begun = time.monotonic()
    record = record_of(steps, tmp_path / "device.json", device_check, monkeypatch)
    assert time.monotonic() - begun < 30
    assert not record["passed"] and record["bench"] is None
    assert [(step["name"], step["status"], step["output"]) for step in record["steps"]] == [
        ("fails", 3, "why\n"),
        ("lasts", 124, ""),
        ("passes", 0, ""),
    ]
    printed = capsys.readouterr().out
    assert "fails: FAILED with status 3" in printed and "passes: passed" in printed


@pytest.mark.slow
def test_time_is_shared_by_all(device_check: Any) -> None:
    """What comes too late has a second, however long it may take."""
    steps = [[device_check.Step(name, 60, ["sleep", "40"])] for name in ("one", "two")]
    begun = time.monotonic()
    assert [step.status for step in device_check.run_all(steps, 0.5)] == [124, 124]
    assert time.monotonic() - begun < 20


def test_steps_name_what_is_there(device_check: Any) -> None:
    program = "build-device/test_cuda_coo_sort"
    sanitized = {
        tool: f"compute-sanitizer --tool {tool} --error-exitcode 1 {program}"
        for tool in ("memcheck", "racecheck")
    }
    lines = {"kernels": program} | sanitized
    for step in itertools.chain.from_iterable(device_check.stages(Path("figures.json"))):
        if step.name in lines:
            dry = [*step.command, "--dry-run"]
            done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True)
            assert lines.pop(step.name) in done.stdout.splitlines()
        for part in step.command:
            assert not part.endswith(".py") or (ROOT / part).exists()
    assert not lines


@pytest.mark.slow
def test_figures_on_the_cpu(tmp_path: Path) -> None:
    """That the benchmark works; what its figures are is nothing here."""
    file = tmp_path / "figures.json"
    options = ["--device=cpu", "--megabytes=0.5", "--turns=2", "--layers=1", "--width=64"]
    command = [sys.executable, "benchmarks/bench_cuda.py", *options, f"--json={file}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert list(figures) == ["bitmap", "gather", "scatter", "row sums", "insert", "peel", "hook"]
    for name, figure in figures.items():
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert f"\n{name:10} {figure['median']:.2f} (" in done.stdout
