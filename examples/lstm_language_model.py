# SPDX-License-Identifier: MIT
"""A word-level LSTM language model; the metric is the perplexity of held-out text.

    torchrun --nproc_per_node 2 examples/lstm_language_model.py

The text is that of Debian's package dict-gcide, or the files after ``--text``; the default settings
are for minutes on two cores, and end far below the perplexity that the words' frequency alone
gives, which is printed first.

A window has few of the vocabulary's words, so most rows of the embedding's gradient are zero: these
s2reducer does not send. With ``--sparse`` the gradient has no such rows at all (COO).
"""

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
from torch.nn.parallel import DistributedDataParallel

import s2reducer

Hidden = tuple[Tensor, Tensor]


class LanguageModel(nn.Module):
    """Embedding, LSTM, adaptive softmax (Grave et al., arXiv 1609.04309)."""

    def __init__(
        self, vocabulary: int, width: int, layers: int, *, dropout: float, sparse: bool
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=sparse)
        nn.init.normal_(self.words.weight, std=0.1)
        self.dropout = nn.Dropout(dropout)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        cutoffs = [vocabulary // 15, vocabulary // 3]
        self.next_word = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, cutoffs)

    def forward(
        self, words: Tensor, targets: Tensor, hidden: Hidden | None
    ) -> tuple[Tensor, Hidden]:
        """The mean loss in nats and the next window's ``hidden``, through which nothing learns."""
        states, (short, long) = self.lstm(self.dropout(self.words(words)), hidden)
        loss = self.next_word(self.dropout(states).flatten(0, 1), targets.flatten()).loss
        # DDP wants a gradient of every parameter, also of a cluster that no target is in.
        loss = loss + 0.0 * sum(parameter.sum() for parameter in self.next_word.tail.parameters())
        return loss, (short.detach(), long.detach())


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = harness.flags(__doc__, steps=800, batch=16)
    add = parser.add_argument
    add("--text", type=Path, nargs="+", metavar="FILE", help="not dict-gcide")
    add("--vocabulary", type=at_least(15), default=30_000, help="words (30000)")
    add("--width", type=at_least(1), default=128, help="of a word and a state (128)")
    add("--layers", type=at_least(1), default=1, help="of the LSTM (1)")
    add("--length", type=at_least(1), default=32, help="words of a window (32)")
    add("--dropout", type=float, default=0.0, help="share of units (0)")
    add("--sparse", action="store_true", help="the embedding gives COO gradients")
    add("--rate", type=float, default=0.1, help="of learning, the highest (0.1)")
    return parser.parse_args(argv)


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
        model = LanguageModel(
            text.vocabulary, args.width, args.layers, dropout=args.dropout, sparse=args.sparse
        )
        ddp = DistributedDataParallel(model)

        state = None
        if install is not None:
            state = install(ddp)
        elif args.s2reducer:
            state = s2reducer.register(ddp, plan=args.plan)

        # Adagrad, since it takes COO gradients, and moves rare words as far as frequent ones.
        optimizer = torch.optim.Adagrad(
            ddp.parameters(), lr=args.rate, initial_accumulator_value=1e-6
        )
        schedule = harness.schedule(optimizer, args.steps)
        run = harness.Run(args, state, [model, optimizer, schedule])
        run.say(f"text: {text.source}")
        run.say(f"perplexity by the words' frequency alone: {text.unigram_perplexity():.4g}")
        for step in run.steps():
            words, targets, begins = training.at(step)
            hidden = None if begins or not run.carried else tuple(run.carried)
            optimizer.zero_grad()
            loss, hidden = ddp(words, targets, hidden)
            loss.backward()
            nn.utils.clip_grad_norm_(harness.rest_of(model, [model.words.weight]), 1.0)
            optimizer.step()
            schedule.step()
            run.carried = list(hidden)
            run.add_loss(loss)
        value = harness.perplexity(model, held_out, None)
        return run.result("validation perplexity", value)


if __name__ == "__main__":
    try:
        main()
    except corpora.CorpusError as error:
        sys.exit(f"{error}")
