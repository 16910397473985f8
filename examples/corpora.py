# SPDX-License-Identifier: MIT
"""The data that the training scripts here read: Debian packages, or the user's own files.

============================  ==========================================  =====================
what                          Debian's package                            or
============================  ==========================================  =====================
28 x 28 images of 10 classes  ``dataset-fashion-mnist``                   other files of its form
English text                  ``dict-gcide``, a dictionary                text files in UTF-8
German sentences in English   ``dict-freedict-deu-eng``, usage examples   two such files
============================  ==========================================  =====================

Whatever is missing or cannot be used is a ``CorpusError``, one sentence for the user.
"""

import gzip
import re
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from s2reducer.cli import corpus
from s2reducer.cli.batches import generator
from s2reducer.cli.corpus import CorpusError

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
DICTIONARIES = Path("/usr/share/dictd")
# A dictionary of 40 MB; this much is more than a million words, and minutes of training see less.
GCIDE_BYTES = 12 * 2**20
HELD_OUT_EVERY = corpus.HELD_OUT_EVERY  # pairs

# ------------------------------------------------------------------------------------------------
# Images
# ------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> Tensor:
    """uint8, of the shape that the file says: the format in which MNIST came, gzipped or not."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise CorpusError(
            f"{path} does not exist: install Debian's package dataset-fashion-mnist, or give the "
            "directory of the four files with --data"
        ) from None
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from None
    # Two bytes of zero, the type of elements (8: uint8), the dimensions, their sizes in big-endian.
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise CorpusError(f"{path} is no IDX file of bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    elements = torch.frombuffer(bytearray(data), dtype=torch.uint8)[4 + 4 * data[3] :]
    if elements.numel() != torch.Size(shape).numel():
        raise CorpusError(f"{path} has {elements.numel():,} elements, but says {list(shape)}")
    return elements.view(shape)


def read_fashion_mnist(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Images, uint8 [n, 1, 28, 28], and their classes, int64 [n], of ``train`` or ``t10k``."""
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise CorpusError(
            f"{folder} has images of {list(images.shape)}, but labels of {list(labels.shape)}"
        )
    return images.unsqueeze(1), labels.long()


def read_cifar10(folder: Path, train: bool) -> tuple[Tensor, Tensor]:
    """Images, uint8 [n, 3, 32, 32], and their classes, by torchvision."""
    try:
        from torchvision.datasets import CIFAR10
    except ImportError:
        raise CorpusError("CIFAR-10 is read by torchvision, which is not installed") from None
    try:
        data = CIFAR10(str(folder), train=train)
    except RuntimeError:
        raise CorpusError(
            f"{folder} has no CIFAR-10: give the directory with cifar-10-batches-py in --data"
        ) from None
    return torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(data.targets)


# ------------------------------------------------------------------------------------------------
# Text
# ------------------------------------------------------------------------------------------------


def read_dictionary(name: str, limit: int = -1, folder: Path = DICTIONARIES) -> str:
    """The text of one of dictd's dictionaries, whose compression gzip can read.

    Args:
        name: such as ``gcide``, from Debian's package ``dict-gcide``.
        limit: bytes; -1 for all.
    """
    path = folder / f"{name}.dict.dz"
    try:
        with gzip.open(path) as file:
            # Single bytes of the older ones are in other encodings.
            return file.read(limit).decode(errors="replace")
    except FileNotFoundError:
        raise CorpusError(
            f"{path} does not exist: install Debian's package dict-{name}, or give your own text"
        ) from None
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from None


def without_markup(text: str) -> str:
    r"""A dictionary's prose: without ``\pronunciations\``, ``[sources]``, braces of links."""
    text = re.sub(r"\\[^\\\n]*\\|[{}]", " ", text)
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:  # from the inner ones outwards
        text = shorter
    return text


@dataclass(frozen=True)
class Text:
    """A text as numbers of words, 0 for those outside the vocabulary.

    Attributes:
        train, held_out: int64, [n].
        vocabulary: numbers are below it.
        source: where the text comes from.
    """

    train: Tensor
    held_out: Tensor
    vocabulary: int
    source: str

    def unigram_perplexity(self) -> float:
        """Of the held-out words, if all that is known are the words' frequencies in ``train``."""
        counts = torch.bincount(self.train, minlength=self.vocabulary).double() + 1
        return float((counts / counts.sum())[self.held_out].log().mean().neg().exp())


def read_text(paths: Sequence[Path] | None, vocabulary: int, shortest: int) -> Text:
    """The user's files or ``dict-gcide``; both parts have at least ``shortest`` words."""
    if paths:
        text = corpus.read_files(paths)
    else:
        prose = without_markup(read_dictionary("gcide", GCIDE_BYTES))
        text = corpus.Text([prose], "the beginning of dict-gcide")
    words = list(corpus.iterate_words(text))
    ids = corpus.Vocabulary.from_words(words, vocabulary).encode(words)
    train, held_out = (_tensor(part) for part in corpus.split_held_out(ids, shortest))
    return Text(train, held_out, vocabulary, text.source)


def _tensor(ids: "array[int]") -> Tensor:
    return torch.frombuffer(ids, dtype=torch.int32).long()


class Streams:
    """A text that ``ranks * batch`` readers read on and on, each from a place of its own.

    Its windows follow one another, so that a model may carry a memory from each to the next.
    ``seed`` moves all places; without it the first reader begins where the text does.
    """

    def __init__(
        self,
        words: Tensor,
        *,
        batch: int,
        length: int,
        rank: int,
        ranks: int,
        seed: int | None = None,
    ) -> None:
        count = len(words) // (batch * ranks)
        if count <= length:
            raise CorpusError(
                f"{len(words):,} words are too few for {ranks} x {batch} windows of {length}: give "
                "more text, or a smaller --batch or --length"
            )
        if seed is not None:
            moved = torch.randint(len(words), (1,), generator=generator(seed, 0, 0))
            words = words.roll(-int(moved))
        readers = words[: count * batch * ranks].view(ranks, batch, count)
        self._readers, self._length = readers[rank], length

    def __len__(self) -> int:
        """Windows of a reader, before it begins again."""
        return (self._readers.shape[1] - 1) // self._length

    def at(self, step: int) -> tuple[Tensor, Tensor, bool]:
        """Words and those that follow them, [batch, length], and whether reading (re)begins."""
        window = step % len(self)
        start, stop = window * self._length, (window + 1) * self._length
        return self._readers[:, start:stop], self._readers[:, start + 1 : stop + 1], window == 0


# ------------------------------------------------------------------------------------------------
# Pairs of sentences
# ------------------------------------------------------------------------------------------------

PAD, BEGIN, END = 0, 1, 2  # words follow, the unknown one first

_EXAMPLE = re.compile(r'^ +"(.+)" +- (.+)$', re.MULTILINE)
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Pairs:
    """Sentences as numbers of words, each with its translation, which ends in ``END``.

    Attributes:
        vocabularies: of the source and the target; numbers are below it.
    """

    train: list[Pair]
    held_out: list[Pair]
    vocabularies: tuple[int, int]
    source: str


def read_pairs(paths: tuple[Path, Path] | None, vocabulary: int, longest: int) -> Pairs:
    """The lines of the user's two files, or ``dict-freedict-deu-eng``, without repetitions.

    Args:
        vocabulary: at most, for each of the two languages.
        longest: words of a sentence; pairs with a longer one are left out.
    """
    if paths:
        lines = [corpus.read_files([path]).pieces[0].splitlines() for path in paths]
        if len(lines[0]) != len(lines[1]):
            raise CorpusError(
                f"{paths[0]} has {len(lines[0]):,} lines, but {paths[1]} has {len(lines[1]):,}"
            )
        found, source = list(zip(*lines, strict=True)), f"{paths[0]} and {paths[1]}"
    else:
        found = _EXAMPLE.findall(read_dictionary("freedict-deu-eng"))
        source = "the usage examples of dict-freedict-deu-eng"
    sides = [(corpus.split_words(a), corpus.split_words(b)) for a, b in dict.fromkeys(found)]
    sides = [side for side in sides if all(0 < len(words) <= longest for words in side)]
    if len(sides) < HELD_OUT_EVERY:
        raise CorpusError(
            f"{source} has {len(sides)} pairs of up to {longest} words, too few to hold out one in "
            f"{HELD_OUT_EVERY}"
        )
    sources, source_size = _numbers([a for a, _ in sides], vocabulary)
    targets, target_size = _numbers([b for _, b in sides], vocabulary)
    pairs = [(a, [*b, END]) for a, b in zip(sources, targets, strict=True)]
    held_out = pairs[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    train = [pair for n, pair in enumerate(pairs) if n % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return Pairs(train, held_out, (source_size, target_size), source)


def _numbers(sentences: list[list[str]], vocabulary: int) -> tuple[list[list[int]], int]:
    words = list(chain.from_iterable(sentences))
    size = min(vocabulary - 1 - END, len(set(words)) + 1)
    encoded = corpus.Vocabulary.from_words(words, size).encode(words)
    numbers = iter(encoded)
    return [[next(numbers) + 1 + END for _ in sentence] for sentence in sentences], size + 1 + END


# ------------------------------------------------------------------------------------------------
# Which examples a step takes
# ------------------------------------------------------------------------------------------------


def shuffled_batch(
    count: int, step: int, *, seed: int, batch: int, rank: int, ranks: int
) -> list[int]:
    """Numbers below ``count``: each once an epoch, in another order each, a part for each rank."""
    steps = count // (batch * ranks)  # of an epoch; what is left over waits for the next
    if not steps:
        raise CorpusError(
            f"{count:,} examples are too few for {ranks} x {batch} in a step: give more, or a "
            "smaller --batch"
        )
    start = (step % steps * ranks + rank) * batch
    return _order(count, seed, step // steps)[start : start + batch].tolist()


@lru_cache(maxsize=1)
def _order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator(seed, epoch, 0))
