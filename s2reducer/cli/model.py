# SPDX-License-Identifier: MIT
"""The demo's language model: embedding, LSTM, sampled softmax.

Sampled softmax is how models with large vocabularies are trained: a step computes the scores of the
words that come next and of some random words, not of all words. So both big tables, that of the
input words and that of the output words, get a gradient only in the rows of words that this batch
had or drew; autograd still hands DDP the whole table, zeros included. The final loss is the exact
one, over the whole vocabulary.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from s2reducer.cli.batches import Batch, log_uniform_probability


class LanguageModel(nn.Module):
    """Predicts the next word; ``forward`` gives the training loss in nats a word.

    No dropout: its masks would be one more thing that has to agree between the two runs.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.input_words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.output_words = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.input_words.weight, std=0.1)
        nn.init.normal_(self.output_words.weight, std=0.1)

    def forward(self, inputs: Tensor, targets: Tensor, negatives: Tensor) -> Tensor:
        states = self._states(inputs)
        # One lookup for both: two would make autograd build the table's gradient twice.
        rows = self.output_words(torch.cat([targets.flatten(), negatives]))
        true_rows, negative_rows = rows.split([targets.numel(), len(negatives)])
        scores = torch.cat([(states * true_rows).sum(1, keepdim=True), states @ negative_rows.T], 1)
        scores = scores - self._expected_draws(targets, negatives)
        # A negative that happens to be the right word must not count as a wrong one.
        hits = targets.reshape(-1, 1) == negatives
        scores[:, 1:].masked_fill_(hits, -torch.inf)
        return functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))

    def _states(self, inputs: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.input_words(inputs))[0]
        return states.flatten(0, 1)

    def _expected_draws(self, targets: Tensor, negatives: Tensor) -> Tensor:
        """log of how often a word is expected among the negatives: without this correction the
        model would learn the ratio to the negatives' distribution instead of a probability."""
        draws = len(negatives)
        of_true = log_uniform_probability(targets.reshape(-1, 1), self.vocabulary)
        of_negatives = log_uniform_probability(negatives, self.vocabulary)
        expected = torch.cat([of_true, of_negatives.expand(len(of_true), draws)], 1) * draws
        return expected.log().float()

    @torch.no_grad()
    def exact_loss(self, batches: Iterable[Batch]) -> float:
        """Mean loss over the whole vocabulary, in nats a word."""
        total, words = 0.0, 0
        for batch in batches:
            scores = self._states(batch.inputs) @ self.output_words.weight.T
            loss = functional.cross_entropy(scores, batch.targets.flatten(), reduction="sum")
            total += float(loss)
            words += batch.targets.numel()
        return total / words
