# SPDX-License-Identifier: MIT
"""Settings: which are refused, and how ranks find out that theirs differ."""

from dataclasses import asdict
from typing import Any

import pytest

from s2reducer import _C
from s2reducer.config import PLANS, RECORD_NBYTES, Config, first_difference
from s2reducer.selection import RandomK, TopK
from s2reducer.sketch_config import SketchConfig


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        (
            {"plan": "sparse"},
            ValueError,
            "plan must be one of 'auto', 'dense', 'gather', 'owner', 'sketch', 'union', but is",
        ),
        ({"plan": None}, ValueError, "plan must be one of .* but is None"),
        ({"plan": ["union"]}, ValueError, r"plan must be one of .* but is \['union'\]"),
        ({"deterministic": 1}, TypeError, "deterministic must be True or False, but is 1"),
        ({"deterministic": True, "plan": "union"}, ValueError, "deterministic=True goes with"),
        ({"block": 0}, ValueError, "block must lie between 1 and .* but is 0"),
        ({"block": -3}, ValueError, "block must lie between 1 and .* but is -3"),
        ({"block": 1 << 40}, ValueError, "block must lie between"),
        ({"block": 8.0}, TypeError, r"block must be a whole number or None, but is 8\.0"),
        ({"block": True}, TypeError, "block must be a whole number or None, but is True"),
        ({"seed": -1}, ValueError, "seed must lie between 0 and .* but is -1"),
        ({"seed": 1 << 64}, ValueError, "seed must lie between"),
        ({"seed": "0"}, TypeError, "seed must be a whole number, but is '0'"),
        ({"check_every": -1}, ValueError, "check_every must be 0 or more, but is -1"),
        ({"check_every": None}, TypeError, "check_every must be a whole number, but is None"),
        ({"seed": None}, TypeError, "seed must be a whole number, but is None"),
    ],
)
def test_a_wrong_setting_is_refused_with_a_sentence(
    settings: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        Config(**settings)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("block", "seed"), [(None, 0), (1, 2**64 - 1), ((1 << 40) - 1, 7)])
def test_every_setting_that_is_accepted_fits_the_record(
    plan: str, block: int | None, seed: int
) -> None:
    assert len(Config(plan, block, seed).record()) == RECORD_NBYTES


def test_equal_settings_do_not_differ() -> None:
    assert first_difference([Config(block=3).record()] * 3) is None
    assert first_difference([Config().record()]) is None


CHANGED = {
    "plan": "owner",
    "block": 16,
    "seed": 1,
    "deterministic": True,
    "check_every": 5,
    "wire": "bf16",
    "error_feedback": False,
}


def test_every_setting_is_compared() -> None:
    assert set(CHANGED) | {"sketch", "select"} == set(asdict(Config()))
    for name, value in CHANGED.items():
        records = [Config().record(), Config(**{name: value}).record()]
        sentence = first_difference(records)
        assert sentence == (
            f"all ranks must have the same {name}, but it is {getattr(Config(), name)!r} on rank 0,"
            f" {value!r} on rank 1"
        )


def test_every_setting_of_a_selection_is_compared() -> None:
    changed = {"block": 8, "least_numel": 5, "vectors": True, "density": 0.5, "warmup_steps": 9}
    assert set(changed) == set(asdict(TopK(0.1)))
    ours = Config(select=TopK(0.1))
    others = [TopK(**{"density": 0.1} | {name: value}) for name, value in changed.items()]
    for other in (None, RandomK(0.1), *others):
        sentence = first_difference([ours.record(), Config(select=other).record()])
        assert sentence is not None
        assert sentence.startswith("all ranks must have the same select, but it is 'TopK(block=64")


def test_every_setting_of_sketches_is_compared() -> None:
    changed = {"rows": 2, "cells": 2.0, "margin": 1.5, "on_overflow": "estimate", "fixed": True}
    changed["peel_rounds"] = 5
    assert set(changed) | {"error_feedback"} == set(asdict(SketchConfig()))
    for name, value in changed.items():
        others = SketchConfig(**{name: value})
        sentence = first_difference([Config().record(), Config(sketch=others).record()])
        assert sentence == (
            f"all ranks must have the same sketch {name}, but it is "
            f"{getattr(SketchConfig(), name)!r} on rank 0, {value!r} on rank 1"
        )


def test_versions_are_compared_before_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Config().record()
    monkeypatch.setattr(_C, "version", lambda: "9.9.9")
    theirs = Config(seed=5).record()
    monkeypatch.undo()
    sentence = first_difference([ours, theirs, theirs])
    assert sentence is not None
    assert sentence.startswith("all ranks must have the same version, but it is ")
    assert sentence.endswith("'9.9.9' on ranks 1, 2")


@pytest.mark.parametrize("stranger", [b"\x00" * 512, b"", b"[1]", b'{"magic": "other"}', b"\xff{"])
def test_bytes_that_are_no_settings(stranger: bytes) -> None:
    sentence = first_difference([Config().record(), stranger, stranger])
    assert sentence is not None
    assert sentence == "ranks 1, 2 sent no settings of an S2State: do all ranks use s2_hook?"


def test_a_setting_that_another_version_lacks() -> None:
    other = Config().record().replace(b'"seed": 0', b'"salt": 0')
    assert first_difference([Config().record(), other]) == (
        "all ranks must have the same seed, but it is 0 on rank 0, None on rank 1"
    )


def test_hundreds_of_ranks_are_not_all_listed() -> None:
    records = [Config(seed=rank % 2).record() for rank in range(256)]
    sentence = first_difference(records)
    assert sentence is not None
    assert "0 on ranks 0, 2, 4, 6, 8, 10, 12, 14 and 120 more, 1 on ranks 1, 3" in sentence
    assert len(sentence) < 200
