# SPDX-License-Identifier: MIT
"""Transformer-XL, word by word; the metric is the perplexity of held-out text.

    torchrun --nproc_per_node 2 examples/transformer_xl.py

The model is that of Dai et al. (arXiv 1901.02860): each layer also attends to what it was given in
the segments before, which is kept as a memory without a gradient, and attention knows words by
their distance, so that a word in the memory is what it was, only further away. Words are embedded
as they are and predicted by an adaptive softmax. The text is that of Debian's package dict-gcide,
or the files after ``--text``; the default settings are for minutes on two cores, and end far below
the perplexity that the words' frequency alone gives, which is printed first.

A segment has few of the vocabulary's words, so most rows of the embedding's gradient are zero:
these s2reducer does not send. With ``--sparse`` the gradient has no such rows at all (COO).
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
from harness import at_least
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import s2reducer


def encode_distances(count: int, width: int) -> Tensor:
    """[count, width]: sines and cosines of the distances from ``count - 1`` down to 0."""
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2) / width)
    angles = torch.arange(count - 1, -1, -1.0).unsqueeze(1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def align_distances(scores: Tensor) -> Tensor:
    """From scores by distance, [..., words, seen], those by place.

    Column m of ``scores`` has the distance ``seen - 1 - m``. Word i, which is at the place
    ``seen - words + i``, must see at the place j what it has for the distance between the two, so
    its row moves left by ``words - 1 - i``. With a column of zeros in front, that is what the same
    numbers give when read in rows that are one shorter, without the first ``words`` of them. What
    comes in from the right belongs to places behind the word, and must be masked.
    """
    *outer, words, seen = scores.shape
    padded = functional.pad(scores, (1, 0)).flatten(-2)
    return padded[..., words:].view(*outer, words, seen)


class RelativeAttention(nn.Module):
    """Attention by content and by distance, each with a bias: Dai et al.'s terms (a) to (d)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.distance_key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self, words: Tensor, memory: Tensor, content_bias: Tensor, distance_bias: Tensor
    ) -> Tensor:
        """Of ``words``, [batch, words, width], to ``memory``, [batch, kept, width], and themselves.

        Biases are [heads, 1, width / heads].
        """
        seen = torch.cat([memory, words], 1)
        distances = encode_distances(seen.shape[1], words.shape[2])
        query, key, value = map(self._split, (self.query(words), self.key(seen), self.value(seen)))
        distance_key = self._split(self.distance_key(distances))
        by_distance = align_distances((query + distance_bias) @ distance_key.transpose(-1, -2))
        behind = torch.ones(by_distance.shape[-2:], dtype=torch.bool).triu(1 + memory.shape[1])
        mask = (by_distance / math.sqrt(query.shape[-1])).masked_fill(behind, -math.inf)
        found = functional.scaled_dot_product_attention(query + content_bias, key, value, mask)
        return self.out(found.transpose(1, 2).flatten(2))

    def _split(self, rows: Tensor) -> Tensor:
        """[..., rows, width] to [..., heads, rows, width / heads]"""
        return rows.unflatten(-1, (self.heads, -1)).transpose(-2, -3)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * width, width)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, words: Tensor, memory: Tensor, *biases: Tensor) -> Tensor:
        words = self.norms[0](words + self.dropout(self.attention(words, memory, *biases)))
        return self.norms[1](words + self.dropout(self.feed_forward(words)))


class TransformerXL(nn.Module):
    """``forward`` takes a segment, what follows it, and the memory, one tensor for each layer."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        heads: int,
        memory: int,
        *,
        dropout: float = 0.0,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.distance_bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        cutoffs = [vocabulary // 15, vocabulary // 3]
        self.next_word = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, cutoffs)
        self.memory = memory

    def forward(
        self, words: Tensor, targets: Tensor, memory: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The mean loss in nats, and the next segment's memory; [] is one without any words."""
        states, memory = self.read(words, memory)
        loss = self.next_word(self.dropout(states).flatten(0, 1), targets.flatten()).loss
        # DDP wants a gradient of every parameter, also of a cluster that no target is in.
        loss = loss + 0.0 * sum(parameter.sum() for parameter in self.next_word.tail.parameters())
        return loss, memory

    def read(self, words: Tensor, memory: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """States, [batch, words, width], and the next segment's memory."""
        states = self.dropout(self.words(words) * math.sqrt(self.words.embedding_dim))
        memory = memory or [states.new_empty(len(words), 0, states.shape[2])] * len(self.layers)
        kept = []
        for layer, before in zip(self.layers, memory, strict=True):
            seen = torch.cat([before, states.detach()], 1)
            kept.append(seen[:, max(0, seen.shape[1] - self.memory) :])
            states = layer(states, before, self.content_bias, self.distance_bias)
        return states, kept


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = harness.flags(__doc__, steps=600, batch=16)
    add = parser.add_argument
    add("--text", type=Path, nargs="+", metavar="FILE", help="not dict-gcide")
    add("--vocabulary", type=at_least(15), default=30_000, help="words (30000)")
    add("--width", type=at_least(1), default=128, help="of a word and a state (128)")
    add("--layers", type=at_least(1), default=3, help="(3)")
    add("--heads", type=at_least(1), default=4, help="divide the width (4)")
    add("--length", type=at_least(1), default=32, help="words of a segment (32)")
    add("--memory", type=at_least(0), default=32, help="words before it (32)")
    add("--dropout", type=float, default=0.0, help="share of units (0)")
    add("--sparse", action="store_true", help="the embedding gives COO gradients")
    add("--rate", type=float, default=1e-3, help="of Adam, the highest (0.001)")
    add("--table-rate", type=float, default=0.01, help="of the embedding (0.01)")
    args = parser.parse_args(argv)
    if args.width % args.heads or args.width % 2:
        parser.error(f"argument --width: {args.width} must be even and a multiple of --heads")
    return args


def main(
    argv: Sequence[str] | None = None,
    install: Callable[[DistributedDataParallel], Any] | None = None,
) -> dict[str, Any]:
    """Trains, and gives the losses and the metric; ``install`` registers another hook than ours."""
    args = parse(argv)
    with harness.ranks(args.seed) as (rank, ranks):
        text = corpora.read_text(args.text, args.vocabulary, args.length + 1)
        part = {"batch": args.batch, "length": args.length, "rank": rank, "ranks": ranks}
        training = corpora.Streams(text.train, seed=args.seed, **part)
        held_out = corpora.Streams(text.held_out, **part)
        model = TransformerXL(
            text.vocabulary,
            args.width,
            args.layers,
            args.heads,
            args.memory,
            dropout=args.dropout,
            sparse=args.sparse,
        )
        ddp = DistributedDataParallel(model)

        state = None
        if install is not None:
            state = install(ddp)
        elif args.s2reducer:
            state = s2reducer.register(ddp, plan=args.plan)

        # Adam would move every row of the table at every step, with or without a gradient, and
        # takes no COO gradients; Adagrad leaves rows without a gradient alone, and takes COO ones.
        table, rest = [model.words.weight], harness.rest_of(model, [model.words.weight])
        adagrad = torch.optim.Adagrad(table, lr=args.table_rate, initial_accumulator_value=1e-6)
        adam = torch.optim.Adam(rest, lr=args.rate, eps=1e-6)
        schedules = [harness.schedule(o, args.steps) for o in (adagrad, adam)]
        run = harness.Run(args, state, [model, adagrad, adam, *schedules])
        run.say(f"text: {text.source}")
        run.say(f"perplexity by the words' frequency alone: {text.unigram_perplexity():.4g}")
        for step in run.steps():
            words, targets, begins = training.at(step)
            ddp.zero_grad()
            loss, run.carried = ddp(words, targets, [] if begins else run.carried)
            loss.backward()
            nn.utils.clip_grad_norm_(rest, 0.25)
            adagrad.step()
            adam.step()
            for schedule in schedules:
                schedule.step()
            run.add_loss(loss)
        value = harness.perplexity(model, held_out, [])
        return run.result("validation perplexity", value)


if __name__ == "__main__":
    try:
        main()
    except corpora.CorpusError as error:
        sys.exit(f"{error}")
