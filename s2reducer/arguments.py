# SPDX-License-Identifier: MIT
"""Arguments of the public classes, checked before anything is written."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_INT64 = (torch.int64,)


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, but is {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} must lie between {least} and {most}, but is {value}")
    return value


def number(name: str, value: object) -> float:
    """A number of either kind."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, but is {value!r}")
    return float(value)


def tensor_on_cpu(name: str, value: object, dtypes: Sequence[torch.dtype]) -> Tensor:
    """A dense tensor of one of these dtypes, without its history."""
    accepted = " or ".join(_names(dtypes))
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor of {accepted}, but is {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {accepted}, but is {_names([value.dtype])[0]}")
    if value.layout != torch.strided or value.device.type != "cpu":
        kind = "sparse" if value.layout != torch.strided else f"on {value.device}"
        raise ValueError(f"{name} must be dense and on the CPU, but is {kind}")
    return value.detach()


def numbers(name: str, value: object) -> Tensor:
    """int64, [n], none below 0."""
    tensor = tensor_on_cpu(name, value, _INT64)
    if tensor.dim() != 1:
        raise ValueError(f"{name} must have one dimension, but are {list(tensor.shape)}")
    if tensor.numel() and int(tensor.min()) < 0:
        raise ValueError(f"{name} must be 0 or more, but one is {int(tensor.min())}")
    return tensor


def packed_blocks(name: str, value: Tensor, n: int, block: int) -> None:
    """[n, block]."""
    if value.shape != (n, block):
        raise ValueError(f"{name} must have the shape [{n}, {block}], but have {list(value.shape)}")


def saved(kind: str, state: object, fields: dict[str, type]) -> Mapping[str, Any]:
    """What ``state_dict()`` of a ``kind`` gave, as far as its keys and types tell."""
    if not isinstance(state, Mapping) or set(state) != set(fields):
        raise ValueError(f"this is no state of a {kind}, which has the keys {', '.join(fields)}")
    for name, expected in fields.items():
        if not isinstance(state[name], expected):
            raise ValueError(
                f"{name} in the state of a {kind} must be of the type {expected.__name__}, but is "
                f"{type(state[name]).__name__}"
            )
    return state


def _names(dtypes: Sequence[torch.dtype]) -> list[str]:
    return [str(dtype).removeprefix("torch.") for dtype in dtypes]
