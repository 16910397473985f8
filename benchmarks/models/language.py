# SPDX-License-Identifier: MIT
"""A language model: embedding, LSTM, sampled softmax over the same table.

Input words, words to be predicted and random words are looked up in one table, once a step, so its
gradient has the rows of these words and no others.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .task import Task, Zipf, generator_of

LENGTH = 35
WINDOWS = 20  # of LENGTH words: 700 words a rank
NEGATIVES = 256


class LanguageModel(nn.Module):
    """``forward`` takes words, [windows, LENGTH + 1], and random words, and gives the loss."""

    def __init__(self, vocabulary: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, windows: Tensor, negatives: Tensor) -> Tensor:
        numbers = torch.cat([windows.flatten(), negatives])
        rows, negative_rows = self.words(numbers).split([windows.numel(), len(negatives)])
        rows = rows.view(*windows.shape, -1)
        states = self.lstm(rows[:, :-1])[0].flatten(0, 1)
        targets = rows[:, 1:].flatten(0, 1)
        scores = torch.cat([(states * targets).sum(1, keepdim=True), states @ negative_rows.T], 1)
        return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def language_model(vocabulary: int, width: int = 512, sparse: bool = False) -> Task:
    """One table of [vocabulary, width] and an LSTM; words by Zipf's law."""
    torch.manual_seed(0)
    module = LanguageModel(vocabulary, width, sparse)
    words = Zipf(vocabulary, 1.0)

    def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = generator_of(rank, step)
        windows = words.draw((WINDOWS, LENGTH + 1), generator)
        return windows, words.draw((NEGATIVES,), generator)

    return Task(module, batch, (module.words.weight,))
