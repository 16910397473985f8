# SPDX-License-Identifier: MIT
"""The training scripts in ``examples`` train, go on from checkpoints, and take other hooks.

They run on data that is made here, so no package of data has to be installed.
"""

import gzip
import importlib
import runpy
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from test_examples import ROOT, torchrun
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(ROOT / "examples"))

import harness

pytestmark = pytest.mark.usefixtures("on_one_thread")
EXAMPLES = ROOT / "examples"
RESNET, LSTM, XL, GNMT = "resnet_fashion_mnist", "lstm_language_model", "transformer_xl", "gnmt"
SCRIPTS = (RESNET, LSTM, XL, GNMT)
METRICS = {RESNET: "test accuracy"} | dict.fromkeys((LSTM, XL, GNMT), "validation perplexity")
SMALL = ["--vocabulary", "120", "--width", "16"]
TINY = {
    RESNET: ["--steps", "12", "--batch", "8", "--rate", "0.3"],
    LSTM: ["--steps", "12", "--batch", "4", "--length", "8", "--layers", "2", *SMALL],
    XL: [
        "--steps",
        "12",
        "--batch",
        "4",
        "--length",
        "8",
        "--layers",
        "2",
        "--memory",
        "6",
        *SMALL,
    ],
    GNMT: ["--steps", "12", "--batch", "8", *SMALL],
}
# What draws random numbers while it trains.
RANDOM = {RESNET: ["--augment"]} | {name: ["--dropout", "0.2"] for name in (LSTM, XL, GNMT)}


def write_idx(path: Path, data: torch.Tensor) -> None:
    header = struct.pack(f">HBB{data.dim()}I", 0, 8, data.dim(), *data.shape)
    path.write_bytes(gzip.compress(header + data.to(torch.uint8).numpy().tobytes()))


def made_sentences(count: int, words: int, seed: int) -> list[str]:
    """Each word is followed by one of two others, so there is something to learn."""
    draws = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(count):
        word = int(torch.randint(words, (1,), generator=draws))
        line = []
        for choice in torch.randint(2, (9,), generator=draws).tolist():
            line.append(f"w{word}")
            word = (3 * word + choice) % words
        lines.append(" ".join(line))
    return lines


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The flags that name each script's data."""
    folder = tmp_path_factory.mktemp("data")
    draws = torch.Generator().manual_seed(0)
    for part, count in (("train", 320), ("t10k", 41)):
        labels = torch.randint(10, (count,), generator=draws)
        images = torch.randint(64, (count, 28, 28), generator=draws)
        for image, label in zip(images, labels.tolist(), strict=True):
            image[2 * label : 2 * label + 8] += 150
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    text, source, target = folder / "text", folder / "source", folder / "target"
    text.write_text("\n".join(made_sentences(900, words=150, seed=1)))
    sentences = made_sentences(400, words=150, seed=2)
    source.write_text("\n".join(sentences))
    target.write_text("\n".join(line.replace("w", "v") for line in sentences))
    return {
        RESNET: ["--data", str(folder)],
        LSTM: ["--text", str(text)],
        XL: ["--text", str(text)],
        GNMT: ["--source", str(source), "--target", str(target)],
    }


def train(
    script: str, flags: list[str], install: Callable[[DistributedDataParallel], Any] | None = None
) -> dict[str, Any]:
    result: dict[str, Any] = importlib.import_module(script).main(flags, install)
    assert result["metric"] == METRICS[script]
    assert len(result["losses"]) == result["steps"]
    return result


def only_slow(*names: str) -> list[Any]:
    """For parametrize(): the whole suite runs them all, the fast one the language model."""
    return [name if name == XL else pytest.param(name, marks=pytest.mark.slow) for name in names]


# ------------------------------------------------------------------------------------------------
# Losses
# ------------------------------------------------------------------------------------------------


def with_and_without(script: str, flags: list[str]) -> list[dict[str, Any]]:
    return [train(script, [*flags, *more]) for more in ([], *[["--no-s2reducer"]] * 2)]


@pytest.mark.parametrize("script", only_slow(*SCRIPTS))
def test_a_script_learns_the_same_with_and_without_s2reducer(
    ranks: Ranks, data: dict[str, list[str]], script: str
) -> None:
    of_ranks = ranks.run(2, with_and_without, script, TINY[script] + data[script], seconds=60)
    for reduced, dense, again in of_ranks:
        assert reduced["losses"] == pytest.approx(dense["losses"], rel=1e-4)
        assert reduced["value"] == pytest.approx(dense["value"], rel=1e-3)
        assert again["losses"] == dense["losses"]
        assert again["value"] == dense["value"]
        assert sum(dense["losses"][-3:]) < 0.95 * sum(dense["losses"][:3])
        assert dense["steps"] == 12
        assert dense["seconds_per_step"] > 0
    assert of_ranks[0][1]["losses"] == of_ranks[1][1]["losses"]  # the mean over the ranks
    assert of_ranks[0][1]["value"] == of_ranks[1][1]["value"]


def dense_and_coo(script: str, flags: list[str]) -> list[dict[str, Any]]:
    return [train(script, [*flags, "--plan", "owner", *more]) for more in ([], ["--sparse"])]


@pytest.mark.parametrize("script", only_slow(LSTM, XL, GNMT))
def test_coo_gradients_train_as_dense_ones_do(
    ranks: Ranks, data: dict[str, list[str]], script: str
) -> None:
    for dense, coo in ranks.run(2, dense_and_coo, script, TINY[script] + data[script], seconds=60):
        assert coo["losses"] == pytest.approx(dense["losses"], rel=1e-5)


def by_seed(script: str, flags: list[str]) -> list[float]:
    return [train(script, [*flags, "--steps", "1", "--seed", seed])["value"] for seed in "01"]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_another_seed_is_another_training(
    ranks: Ranks, data: dict[str, list[str]], script: str
) -> None:
    (first, second), _ = ranks.run(2, by_seed, script, TINY[script] + data[script])
    assert first != second


# ------------------------------------------------------------------------------------------------
# Checkpoints
# ------------------------------------------------------------------------------------------------


class KilledError(Exception):
    """Instead of what kills a training right after it has saved."""


def train_until_it_saves(script: str, flags: list[str]) -> None:
    save = harness.Run._save

    def save_and_die(run: harness.Run, path: Path) -> None:
        save(run, path)
        raise KilledError

    harness.Run._save = save_and_die  # type: ignore[method-assign]
    try:
        with pytest.raises(KilledError):
            train(script, flags)
    finally:
        harness.Run._save = save  # type: ignore[method-assign]
    torch.manual_seed(99)  # a new process would not have this one's numbers either


def whole_and_resumed(script: str, flags: list[str], folder: str) -> list[dict[str, Any]]:
    flags = [*flags, "--checkpoint-every", "5", "--checkpoint"]
    whole = train(script, [*flags, f"{folder}/whole"])
    train_until_it_saves(script, [*flags, f"{folder}/killed"])
    return [whole, train(script, [*flags, f"{folder}/killed"])]


@pytest.mark.parametrize("script", only_slow(*SCRIPTS))
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(
    ranks: Ranks, data: dict[str, list[str]], tmp_path: Path, script: str
) -> None:
    flags = [*TINY[script], *data[script], *RANDOM[script], "--plan", "owner"]
    for whole, resumed in ranks.run(2, whole_and_resumed, script, flags, str(tmp_path), seconds=60):
        assert resumed["losses"] == whole["losses"]
        assert resumed["value"] == whole["value"]
        assert resumed["steps"] == whole["steps"] == 12
    uninterrupted, resumed = (torch.load(tmp_path / name) for name in ("whole", "killed"))
    for name, tensor in uninterrupted["parts"][0].items():
        assert torch.equal(tensor, resumed["parts"][0][name]), name
    for before, after in zip(uninterrupted["ranks"], resumed["ranks"], strict=True):
        assert after["hook"] == before["hook"]
        assert after["hook"]["step"] == 12


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_from_a_checkpoint(
    ranks: Ranks, data: dict[str, list[str]], tmp_path: Path
) -> None:
    flags = [*TINY[XL], *data[XL], "--checkpoint", str(tmp_path / "c"), "--checkpoint-every", "5"]
    ranks.run(2, train_until_it_saves, XL, flags)
    before = torch.load(tmp_path / "c")["losses"]
    for result in ranks.run(3, train, XL, flags):
        assert len(before) == 5
        assert result["losses"][:5] == before


def test_a_checkpoint_of_other_settings_is_refused(
    data: dict[str, list[str]], tmp_path: Path
) -> None:
    file = tmp_path / "c"
    flags = [*TINY[XL], *data[XL], "--steps", "1", "--checkpoint", str(file)]
    train(XL, flags)
    with pytest.raises(SystemExit) as error:
        train(XL, [*flags, "--memory", "5", "--log-every", "1"])
    assert str(error.value) == (
        f"{file} was written with --memory 6, but here it is 5: give the same, or another "
        "--checkpoint"
    )


# ------------------------------------------------------------------------------------------------
# How a script is started
# ------------------------------------------------------------------------------------------------


def test_a_plain_process_is_one_rank(
    data: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(XL, [*TINY[XL], *data[XL], "--log-every", "5"])
    assert not dist.is_initialized()
    assert not torch.are_deterministic_algorithms_enabled()
    lines = capsys.readouterr().out.splitlines()
    logged = [line.split(",")[0] for line in lines if line.startswith("step ")]
    means = [sum(part) / len(part) for part in (result["losses"][i:j] for i, j in ENDS)]
    assert logged == [
        f"step {end} of 12: loss {mean:.4f}" for (_, end), mean in zip(ENDS, means, strict=True)
    ]
    assert f"validation perplexity: {result['value']:.4g}" in lines
    assert "12 steps on 1 ranks" in "\n".join(lines)


ENDS = ((0, 5), (5, 10), (7, 12))  # of the steps whose losses are logged


def test_another_hook_takes_the_place_of_ours(data: dict[str, list[str]]) -> None:
    given: list[DistributedDataParallel] = []

    def install(ddp: DistributedDataParallel) -> None:
        assert not ddp._comm_hooks
        ddp.register_comm_hook(None, lambda state, bucket: zeros(bucket.buffer()))
        given.append(ddp)

    def zeros(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(torch.zeros_like(buffer))
        return done

    flags = [*TINY[XL], *data[XL], "--no-s2reducer", "--steps", "1"]
    result = train(XL, flags, install)
    assert len(given) == 1
    # Without any gradient the model stays what it was at the start.
    start = train(XL, [*flags, "--rate", "0", "--table-rate", "0"])
    assert result["value"] == start["value"] != train(XL, flags)["value"]


@pytest.mark.slow
def test_torchrun_starts_a_script(data: dict[str, list[str]]) -> None:
    printed = torchrun("--nproc_per_node", "2", f"examples/{GNMT}.py", *TINY[GNMT], *data[GNMT])
    assert "\nstep 12 of 12: loss " in printed
    assert "\ntoken_accuracy: 0." in printed
    assert "\n12 steps on 2 ranks: sent " in printed


@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        (
            RESNET,
            ["--data", "/nowhere"],
            "/nowhere/train-images-idx3-ubyte.gz does not exist: install Debian's package "
            "dataset-fashion-mnist, or give the directory of the four files with --data",
        ),
        (XL, ["--text", "/nowhere"], "--text /nowhere does not exist"),
    ],
)
def test_missing_data_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, script: str, flags: list[str], sentence: str
) -> None:
    monkeypatch.setattr(sys, "argv", [script, *flags])
    with pytest.raises(SystemExit) as error:
        runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="__main__")
    assert error.value.code == sentence


@pytest.mark.parametrize(
    ("script", "flags", "sentence"),
    [
        (RESNET, ["--depth", "10"], "argument --depth: 10 is not 8, 14, 20 ..."),
        (LSTM, ["--steps", "0"], "argument --steps: '0' is no whole number from 1 on"),
        (GNMT, ["--vocabulary", "14"], "argument --vocabulary: '14' is no whole number from 15 on"),
        (XL, ["--heads", "3"], "argument --width: 128 must be even and a multiple of --heads"),
        (GNMT, ["--source", "x"], "arguments --source and --target: there must be both or none"),
    ],
)
def test_flags_that_a_script_cannot_use(
    capsys: pytest.CaptureFixture[str], script: str, flags: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(script).main(flags)
    assert sentence in capsys.readouterr().err
