# SPDX-License-Identifier: MIT
"""GNMT translates German into English; the metric is the perplexity of held-out translations.

    torchrun --nproc_per_node 2 examples/gnmt.py

The model is that of Wu et al. (arXiv 1609.08144): deep LSTMs with residual connections, of which
the encoder's first layer reads in both directions, and attention that the decoder's first layer
asks for and all its others are given. ``--layers 16`` is the paper's depth, eight and eight; 8 is
half of it. As in later implementations, attention is asked with the first layer's output of the
same word rather than of the one before, so that each layer runs over a sentence at once. Words are
words here, not pieces of them, and predicted by an adaptive softmax.

The pairs are the usage examples of Debian's package dict-freedict-deu-eng, or the lines of the two
files ``--source`` and ``--target``. The default settings are for minutes on two cores: the model
learns what such sentences are made of, not to translate. Left out: the search for translations, and
the paper's refinement by reinforcement learning.

A batch has few of the vocabularies' words, so most rows of the two embeddings' gradients are zero:
these s2reducer does not send. With ``--sparse`` the gradients have no such rows at all (COO).
"""

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpora
import harness
import torch
from corpora import BEGIN, PAD, Pair
from harness import at_least
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import s2reducer


class Attention(nn.Module):
    """Additive attention (Bahdanau et al., arXiv 1409.0473), its last layer with weight norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width)
        self.score = nn.utils.parametrizations.weight_norm(nn.Linear(width, 1, bias=False))

    def forward(self, asked: Tensor, memory: Tensor, is_word: Tensor) -> Tensor:
        """For ``asked``, [batch, target, width], means of ``memory``, [batch, source, width].

        ``is_word``, [batch, source], says what in it is no padding.
        """
        met = torch.tanh(self.query(asked).unsqueeze(2) + self.key(memory).unsqueeze(1))
        scores = self.score(met).squeeze(3).masked_fill(~is_word.unsqueeze(1), -math.inf)
        return scores.softmax(2) @ memory


class Encoder(nn.Module):
    """Sentences, [batch, source], to states, [batch, source, width]."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, dropout: float, sparse: bool
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        self.both_ways = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.layers = nn.ModuleList(
            nn.LSTM(width if number else 2 * width, width, batch_first=True)
            for number in range(layers - 1)
        )

    def forward(self, sentences: Tensor) -> Tensor:
        # Backwards, a sentence begins at its last word: packed, its padding is not read. Forwards
        # padding comes behind every word, and its states are those that attention masks.
        lengths = (sentences != PAD).sum(1)
        words = self.dropout(self.words(sentences))
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(
            self.both_ways(packed)[0], batch_first=True, total_length=sentences.shape[1]
        )
        for number, layer in enumerate(self.layers):
            found = layer(self.dropout(states))[0]
            states = found + states if number else found
        return states


class Decoder(nn.Module):
    """The words before, [batch, target], and the encoder's states to [batch, target, width]."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, dropout: float, sparse: bool
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1)
        )

    def forward(self, before: Tensor, memory: Tensor, is_word: Tensor) -> Tensor:
        states = self.first(self.dropout(self.words(before)))[0]
        context = self.attention(states, memory, is_word)
        for number, layer in enumerate(self.layers):
            found = layer(self.dropout(torch.cat([states, context], 2)))[0]
            states = found + states if number else found
        return states


class GNMT(nn.Module):
    """``forward`` takes sentences and their translations, both padded, [batch, longest]."""

    def __init__(
        self,
        vocabularies: tuple[int, int],
        width: int,
        layers: int,
        *,
        dropout: float = 0.0,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(vocabularies[0], width, layers // 2, dropout, sparse)
        self.decoder = Decoder(vocabularies[1], width, layers // 2, dropout, sparse)
        cutoffs = [vocabularies[1] // 15, vocabularies[1] // 3]
        self.next_word = nn.AdaptiveLogSoftmaxWithLoss(width, vocabularies[1], cutoffs)

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """The loss in nats, the mean over the targets' words."""
        loss: Tensor = self.next_word(*self.read(sources, targets)).loss
        # DDP wants a gradient of every parameter, also of a cluster that no target is in.
        return loss + 0.0 * sum(parameter.sum() for parameter in self.next_word.tail.parameters())

    def read(self, sources: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The states from which words are predicted, [words, width], and the words, [words]."""
        before = functional.pad(targets[:, :-1], (1, 0), value=BEGIN)
        states = self.decoder(before, self.encoder(sources), sources != PAD)
        is_word = targets != PAD
        return states[is_word], targets[is_word]


def pad(pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
    """[pairs, longest] of the sources and of the targets"""
    sources, targets = (
        pad_sequence([torch.tensor(words) for words in side], batch_first=True, padding_value=PAD)
        for side in zip(*pairs, strict=True)
    )
    return sources, targets


@torch.no_grad()
def validate(model: GNMT, pairs: Sequence[Pair], batch: int) -> tuple[float, float]:
    """The perplexity, and the share of words that were right, of all ranks' pairs together."""
    model.eval()
    loss = right = words = 0.0
    for start in range(0, len(pairs), batch):
        states, targets = model.read(*pad(pairs[start : start + batch]))
        loss -= float(model.next_word(states, targets).output.sum())
        right += int((model.next_word.predict(states) == targets).sum())
        words += len(targets)
    model.train()
    loss, right, words = harness.sum_over_ranks(loss, right, words)
    return harness.perplexity_of(loss / words), right / words


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = harness.flags(__doc__, steps=600, batch=32)
    add = parser.add_argument
    add("--source", type=Path, metavar="FILE", help="sentences, one a line")
    add("--target", type=Path, metavar="FILE", help="their translations")
    add("--vocabulary", type=at_least(15), default=20_000, help="words a language (20000)")
    add("--longest", type=at_least(1), default=20, help="words of a sentence (20)")
    add("--layers", type=int, choices=(8, 16), default=8, help="of both LSTMs (8)")
    add("--width", type=at_least(1), default=96, help="of a word and a state (96)")
    add("--dropout", type=float, default=0.0, help="share of units (0)")
    add("--sparse", action="store_true", help="embeddings give COO gradients")
    add("--rate", type=float, default=4e-3, help="of Adam, the highest (0.004)")
    add("--table-rate", type=float, default=0.1, help="of the embeddings (0.1)")
    args = parser.parse_args(argv)
    if (args.source is None) != (args.target is None):
        parser.error("arguments --source and --target: there must be both or none")
    return args


def main(
    argv: Sequence[str] | None = None,
    install: Callable[[DistributedDataParallel], Any] | None = None,
) -> dict[str, Any]:
    """Trains, and gives the losses and the metric; ``install`` registers another hook than ours."""
    args = parse(argv)
    with harness.ranks(args.seed) as (rank, ranks):
        files = (args.source, args.target) if args.source else None
        pairs = corpora.read_pairs(files, args.vocabulary, args.longest)
        model = GNMT(
            pairs.vocabularies, args.width, args.layers, dropout=args.dropout, sparse=args.sparse
        )
        ddp = DistributedDataParallel(model)

        state = None
        if install is not None:
            state = install(ddp)
        elif args.s2reducer:
            state = s2reducer.register(ddp, plan=args.plan)

        # Adam would move every row of a table at every step, with or without a gradient, and takes
        # no COO gradients; Adagrad leaves rows without a gradient alone, and takes COO ones.
        tables = [model.encoder.words.weight, model.decoder.words.weight]
        rest = harness.rest_of(model, tables)
        adagrad = torch.optim.Adagrad(tables, lr=args.table_rate, initial_accumulator_value=1e-6)
        adam = torch.optim.Adam(rest, lr=args.rate, eps=1e-6)
        schedules = [harness.schedule(o, args.steps) for o in (adagrad, adam)]
        run = harness.Run(args, state, [model, adagrad, adam, *schedules])
        run.say(f"{len(pairs.train):,} pairs: {pairs.source}")
        for step in run.steps():
            numbers = corpora.shuffled_batch(
                len(pairs.train),
                step,
                seed=args.seed,
                batch=args.batch,
                rank=rank,
                ranks=ranks,
            )
            sources, targets = pad([pairs.train[number] for number in numbers])
            ddp.zero_grad()
            loss = ddp(sources, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(rest, 1.0)
            adagrad.step()
            adam.step()
            for schedule in schedules:
                schedule.step()
            run.add_loss(loss)
        value, right = validate(model, pairs.held_out[rank::ranks], args.batch)
        return run.result("validation perplexity", value, token_accuracy=right)


if __name__ == "__main__":
    try:
        main()
    except corpora.CorpusError as error:
        sys.exit(f"{error}")
