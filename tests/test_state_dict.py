# SPDX-License-Identifier: MIT
"""Saving a state in the middle of a training, and going on from there."""

import copy
import io
import pickle
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import Given, Ranks, cases
from seeds import SEED
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import RandomK, S2State, SharedTopK, SketchConfig, Threshold, TopK, s2_hook

pytestmark = pytest.mark.usefixtures("seed")
SHAPES = [(900, 16), (400, 32), (70,)]
DEFERS = {
    "plan": "sketch",
    "sketch": SketchConfig(cells=0.5, margin=1.0, on_overflow="defer"),
}


def gradients(seed: int, step: int, rank: int) -> dict[int, Tensor]:
    """Multiples of two in a tenth of the rows, so that means of two ranks are whole."""
    numbers = torch.Generator().manual_seed(seed + 1000 * step + rank)
    result = {}
    for number, shape in enumerate(SHAPES):
        values = 2.0 * torch.randint(-900, 901, shape, generator=numbers)
        values[torch.rand(shape[0], generator=numbers) >= 0.1] = 0.0
        result[number] = values
    return result


class Training:
    """A model, an optimizer with momentum, and the hook."""

    def __init__(self, settings: dict[str, Any], by_hand: bool = False) -> None:
        model = Given(*(torch.zeros(shape) for shape in SHAPES))
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=0.05)
        if by_hand:
            self.state = S2State(**settings)
            self.ddp.register_comm_hook(self.state, s2_hook)
        else:
            self.state = s2reducer.register(self.ddp, **settings)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.3, momentum=0.7)

    def run(self, seed: int, steps: range) -> None:
        for step in steps:
            self.ddp.zero_grad()
            self.ddp(gradients(seed, step, dist.get_rank())).backward()
            self.optimizer.step()

    def save(self) -> dict[str, Any]:
        return {
            "model": copy.deepcopy(self.ddp.module.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "state": self.state.state_dict(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.ddp.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state.load_state_dict(saved["state"])

    def weights(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.ddp.parameters()]

    def owed(self) -> list[Tensor]:
        """By all ranks together, dense."""
        result = []
        for parameter in self.ddp.parameters():
            rest = torch.zeros(parameter.shape).view(parameter.shape[0], -1)
            residual = self.state.residual(parameter)
            if residual is not None:
                flat = rest.view(-1)
                block = residual.rows.shape[1]
                for number, row in zip(residual.blocks.tolist(), residual.rows, strict=True):
                    part = flat[number * block : (number + 1) * block]
                    part.copy_(row[: part.numel()])
            dist.all_reduce(rest)
            result.append(rest.view(parameter.shape))
        return result


def through_a_file(saved: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    result: dict[str, Any] = torch.load(file, weights_only=True)
    return result


def resume(seed: int, settings: dict[str, Any], by_hand: bool) -> bool:
    """Whether three steps, a restart and three more end at the bits of six steps."""
    whole = Training(settings, by_hand)
    whole.run(seed, range(6))
    first = Training(settings, by_hand)
    first.run(seed, range(3))
    saved = through_a_file(first.save())
    second = Training(settings, by_hand)
    second.load(saved)
    second.run(seed, range(3, 6))
    assert second.state.step == 6
    return all(torch.equal(a, b) for a, b in zip(whole.weights(), second.weights(), strict=True))


def fresh_process(seed: int, settings: dict[str, Any], way: str) -> list[bool]:
    """The same, saved in the middle of a warm-up; and whether anything was owed then."""
    whole = Training(settings)
    whole.run(seed, range(6))
    first = Training(settings)
    first.run(seed, range(3))
    saved = first.save()
    owes = any(bool(part.any()) for part in first.owed())
    second = Training(settings)
    if way == "checkpoint":
        saved["state"] = through_a_checkpoint(saved["state"], second.state.state_dict())
    elif way == "pickle":
        with pytest.warns(UserWarning, match="without its process group"):
            saved["state"] = pickle.loads(pickle.dumps(first.state)).state_dict()
    else:
        saved = through_a_file(saved)
    second.load(saved)
    second.run(seed, range(3, 6))
    pairs = [*zip(whole.weights(), second.weights(), strict=True)]
    pairs += zip(whole.owed(), second.owed(), strict=True)
    return [owes, *(torch.equal(a, b) for a, b in pairs)]


def through_a_checkpoint(saved: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """``saved``, loaded into what a state gives that has not taken a step."""
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save({f"rank{rank}": saved}, checkpoint_id=folder[0])
    loaded = {f"rank{rank}": fresh}
    dcp.load(loaded, checkpoint_id=folder[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])
    return loaded[f"rank{rank}"]


LOSSY: dict[str, dict[str, Any]] = {
    "top": {"select": TopK(0.03, block=8), "deterministic": True},
    "warm elements": {"select": TopK(0.001, block=1, warmup_steps=5), "plan": "gather"},
    "shared": {"select": SharedTopK(0.1), "plan": "owner"},
    "random": {"select": RandomK(0.1), "plan": "dense"},
    "threshold": {"select": Threshold(500.0), "plan": "union"},
    "narrow": {"wire": "bf16", "deterministic": True},
    "narrow gather": {"wire": "bf16", "plan": "gather"},
    "narrow dense": {"wire": "bf16", "plan": "dense"},
    "both": {"wire": "bf16", "select": TopK(0.1), "plan": "owner"},
    "sketch": {"select": TopK(0.1), "plan": "sketch"},
}


@pytest.mark.parametrize("name", cases([*LOSSY], "top", "both"))
def test_lossy_modes_end_at_the_same_bits(ranks: Ranks, name: str) -> None:
    for equal in ranks.run(2, fresh_process, SEED, LOSSY[name], "file"):
        assert all(equal)


@pytest.mark.parametrize("way", ["pickle", "checkpoint"])
@pytest.mark.parametrize("name", ["top", pytest.param("both", marks=pytest.mark.slow)])
def test_other_ways_to_save_lossy_modes(ranks: Ranks, name: str, way: str) -> None:
    for equal in ranks.run(2, fresh_process, SEED, LOSSY[name], way):
        assert all(equal)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    "settings", [{"plan": "owner"}, {"plan": "gather"}, {"deterministic": True}, {"plan": "sketch"}]
)
def test_a_resumed_training_ends_at_the_same_bits(
    ranks: Ranks, settings: dict[str, Any], by_hand: bool
) -> None:
    assert ranks.run(2, resume, SEED, settings, by_hand) == [True, True]


def keep_debts(seed: int, way: str) -> int:
    """Means that were applied, and what is owed, are all there was, over a restart."""
    applied = [torch.zeros(shape) for shape in SHAPES]
    training = Training(DEFERS)

    def run(steps: range) -> None:
        for step in steps:
            training.run(seed, range(step, step + 1))
            for total, parameter in zip(applied, training.ddp.parameters(), strict=True):
                total += 2 * parameter.grad

    run(range(3))
    before = training.owed()
    owed = int(sum(part.abs().sum() for part in before))
    saved = training.state.state_dict()
    if way == "torch.save":
        saved = through_a_file(saved)
    elif way == "checkpoint":
        rank = dist.get_rank()
        folder = [tempfile.mkdtemp() if rank == 0 else None]
        dist.broadcast_object_list(folder)
        dcp.save({f"rank{rank}": saved}, checkpoint_id=folder[0])
        # What is loaded in place has to be as large as what was saved.
        fresh = {f"rank{rank}": copy.deepcopy(saved)}
        for parameter in fresh[f"rank{rank}"]["parameters"]:
            for name in {"owed_rows", "owed_blocks"} & set(parameter):
                parameter[name].zero_()
        dcp.load(fresh, checkpoint_id=folder[0])
        saved = fresh[f"rank{rank}"]
        assert (Path(folder[0]) / ".metadata").exists()
    training = Training(DEFERS)
    if way == "pickle":
        with pytest.warns(UserWarning, match="without its process group"):
            state = pickle.loads(pickle.dumps(training_state_with(saved)))
        assert state.step == 3
        saved = state.state_dict()
    training.state.load_state_dict(saved)
    run(range(3, 6))
    rest = training.owed()
    for number, total in enumerate(applied):
        given = sum(gradients(seed, s, r)[number] for s in range(6) for r in range(2))
        assert torch.equal(total + rest[number], given)
    return owed


def training_state_with(saved: dict[str, Any]) -> S2State:
    state = S2State(**DEFERS)
    state.load_state_dict(saved)
    return state


@pytest.mark.parametrize("way", ["as it is", "torch.save", "checkpoint", "pickle"])
def test_nothing_owed_is_lost_over_a_restart(ranks: Ranks, way: str) -> None:
    assert min(ranks.run(2, keep_debts, SEED, way)) > 0


def other_world(seed: int) -> str:
    """Three ranks save, two of them go on."""
    training = Training(DEFERS)
    training.run(seed, range(3))
    saved = training.state.state_dict()
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        return ""
    model = Given(*(torch.zeros(shape) for shape in SHAPES))
    ddp = DistributedDataParallel(model, process_group=group)
    state = s2reducer.register(ddp, **DEFERS)
    state.load_state_dict(saved)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ddp(gradients(seed, 3, dist.get_rank())).backward()
    assert state.step == 4
    return " ".join(str(warning.message) for warning in told)


@pytest.mark.slow
def test_another_world_size_drops_what_is_owed_and_says_so(ranks: Ranks) -> None:
    texts = ranks.run(3, other_world, SEED)
    for rank, text in enumerate(texts[:2]):
        assert f"saved on rank {rank} of 3 and goes on as rank {rank} of 2" in text
        assert "parameters owed is dropped" in text


def other_settings(seed: int, before: dict[str, Any], after: dict[str, Any]) -> tuple[str, bool]:
    """What a state says that goes on with other settings, and whether it owes what was owed."""
    first = Training(before)
    first.run(seed, range(3))
    owed = first.owed()
    second = Training(after)
    second.state.load_state_dict(through_a_file(first.save())["state"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        zeros = {number: torch.zeros(shape) for number, shape in enumerate(SHAPES)}
        second.ddp(zeros).backward()  # of which nothing is sent, and nothing is owed
    kept = all(map(torch.equal, owed, second.owed()))
    return " ".join(str(warning.message) for warning in told), kept


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"select": TopK(0.1)}, {}),
        ({"select": TopK(0.1)}, {"select": TopK(0.1), "error_feedback": False}),
        ({"select": TopK(0.1)}, {"select": TopK(0.1, least_numel=1 << 20)}),
        (DEFERS, {"plan": "owner"}),
    ],
)
def test_what_other_settings_would_never_send_is_dropped_and_they_say_so(
    ranks: Ranks, before: dict[str, Any], after: dict[str, Any]
) -> None:
    for text, kept in ranks.run(2, other_settings, SEED, before, after):
        assert "parameters owed is dropped, as it would never be sent" in text
        assert not kept


@pytest.mark.parametrize(
    "after",
    [{"select": RandomK(0.5, block=7)}, {"wire": "bf16"}, {"select": TopK(0.1), "block": 5}],
)
def test_what_a_selection_left_goes_on_in_other_blocks(ranks: Ranks, after: dict[str, Any]) -> None:
    assert ranks.run(2, other_settings, SEED, {"select": TopK(0.1)}, after) == [("", True)] * 2


def load_on_one_rank(seed: int) -> str:
    first = Training(DEFERS)
    first.run(seed, range(3))
    second = Training(DEFERS)
    if dist.get_rank() == 1:
        second.state.load_state_dict(first.state.state_dict())
    try:
        second.run(seed, range(3, 4))
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_state_that_only_one_rank_has_loaded_is_found_out(ranks: Ranks) -> None:
    for text in ranks.run(2, load_on_one_rank, SEED):
        assert "the ranks reduce different buckets" in text


def misuse(seed: int) -> dict[str, str]:
    training = Training(DEFERS)
    training.run(seed, range(2))
    saved = training.state.state_dict()
    errors = {}

    def attempt(name: str, state: S2State, what: Any) -> None:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            state.load_state_dict(what)
        errors[name] = str(caught.value)

    attempt("late", training.state, saved)
    attempt("stranger", S2State(), {"step": 3})
    attempt("format", S2State(), saved | {"format": 7})
    parameters = [saved["parameters"][i] for i in (1, 0, 2)]
    attempt("order", Training(DEFERS).state, saved | {"parameters": parameters})
    attempt("few", Training(DEFERS).state, saved | {"parameters": saved["parameters"][:1]})
    other = Training(DEFERS | {"block": 5})
    other.state.load_state_dict(saved)
    with pytest.raises(RuntimeError) as caught:
        other.run(seed, range(2, 3))
    errors["block"] = str(caught.value)
    return errors


def test_states_that_do_not_fit_are_refused(ranks: Ranks) -> None:
    for errors in ranks.run(2, misuse, SEED):
        assert errors["late"] == (
            "load_state_dict() must come before the first step, but this is step 2"
        )
        assert errors["stranger"].startswith("the state to load must be what state_dict() gives")
        assert errors["format"] == ("the state to load has the format 7, but this version reads 1")
        assert errors["order"] == (
            "parameter 1 of the state to load is p.1 of 400x32, but here it is p.0 of 900x16"
        )
        assert errors["few"] == "the state to load has 1 parameters, but p.1 is number 2"
        assert (
            "owes blocks of 16 elements from steps before, but now it has blocks of 5"
            in (errors["block"])
        )
