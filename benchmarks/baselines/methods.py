# SPDX-License-Identifier: MIT
"""Methods by name, and a DDP module that changes its method from step to step.

Methods are compared on the same parameters in the same buckets, step by step in turn, so that
whatever else the machine does meets all of them alike, and a large model is there only once.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

import s2reducer

from .coo import exchange_coo
from .dgc import DgcState, dgc_hook
from .hooks import (
    Exchange,
    RowsState,
    WireState,
    bf16_hook,
    dense_hook,
    fp16_hook,
    none_hook,
    rows_hook,
)
from .omnireduce import BLOCK, OmniReduceExchange
from .parallax import ParallaxExchange
from .powersgd import PowerSgdState, powersgd_hook
from .sparcml import exchange_recursive, exchange_split
from .zen import ZenExchange

Hook = Callable[[Any, Any], "Future[Tensor]"]


@dataclass(frozen=True)
class Method:
    """What a DDP module's communication hook is registered with."""

    name: str
    state: Any
    hook: Hook

    @property
    def nbytes(self) -> int:
        """Sent by this rank since the state was made, by the formulas of rings.

        ``Wire`` counts by them, and so does s2reducer.  The bytes of a step are a difference.
        """
        if isinstance(self.state, WireState):
            return self.state.wire.nbytes
        return int(self.state.report().bytes_sent)


def _all_reduce(hook: Hook) -> Callable[..., tuple[Any, Hook]]:
    return lambda tables, group: (WireState(group), hook)


def _rows(exchange: Callable[..., Exchange]) -> Callable[..., tuple[Any, Hook]]:
    """By rows of tables; the settings are those of the exchange."""

    def make(tables: list[Tensor], group: Any, **settings: Any) -> tuple[Any, Hook]:
        return RowsState(exchange(**settings), tables, group=group), rows_hook

    return make


def _blocks(exchange: Callable[..., Exchange], block: int) -> Callable[..., tuple[Any, Hook]]:
    """By blocks of whole buckets, in the same way."""

    def make(
        tables: list[Tensor], group: Any, block: int = block, **settings: Any
    ) -> tuple[Any, Hook]:
        return RowsState(exchange(**settings), block=block, group=group), rows_hook

    return make


def _with(state: Callable[..., WireState], hook: Hook) -> Callable[..., tuple[Any, Hook]]:
    """The settings are those of the state."""
    return lambda tables, group, **settings: (state(group=group, **settings), hook)


_BASELINES: dict[str, Callable[..., tuple[Any, Hook]]] = {
    "none": _all_reduce(none_hook),
    "dense": _all_reduce(dense_hook),
    "bf16": _all_reduce(bf16_hook),
    "fp16": _all_reduce(fp16_hook),
    "coo": _rows(lambda: exchange_coo),
    "sparcml": _rows(lambda: exchange_recursive),
    "sparcml-split": _rows(lambda: exchange_split),
    "parallax": _rows(ParallaxExchange),
    "omnireduce": _blocks(OmniReduceExchange, BLOCK),
    "zen": _rows(ZenExchange),
    "powersgd": _with(PowerSgdState, powersgd_hook),
    "dgc": _with(DgcState, dgc_hook),
}
BASELINES = tuple(_BASELINES)
BY_ROWS = ("coo", "sparcml", "sparcml-split", "parallax", "omnireduce", "zen")  # COO as well
PLANS = ("auto", "owner", "gather", "union")
METHODS = (*BASELINES, *PLANS)


def make_method(
    name: str, tables: Iterable[Tensor] = (), group: Any = None, **settings: Any
) -> Method:
    """A method with a state of its own.

    Args:
        name: one of ``BASELINES``, or a plan of s2reducer.
        tables: the parameters that methods by rows send so; all others take no notice of them.
        group: the process group; None for the default one.
        **settings: of the exchange or state that the method has, or of ``S2State``.
    """
    if name in _BASELINES:
        return Method(name, *_BASELINES[name](list(tables), group, **settings))
    state = s2reducer.S2State(group, plan=name, **settings)
    return Method(name, state, s2reducer.s2_hook)


def install(
    ddp: DistributedDataParallel, name: str, tables: Iterable[Tensor] = (), **settings: Any
) -> Method:
    """Makes a method the communication hook of a DDP module; see ``make_method``."""
    if name not in _BASELINES:
        return Method(name, s2reducer.register(ddp, plan=name, **settings), s2reducer.s2_hook)
    method = make_method(name, tables, ddp.process_group, **settings)
    ddp.register_comm_hook(method.state, method.hook)
    return method


class Switch:
    """The methods of one DDP module, of which ``turn_to`` chooses the one for the next steps.

    ``make`` makes a method from its name and the tables.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        names: Iterable[str],
        tables: Iterable[Tensor] = (),
        make: Callable[[str, list[Tensor]], Method] = make_method,
    ) -> None:
        tables = list(tables)
        self._methods = {name: make(name, tables) for name in names}
        self._name = next(iter(self._methods))
        ddp.register_comm_hook(self, switch_hook)

    def turn_to(self, name: str) -> None:
        self._name = name

    def method(self, name: str) -> Method:
        return self._methods[name]

    def reduce(self, bucket: Any) -> "Future[Tensor]":
        method = self._methods[self._name]
        return method.hook(method.state, bucket)


def switch_hook(state: Switch, bucket) -> Future[Tensor]:
    """The hook of a ``Switch``."""
    return state.reduce(bucket)


def chosen_plan(state: Any) -> str:
    """The plan by which the largest parameter went last, of a state of s2reducer's."""
    parameters = state.report().as_dict()["parameters"]
    largest = max(parameters, key=lambda entry: torch.Size(entry["shape"]).numel())
    return str(largest["plan"])
