# SPDX-License-Identifier: MIT
"""Peers that die or hang in each round: who is told, how soon, and that processes can end."""

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, engine, s2_hook
from s2reducer.transport import Transport


@dataclass(frozen=True)
class Place:
    """Where a rank stops: at a bucket's collective in a lane, the one number ``call`` of its kind.

    ``round_`` is the round that errors name, after which the lane is called, too; ``named`` is a
    pattern of it where they are not the same.
    """

    plan: str
    round_: str
    collective: str
    call: int = 1
    coo: bool = False
    named: str = ""

    def sentence(self) -> str:
        """A pattern of what errors begin with."""
        bucket = r"tables\.\d\.weight, tables\.\d\.weight" if self.coo else r"p\.0"
        return rf"step 3, bucket of {bucket}, plan {self.plan}, {self.named or self.round_}: "


# Both lanes are at work, and each finds the peer gone.
BOTH = "(union|sum of the sketches)"

PLACES = {
    "owner, index": Place("owner", "index", "all_gather"),
    "owner, rows": Place("owner", "values", "all_to_all"),
    "owner, sums": Place("owner", "values", "all_gather"),
    "gather, index": Place("gather", "index", "all_gather"),
    "gather, rows": Place("gather", "values", "all_gather"),
    "union, header": Place("union", "index", "all_gather"),
    "union, OR": Place("union", "index", "or_bitmap"),
    "union, AllReduce": Place("union", "values", "sum"),
    "COO, header": Place("owner", "index", "all_gather", coo=True),
    "COO, lists": Place("owner", "index", "all_gather", call=2, coo=True),
    "COO, rows": Place("owner", "values", "all_to_all", coo=True),
    "COO, sums": Place("owner", "values", "all_gather", coo=True),
    "COO, rows to all": Place("gather", "values", "all_gather", coo=True),
    "COO, AllReduce": Place("union", "values", "sum", coo=True),
    "sketch, OR": Place("sketch", "index", "or_bitmap", named=BOTH),
    "sketch, sum": Place("sketch", "values", "sum", named=BOTH),
    "sketch, lists": Place("sketch", "index", "all_gather", call=2, coo=True, named=BOTH),
}


def places(fast: str, *slow: str) -> list[Any]:
    return [fast, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


class Tables(nn.Module):
    """COO gradients, which travel together from the third step on."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(300, 8, sparse=True) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([table(rows).sum() for table in self.tables]).sum()


def make_ddp(coo: bool = False, **flags: Any) -> DistributedDataParallel:
    return DistributedDataParallel(Tables() if coo else Given(torch.zeros(256, 64)), **flags)


def backward(ddp: DistributedDataParallel) -> None:
    ddp.zero_grad()
    rank = dist.get_rank()
    if isinstance(ddp.module, Tables):
        ddp(torch.arange(10 * rank, 10 * rank + 20)).backward()
    else:
        ddp({0: torch.full((256, 64), rank + 1.0)}).backward()


class Bucket:
    """What DDP hands to a hook, made up: a bucket of one parameter, which begins a step."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameters = [parameter]
        self._buffer = torch.ones(parameter.numel())

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def parameters(self) -> list[torch.Tensor]:
        return self._parameters

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


def error_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def break_in(place: Place, action: Callable[[], None]) -> None:
    """Calls ``action`` once, where a rank is about to begin the collective."""
    original, calls = getattr(Transport, place.collective), []

    def broken(self: Transport, *arguments: Any) -> Any:
        if threading.current_thread().name == f"s2reducer-{place.round_}":
            calls.append(1)
            if len(calls) == place.call:
                setattr(Transport, place.collective, original)
                action()
        return original(self, *arguments)

    setattr(Transport, place.collective, broken)


def third_step(ddp: DistributedDataParallel, state: S2State) -> dict[str, Any]:
    """What a survivor is told, and which of its lanes go on."""
    told = {
        "raised": error_of(backward, ddp),
        "original": type(state.last_error).__name__,
        "text": str(state.last_error),
        "refused": error_of(backward, ddp),
    }
    one = engine._engines[ddp.process_group]
    for thread in one.threads:
        thread.join(10.0)
    return told | {"threads left": [thread.name for thread in one.threads if thread.is_alive()]}


def assert_told(answers: list[dict[str, Any]], place: Place, words: str) -> None:
    where = place.sentence()
    for told in answers:
        assert re.search(where, told["raised"]), told
        assert re.search(words, told["text"]), told
        assert f": {told['text']}" in told["raised"], told
        assert told["original"] != "S2Error"
        assert re.match(f"S2Error: this S2State has failed before: {where}", told["refused"]), told
        assert told["refused"].endswith(f": {told['text']}"), told
        assert told["threads left"] == []


# ------------------------------------------------------------------------------------------------
# Death
# ------------------------------------------------------------------------------------------------


def live_in_processes(
    folder: Path, count: int, function: Callable[..., Any], *arguments: Any, seconds: float = 60.0
) -> list[int | None]:
    """Exit codes of processes of their own, that end by themselves: None for those that do not.

    What ``function`` returns is in ``folder``, under the number of the rank, and in ``errors`` what
    was written to stderr; ``ended`` lists the ranks that are gone.
    """
    context = multiprocessing.get_context("spawn")
    shared = (count, str(folder), function, arguments)
    processes = [context.Process(target=_live, args=(rank, *shared)) for rank in range(count)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    codes = []
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        codes.append(process.exitcode)
        (folder / f"ended{rank}").touch()
    for process in processes:
        process.kill()
        process.join()
    return codes


def _live(rank: int, count: int, folder: str, function: Any, arguments: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    os.dup2(os.open(f"{folder}/errors{rank}", os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    store = dist.FileStore(f"{folder}/store", count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    answer = function(*arguments)
    (Path(folder) / str(rank)).write_text(json.dumps(answer))


def answers_in(folder: Path, *ranks: int) -> list[Any]:
    return [json.loads((folder / str(rank)).read_text()) for rank in ranks]


def die(name: str, victim: int, killed: bool) -> dict[str, Any]:
    place = PLACES[name]
    ddp = make_ddp(coo=place.coo)
    state = s2reducer.register(ddp, plan=place.plan)
    backward(ddp)
    backward(ddp)
    if dist.get_rank() == victim:
        pid = os.getpid()
        break_in(place, lambda: os.kill(pid, signal.SIGKILL) if killed else os._exit(7))
    return third_step(ddp, state)


CLOSED = "onnection closed|onnection reset|roken pipe"  # gloo's words


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PLACES if name != "owner, index"])
def test_survivors_of_a_killed_rank_name_what_failed_and_can_exit(
    tmp_path: Path, name: str
) -> None:
    assert live_in_processes(tmp_path, 3, die, name, 1, True) == [0, -signal.SIGKILL, 0]
    assert_told(answers_in(tmp_path, 0, 2), PLACES[name], CLOSED)


@pytest.mark.slow
def test_survivors_of_a_rank_that_exits_name_what_failed_and_can_exit(tmp_path: Path) -> None:
    assert live_in_processes(tmp_path, 3, die, "owner, index", 1, False) == [0, 7, 0]
    assert_told(answers_in(tmp_path, 0, 2), PLACES["owner, index"], CLOSED)


# ------------------------------------------------------------------------------------------------
# Hanging
# ------------------------------------------------------------------------------------------------


def hang(name: str, seconds: float, folder: str) -> tuple[dict[str, Any], float]:
    """Rank 1 goes on only when the others have given up; the time that this took."""
    place = PLACES[name]
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    ddp = make_ddp(coo=place.coo, process_group=group)
    state = s2reducer.register(ddp, plan=place.plan)
    backward(ddp)
    backward(ddp)
    others = [Path(folder) / f"gave_up{rank}" for rank in range(dist.get_world_size()) if rank != 1]

    def wait() -> None:
        while not all(other.exists() for other in others):
            time.sleep(0.02)

    if dist.get_rank() == 1:
        break_in(place, wait)
    begun = time.monotonic()
    told = third_step(ddp, state)
    taken = time.monotonic() - begun
    (Path(folder) / f"gave_up{dist.get_rank()}").touch()
    return told, taken


def assert_gave_up(results: list[tuple[dict[str, Any], float]], name: str, seconds: float) -> None:
    # gloo's words, at the rank whose time is up first; those whose peers have closed; and ours.
    assert_told([told for told, _ in results], PLACES[name], f"imed out|{CLOSED}|has been closed")
    assert any("imed out" in told["text"] for told, _ in results)
    assert all(taken < 4 * seconds for _, taken in results)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", places("owner, index", "owner, rows", "gather, rows", "union, OR", "union, AllReduce")
)
def test_a_peer_that_hangs_costs_no_more_than_the_groups_timeout(
    ranks: Ranks, tmp_path: Path, name: str
) -> None:
    assert_gave_up(ranks.run(3, hang, name, 4.0, str(tmp_path)), name, 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["COO, lists", "COO, rows"])
def test_survivors_of_a_peer_that_hangs_can_exit(tmp_path: Path, name: str) -> None:
    assert live_in_processes(tmp_path, 3, hang, name, 4.0, str(tmp_path)) == [0, 0, 0]
    assert_gave_up(answers_in(tmp_path, 0, 1, 2), name, 4.0)


# ------------------------------------------------------------------------------------------------
# The end of a process
# ------------------------------------------------------------------------------------------------


def exit_with_jobs_in_flight(plan: str, folder: str) -> list[bool]:
    """Rank 0's jobs wait for rank 1, which brings none, and stays until rank 0 is gone."""
    state, bucket = S2State(plan=plan), Bucket(torch.zeros(1 << 16))
    s2_hook(state, bucket).wait()
    if dist.get_rank() == 0:
        return [s2_hook(state, bucket).done() for _ in range(3)]
    while not (Path(folder) / "ended0").exists():
        time.sleep(0.02)
    return []


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["owner", "dense"])
def test_a_process_can_exit_with_jobs_in_flight(tmp_path: Path, plan: str) -> None:
    assert live_in_processes(tmp_path, 2, exit_with_jobs_in_flight, plan, str(tmp_path)) == [0, 0]
    assert answers_in(tmp_path, 0) == [[False] * 3]
    assert (tmp_path / "errors0").read_text() == ""
