# SPDX-License-Identifier: MIT
"""Methods by name, and a DDP module that changes its method from step to step.

Methods are compared on the same parameters in the same buckets, step by step in turn, so that
whatever else the machine does meets all of them alike, and a large model is there only once.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import s2reducer

from .coo import exchange_coo
from .hooks import RowsState, WireState, bf16_hook, dense_hook, none_hook, rows_hook
from .zen import ZenExchange

PLANS = ("auto", "owner", "gather", "union")
BASELINES = ("none", "dense", "bf16", "coo", "zen")
METHODS = (*BASELINES, *PLANS)

Hook = Callable[[Any, Any], "Future[Tensor]"]


def make_method(name: str, tables: Iterable[Tensor] = ()) -> tuple[Any, Hook]:
    """State and hook; ``PLANS`` are s2reducer's own.

    Args:
        name: one of ``METHODS``.
        tables: the parameters that ``coo`` and ``zen`` send by rows.
    """
    if name in PLANS:
        return s2reducer.S2State(plan=name), s2reducer.s2_hook
    makers: dict[str, Callable[[], tuple[Any, Hook]]] = {
        "none": lambda: (None, none_hook),
        "dense": lambda: (WireState(), dense_hook),
        "bf16": lambda: (WireState(), bf16_hook),
        "coo": lambda: (RowsState(exchange_coo, tables), rows_hook),
        "zen": lambda: (RowsState(ZenExchange(), tables), rows_hook),
    }
    return makers[name]()


class Switch:
    """The methods of one DDP module, of which ``turn_to`` chooses the one for the next steps."""

    def __init__(
        self, ddp: DistributedDataParallel, names: Iterable[str], tables: Iterable[Tensor] = ()
    ) -> None:
        tables = list(tables)
        self._methods = {name: make_method(name, tables) for name in names}
        self._name = next(iter(self._methods))
        ddp.register_comm_hook(self, switch_hook)

    def turn_to(self, name: str) -> None:
        self._name = name

    def state(self, name: str) -> Any:
        return self._methods[name][0]

    def reduce(self, bucket: Any) -> "Future[Tensor]":
        state, hook = self._methods[self._name]
        return hook(state, bucket)


def switch_hook(state: Switch, bucket) -> Future[Tensor]:
    """The hook of a ``Switch``."""
    return state.reduce(bucket)


def chosen_plan(state: Any) -> str:
    """The plan by which the largest parameter went last, of a state of s2reducer's."""
    parameters = state.report().as_dict()["parameters"]
    largest = max(parameters, key=lambda entry: torch.Size(entry["shape"]).numel())
    return str(largest["plan"])
