# SPDX-License-Identifier: MIT
"""Peers that fail, hang or die in each round: who is told, how soon, and that processes can end."""

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, ops, s2_hook
from s2reducer.transport import Transport

ROUNDS = {"index": "all_gather", "values": "all_to_all"}  # of ``owner``
LANES = {"index": "s2reducer-index", "values": "s2reducer-values"}


def make_ddp(tables: int = 1, **flags: Any) -> DistributedDataParallel:
    """A bucket for each table after the rebuild."""
    model = Given(*(torch.zeros(256, 64) for _ in range(tables)))
    return DistributedDataParallel(model, **{"bucket_cap_mb": 0.05} | flags)


def backward(ddp: DistributedDataParallel) -> None:
    ddp.zero_grad()
    rank = float(dist.get_rank() + 1)
    ddp({index: torch.full_like(p, rank) for index, p in enumerate(ddp.module.p)}).backward()


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


def break_in(round_: str, action: Callable[[], None]) -> None:
    """For the rest of this process or until ``action`` undoes it: called where the round begins."""
    original = getattr(Transport, ROUNDS[round_])

    def broken(self: Transport, *arguments: Any) -> Any:
        if threading.current_thread().name == LANES[round_]:
            setattr(Transport, ROUNDS[round_], original)
            action()
        return original(self, *arguments)

    setattr(Transport, ROUNDS[round_], broken)


def assert_told(answers: list[list[str]], round_: str, words: str) -> None:
    """Of each rank: what backward() raised, and what the state says when it is used again."""
    for raised, refused in answers:
        where = rf"step 3, bucket of p\.0, plan owner, {round_}: "
        assert re.search(rf"{where}.*({words})", raised, re.DOTALL), raised
        assert re.match(f"S2Error: this S2State has failed before: {where}", refused), refused


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


def die(round_: str, victim: int, killed: bool) -> list[str]:
    ddp = make_ddp()
    state = s2reducer.register(ddp, plan="owner")
    backward(ddp)
    backward(ddp)
    if dist.get_rank() == victim:
        pid = os.getpid()
        break_in(round_, lambda: os.kill(pid, signal.SIGKILL) if killed else os._exit(7))
    return [error_of(backward, ddp), error_of(s2_hook, state, Bucket(ddp.module.p[0]))]


@pytest.mark.parametrize(
    ("round_", "killed"), [("index", False), pytest.param("values", True, marks=pytest.mark.slow)]
)
def test_survivors_name_what_failed_and_can_exit(tmp_path: Path, round_: str, killed: bool) -> None:
    codes = live_in_processes(tmp_path, 3, die, round_, 1, killed)
    assert codes == [0, -signal.SIGKILL if killed else 7, 0]
    assert_told(answers_in(tmp_path, 0, 2), round_, "onnection closed|onnection reset|roken pipe")


# ------------------------------------------------------------------------------------------------
# Hanging
# ------------------------------------------------------------------------------------------------


def hang(round_: str, seconds: float, folder: str) -> tuple[list[str], float]:
    """Rank 1 goes on only when the others have given up; the time that this took."""
    group = dist.new_group(timeout=timedelta(seconds=seconds))
    ddp = make_ddp(process_group=group)
    state = s2reducer.register(ddp, plan="owner")
    backward(ddp)
    backward(ddp)
    others = [Path(folder) / f"gave_up{rank}" for rank in range(dist.get_world_size()) if rank != 1]

    def wait() -> None:
        while not all(other.exists() for other in others):
            time.sleep(0.02)

    if dist.get_rank() == 1:
        break_in(round_, wait)
    begun = time.monotonic()
    answers = [error_of(backward, ddp), error_of(s2_hook, state, Bucket(ddp.module.p[0]))]
    taken = time.monotonic() - begun
    (Path(folder) / f"gave_up{dist.get_rank()}").touch()
    return answers, taken


@pytest.mark.parametrize("round_", ["index", pytest.param("values", marks=pytest.mark.slow)])
def test_a_peer_that_hangs_costs_no_more_than_the_groups_timeout(
    ranks: Ranks, tmp_path: Path, round_: str
) -> None:
    seconds = 4.0
    results = ranks.run(3, hang, round_, seconds, str(tmp_path))
    # gloo's words, at the rank whose time is up first; those whose peers have closed; and ours.
    words = "imed out|onnection closed|onnection reset|has been closed|roken pipe"
    assert_told([answers for answers, _ in results], round_, words)
    assert any(re.search("imed out", answers[0]) for answers, _ in results)
    assert all(taken < 4 * seconds for _, taken in results)


# ------------------------------------------------------------------------------------------------
# Failing
# ------------------------------------------------------------------------------------------------


def fail_in_the_hook(plan: str, failing: int, bucket: int) -> tuple[list[str], int]:
    """Memory ends in the hook's own body, on one rank, in one bucket of several."""
    ddp = make_ddp(tables=3)
    state = s2reducer.register(ddp, plan=plan)
    backward(ddp)
    backward(ddp)
    original, calls = ops.bitmap_from_nonzero, []

    def broken(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == bucket + 1:
            raise MemoryError("no memory for this test")
        original(*arguments, **options)

    if dist.get_rank() == failing:
        ops.bitmap_from_nonzero = broken
    try:
        answers = [error_of(backward, ddp), error_of(s2_hook, state, Bucket(ddp.module.p[0]))]
    finally:
        ops.bitmap_from_nonzero = original
    return answers, len(calls)


@pytest.mark.parametrize("plan", ["owner", "union"])
@pytest.mark.parametrize("bucket", [0, 1, 2])
def test_peers_of_a_rank_that_fails_in_the_hook_fail_at_once(
    ranks: Ranks, plan: str, bucket: int
) -> None:
    (failed, calls), (told, _) = ranks.run(2, fail_in_the_hook, plan, 0, bucket)
    assert calls == bucket + 1
    assert re.search(rf"step 3, bucket of p\.\d, plan {plan}, scan: no memory", failed[0])
    where = rf"step 3, bucket of p\.\d, plan {plan}, (index|values): "
    assert re.search(rf"{where}.*onnection", told[0], re.DOTALL), told[0]
    assert "has failed before: step 3" in failed[1] and "has failed before: step 3" in told[1]


def use_another_state_after_a_disagreement() -> tuple[str, float]:
    """What all ranks raise alike spoils nothing but the state that raises it."""
    first, second = make_ddp(), make_ddp()
    other = s2reducer.register(second, plan="owner")
    backward(second)
    state = s2reducer.register(first, plan="owner", check_every=1)
    backward(first)
    ((place, sums),) = state._replicas._sums.items()
    state._replicas._sums[place] = [(name, value + dist.get_rank()) for name, value in sums]
    raised = error_of(backward, first)
    backward(second)
    assert other.last_error is None
    return raised, float(second.module.p[0].grad.unique())


def test_a_disagreement_leaves_other_modules_alone(ranks: Ranks) -> None:
    for raised, mean in ranks.run(2, use_another_state_after_a_disagreement):
        assert "the ranks' replicas have parted" in raised
        assert mean == 1.5


# ------------------------------------------------------------------------------------------------
# The end of a process
# ------------------------------------------------------------------------------------------------


def exit_with_jobs_in_flight(folder: str) -> list[bool]:
    """Rank 0's jobs wait for rank 1, which brings none, and stays until rank 0 is gone."""
    state, bucket = S2State(plan="owner"), Bucket(torch.zeros(1 << 16))
    s2_hook(state, bucket).wait()
    if dist.get_rank() == 0:
        return [s2_hook(state, bucket).done() for _ in range(3)]
    while not (Path(folder) / "ended0").exists():
        time.sleep(0.02)
    return []


def test_a_process_can_exit_with_jobs_in_flight(tmp_path: Path) -> None:
    assert live_in_processes(tmp_path, 2, exit_with_jobs_in_flight, str(tmp_path)) == [0, 0]
    assert answers_in(tmp_path, 0) == [[False] * 3]
    assert (tmp_path / "errors0").read_text() == ""
