# SPDX-License-Identifier: MIT
"""The byte counters of a rank's own interface.

TCP hands an interface packets of up to 64 KiB and leaves the cutting to the hardware, which a veth
pair does not have: its counters see one header where Ethernet would carry up to 45.  The shaper
counts what Ethernet would (`tc` has the segments' headers in its lengths), so ``sent_as_frames`` is
that figure and ``sent`` the interface's own.  ACKs of what was received are in both.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Linux sends an ACK that waits for company after 40 ms at the latest.
_QUIET_SECONDS = 0.06
_MOST_SECONDS = 5.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Counters:
    """Bytes over one interface: its own counters, and the shaper's (0 where there is none)."""

    sent: int
    received: int
    sent_as_frames: int = 0

    def __sub__(self, before: "Counters") -> "Counters":
        return Counters(
            self.sent - before.sent,
            self.received - before.received,
            self.sent_as_frames - before.sent_as_frames,
        )


@dataclass(frozen=True)
class Traffic:
    """What all ranks sent: the sum, and the rank that sent or received most.

    ``heaviest`` is None on loopback, where one counter sees all ranks.
    """

    sent: int
    sent_as_frames: int
    heaviest: int | None
    heaviest_received: int | None

    @classmethod
    def of(cls, ranks: Sequence[Counters], kind: str) -> "Traffic":
        if kind == "loopback":
            return cls(ranks[0].sent, 0, None, None)
        return cls(
            sum(rank.sent for rank in ranks),
            sum(rank.sent_as_frames for rank in ranks),
            max(rank.sent for rank in ranks),
            max(rank.received for rank in ranks),
        )


def interface() -> str:
    return os.environ.get("GLOO_SOCKET_IFNAME", "lo")


def read(name: str | None = None) -> Counters:
    """The counters now, of this rank's interface or of ``name``.

    Raises:
        OSError: there is no such interface.
    """
    name = name or interface()
    folder = Path("/sys/class/net") / name / "statistics"
    sent, received = (int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return Counters(sent, received, _shaped_nbytes(name))


def _shaped_nbytes(name: str) -> int:
    if os.environ.get("NETLAB_KIND") != "namespaces":
        return 0
    command = ["tc", "-s", "-json", "qdisc", "show", "dev", name]
    done = subprocess.run(command, capture_output=True, check=True)
    return sum(int(queue["bytes"]) for queue in json.loads(done.stdout) if queue.get("root"))


def settled() -> Counters:
    """The counters once they have stood still for longer than any ACK is held back.

    Raises:
        RuntimeError: something keeps sending.  On loopback, where that may be any program, they are
            read nevertheless.
    """
    give_up = time.monotonic() + _MOST_SECONDS
    name = interface()
    folder = Path("/sys/class/net") / name / "statistics"
    last, since = None, time.monotonic()
    while time.monotonic() < give_up:
        now = ((folder / "tx_bytes").read_text(), (folder / "rx_bytes").read_text())
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since >= _QUIET_SECONDS:
            return read(name)
        time.sleep(_POLL_SECONDS)
    if name == "lo":
        return read(name)
    raise RuntimeError(f"interface {name} did not come to rest within {_MOST_SECONDS:.0f} seconds")


class Meter:
    """Bytes between ``start`` and ``stop``, which all ranks call together.

    ``barrier`` is the ranks' own, such as ``torch.distributed.barrier``.  Two of them are in the
    figure: the one that ``start`` ends with, and the one that ``stop`` begins with; some hundred
    bytes a rank.
    """

    def __init__(self, barrier: Callable[[], object]) -> None:
        self._barrier = barrier
        self._before = Counters(0, 0)

    def start(self) -> None:
        self._barrier()
        self._before = settled()
        self._barrier()  # so that no rank sends before the others have read

    def stop(self) -> Counters:
        self._barrier()
        after = settled()
        self._barrier()
        return after - self._before
