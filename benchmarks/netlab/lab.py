# SPDX-License-Identifier: MIT
"""Hosts as network namespaces, and what stands in for them where there can be none."""

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .rates import bits_per_second, shaper

MOST_HOSTS = 200  # addresses of one /24, and more processes than a machine will bear
_PREFIX = "s2lab"
_NETWORK = "10.77.0"
_NAMES = Path("/run/netns")
_labs = itertools.count()


class LabError(Exception):
    """A command that builds the network failed; the message has the command and its words."""


class Network:
    """P hosts on which ranks run, and the environment that ranks find there.

    Attributes:
        kind: ``"namespaces"`` or ``"loopback"``.
        hosts: how many.
        rate: of every link, None where nothing is shaped.
    """

    kind: str
    interface: str
    hosts: int
    rate: str | None
    master: tuple[str, int]

    def command(self, host: int) -> list[str]:
        """What to put before a command so that it runs on that host."""
        raise NotImplementedError

    def environment(self, host: int) -> dict[str, str]:
        """What torchrun sets for the only rank on its node, and which interface gloo shall use."""
        address, port = self.master
        return {
            "RANK": str(host),
            "WORLD_SIZE": str(self.hosts),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": self.interface,
            "NETLAB_KIND": self.kind,
            "NETLAB_RATE": self.rate or "",
        }

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class Loopback(Network):
    """Ranks as plain processes that talk over ``lo``: no rate, and one counter for all of them."""

    kind = "loopback"
    interface = "lo"
    rate = None

    def __init__(self, hosts: int) -> None:
        self.hosts = hosts
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.master = ("127.0.0.1", probe.getsockname()[1])

    def command(self, host: int) -> list[str]:
        return []


class Lab(Network):
    """Namespaces that exist within a ``with`` block.

    Their names carry the number of this process, so labs of several processes do not meet, and what
    a process left behind that is no more (killed by SIGKILL, say) is removed by the next lab.

    Args:
        hosts: 1 to ``MOST_HOSTS``.
        rate: of every link, in each direction.

    Raises:
        ValueError: a wrong number of hosts, or a rate that is none.
        LabError: on entering, when a command fails.
    """

    kind = "namespaces"
    interface = "eth0"
    master = (f"{_NETWORK}.1", 29500)

    def __init__(self, hosts: int, rate: str = "1gbit") -> None:
        if not 1 <= hosts <= MOST_HOSTS:
            raise ValueError(f"a lab has 1 to {MOST_HOSTS} hosts, but got {hosts}")
        bits_per_second(rate)
        self.hosts = hosts
        self.rate = rate
        self._name = f"{_PREFIX}-{os.getpid()}-{next(_labs)}"
        self._switch = f"{self._name}-switch"

    def namespace(self, host: int) -> str:
        """The name under which `ip netns` knows the host."""
        return f"{self._name}-{host}"

    def command(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self.namespace(host)]

    def __enter__(self) -> "Lab":
        remove_stale()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _build(self) -> None:
        switch = self._switch
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        self._up(switch, "br0")
        for host in range(self.hosts):
            name, port = self.namespace(host), f"port{host}"
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            ends = ("type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", name, "link", "add", self.interface, *ends)
            _ip("-n", switch, "link", "set", port, "master", "br0")
            _ip("-n", name, "address", "add", f"{_NETWORK}.{host + 1}/24", "dev", self.interface)
            assert self.rate is not None
            for where, device in ((name, self.interface), (switch, port)):
                self._up(where, device)
                _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *shaper(self.rate))

    def _up(self, namespace: str, device: str) -> None:
        # Without a link-local address IPv6 has nothing to announce, so nothing else is counted.
        _ip("-n", namespace, "link", "set", device, "addrgenmode", "none", "up")

    def _remove(self) -> None:
        _remove_lab(self._name)


def why_no_lab() -> str | None:
    """A sentence on what keeps this process from making namespaces, or None."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found (on Debian: apt install iproute2)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    try:
        with Lab(1):
            pass
    except LabError as error:
        return f"this machine does not let network namespaces be made: {error}"
    return None


def remove_stale() -> None:
    """Removes the labs of processes that are no more."""
    for lab in {match[1] for match in map(_match, _existing()) if not _is_alive(int(match[2]))}:
        _remove_lab(lab)


def _remove_lab(lab: str) -> None:
    for name in _existing():
        match = _match(name)
        if match[1] == lab:
            _kill_inside(name)
            with suppress(LabError):  # another process may remove a stale one at the same time
                _ip("netns", "delete", name)


def _kill_inside(namespace: str) -> None:
    """A namespace lives on, nameless, for as long as a process is in it."""
    with suppress(LabError):
        for pid in _ip("netns", "pids", namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _existing() -> list[str]:
    names = os.listdir(_NAMES) if _NAMES.is_dir() else []
    return [name for name in names if re.fullmatch(_PATTERN, name)]


_PATTERN = re.compile(rf"({_PREFIX}-(\d+)-\d+)-(?:\d+|switch)")


def _match(name: str) -> "re.Match[str]":
    match = re.fullmatch(_PATTERN, name)
    assert match is not None
    return match


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    done = _call(command)
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise LabError(f"`{' '.join(command)}`: {words}")
    return done.stdout


def _call(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    # In a session of its own: a Ctrl-C that ended it midway would leave half a change behind.
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True
    )
