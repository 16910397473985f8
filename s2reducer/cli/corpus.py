# SPDX-License-Identifier: MIT
"""The demo's text: real English that every CPython carries, or the user's own files.

The default corpus is the language reference that ``help()`` shows (``pydoc_data.topics``) and the
docstrings of the standard library. Both are read from the installed source files with ``ast``: no
module of the library is imported, so nothing runs and the order is that of the file names.

A text becomes numbers in three steps: ``split_words`` (words and punctuation, lower case),
``Vocabulary`` (the most frequent words; the rest is ``<unk>``), ``split_held_out`` (every twentieth
chunk is kept for the final loss, which so is measured on sentences the model has not seen).
"""

import ast
import os
import re
import sysconfig
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "<unk>"
LEAST_VOCABULARY = 100
# Reading stops here: 32 MiB are some seven million words, far more than a demo of minutes can use,
# and a file of many gigabytes must not fill the memory.
MAX_TEXT_BYTES = 32 * 1024 * 1024
# A chunk is long enough to hold many windows and short enough that every module of the default
# corpus is represented in the held-out part.
CHUNK_WORDS = 1000
HELD_OUT_EVERY = 20

_WORD = re.compile(r"\w+|[^\w\s]")
# Tests of the library hold test data rather than English, and Linux distributions leave them out.
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests"})


class CorpusError(Exception):
    """The text cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True)
class Text:
    """Pieces of text in a fixed order, and one line that says where they come from."""

    pieces: list[str]
    source: str

    @property
    def nbytes(self) -> int:
        return sum(len(piece.encode()) for piece in self.pieces)


@dataclass(frozen=True)
class Vocabulary:
    """Words by falling frequency; the number of a word is its place, 0 is ``<unk>``.

    Equally frequent words stand in the order in which the text has them first, so the numbers
    depend on the text alone.
    """

    words: list[str]
    distinct: int

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def from_words(cls, words: Iterable[str], size: int) -> "Vocabulary":
        counts = Counter(words)
        if len(counts) + 1 < size:
            smaller = f", or --vocabulary {len(counts) + 1} or less"
            raise CorpusError(
                f"the text has {len(counts):,} different words, too few for a vocabulary of "
                f"{size:,}: give more text{smaller if len(counts) >= LEAST_VOCABULARY else ''}"
            )
        return cls([UNKNOWN, *(word for word, _ in counts.most_common(size - 1))], len(counts))

    def encode(self, words: Iterable[str]) -> "array[int]":
        number = {word: i for i, word in enumerate(self.words)}
        return array("i", (number.get(word, 0) for word in words))


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks in lower case."""
    return _WORD.findall(text.lower())


def iterate_words(text: Text) -> Iterator[str]:
    for piece in text.pieces:
        yield from split_words(piece)


def split_held_out(ids: "array[int]", shortest: int) -> tuple["array[int]", "array[int]"]:
    """Training words and held-out words; both have at least ``shortest`` words or it raises."""
    train, held_out = array("i"), array("i")
    for number, start in enumerate(range(0, len(ids), CHUNK_WORDS)):
        last_of_twenty = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        (held_out if last_of_twenty else train).extend(ids[start : start + CHUNK_WORDS])
    if not held_out:
        # A text of less than twenty chunks: its last twentieth.
        cut = len(train) - len(train) // HELD_OUT_EVERY
        train, held_out = train[:cut], train[cut:]
    if min(len(train), len(held_out)) < shortest:
        raise CorpusError(
            f"the text has {len(ids):,} words, too few for windows of {shortest} words of which "
            f"one in {HELD_OUT_EVERY} is held out: give more text or a smaller --length"
        )
    return train, held_out


def read_files(paths: Sequence[Path]) -> Text:
    """The user's files as UTF-8, in the order given, up to ``MAX_TEXT_BYTES`` altogether."""
    pieces: list[str] = []
    room = MAX_TEXT_BYTES
    for path in paths:
        # A file beyond the limit is still opened: an error in it is an error.
        data = _read_bytes(path, max(room, 0) + 1)
        piece = _decode(path, data, cut=len(data) > room)
        if room > 0:
            pieces.append(piece)
        room -= len(data)
    names = ", ".join(str(path) for path in paths)
    limit = f" (the first {MAX_TEXT_BYTES // 2**20} MiB)" if room < 0 else ""
    return Text(pieces, f"{names}{limit}")


def _read_bytes(path: Path, limit: int) -> bytes:
    try:
        if path.is_dir():
            raise CorpusError(f"--text {path} is a directory: give the files in it")
        with path.open("rb") as file:
            data = file.read(limit)
    except FileNotFoundError:
        raise CorpusError(f"--text {path} does not exist") from None
    except OSError as error:
        raise CorpusError(f"--text {path} cannot be read: {error.strerror}") from None
    if not data:
        raise CorpusError(f"--text {path} is empty")
    return data


def _decode(path: Path, data: bytes, cut: bool) -> str:
    if b"\0" in data:
        raise CorpusError(f"--text {path} is a binary file (it has zero bytes): give UTF-8 text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The limit may have cut the last character in two.
        if cut and error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8-sig")
        raise CorpusError(
            f"--text {path} is not UTF-8 text (byte {data[error.start]:#04x} at position "
            f"{error.start:,}): convert it to UTF-8"
        ) from None


def read_default(library: Path | None = None) -> Text:
    """``pydoc_data.topics`` and the docstrings of the standard library at ``library``."""
    root = library or Path(sysconfig.get_path("stdlib"))
    pieces = _read_topics(root / "pydoc_data" / "topics.py")
    files = 0
    for path in _source_files(root):
        found = read_docstrings(path)
        files += bool(found)
        pieces += found
    if not pieces:
        raise CorpusError(f"no Python source files under {root}: give your own text with --text")
    return Text(pieces, f"Python's help topics and the docstrings of {files} library files")


def _source_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        # os.walk descends into what is left here, in this order.
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _parse(path: Path) -> ast.Module | None:
    """None for the few library files that are no valid source, kept there as bad examples."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _read_topics(path: Path) -> list[str]:
    tree = _parse(path)
    for node in tree.body if tree else []:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            return [str(text) for text in ast.literal_eval(node.value).values()]
    return []


def read_docstrings(path: Path) -> list[str]:
    """Docstrings of a file's module, classes and functions, in source order."""
    tree = _parse(path)
    return list(_docstrings(tree)) if tree else []


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[str]:
    # Only the statements of bodies: ast.walk visits every expression and takes three times as long.
    text = ast.get_docstring(node)
    if text:
        yield text
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _docstrings(child)
