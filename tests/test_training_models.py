# SPDX-License-Identifier: MIT
"""The models of the training scripts are the published ones, and their data are read rightly."""

import gzip
import math
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import machine
import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import corpora
from gnmt import GNMT, Attention, pad
from resnet_fashion_mnist import ResNet
from transformer_xl import RelativeAttention, TransformerXL, align_distances, encode_distances

pytestmark = pytest.mark.usefixtures("on_one_thread")

# ------------------------------------------------------------------------------------------------
# Transformer-XL
# ------------------------------------------------------------------------------------------------


def transformer(memory: int, layers: int = 3) -> TransformerXL:
    torch.manual_seed(0)
    model = TransformerXL(90, width=16, layers=layers, heads=2, memory=memory)
    for bias in (model.content_bias, model.distance_bias):
        nn.init.normal_(bias)
    return model


def in_segments(model: TransformerXL, words: Tensor, length: int) -> Tensor:
    memory: list[Tensor] = []
    states = []
    for segment in words.split(length, dim=1):
        state, memory = model.read(segment, memory)
        states.append(state)
    return torch.cat(states, 1)


@pytest.mark.parametrize("length", [1, 5, 12])
def test_segments_with_a_memory_are_one_long_segment(length: int) -> None:
    words = torch.randint(90, (4, 36), generator=torch.Generator().manual_seed(1))
    model = transformer(memory=36)
    with torch.no_grad():
        whole, _ = model.read(words, [])
        in_parts = in_segments(model, words, length)
        shorter = in_segments(transformer(memory=3), words, length)
    torch.testing.assert_close(in_parts, whole, rtol=1e-4, atol=1e-5)
    assert (shorter - whole)[:, -1].abs().max() > 1e-2


def test_scores_are_those_of_the_paper() -> None:
    """Word by word: softmax over j of ((q + u) k_j + (q + v) W_R r_(i-j)) / sqrt(d)."""
    torch.manual_seed(0)
    attention = RelativeAttention(width=8, heads=2)
    words, memory = torch.randn(1, 3, 8), torch.randn(1, 4, 8)
    u, v = torch.randn(2, 1, 4), torch.randn(2, 1, 4)
    seen = torch.cat([memory, words], 1)[0]
    distances = encode_distances(7, 8).flip(0)  # row d: distance d
    expected = torch.zeros(3, 8)
    for i in range(3):
        for head in range(2):
            part = slice(4 * head, 4 * head + 4)
            query = attention.query(words[0, i])[part]
            scores = [
                (query + u[head, 0]) @ attention.key(seen[j])[part]
                + (query + v[head, 0]) @ attention.distance_key(distances[4 + i - j])[part]
                for j in range(4 + i + 1)
            ]
            weights = (torch.stack(scores) / 2).softmax(0)
            expected[i, part] = weights @ attention.value(seen[: 4 + i + 1])[:, part]
    torch.testing.assert_close(attention(words, memory, u, v)[0], attention.out(expected))


def test_distances_are_sines_and_cosines() -> None:
    table = encode_distances(5, 6)
    frequencies = [1.0, 10_000 ** (-2 / 6), 10_000 ** (-4 / 6)]
    for row, distance in enumerate((4, 3, 2, 1, 0)):
        angles = [distance * frequency for frequency in frequencies]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        assert table[row].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("words", "seen"), [(1, 1), (3, 3), (3, 8), (1, 4)])
def test_scores_by_distance_come_to_their_places(words: int, seen: int) -> None:
    """The score of word i for the distance d is 100 i + d."""
    by_distance = 100 * torch.arange(words).view(-1, 1) + torch.arange(seen - 1, -1, -1)
    placed = align_distances(by_distance.expand(2, words, seen).contiguous())
    for i in range(words):
        own = seen - words + i
        assert placed[1, i, : own + 1].tolist() == [100 * i + own - j for j in range(own + 1)]


def test_no_word_sees_what_follows_and_nothing_is_learned_through_the_memory() -> None:
    model = transformer(memory=6, layers=2)
    words = torch.arange(20).view(1, 20)
    changed = words.clone()
    changed[0, 12:] += 30
    states, memory = model.read(words, [])
    torch.testing.assert_close(model.read(changed, [])[0][:, :12], states[:, :12])
    assert [tensor.shape for tensor in memory] == [(1, 6, 16)] * 2
    loss, _ = model(words + 40, words + 41, memory)
    loss.backward()
    assert model.words.weight.grad is not None
    rows = model.words.weight.grad.abs().sum(1).nonzero().flatten()
    assert rows.tolist() == list(range(40, 60))


# ------------------------------------------------------------------------------------------------
# GNMT
# ------------------------------------------------------------------------------------------------


def test_attention_is_additive() -> None:
    """Word by word: softmax over j of (g v / |v|) tanh(W s_i + U h_j + b), without the padding."""
    torch.manual_seed(0)
    attention = Attention(6)
    asked, memory = torch.randn(1, 2, 6), torch.randn(1, 4, 6)
    weights = attention.score.parametrizations.weight
    with torch.no_grad():
        weights.original0.fill_(3.0)
    v = 3.0 * weights.original1[0] / weights.original1.norm()
    expected = []
    for i in range(2):
        query = attention.query.weight @ asked[0, i] + attention.key.bias
        scores = [v @ torch.tanh(query + attention.key.weight @ memory[0, j]) for j in range(3)]
        expected.append(torch.stack(scores).softmax(0) @ memory[0, :3])
    found = attention(asked, memory, torch.tensor([[True, True, True, False]]))
    torch.testing.assert_close(found[0], torch.stack(expected))


def test_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = GNMT((60, 50), width=16, layers=8)
    pairs = [([5, 6, 7], [9, 2]), ([8] * 9, [30, 31, 32, 33, 2]), ([11], [12, 13, 14, 2])]
    states, words = model.read(*pad(pairs))
    alone = [model.read(*pad([pair])) for pair in pairs]
    assert words.tolist() == [9, 2, 30, 31, 32, 33, 2, 12, 13, 14, 2]
    torch.testing.assert_close(states, torch.cat([part[0] for part in alone]))
    total = sum(model(*pad([pair])) * len(pair[1]) for pair in pairs)
    torch.testing.assert_close(model(*pad(pairs)), total / 11)


@pytest.mark.parametrize("layers", [8, 16])
def test_layers_are_where_the_paper_has_them(layers: int) -> None:
    model = GNMT((60, 50), width=16, layers=layers)
    encoder, decoder = model.encoder, model.decoder
    lstms = [module for module in model.modules() if isinstance(module, nn.LSTM)]
    assert len(lstms) == layers == 2 * (1 + len(encoder.layers)) == 2 * (1 + len(decoder.layers))
    assert [lstm for lstm in lstms if lstm.bidirectional] == [encoder.both_ways]
    # A layer that gives zeros lets pass what came in, from the third on.
    sources, targets = torch.randint(3, 50, (2, 4, 6))
    before, _ = model.read(sources, targets)
    for layer in (encoder.layers[-1], decoder.layers[-1]):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.zero_()
    states, _ = model.read(sources, targets)
    assert not torch.allclose(states, before)
    del encoder.layers[-1], decoder.layers[-1]
    assert torch.equal(model.read(sources, targets)[0], states)


def test_every_layer_of_the_decoder_but_the_first_is_given_attention() -> None:
    torch.manual_seed(0)
    model = GNMT((60, 50), width=16, layers=8)
    given: list[Tensor] = []
    for layer in model.decoder.layers:
        layer.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0][..., 16:]))
    attention: list[Tensor] = []
    model.decoder.attention.register_forward_hook(lambda _, __, found: attention.append(found))
    model.read(torch.randint(3, 60, (4, 6)), torch.randint(3, 50, (4, 5)))
    assert len(given) == 3
    assert all(torch.equal(part, attention[0]) for part in given)


# ------------------------------------------------------------------------------------------------
# ResNet
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (8, 75_290)])
def test_the_resnets_have_the_known_numbers_of_parameters(depth: int, parameters: int) -> None:
    model = ResNet(depth, channels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == depth
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


# ------------------------------------------------------------------------------------------------
# Data
# ------------------------------------------------------------------------------------------------


def test_idx_files_are_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "numbers.gz"
    header = b"\0\0\x08\x02" + bytes([0, 0, 0, 2, 0, 0, 0, 3])
    file.write_bytes(gzip.compress(header + bytes([1, 2, 3, 250, 251, 252])))
    assert corpora.read_idx(file).tolist() == [[1, 2, 3], [250, 251, 252]]
    file.write_bytes(gzip.compress(header + bytes(5)))
    with pytest.raises(corpora.CorpusError, match=r"has 5 elements, but says \[2, 3\]"):
        corpora.read_idx(file)
    file.write_bytes(gzip.compress(b"\0\0\x0d\x01\0\0\0\0"))
    with pytest.raises(corpora.CorpusError, match="is no IDX file of bytes"):
        corpora.read_idx(file)
    file.write_bytes(b"no gzip at all")
    with pytest.raises(corpora.CorpusError, match="cannot be read: Not a gzipped file"):
        corpora.read_idx(file)


def test_cifar10_comes_from_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(corpora.CorpusError, match="torchvision, which is not installed"):
        corpora.read_cifar10(Path("/data"), train=True)

    def cifar10(root: str, train: bool) -> SimpleNamespace:
        if root != "/data":
            raise RuntimeError("Dataset not found or corrupted.")
        pixels = torch.arange(2 * 32 * 32 * 3).view(2, 32, 32, 3) % 251
        return SimpleNamespace(data=pixels.to(torch.uint8).numpy(), targets=[7, int(train)])

    torchvision = SimpleNamespace(CIFAR10=cifar10)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=torchvision))
    images, labels = corpora.read_cifar10(Path("/data"), train=True)
    assert images.shape == (2, 3, 32, 32)
    assert images[0, :, 0, 1].tolist() == [3, 4, 5]
    assert labels.tolist() == [7, 1]
    with pytest.raises(corpora.CorpusError, match="give the directory with cifar-10-batches-py"):
        corpora.read_cifar10(Path("/other"), train=True)


def test_markup_of_a_dictionary_is_left_out() -> None:
    entry = 'Calorifere \\Ca*lor"i*fere\\, n. [F. calorif[`e]re, fr. L.]\n {Heat}. [1913 Webster]'
    assert corpora.without_markup(entry).split() == ["Calorifere", ",", "n.", "Heat", "."]


def test_streams_cover_the_text_and_their_windows_follow_one_another() -> None:
    words = torch.arange(1000)
    read: list[int] = []
    for rank in range(2):
        streams = corpora.Streams(words, batch=3, length=10, rank=rank, ranks=2)
        assert len(streams) == 16
        windows = [streams.at(step) for step in range(17)]
        assert [begins for *_, begins in windows] == [True, *[False] * 15, True]
        for inputs, targets, _ in windows:
            assert torch.equal(targets, inputs + 1)
        for (before, *_), (after, *_) in pairwise(windows[:16]):
            assert torch.equal(after, before + 10)
        assert torch.equal(windows[16][0], windows[0][0])
        read += [word for inputs, *_ in windows[:16] for word in inputs.flatten().tolist()]
    assert len(read) == len(set(read)) == 6 * 160
    moved = [
        corpora.Streams(words, batch=3, length=10, rank=0, ranks=2, seed=seed).at(0)[0]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], moved[2])
    with pytest.raises(corpora.CorpusError, match="1,000 words are too few for 2 x 50 windows"):
        corpora.Streams(words, batch=50, length=10, rank=0, ranks=2)


def test_each_example_comes_once_in_an_epoch() -> None:
    epochs = [
        [
            number
            for step in range(4 * epoch, 4 * epoch + 4)
            for rank in range(3)
            for number in corpora.shuffled_batch(25, step, seed=0, batch=2, rank=rank, ranks=3)
        ]
        for epoch in range(2)
    ]
    for numbers in epochs:
        assert len(numbers) == len(set(numbers)) == 24
        assert set(numbers) < set(range(25))
    assert epochs[0] != epochs[1]
    with pytest.raises(corpora.CorpusError, match="5 examples are too few for 3 x 2 in a step"):
        corpora.shuffled_batch(5, 0, seed=0, batch=2, rank=0, ranks=3)


def test_the_unigram_perplexity_is_that_of_the_frequencies() -> None:
    train, held_out = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1])
    text = corpora.Text(train, held_out, vocabulary=2, source="")
    # With one more of each: 4 of 6 and 2 of 6.
    assert text.unigram_perplexity() == pytest.approx(1 / math.sqrt(4 / 6 * 2 / 6))


def test_usage_examples_become_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        f'Bahn {n} /bˈɑːn/ <fem>\nrail <n>\n      "die Bahn {n}"  - the rail {n}\n'
        for n in range(40)
    ]
    entries += ['      "die Bahn 3"  - the rail 3\n', '      "zu lang zu lang zu"  - too long\n']
    with gzip.open(tmp_path / "freedict-deu-eng.dict.dz", "wb") as file:
        file.write("".join(entries).encode())
    monkeypatch.setattr(corpora.read_dictionary, "__defaults__", (-1, tmp_path))
    pairs = corpora.read_pairs(None, vocabulary=100, longest=4)
    assert [len(pairs.train), len(pairs.held_out)] == [38, 2]
    # 40 numbers, two words, the unknown word, PAD, BEGIN and END.
    assert pairs.vocabularies == (46, 46)
    sources, targets = pad(pairs.train[:2])
    # Frequent words come first: "die" and "Bahn" are 4 and 5, and 3 is the unknown word.
    assert sources.tolist() == [[4, 5, 6], [4, 5, 7]]
    assert targets.tolist() == [[4, 5, 6, 2], [4, 5, 7, 2]]
    assert corpora.read_pairs(None, vocabulary=6, longest=4).vocabularies == (6, 6)


@pytest.mark.slow
@pytest.mark.skipif(
    not all(path.exists() for path in machine.DATA.values()),
    reason=f"not all of {', '.join(machine.DATA)} are installed",
)
def test_the_packages_hold_what_the_scripts_read() -> None:
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images, labels = corpora.read_fashion_mnist(corpora.FASHION_MNIST, part)
        assert images.shape == (count, 1, 28, 28)
        assert labels.bincount().tolist() == [count // 10] * 10
    text = corpora.read_text(None, vocabulary=30_000, shortest=100)
    assert len(text.train) > 1_000_000
    assert 200 < text.unigram_perplexity() < 1000
    pairs = corpora.read_pairs(None, vocabulary=20_000, longest=20)
    assert len(pairs.train) > 30_000
    assert pairs.vocabularies == (20_000, 20_000)
