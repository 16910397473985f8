# SPDX-License-Identifier: MIT
"""Runs functions of tests on several ranks at once, under a watchdog.

    results = ranks.run(3, function, argument)      # [function(argument) on rank 0, 1, 2]

Importing torch takes longer than most tests, so a few processes are started once and serve all
cases, each case in a process group of its own (gloo on loopback, one thread a rank).  A function is
found by its name, so it stands at the top of a test module; what it takes and returns is pickled.

A rank that raises fails the case with every rank's traceback.  A case that takes too long is ended
by killing these processes, and the failure shows where each of them was.
"""

import faulthandler
import hashlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from s2reducer import collectives

# Of the package, by the names of the functions in ``collectives``.
COLLECTIVES = ("all_reduce", "all_to_all", "all_gather")

START_SECONDS = 120.0  # to import torch on a machine that is busy
CASE_SECONDS = 30.0


def world_sizes(*sizes: int, fast: int = 3) -> list[Any]:
    """For parametrize(): more than ``fast`` ranks are left to the whole suite."""
    return [size if size <= fast else pytest.param(size, marks=pytest.mark.slow) for size in sizes]


def cases(every: list[Any], *fast: Any) -> list[Any]:
    """For parametrize(), with tuples for several names: all but ``fast`` are left to the whole
    suite."""
    return [
        case
        if case in fast
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in every
    ]


# The plan, for parametrize(): what it has of its own is tested by itself.
SKETCH = pytest.param("sketch", marks=pytest.mark.slow)


class RankFailure(AssertionError):
    """At least one rank raised, died or did not finish."""


class Ranks:
    """A pool of up to ``most`` ranks, which are started when a case first asks for them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._cases = 0
        self._folder = tempfile.TemporaryDirectory(prefix="s2-ranks-")

    def run(
        self,
        count: int,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float = CASE_SECONDS,
    ) -> list[Any]:
        """What ``function(*arguments)`` returned on each of ``count`` ranks."""
        assert count <= self.most
        if len(self._processes) < count:
            self._start(count)
        self._cases += 1
        store = str(Path(self._folder.name) / f"store{self._cases}")
        for rank in range(count):
            self._pipes[rank].send((count, store, seconds, function, arguments))
        answers = self._collect(count, seconds)
        failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        if failures:
            self.close()  # who knows what a failed rank has left behind
            raise RankFailure("\n\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        """Ends the processes of this pool, and no others; the next case starts new ones."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _start(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        first = len(self._processes)
        for rank in range(first, count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, theirs, self._where(rank)), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        for rank, (good, text) in enumerate(self._collect(count, START_SECONDS, first), first):
            assert good, f"rank {rank} did not start: {text}"

    def _where(self, rank: int) -> str:
        """The file into which a rank that takes too long writes where it is."""
        return str(Path(self._folder.name) / f"rank{rank}-{id(self)}")

    def _collect(self, count: int, seconds: float, first: int = 0) -> list[tuple[bool, Any]]:
        """The ranks' answers: whether each is a result, and the result or what went wrong."""
        answers: dict[int, tuple[bool, Any]] = {}
        asked = range(first, count)
        deadline = time.monotonic() + seconds
        while len(answers) < len(asked):
            open_pipes = {self._pipes[rank]: rank for rank in asked if rank not in answers}
            ready = wait(list(open_pipes), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = open_pipes[pipe]
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    self._processes[rank].join()
                    answers[rank] = (False, f"died with code {self._processes[rank].exitcode}")
        for rank in set(asked) - set(answers):
            where = Path(self._where(rank))
            stack = where.read_text() if where.exists() else ""
            answers[rank] = (False, f"did not finish in {seconds:.0f} s, it was here:\n{stack}")
        return [answers[rank] for rank in asked]


def _serve(rank: int, pipe: Connection, where: str) -> None:
    """The life of a rank: cases come over the pipe until it is closed."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import s2reducer  # noqa: F401  (now, not in the time of the first case)

    torch.set_num_threads(1)
    pipe.send((True, None))
    while True:
        try:
            count, store, seconds, function, arguments = pipe.recv()
        except EOFError:
            return
        with open(where, "w") as stack:
            faulthandler.dump_traceback_later(max(1.0, seconds - 1.0), file=stack)
            try:
                answer = (True, _one_case(rank, count, store, seconds, function, arguments))
            except BaseException:
                answer = (False, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
        try:
            pipe.send(answer)
        except Exception as error:  # a result that cannot be pickled
            pipe.send((False, f"cannot send its result: {error}"))


def _one_case(
    rank: int, count: int, store: str, seconds: float, function: Callable[..., Any], arguments: Any
) -> Any:
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, count),
        rank=rank,
        world_size=count,
        # Past the watchdog: that a rank waits for ever must not look like an error of its own.
        timeout=timedelta(seconds=2 * seconds),
    )
    try:
        result = function(*arguments)
        if dist.is_initialized():  # a function may end the group itself
            dist.barrier()  # who closes its sockets first would fail a rank that still reads
        return result
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def own_ranks(count: int) -> Iterator[Ranks]:
    """Processes for a single case that ends some of them."""
    pool = Ranks(count)
    try:
        yield pool
    finally:
        pool.close()


# ------------------------------------------------------------------------------------------------
# What functions on ranks share
# ------------------------------------------------------------------------------------------------

# Of gradients whose sums, means and products with 1/P are exact on 1 to 4 ranks, in float16 too.
EXACT_UNIT = 12


class Given(torch.nn.Module):
    """A module whose gradients are what it is called with, by the parameters' names."""

    def __init__(self, *parameters: torch.Tensor) -> None:
        super().__init__()
        self.p = torch.nn.ParameterList(torch.nn.Parameter(tensor) for tensor in parameters)

    def forward(self, gradients: dict[int, torch.Tensor]) -> torch.Tensor:
        losses = [(self.p[index] * gradient).sum() for index, gradient in gradients.items()]
        return sum((loss.double() for loss in losses), torch.zeros(()).double())


def exact_gradient(like: torch.Tensor, density: float, *seed: int) -> torch.Tensor:
    """Multiples of EXACT_UNIT in a share of the rows (or elements) of ``like``, zeros elsewhere."""
    generator = torch.Generator().manual_seed(hash(seed))
    values = torch.randint(-8, 9, like.shape, generator=generator) * EXACT_UNIT
    live = torch.rand(like.shape[:1], generator=generator) < density
    values *= live.reshape(-1, *[1] * (like.dim() - 1)) if like.dim() else 1
    return torch.empty_like(like, requires_grad=False).copy_(values)


def assert_same_on_all_ranks(tensors: Sequence[torch.Tensor]) -> None:
    """Bit by bit, so that signs of zeros and payloads of NaNs count too."""
    digest = hashlib.sha256()
    for tensor in tensors:
        dense = tensor.to_dense() if tensor.is_sparse else tensor
        digest.update(dense.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    own = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    pieces = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, own)
    assert all(torch.equal(piece, own) for piece in pieces), "ranks have different bits"


@contextmanager
def recorded_collectives() -> Iterator[list[tuple[str, str, int]]]:
    """Every collective of the package in the meantime: its name, dtype and length.

    Lanes issue theirs side by side, so the order is that of each process group alone.
    """
    calls: list[tuple[str, str, int]] = []

    def recorder(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*arguments: Any, **options: Any) -> Any:
            tensor = arguments[1] if "gather" in name else arguments[0]
            calls.append((name, str(tensor.dtype), tensor.numel()))
            return function(*arguments, **options)

        return record

    originals = {name: getattr(collectives, name) for name in COLLECTIVES}
    try:
        for name, function in originals.items():
            setattr(collectives, name, recorder(name, function))
        yield calls
    finally:
        for name, function in originals.items():
            setattr(collectives, name, function)
