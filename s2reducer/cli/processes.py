# SPDX-License-Identifier: MIT
"""The demo's rank processes: started, listened to, and ended, whatever happens.

* A rank's standard input is a pipe that only the parent holds: when the parent is gone, even by
  SIGKILL, the pipe ends and so does the rank.
* A rank runs in a session of its own, so a Ctrl-C at the terminal reaches the parent alone.
* When the first rank fails the others are killed: they would wait for it.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]
# Where every rank has a core.  A rank that waits longer than this for another one raises, instead
# of hanging with it ...
TIMEOUT_SECONDS = 60.0
# ... and a rank reports every step: when none says anything for so long, none is going to raise.
SILENCE_SECONDS = 180.0


class RankError(Exception):
    """A rank ended before its work was done; the message names the rank and the cause."""


class Rank:
    """One process, and what it has said since the last complete line."""

    def __init__(self, number: int, order: Event, folder: Path) -> None:
        self.number = number
        self.done = False
        self._partial = b""
        self.log = folder / f"rank-{number}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "s2reducer.cli.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
        # A process that has ended already is noticed when its standard output ends.
        with suppress(BrokenPipeError):
            self._stdin.write(json.dumps({"rank": number, **order}).encode() + b"\n")
            self._stdin.flush()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def read_events(self) -> list[Event] | None:
        """The events that have arrived; None when the process has closed its end."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def describe_end(self) -> str:
        code = self.process.wait()
        how = f"exit code {code}"
        if code < 0:
            how = f"signal {signal.Signals(-code).name}"
        lines = self.log.read_text(errors="replace").strip().splitlines()
        last_words = f": {lines[-1].strip()}" if lines else ""
        return f"rank {self.number} ended with {how}{last_words}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self.stdout.close()


def patience(ranks: int) -> float:
    """How many times longer everything may take, from importing torch on: ranks share the cores."""
    return max(1.0, ranks / _cores())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_ranks(
    ranks: int, settings: Event, folder: Path, listen: Callable[[int, Event], None]
) -> None:
    """Start ``ranks`` processes, hand ``listen`` each of their events, return when all are done.

    No process is left when this returns or raises.
    """
    # A file as the meeting point: no port to choose, so none that another program can take first.
    store = (folder / "store").as_uri()
    timeout = TIMEOUT_SECONDS * patience(ranks)
    order = {"settings": settings, "store": store, "folder": str(folder), "timeout": timeout}
    running: list[Rank] = []
    try:
        for number in range(ranks):
            running.append(Rank(number, order, folder))
        _listen(running, listen, SILENCE_SECONDS * patience(ranks))
    finally:
        for rank in running:
            rank.kill()


def _listen(running: list[Rank], listen: Callable[[int, Event], None], silence: float) -> None:
    with selectors.DefaultSelector() as selector:
        for rank in running:
            selector.register(rank.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(silence)
            if not ready:
                raise RankError(f"no rank has finished a step in {silence:.0f} seconds")
            for key, _ in ready:
                _hear(key.data, selector, listen)


def _hear(
    rank: Rank, selector: selectors.BaseSelector, listen: Callable[[int, Event], None]
) -> None:
    events = rank.read_events()
    if events is None:
        selector.unregister(rank.stdout)
        if not rank.done:
            raise RankError(rank.describe_end())
        return
    for event in events:
        if event["event"] == "error":
            raise RankError(f"rank {rank.number} failed: {event['message']}")
        if event["event"] == "done":
            rank.done = True
        else:
            listen(rank.number, event)


def _environment() -> dict[str, str]:
    """The user's environment, with gloo on the loopback interface: its default is the address that
    the host's name resolves to, which may not exist and passes by the counter of ``lo``."""
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    return {**os.environ, "GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
