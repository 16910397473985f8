# SPDX-License-Identifier: MIT
"""Sketches of blocks of which only the device knows how many there are.

The operators have the bits of those on the CPU, which are told; the devices are those of
``test_cuda_operators.py``.
"""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from emulated import Device, copied, same_bits, sentence_of
from sketches import draw_ids, draw_seed
from torch import Tensor

from s2reducer import device_lists, ops
from s2reducer.device_lists import choose

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("seed")]

OPERATORS = torch.ops.s2reducer
SHAPES = [(1, 40, 5), (3, 26, 64), (3, 130, 1), (8, 1, 7)]
NAMES = ("insert", "weigh", "estimate", "peel")


def test_they_are_those_that_are_looked_for(device: Device) -> None:
    counted = {name for name in device.names() if re.fullmatch("sketch_.*_counted", name)}
    assert counted == {f"sketch_{name}_counted" for name in NAMES}
    wanted = " ".join((device_lists.__doc__ or "").split())
    for name in counted:
        assert str(device.schemas[name]).partition("::")[2] in wanted


# ------------------------------------------------------------------------------------------------
# Lists that are longer than their count
# ------------------------------------------------------------------------------------------------


def garbage(n: int, block: int) -> tuple[Tensor, Tensor]:
    """Ids that neither ascend nor are any, and values that would spoil every cell."""
    ids = torch.tensor([random.getrandbits(64) - (1 << 63) for _ in range(n)], dtype=torch.int64)
    values = torch.full((n, block), float("nan"))
    values[::2] = float("inf")
    return ids, values


def check(device: Device, name: str, count: Tensor, given: list[Any], listed: int) -> None:
    """The twin on all of the lists, and the operator on as many blocks as there are.

    ``given`` are the arguments of either, of which the ids and the last ``listed`` are lists.
    """
    first = [*range(2, 3), *range(len(given) - listed, len(given))]
    length = min(int(count), len(given[2]))
    expected = copied(given)
    short = [each[:length] if number in first else each for number, each in enumerate(expected)]
    if name == "sketch_peel":
        nbytes = ops.sketch_scratch_nbytes(expected[0], length)
        short += [torch.zeros(nbytes, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)]
    getattr(OPERATORS, name).default(*short)
    found = device.call(f"{name}_counted", *given[:3], count, *given[3:])
    wanted = [each for each in (*expected[:3], count, *expected[3:]) if isinstance(each, Tensor)]
    spent = {0} if name == "sketch_peel" else set()  # what the table then holds means nothing
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert number in spent or same_bits(one, other), f"tensor {number} of {name}"


@pytest.mark.parametrize("behind", [0, 1, 70])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_behind_the_count_means_nothing(
    device: Device, shape: tuple[int, int, int], behind: int
) -> None:
    rows, width, block = shape
    for n in (0, 1, rows * width * 3 // 4):
        seed, ids, values = ops.signed(draw_seed()), draw_ids(n), torch.randn(n, block)
        table, magnitudes = torch.zeros(shape), torch.zeros(rows, width)
        OPERATORS.sketch_insert.default(table, seed, ids, values)
        OPERATORS.sketch_weigh.default(magnitudes, seed, ids, values)
        other_ids, other_values = garbage(behind, block)
        ids, values = torch.cat([ids, other_ids]), torch.cat([values, other_values])
        count = torch.tensor([n if behind else n + 3])  # a list is never longer than its room

        check(device, "sketch_insert", count, [torch.randn(shape), seed, ids, values], 1)
        check(device, "sketch_weigh", count, [magnitudes, seed, ids, values], 1)
        check(device, "sketch_estimate", count, [table, seed, ids, values], 1)
        for known in (None, magnitudes):
            for rounds in (1, 40):
                flags = torch.rand(len(ids)) < 0.5
                outputs = [values, flags, torch.randn(len(ids)), torch.randn(len(ids))]
                check(
                    device, "sketch_peel", count, [table, seed, ids, 2, known, rounds, *outputs], 4
                )


# ------------------------------------------------------------------------------------------------
# By way of device_lists.py
# ------------------------------------------------------------------------------------------------


@contextmanager
def in_use(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``device_lists.py`` leaves lists to the device; if it is a real one, waits for it raise."""
    if is_real(device):
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with monkeypatch.context() as patched:
        patched.setattr(device_lists, "_ops", device.operators)
        patched.setattr(device_lists, "_takes_counts", lambda table: True)
        yield


def is_real(device: Device) -> bool:
    return device.operators is OPERATORS


def sketched(values: Tensor, mask: Tensor, seed: int, shape: tuple[int, int, int]) -> list[Tensor]:
    """All that can be done with the chosen ones."""
    chosen = choose(mask)
    ids, values = 5 * chosen.order + 2, values[chosen.order]
    table, magnitudes = values.new_zeros(shape), values.new_zeros(shape[:2])
    device_lists.sketch_insert(table, seed, ids, chosen, values)
    device_lists.sketch_weigh(magnitudes, seed, ids, chosen, values)
    results = [table.clone(), magnitudes, device_lists.sketch_estimate(table, seed, ids, chosen)]
    peeled = device_lists.sketch_peel(table, seed, ids, chosen, 3, magnitudes, 20)
    return [*results, *vars(peeled).values()]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_lists_are_left_to_the_device(
    device: Device, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    shape = 3, 40, 6
    values, mask, seed = torch.randn(90, 6), torch.rand(90) < share, draw_seed()
    expected = sketched(values, mask, seed, shape)
    place = "cuda" if is_real(device) else "cpu"
    values, mask = values.to(place), mask.to(place)
    with in_use(device, monkeypatch):
        found = sketched(values, mask, seed, shape)
    assert bool(expected[4].any()) == bool(mask.any())  # decoded
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(one.cpu(), other), f"result {number}"


# ------------------------------------------------------------------------------------------------
# Errors
# ------------------------------------------------------------------------------------------------

TABLE, IDS, VALUES = torch.zeros(3, 9, 4), torch.tensor([2, 5]), torch.zeros(2, 4)
ONE, TWO = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
PEELED = (VALUES, torch.zeros(2, dtype=torch.bool), torch.zeros(2), torch.zeros(2))
AN_INT64 = "a contiguous 1-D CPU tensor of int64"

WRONG: list[tuple[str, list[Any], str]] = [
    ("insert", [TABLE, 1, IDS, TWO, VALUES], "count must have 1 elements, but has 2"),
    ("insert", [TABLE, 1, IDS, ONE.int(), VALUES], f"count must be {AN_INT64}, but its dtype is"),
    ("insert", [TABLE, 1, IDS, ONE[0], VALUES], f"count must be {AN_INT64}, but it has 0 dim"),
    ("insert", [TABLE, 1, IDS, ONE, VALUES[:1]], "values must have the shape [2, 4] for these ids"),
    ("weigh", [TABLE[0, :3], 1, IDS, TWO, VALUES], "count must have 1 elements, but has 2"),
    ("weigh", [TABLE, 1, IDS, ONE, VALUES], "magnitudes must be a contiguous 2-D CPU tensor of"),
    ("estimate", [TABLE, 1, IDS, TWO, VALUES], "count must have 1 elements, but has 2"),
    ("estimate", [TABLE, 1, IDS.int(), ONE, VALUES], f"ids must be {AN_INT64}, but its dtype is"),
    ("peel", [TABLE, 1, IDS, TWO, 1, None, 1, *PEELED], "count must have 1 elements, but has 2"),
    ("peel", [TABLE, 1, IDS, ONE, 0, None, 1, *PEELED], "nranks must lie between 1 and 256, but"),
    ("peel", [TABLE, 1, IDS, ONE, 1, None, 0, *PEELED], "max_rounds must be 1 or more on a device"),
    (
        "peel",
        [TABLE, 1, IDS, ONE, 1, TABLE[0], 1, *PEELED],
        "magnitudes must have the shape [3, 9]",
    ),
]


@pytest.mark.parametrize("case", WRONG, ids=[f"{i}-{case[0]}" for i, case in enumerate(WRONG)])
def test_wrong_arguments(device: Device, case: tuple[str, list[Any], str]) -> None:
    name, arguments, said = case
    with pytest.raises(RuntimeError) as raised:
        device.call(f"sketch_{name}_counted", *arguments)
    assert sentence_of(raised.value).startswith(f"sketch_{name}_counted: {said}")
