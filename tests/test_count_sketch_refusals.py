# SPDX-License-Identifier: MIT
"""What the class ``CountSketch`` refuses: one sentence, and nothing has changed."""

import math

import pytest
import torch
from torch import Tensor

from s2reducer import CountSketch

IDS, VALUES = torch.tensor([5, 2]), torch.ones(2, 3)


def filled(seed: int = 5) -> CountSketch:
    """The same blocks at every call, in a sketch of 3 x 20 cells of 2 elements."""
    sketch = CountSketch(3, 20, 2, seed)
    sketch.insert(torch.arange(30), torch.arange(60.0).view(30, 2) - 20)
    return sketch


@pytest.mark.parametrize(
    ("ids", "values", "error", "sentence"),
    [
        ([5, 2], VALUES, TypeError, "ids must be a tensor of int64, but is list"),
        (IDS.int(), VALUES, TypeError, "ids must be int64, but is int32"),
        (IDS[:, None], VALUES, ValueError, r"ids must have one dimension, but are \[2, 1\]"),
        (torch.tensor([5, -2]), VALUES, ValueError, "ids must be 0 or more, but one is -2"),
        (torch.tensor([5, 5]), VALUES, ValueError, "ids must not repeat, but 5 does"),
        (IDS.to("meta"), VALUES, ValueError, "ids must be dense and on the CPU, but is on meta"),
        (IDS, [1.0], TypeError, "values must be a tensor of float32 or float16 or bfloat16"),
        (IDS, VALUES.double(), TypeError, "values must be float32 .*, but is float64"),
        (IDS, VALUES[:1], ValueError, r"values must have the shape \[2, 3\], but have \[1, 3\]"),
        (IDS, torch.ones(2, 4), ValueError, r"values must have the shape \[2, 3\]"),
        (IDS, torch.ones(6), ValueError, r"values must have the shape \[2, 3\], but have \[6\]"),
        (IDS[:0], VALUES, ValueError, r"values must have the shape \[0, 3\]"),
    ],
)
def test_wrong_blocks_change_nothing(
    ids: Tensor, values: Tensor, error: type[Exception], sentence: str
) -> None:
    sketch = CountSketch(3, 7, 3)
    with pytest.raises(error, match=sentence):
        sketch.insert(ids, values)
    assert sketch == CountSketch(3, 7, 3)
    if "ids" in sentence:
        for read in (sketch.estimate, sketch.peel):
            with pytest.raises(error, match=sentence):
                read(ids)


def test_other_sketches_change_nothing() -> None:
    sketch = filled()
    for shape in ((2, 20, 2), (3, 21, 2), (3, 20, 3), (3, 20, 1)):
        with pytest.raises(ValueError, match="other must have the shape and seed of CountSketch"):
            sketch.merge(CountSketch(*shape, seed=5))
    with pytest.raises(ValueError, match=r"other must have .*seed=5.*, but is .*seed=6"):
        sketch.merge(filled(seed=6))
    with pytest.raises(TypeError, match="other must be a CountSketch, but is Tensor"):
        sketch.merge(torch.ones(3, 20, 2))  # type: ignore[arg-type]
    assert sketch == filled()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_table_that_is_not_finite_is_not_peeled(bad: float) -> None:
    sketch = filled()
    sketch.insert(torch.tensor([7]), torch.tensor([[1.0, bad]]))
    bits = sketch.table.view(torch.int32).clone()
    for consume in (False, True):
        with pytest.raises(ValueError, match="the table must be finite to be peeled"):
            sketch.peel(torch.arange(30), consume=consume)
    assert torch.equal(sketch.table.view(torch.int32), bits)


@pytest.mark.parametrize(
    ("nsketches", "error"), [(0, ValueError), (257, ValueError), (1.0, TypeError)]
)
def test_wrong_numbers_of_sketches(nsketches: int, error: type[Exception]) -> None:
    sketch = filled()
    with pytest.raises(error, match="nsketches must"):
        sketch.peel(torch.arange(30), nsketches, consume=True)
    assert sketch == filled()


@pytest.mark.parametrize(
    ("shape", "error", "sentence"),
    [
        ((0, 7, 3), ValueError, "rows must lie between 1 and 8, but is 0"),
        ((9, 7, 3), ValueError, "rows must lie between 1 and 8, but is 9"),
        ((True, 7, 3), TypeError, "rows must be a whole number, but is True"),
        ((3, 0, 3), ValueError, "width must lie between 1 and 4294967295, but is 0"),
        ((3, 2**32, 3), ValueError, "width must lie between 1 and 4294967295"),
        ((3, 7.0, 3), TypeError, "width must be a whole number, but is 7.0"),
        ((3, 7, 0), ValueError, "block must lie between 1 and"),
        ((3, 7, 3, -1), ValueError, "seed must lie between 0 and 18446744073709551615"),
        ((3, 7, 3, 2**64), ValueError, "seed must lie between 0 and 18446744073709551615"),
    ],
)
def test_wrong_shapes(shape: tuple[int, int, int], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        CountSketch(*shape)


@pytest.mark.parametrize(
    ("settings", "error", "sentence"),
    [
        ({"n": -1}, ValueError, "n must lie between 0 and"),
        ({"n": 1.0}, TypeError, "n must be a whole number"),
        ({"rows": 1}, ValueError, "rows must lie between 2 and 8, but is 1"),
        ({"cells": 1.222}, ValueError, "cells must lie above 1.222, which 3 rows need"),
        ({"cells": 1.9, "rows": 2}, ValueError, "cells must lie above 2.0, which 2 rows need"),
        ({"cells": math.nan}, ValueError, "cells must lie above .* but is nan"),
        ({"cells": "1.3"}, TypeError, "cells must be a number or None, but is '1.3'"),
        ({"block": 0}, ValueError, "block must lie between 1 and"),
    ],
)
def test_wrong_settings(settings: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        CountSketch.for_blocks(**({"n": 10, "block": 4} | settings))  # type: ignore[arg-type]
