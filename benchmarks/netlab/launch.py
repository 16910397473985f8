# SPDX-License-Identifier: MIT
"""Starts a script on every host, waits, and leaves nothing behind, however it ends."""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from .lab import Lab, Loopback, Network, why_no_lab
from .rates import LOOPBACK


class RankError(Exception):
    """A rank failed, or all of them took too long."""


def open_network(hosts: int, rate: str = "1gbit") -> Network:
    """A lab, or loopback: as asked for, or with a message on standard error where a lab cannot be
    made."""
    if rate == LOOPBACK:
        return Loopback(hosts)
    reason = why_no_lab()
    if reason is None:
        return Lab(hosts, rate)
    print(
        f"netlab: {reason}.\nnetlab: the ranks talk over loopback, which has no rate: their times "
        "and bytes are marked as such.",
        file=sys.stderr,
    )
    return Loopback(hosts)


def run(
    network: Network,
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> None:
    """Runs a Python script on every host of a network that has been entered.

    Standard output and error are this process's own.  When a rank fails the others are killed, as
    they would wait for it; so are all of them when this process is interrupted.

    Args:
        network: from ``open_network``.
        script, arguments: as on Python's command line.
        environment: in addition to this process's and to what the network sets.
        seconds: after which the ranks are killed; None for no limit.

    Raises:
        RankError: the first rank that failed, by number, and how; or that time is up.
    """
    running: list[subprocess.Popen[bytes]] = []
    try:
        for host in range(network.hosts):
            running.append(
                subprocess.Popen(
                    [*network.command(host), sys.executable, str(script), *arguments],
                    env={**os.environ, **network.environment(host), **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    # A Ctrl-C at the terminal reaches this process alone, which ends the ranks.
                    start_new_session=True,
                )
            )
        _wait(running, seconds)
    finally:
        for process in running:
            _kill(process)


def _wait(running: Sequence["subprocess.Popen[bytes]"], seconds: float | None) -> None:
    give_up = None if seconds is None else time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        descriptors = [os.pidfd_open(process.pid) for process in running]
        try:
            for rank, descriptor in enumerate(descriptors):
                selector.register(descriptor, selectors.EVENT_READ, rank)
            while selector.get_map():
                left = None if give_up is None else max(0.0, give_up - time.monotonic())
                ready = selector.select(left)
                if not ready:
                    raise RankError(f"not all ranks have ended within {seconds:g} seconds")
                for key, _ in ready:
                    selector.unregister(key.fd)
                    _check(key.data, running[key.data].wait())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _check(rank: int, code: int) -> None:
    if code != 0:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise RankError(f"rank {rank} ended with {how}")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """The rank and what it has started itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def ends_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit in here, so that ``finally`` and ``with`` do their work.

    From the first of them on (or of SIGINT) the others are ignored: what is being removed is then
    removed to the end.  Outside the main thread, where no handler can be set, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
