# SPDX-License-Identifier: MIT
"""``python -m s2reducer demo`` as a command: its options, its output, and that no process stays."""

import importlib.util
import math
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the demo needs rich")
pytest.importorskip("matplotlib", reason="the demo needs matplotlib")

from s2reducer import cli
from s2reducer.cli import processes
from s2reducer.cli.training import Settings
from s2reducer.config import PLANS


def test_missing_packages_are_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "demo: the demo needs matplotlib and rich: python -m pip install matplotlib rich\n"
    )


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (".", "--output {}/. is a directory: give the name of a PNG file"),
        ("no/p.png", "--output {0}/no/p.png: the directory {0}/no does not exist"),
    ],
)
def test_output_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, sentence: str
) -> None:
    assert cli.main(["demo", "--output", f"{tmp_path}/{output}"]) == 2
    expected = sentence.format(tmp_path).removesuffix("/.").replace("/. is", " is")
    assert capsys.readouterr().err == f"demo: {expected}\n"


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--ranks", "1"], "argument --ranks: 1 is not in the range 2 to 64"),
        (["--steps", "ten"], "argument --steps: 'ten' is not a whole number"),
        (["--plan", "fast"], "argument --plan: invalid choice: 'fast'"),
    ],
)
def test_options_out_of_range(
    capsys: pytest.CaptureFixture[str], option: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["demo", *option])
    assert error.value.code == 2
    assert sentence in capsys.readouterr().err


def test_every_plan_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        cli.main(["demo", "--help"])
    assert error.value.code == 0
    assert f"--plan {{{','.join(PLANS)}}}" in capsys.readouterr().out


def start_demo(tmp_path: Path, *options: str) -> "subprocess.Popen[str]":
    """The demo in a folder of its own, its temporary files in ``tmp_path``/tmp; SIGINT is ignored
    at its start, as a shell does for what it starts in the background."""
    (tmp_path / "tmp").mkdir()
    root = str(Path(cli.__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "s2reducer", "demo", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": path},
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def rows_of(output: str) -> dict[str, list[str]]:
    rows = [
        line.strip("\u2502").split("\u2502") for line in output.splitlines() if "\u2502" in line
    ]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "plan"), [(2, "owner"), (3, "union"), (3, "auto")])
def test_demo_from_end_to_end(tmp_path: Path, ranks: int, plan: str) -> None:
    options = "--steps 30 --vocabulary 8000 --width 32 --batch 4 --length 16 --negatives 64"
    demo = start_demo(tmp_path, *options.split(), "--ranks", str(ranks), "--plan", plan)
    output, errors = demo.communicate(timeout=100)
    assert (demo.returncode, errors) == (0, "")
    rows = rows_of(output)

    plain_loss, reduced_loss = (float(cell) for cell in rows["final loss, held-out text"][:2])
    assert abs(plain_loss - reduced_loss) < 1e-3
    # It learns: the loss of a guess among all words is log(8000).
    assert reduced_loss < math.log(8000) - 0.5
    assert rows["ranks bitwise equal"][:2] == ["yes", "yes"]

    def megabytes(name: str) -> list[float]:
        return [float(cell.removesuffix(" MB")) for cell in rows[name][:2]]

    plain_bytes, reduced_bytes = megabytes("bytes sent, counted")
    parameters = 2 * 8000 * 32 + 2 * 4 * 32 * 32 + 2 * 4 * 32
    assert plain_bytes == pytest.approx(2 * (ranks - 1) / ranks * parameters * 4 / 1e6, abs=1e-3)
    _, union_bytes = megabytes("bytes of the plan union")
    assert reduced_bytes < plain_bytes / 5
    # The plan that is chosen sends less, but not by more than what several ranks have alike.
    assert union_bytes / 2 < reduced_bytes <= 1.05 * union_bytes
    if sys.platform.startswith("linux"):
        # No upper limit: whatever else talks over the loopback interface is counted too.
        plain_lo, reduced_lo = megabytes("bytes sent, by interface lo")
        assert 0.95 * plain_bytes < plain_lo and 0.95 * reduced_bytes < reduced_lo

    density, union_density = (float(c.rstrip("%")) for c in rows["input_words.weight"][2:4])
    # At most 64 of 8000 words are in a rank's batch, at least one is.
    assert 1 / 8000 < density / 100 <= 64 / 8000
    assert density < union_density <= ranks * density + 0.01
    assert rows["lstm.weight_ih_l0"][2:4] == ["100.00%", "100.00%"]

    picture = tmp_path / "s2reducer-demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert f"curves and bytes: {picture}\n" in output
    assert temporary_folders(tmp_path) == []


def children_of(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended since the listing.
        if int(fields[1]) == parent:
            found.append(int(stat.parent.name))
    return sorted(found)


def wait_for(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


Endless = tuple["subprocess.Popen[str]", list[int]]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Endless]:
    """A demo in the middle of its training, and its ranks."""
    text = tmp_path / "text"
    text.write_text(" ".join(f"w{i % 300} x" for i in range(5000)))
    options = "--steps 1000000 --vocabulary 200 --width 16 --batch 2 --length 8"
    demo = start_demo(tmp_path, "--text", str(text), *options.split())
    try:
        # The ranks meet by this file; a little later they train.
        stores = Path(tmp_path, "tmp")
        assert wait_for(40, lambda: any(f.stat().st_size > 0 for f in stores.glob("*/store")))
        time.sleep(3)
        ranks = children_of(demo.pid)
        assert len(ranks) == 2
        yield demo, ranks
    finally:
        demo.kill()
        demo.communicate()


def temporary_folders(tmp_path: Path) -> list[Path]:
    # torch makes a folder of its own there.
    return list(tmp_path.glob("tmp/s2reducer-demo-*"))


def none_left(ranks: list[int]) -> bool:
    return not any(map(is_running, ranks))


def is_running(process: int) -> bool:
    """Not when it is a zombie: it has ended, and only its new parent has not asked for its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


@linux
@pytest.mark.slow
@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_leaves_no_process(tmp_path: Path, endless: Endless, to_group: bool) -> None:
    demo, ranks = endless
    (os.killpg if to_group else os.kill)(demo.pid, signal.SIGINT)
    _, errors = demo.communicate(timeout=20)
    assert demo.returncode == 130
    assert errors == "demo: interrupted; no process is left\n"
    assert none_left(ranks)
    assert temporary_folders(tmp_path) == []


@linux
@pytest.mark.slow
def test_a_killed_rank_ends_the_others(endless: Endless) -> None:
    demo, ranks = endless
    os.kill(ranks[1], signal.SIGKILL)
    _, errors = demo.communicate(timeout=20)
    assert demo.returncode == 1
    assert errors.startswith("demo: rank 1 ended with signal SIGKILL")
    assert errors.endswith("; no process is left\n")
    assert none_left(ranks)


@linux
@pytest.mark.slow
def test_ranks_end_when_the_demo_is_killed(tmp_path: Path, endless: Endless) -> None:
    demo, ranks = endless
    demo.kill()
    demo.communicate(timeout=20)
    assert wait_for(20, lambda: none_left(ranks))
    assert temporary_folders(tmp_path) == []


@pytest.mark.slow
def test_the_error_of_a_rank_is_passed_on(tmp_path: Path) -> None:
    words = tmp_path / "words"
    with words.open("wb") as file:
        array("i", [1, 2, 3] * 100).tofile(file)
    settings = Settings(
        ranks=2,
        steps=8,
        vocabulary=100,
        width=16,
        batch=2,
        length=4,
        negatives=8,
        plan="fast",
        seed=0,
        words=str(words),
        held_out=str(words),
    )
    with pytest.raises(processes.RankError, match=r"rank \d failed: ValueError: .*'fast'"):
        processes.run_ranks(2, settings.as_dict(), tmp_path, lambda rank, event: None)


@pytest.mark.parametrize(("ranks", "cores", "times"), [(2, 2, 1), (2, 64, 1), (64, 2, 32)])
def test_waiting_is_longer_where_ranks_share_cores(
    monkeypatch: pytest.MonkeyPatch, ranks: int, cores: int, times: int
) -> None:
    monkeypatch.setattr(processes, "_cores", lambda: cores)
    assert processes.patience(ranks) == times
