# SPDX-License-Identifier: MIT
"""The demo's text: what it is made of, and what cannot be one."""

import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("rich", reason="the demo needs rich")
pytest.importorskip("matplotlib", reason="the demo needs matplotlib")

from s2reducer import cli
from s2reducer.cli import corpus


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


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """One that every user may read and write, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="s2reducer-test-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


# Root may read every file, so a root becomes another user.  It has read one before, and so imported
# all that it needs: the other user may not be able to.
AS_ANOTHER_USER = """
import os, sys
import matplotlib, rich  # which the demo only looks for, before it reads
from s2reducer import cli

def read(path):
    return cli.main(["demo", "--output", f"{path}.png", "--text", path])

forbidden, allowed = sys.argv[1:]
read(allowed)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
open(allowed).close()
sys.exit(read(forbidden))
"""


@pytest.mark.slow
def test_text_without_permission(public_folder: Path) -> None:
    forbidden = write(public_folder / "forbidden", b"words")
    forbidden.chmod(0)
    allowed = write(public_folder / "allowed", b"words")
    allowed.chmod(0o644)
    path = os.pathsep.join([str(Path(cli.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(forbidden), str(allowed)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stderr == (
        "demo: the text has 1 different words, too few for a vocabulary of 20,000: give more text\n"
        f"demo: --text {forbidden} cannot be read: Permission denied\n"
    )
    assert done.returncode == 2


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


@pytest.mark.slow
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
