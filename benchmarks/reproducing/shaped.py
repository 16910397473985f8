# SPDX-License-Identifier: MIT
"""The steps of an example's model on links with a rate, by the machinery of ``bench_training``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bench_training
import corpora
import gnmt
import lstm_language_model
import resnet_fashion_mnist
import torch
import torch.distributed as dist
import transformer_xl
from models import Task
from torch import Tensor, nn
from torch.nn import functional

from .accuracy import tables_of
from .settings import MODELS, make

Record = dict[str, Any]
Sizes = Mapping[str, int]

# What bench_training compares with: dense DDP, and a step without communication.
YARDSTICKS = ("ddp", "none")
UNTIMED_TURNS = bench_training.WARM_UP + bench_training.METERED_STEPS
LEARN = 66  # steps of ``auto`` before: it learns its costs in 64


class Classifier(nn.Module):
    """Images and classes to a loss."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        return functional.cross_entropy(self.network(images), classes)


class Reader(nn.Module):
    """A language model that keeps its memory from step to step, and gives the loss alone."""

    def __init__(self, network: nn.Module, nothing: Any) -> None:
        super().__init__()
        self.network, self.nothing = network, nothing
        self.memory = nothing

    def forward(self, words: Tensor, targets: Tensor, begins: bool) -> Tensor:
        before = self.nothing if begins else self.memory
        loss, self.memory = self.network(words, targets, before)
        return loss


def task_of(model: str, sizes: Sizes, text: Sequence[Path] | None) -> Task:
    """The model that the script of ``model`` trains, and its batches."""
    torch.manual_seed(0)
    return _TASKS[MODELS[model].script](sizes, text)


def _images(sizes: Sizes, text: Sequence[Path] | None) -> Task:
    def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
        # Times do not depend on what is in an image.
        generator = torch.Generator().manual_seed(1_000_003 * rank + step)
        images = torch.randn(sizes["batch"], 1, 28, 28, generator=generator)
        return images, torch.randint(10, (sizes["batch"],), generator=generator)

    return Task(Classifier(resnet_fashion_mnist.ResNet(sizes["depth"], channels=1)), batch)


def _language(sizes: Sizes, text: Sequence[Path] | None) -> Task:
    words = corpora.read_text(text, sizes["vocabulary"], sizes["length"] + 1)
    streams = corpora.Streams(
        words.train,
        batch=sizes["batch"],
        length=sizes["length"],
        rank=dist.get_rank(),
        ranks=dist.get_world_size(),
        seed=0,
    )
    reader = (
        Reader(
            transformer_xl.TransformerXL(
                words.vocabulary, sizes["width"], sizes["layers"], sizes["heads"], sizes["memory"]
            ),
            nothing=[],
        )
        if "memory" in sizes
        else Reader(
            lstm_language_model.LanguageModel(
                words.vocabulary, sizes["width"], sizes["layers"], dropout=0.0, sparse=False
            ),
            nothing=None,
        )
    )
    return Task(reader, lambda rank, step: streams.at(step), tuple(tables_of(reader)))


def _translation(sizes: Sizes, text: Sequence[Path] | None) -> Task:
    pairs = corpora.read_pairs(None, sizes["vocabulary"], sizes["longest"])
    network = gnmt.GNMT(pairs.vocabularies, sizes["width"], sizes["layers"])

    def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
        numbers = corpora.shuffled_batch(
            len(pairs.train),
            step,
            seed=0,
            batch=sizes["batch"],
            rank=rank,
            ranks=dist.get_world_size(),
        )
        return gnmt.pad([pairs.train[number] for number in numbers])

    return Task(network, batch, tuple(tables_of(network)))


_TASKS: dict[str, Callable[[Sizes, Sequence[Path] | None], Task]] = {
    "resnet_fashion_mnist": _images,
    "lstm_language_model": _language,
    "transformer_xl": _language,
    "gnmt": _translation,
}


def measure(order: Record) -> list[Record]:
    """A rank's part: the records of ``bench_training``, for a model and some methods.

    ``dense`` is not timed by itself: it is ``ddp``, DDP without a hook.
    """
    text = [Path(name) for name in order["text"]] or None
    return bench_training.measure_task(
        order["model"],
        lambda sparse: task_of(order["model"], order["sizes"], text),
        [*YARDSTICKS, *order["methods"]],
        order["turns"],
        LEARN,
        partial(make, is_timed=True),
    )
