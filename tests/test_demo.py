# SPDX-License-Identifier: MIT
"""``python -m s2reducer demo``: its text, its batches, its figures, and that no process stays."""

import importlib.util
import io
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
import torch
from torch.nn import functional

pytest.importorskip("rich", reason="the demo needs rich")
pytest.importorskip("matplotlib", reason="the demo needs matplotlib")

from rich.console import Console

from s2reducer import cli
from s2reducer.cli import batches, corpus, network, plot, processes, results, tables
from s2reducer.cli.model import LanguageModel
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


# --- the text ---------------------------------------------------------------------------------


def write(path: Path, content: bytes | None) -> Path:
    """A file; for None a directory."""
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is a directory: give the files in it"),
        (b"", "is empty"),
        (b"\x7fELF\0\0", "is a binary file (it has zero bytes): give UTF-8 text"),
        (b"caf\xe9 au lait", "is not UTF-8 text (byte 0xe9 at position 3): convert it to UTF-8"),
        (b"cut short \xc3", "is not UTF-8 text (byte 0xc3 at position 10): convert it to UTF-8"),
    ],
)
def test_text_that_cannot_be_read_ends_with_2_and_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, sentence: str
) -> None:
    path = write(tmp_path / "text", content)
    assert cli.main(["demo", "--text", str(path)]) == 2
    assert capsys.readouterr().err == f"demo: --text {path} {sentence}\n"


def test_every_file_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, missing = write(tmp_path / "good", b"some words"), tmp_path / "missing"
    assert cli.main(["demo", "--text", str(good), str(missing)]) == 2
    assert capsys.readouterr().err == f"demo: --text {missing} does not exist\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_text_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "text", b"words")
    path.chmod(0)
    assert cli.main(["demo", "--text", str(path)]) == 2
    assert capsys.readouterr().err == f"demo: --text {path} cannot be read: Permission denied\n"


@pytest.mark.parametrize(
    ("distinct", "sentence"),
    [
        (4, "the text has 4 different words, too few for a vocabulary of 20,000: give more text"),
        (
            150,
            "the text has 150 different words, too few for a vocabulary of 20,000: give more text, "
            "or --vocabulary 151 or less",
        ),
    ],
)
def test_text_too_short_for_the_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], distinct: int, sentence: str
) -> None:
    words = " ".join(f"word{i}" for i in range(distinct))
    path = write(tmp_path / "text", words.encode())
    assert cli.main(["demo", "--text", str(path)]) == 2
    assert capsys.readouterr().err == f"demo: {sentence}\n"


def test_text_too_short_for_the_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "text", " ".join(f"word{i}" for i in range(120)).encode())
    assert cli.main(["demo", "--text", str(path), "--vocabulary", "100"]) == 2
    assert capsys.readouterr().err == (
        "demo: the text has 120 words, too few for windows of 34 words of which one in 20 is held "
        "out: give more text or a smaller --length\n"
    )


def test_only_the_first_part_of_a_huge_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "MAX_TEXT_BYTES", 10)
    first = write(tmp_path / "first", b"12345 78")
    # The cut falls into the two bytes of the last character, which is left out.
    second = write(tmp_path / "second", "a \u00e9\u00e9 rest".encode())
    text = corpus.read_files([first, second, first])
    assert text.pieces == ["12345 78", "a "]
    assert text.source.endswith("(the first 0 MiB)")


def test_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    path = write(tmp_path / "text", b"\xef\xbb\xbfWords, two!")
    words = list(corpus.iterate_words(corpus.read_files([path])))
    assert words == ["words", ",", "two", "!"]


def test_docstrings_are_read_in_order_and_nothing_is_run(tmp_path: Path) -> None:
    topics = write(tmp_path / "pydoc_data", None) / "topics.py"
    topics.write_text("topics = {'b': 'First topic', 'a': 'Second topic'}\n")
    (tmp_path / "z.py").write_text('"""Last"""\nraise SystemExit("imported")\n')
    (tmp_path / "a.py").write_text(
        '"""Module"""\nclass C:\n    """Class"""\n    def f(self):\n        """Method"""\n'
        '        "no docstring"\nasync def g():\n    """Function"""\n'
    )
    (tmp_path / "broken.py").write_text("def :\n")
    tests = write(tmp_path / "test", None) / "t.py"
    tests.write_text('"""Test data"""')
    text = corpus.read_default(tmp_path)
    assert text.pieces == [
        *("First topic", "Second topic", "Module", "Class", "Method", "Function", "Last")
    ]
    assert text.source == "Python's help topics and the docstrings of 2 library files"


def test_the_default_text_is_large_enough() -> None:
    text = corpus.read_default()
    assert text.nbytes > 1_500_000
    vocabulary = corpus.Vocabulary.from_words(corpus.iterate_words(text), 10_000)
    assert len(vocabulary) == 10_000
    assert {"the", "python", "returns"} <= set(vocabulary.words[:500])


def test_vocabulary_is_by_frequency_then_by_first_appearance() -> None:
    words = ["b", "a", "c", "c", "a", "d", "c", "e"]
    vocabulary = corpus.Vocabulary.from_words(words, 4)
    assert vocabulary.words == ["<unk>", "c", "a", "b"]
    assert vocabulary.distinct == 5
    assert list(vocabulary.encode(words)) == [3, 2, 1, 1, 2, 0, 1, 0]


def test_one_chunk_in_twenty_is_held_out() -> None:
    ids = array("i", range(40_500))
    train, held_out = corpus.split_held_out(ids, 34)
    assert list(held_out) == [*range(19_000, 20_000), *range(39_000, 40_000)]
    assert sorted([*train, *held_out]) == list(ids)


# --- batches and model ------------------------------------------------------------------------


def draw(step: int = 3, rank: int = 1, seed: int = 5) -> batches.Batch:
    words = torch.arange(1000, dtype=torch.int32)
    return batches.draw(
        words,
        seed=seed,
        step=step,
        rank=rank,
        batch=4,
        length=6,
        negatives=50,
        vocabulary=1000,
    )


def test_batches_depend_on_seed_step_and_rank_alone() -> None:
    torch.manual_seed(1)
    first = draw()
    state = torch.get_rng_state()
    torch.manual_seed(2)
    again = draw()
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.negatives, again.negatives)
    for other in (draw(step=4), draw(rank=2), draw(seed=6)):
        assert not torch.equal(first.inputs, other.inputs)
        assert not torch.equal(first.negatives, other.negatives)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


def test_targets_are_the_next_words() -> None:
    batch = draw()
    assert batch.inputs.shape == batch.targets.shape == (4, 6)
    # The words are numbered in their order, so the next one is one more.
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_negatives_follow_their_stated_distribution() -> None:
    vocabulary, draws = 20, 200_000
    probability = batches.log_uniform_probability(torch.arange(vocabulary), vocabulary)
    assert probability.sum().item() == pytest.approx(1.0, abs=1e-6)
    uniform = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    counts = torch.bincount(batches.log_uniform(uniform, vocabulary), minlength=vocabulary)
    torch.testing.assert_close(counts / draws, probability.float(), atol=1e-5, rtol=0)


def test_held_out_windows_cover_the_text_evenly() -> None:
    words = torch.arange(101, dtype=torch.int32)
    windows = list(batches.held_out_windows(words, batch=2, length=10, most=4))
    starts = torch.cat([batch.inputs[:, 0] for batch in windows])
    assert starts.tolist() == [0, 30, 60, 90]
    assert torch.equal(windows[0].targets, windows[0].inputs + 1)


def test_sampled_softmax_is_what_its_definition_says() -> None:
    torch.manual_seed(0)
    model = LanguageModel(50, 8)
    inputs, targets = torch.randint(50, (2, 3)), torch.randint(50, (2, 3))
    # One of the negatives is a right word: it is left out of that word's sum only.
    negatives = torch.cat([targets[0, :1], torch.tensor([1, 7, 7, 30])])
    states = model.lstm(model.input_words(inputs))[0].flatten(0, 1)
    table = model.output_words.weight

    def score(state: torch.Tensor, word: int) -> float:
        chance = math.log((word + 2) / (word + 1)) / math.log(51)
        return (state @ table[word]).item() - math.log(chance * len(negatives))

    losses = []
    for state, target in zip(states, targets.flatten().tolist(), strict=True):
        right = score(state, target)
        wrong = [score(state, word) for word in negatives.tolist() if word != target]
        losses.append(math.log(sum(math.exp(s) for s in [right, *wrong])) - right)
    expected = sum(losses) / len(losses)
    assert model(inputs, targets, negatives).item() == pytest.approx(expected, rel=1e-5)


def test_exact_loss_is_over_the_whole_vocabulary() -> None:
    torch.manual_seed(0)
    model = LanguageModel(50, 8)
    words = torch.randint(50, (101,), dtype=torch.int32)
    windows = list(batches.held_out_windows(words, batch=3, length=10, most=10))
    inputs, targets = words[:100].long().view(10, 10), words[1:].long()
    states = model.lstm(model.input_words(inputs))[0].flatten(0, 1)
    expected = functional.cross_entropy(states @ model.output_words.weight.T, targets)
    assert model.exact_loss(windows) == pytest.approx(expected.item(), rel=1e-5)


def test_only_rows_of_the_batch_get_a_gradient() -> None:
    model = LanguageModel(1000, 16)
    batch = draw()
    model(batch.inputs, batch.targets, batch.negatives).backward()
    for table, words in (
        (model.input_words, batch.inputs),
        (model.output_words, torch.cat([batch.targets.flatten(), batch.negatives])),
    ):
        assert table.weight.grad is not None
        live = table.weight.grad.abs().sum(1).nonzero().flatten()
        assert torch.equal(live, words.unique())


# --- figures ----------------------------------------------------------------------------------


def test_bytes_of_a_ring_allreduce() -> None:
    assert network.ring_allreduce_bytes(1000, 4, 2) == 4000
    assert network.ring_allreduce_bytes(1000, 4, 4) == 6000


def test_bytes_of_the_union_plan() -> None:
    # 1000 rows of 64, a tenth alive; 8 blocks of 64, all alive; on 2 ranks each byte goes once.
    parameters = [(64_000, 64, 0.1), (512, 64, 1.0)]
    assert network.union_bytes(parameters, 4, 2) == (6400 + 512) * 4 + 1008 / 8


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


# --- the command ------------------------------------------------------------------------------


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
@pytest.mark.parametrize(("ranks", "plan"), [(2, "auto"), (3, "union")])
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
        # Wide margins: anything else that talks over the loopback interface is counted too.
        plain_lo, reduced_lo = megabytes("bytes sent, by interface lo")
        assert 0.95 * plain_bytes < plain_lo < 1.5 * plain_bytes
        assert 0.95 * reduced_bytes < reduced_lo < plain_bytes / 2

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
    text = write(tmp_path / "text", " ".join(f"w{i % 300} x" for i in range(5000)).encode())
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
    settings = {**SETTINGS.as_dict(), "words": str(words), "held_out": str(words), "plan": "fast"}
    with pytest.raises(processes.RankError, match=r"rank \d failed: ValueError: .*'fast'"):
        processes.run_ranks(2, settings, tmp_path, lambda rank, event: None)
