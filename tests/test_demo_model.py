# SPDX-License-Identifier: MIT
"""The demo's batches, and its model's loss and gradients."""

import math

import pytest
import torch
from torch.nn import functional

from s2reducer.cli import batches
from s2reducer.cli.model import LanguageModel


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
