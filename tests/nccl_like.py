# SPDX-License-Identifier: MIT
"""gloo as if it were NCCL: refuses what NCCL lacks, ends futures at once, and keeps a record.

CPU tensors stand for those of a device: torch's own operators work on them, and the copies to the
host are counted.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from pairs import Pair
from torch import Tensor
from torch.futures import Future

from s2reducer import block_ops, collectives, constants, functional, state, transport
from s2reducer.chooser import Chooser
from s2reducer.config import Config
from s2reducer.constants import Constants
from s2reducer.device import HostCopy
from s2reducer.job import Job
from s2reducer.segments import Layout
from s2reducer.transport import ORDERED, Transport

# Those of NCCL's types that it calls by these names; it has neither bool nor int16.
_DTYPES = {
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_REDUCTIONS = {dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX}
_TENSORS = {"all_reduce": (0,), "all_to_all": (0, 1), "all_gather": (0, 1)}


@dataclass
class Record:
    """Of one rank.

    Attributes:
        events: in their order, what all ranks must have alike: collectives with dtype and size
            (without size where ranks send different amounts), "read" for a wait for the device, and
            whatever a test adds.
    """

    events: list[str] = field(default_factory=list)

    def mark(self, event: str) -> None:
        self.events.append(event)

    @property
    def collectives(self) -> list[str]:
        return [event for event in self.events if event.split()[0] in _TENSORS]


class _Done:
    """A work whose future has its result, as NCCL's have as soon as they are enqueued."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def get_future(self) -> "Future[list[Tensor]]":
        future: Future[list[Tensor]] = Future()
        future.set_result([self._tensor])
        return future


def _check(name: str, tensors: list[Tensor], options: dict[str, Any]) -> None:
    for tensor in tensors:
        assert not tensor.is_sparse, f"NCCL has no {name} of COO tensors"
        assert tensor.dtype in _DTYPES, f"NCCL has no {tensor.dtype}"
        assert tensor.is_contiguous(), f"NCCL's {name} wants contiguous tensors"
    assert options["group"] is dist.group.WORLD, "another group than DDP's own"


@contextmanager
def nccl_like() -> Iterator[Record]:
    """For all states, and calls of all_reduce(), that are made in it."""
    record, thread = Record(), threading.current_thread()
    in_callback = threading.local()

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, async_op: bool = False, **options: Any) -> Any:
            assert threading.current_thread() is thread, f"{name} on another thread"
            assert not getattr(in_callback, "yes", False), f"{name} in a future's callback"
            tensors = [arguments[index] for index in _TENSORS[name]]
            _check(name, tensors, options)
            for argument in arguments:
                if isinstance(argument, dist.ReduceOp.RedOpType):
                    assert argument in _REDUCTIONS, f"NCCL has no {argument}"
            size = "" if name == "all_to_all" else f" {tensors[-1].numel()}"
            record.mark(f"{name} {tensors[0].dtype}{size}")
            function(*arguments, **options)
            return _Done(tensors[0]) if async_op else None

        return call

    def then(future: "Future[Any]", callback: Callable[..., Any]) -> Any:
        def marked(value: Any) -> Any:
            in_callback.yes = True
            try:
                return callback(value)
            finally:
                in_callback.yes = False

        return original_then(future, marked)

    def wait(copy: HostCopy) -> Any:
        assert not getattr(in_callback, "yes", False), "a wait in a future's callback"
        record.mark("read")
        return original_wait(copy)

    original_then, original_wait = Future.then, HostCopy.wait
    originals = {name: getattr(collectives, name) for name in _TENSORS}
    ways, operators = dict(transport._WAYS), dict(block_ops._BY_DEVICE)
    try:
        for name, function in originals.items():
            setattr(collectives, name, wrapped(name, function))
        Future.then, HostCopy.wait = then, wait
        transport._WAYS["gloo", "cpu"] = transport.ORDERED
        block_ops._BY_DEVICE.clear()
        yield record
    finally:
        for name, function in originals.items():
            setattr(collectives, name, function)
        Future.then, HostCopy.wait = original_then, original_wait
        transport._WAYS.update(ways)
        block_ops._BY_DEVICE.update(operators)


# ------------------------------------------------------------------------------------------------
# What the tests of the ordered engine share
# ------------------------------------------------------------------------------------------------

PLANS = ["owner", "gather", "union", "auto"]


@contextmanager
def slow_link() -> Iterator[None]:
    """A network for which "auto" takes the trouble, with models as small as these."""
    places = (state, functional)
    try:
        for module in places:
            module.ON_DEVICES = Constants()
        yield
    finally:
        for module in places:
            module.ON_DEVICES = constants.ON_DEVICES


def make_pair(record: Record, make: Any, settings: Any, **flags: Any) -> Pair:
    """Both models; calls of the hook are marked in the record."""

    def wrap(hook: Any) -> Any:
        def marking(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            record.mark("hook")
            result = hook(state, bucket)
            record.mark("returned")
            return result

        return marking

    return Pair(make, settings, wrap, **flags)


def steps_of(record: Record) -> list[list[str]]:
    """The events of each step, which begins with a mark."""
    cut = [number for number, event in enumerate(record.events) if event == "step"]
    return [record.events[a:b] for a, b in itertools.pairwise([*cut, len(record.events)])]


def assert_alike(results: list[Any]) -> None:
    """The ranks have issued the same collectives, with waits at the same places among them."""
    for events in results[1:]:
        assert events == results[0]


class Nowhere(Transport):
    """Collectives of tensors that have no elements: their results' shapes are all there is."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.bytes_sent, self.seconds = rank, world_size, 0, 0.0
        self.way = ORDERED

    def all_gather(self, piece: Tensor) -> Tensor:
        return piece.new_empty(self.world_size, piece.numel())

    def all_to_all(self, incoming: Tensor, outgoing: Tensor, *sizes: list[int]) -> None:
        assert list(map(sum, sizes)) == [incoming.numel(), outgoing.numel()]

    def sum(self, tensor: Tensor) -> None:
        assert tensor.is_contiguous()

    begin_sum = None  # type: ignore[assignment]


def job_nowhere(buffer: Tensor, layout: Layout, **settings: Any) -> Job:
    """That of the second of three ranks, all of whose segments may travel sparsely."""
    return Job(
        buffer=buffer,
        layout=layout,
        compared=layout,
        config=Config(**settings),
        transport=Nowhere(1, 3),
        chooser=Chooser(adapts=False, learns=False),
        step=5,
        divisor=3.0,
    )
