# SPDX-License-Identifier: MIT
"""The measuring network: its rates, its counters, and that nothing of it is left."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

import netlab
from netlab import Counters, Lab, LabError, Loopback, RankError, Traffic
from netlab import lab as lab_module

ROOT = Path(__file__).resolve().parent.parent

MEGABIT_RATE = 200
# TCP/IPv4 with timestamps carries 1448 bytes in a frame of 1514.
FRAME_SHARE = 1448 / 1514

TRANSFER = f"""
import json, os, socket, sys, time
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
from netlab import counters

rank, nbytes, folder = int(os.environ["RANK"]), int(sys.argv[1]), sys.argv[2]

def send(peer):
    peer.recv(1)
    peer.sendall(bytes(nbytes))
    peer.recv(1)

def receive(peer):
    # Asked for at the start, so that no byte can be there before the clock runs.
    left, start = nbytes, time.perf_counter()
    peer.sendall(b"x")
    while left:
        left -= len(peer.recv(min(left, 1 << 20)))
    seconds = time.perf_counter() - start
    peer.sendall(b"x")
    return seconds

before = counters.read()
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(address) as server:
        peer = server.accept()[0]
else:
    deadline = time.monotonic() + 5
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
seconds = []
for _ in range(4):
    if rank == 1:
        send(peer)
    seconds.append(receive(peer))
    if rank == 0:
        send(peer)
moved = counters.settled() - before
result = dict(seconds=seconds, environment=dict(os.environ), **moved.__dict__)
open(f"{{folder}}/{{rank}}.json", "w").write(json.dumps(result))
"""

TWO_SENDERS = """
import os, selectors, socket, sys, time

nbytes, address = int(sys.argv[1]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server, selectors.DefaultSelector() as selector:
        peers = [server.accept()[0] for _ in range(2)]
        left, start = 2 * nbytes, time.perf_counter()
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ)
            peer.sendall(b"x")
        while left:
            for key, _ in selector.select():
                left -= len(key.fileobj.recv(1 << 20))
        seconds = time.perf_counter() - start
    open(f"{sys.argv[2]}/seconds", "w").write(str(seconds))
else:
    deadline = time.monotonic() + 5
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    peer.recv(1)
    peer.sendall(bytes(nbytes))
"""

METER = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import torch
import torch.distributed as dist
from netlab import Meter

dist.init_process_group("gloo")
piece = torch.ones(250_000)
pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
meter = Meter(dist.barrier)
dist.all_gather(pieces, piece)
meter.start()
dist.all_gather(pieces, piece)
moved = meter.stop()
open(f"{{sys.argv[1]}}/{{dist.get_rank()}}.json", "w").write(json.dumps(moved.__dict__))
"""


@pytest.fixture(scope="module")
def namespaces() -> None:
    """Skips where there can be no lab, but fails on CI, unless nothing can be done there about it.

    A missing program can be installed; capabilities, which root of a container may lack, cannot:
    then the summary says that this is not tested.
    """
    reason = netlab.why_no_lab()
    if reason is None:
        return
    avoidable = may_make_namespaces() or not (shutil.which("ip") and shutil.which("tc"))
    if os.environ.get("CI") and avoidable:
        pytest.fail(f"tests would be skipped on CI: {reason}")
    pytest.skip(f"NOT TESTED: the lab, since {reason}")


def may_make_namespaces() -> bool:
    """Whether this process has CAP_NET_ADMIN and CAP_SYS_ADMIN (see ``linux/capability.h``)."""
    status = Path("/proc/self/status").read_text()
    effective = int(re.search(r"^CapEff:\s*(\w+)", status, re.MULTILINE)[1], 16)
    return all(effective >> number & 1 for number in (12, 21))


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def results(folder: Path, ranks: int) -> list[dict]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def namespaces_of(pid: int) -> list[str]:
    folder = Path("/run/netns")
    names = os.listdir(folder) if folder.is_dir() else []
    return [name for name in names if name.startswith(f"s2lab-{pid}-")]


# ------------------------------------------------------------------------------------------------
# Without a network
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "bits"), [("1gbit", 1e9), ("100mbit", 1e8), ("2.5gbit", 2.5e9), ("64Kbit", 64e3)]
)
def test_rates(rate: str, bits: float) -> None:
    assert netlab.bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["", "1", "gbit", "-1gbit", "1 gbit", "0gbit", "1gbps"])
def test_what_is_no_rate(rate: str) -> None:
    with pytest.raises(ValueError, match="a rate is a number and a unit"):
        netlab.bits_per_second(rate)


@pytest.mark.parametrize("hosts", [0, 201])
def test_number_of_hosts(hosts: int) -> None:
    with pytest.raises(ValueError, match="a lab has 1 to 200 hosts"):
        Lab(hosts)


def test_traffic() -> None:
    ranks = [Counters(10, 40, 12), Counters(30, 20, 33)]
    assert Traffic.of(ranks, "namespaces") == Traffic(40, 45, 30, 40)
    assert Traffic.of(ranks, "loopback") == Traffic(10, 0, None, None)


def test_a_missing_tool_is_said_and_the_ranks_run_on_loopback(tmp_path: Path) -> None:
    text = "import os; os.write(1, '{RANK} {NETLAB_KIND}\\n'.format(**os.environ).encode())"
    path = script(tmp_path, text)
    command = [sys.executable, "-m", "benchmarks.netlab", "--hosts", "2", str(path)]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert sorted(done.stdout.split("\n")[:2]) == ["0 loopback", "1 loopback"]
    assert "netlab: ip and tc not found" in done.stderr
    assert "marked as such" in done.stderr


def test_the_first_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    text = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)"
    start = time.monotonic()
    with Loopback(3) as network, pytest.raises(RankError, match="rank 1 ended with exit code 3"):
        netlab.run(network, script(tmp_path, text))
    assert time.monotonic() - start < 20


def test_ranks_that_take_too_long(tmp_path: Path) -> None:
    with Loopback(2) as network, pytest.raises(RankError, match=r"not all ranks .* 0\.5 seconds"):
        netlab.run(network, script(tmp_path, "import time; time.sleep(60)"), seconds=0.5)


# ------------------------------------------------------------------------------------------------
# With one
# ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("namespaces")
def test_both_directions_have_the_rate_and_the_counters_see_the_bytes(tmp_path: Path) -> None:
    nbytes = 2_000_000
    with Lab(2, f"{MEGABIT_RATE}mbit") as network:
        names = namespaces_of(os.getpid())
        netlab.run(network, script(tmp_path, TRANSFER), [str(nbytes), str(tmp_path)], seconds=15)
    assert len(names) == 3 and namespaces_of(os.getpid()) == []
    for rank, result in enumerate(results(tmp_path, 2)):
        # The fastest of a few: what other programs do can only slow a transfer down.  What a pause
        # lets through at once is 4 % of it.
        rate = nbytes * 8 / min(result["seconds"]) / 1e6
        assert 0.85 * FRAME_SHARE < rate / MEGABIT_RATE < 1.05 * FRAME_SHARE
        nbytes_sent = 4 * nbytes
        # Headers of packets that are yet to be cut, and ACKs, are 1 %; those of frames, 5 %.
        assert nbytes_sent < result["sent"] < 1.01 * nbytes_sent
        assert nbytes_sent < result["received"] < 1.01 * nbytes_sent
        assert 0.999 < result["sent_as_frames"] / (nbytes_sent / FRAME_SHARE) < 1.02
        environment = result["environment"]
        assert environment["RANK"] == str(rank)
        assert environment["WORLD_SIZE"] == "2"
        assert environment["LOCAL_RANK"] == "0"
        assert environment["MASTER_ADDR"] == "10.77.0.1"
        assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
        assert environment["NETLAB_KIND"] == "namespaces"
        assert environment["NETLAB_RATE"] == "200mbit"


@pytest.mark.usefixtures("namespaces")
def test_two_senders_share_the_link_of_their_receiver(tmp_path: Path) -> None:
    nbytes = 2_000_000
    with Lab(3, f"{MEGABIT_RATE}mbit") as network:
        path = script(tmp_path, TWO_SENDERS)
        netlab.run(network, path, [str(nbytes), str(tmp_path)], seconds=15)
    rate = 2 * nbytes * 8 / float((tmp_path / "seconds").read_text()) / 1e6
    assert 0.6 * FRAME_SHARE < rate / MEGABIT_RATE < 1.05 * FRAME_SHARE


@pytest.mark.slow
@pytest.mark.usefixtures("namespaces")
def test_a_meter_reads_what_a_collective_sends(tmp_path: Path) -> None:
    with Lab(3, "1gbit") as network:
        netlab.run(network, script(tmp_path, METER), [str(tmp_path)], seconds=60)
    for result in results(tmp_path, 3):
        assert 2_000_000 < result["sent"] < 1.01 * 2_000_000 + 4096
        assert 2_000_000 < result["received"] < 1.01 * 2_000_000 + 4096


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    # A rank starts a process of its own, in a session of its own: only its namespace gives it away.
    text = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"],
                         start_new_session=True)
open(f"{tmp_path}/{{os.environ['RANK']}}.new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename(f"{tmp_path}/{{os.environ['RANK']}}.new", f"{tmp_path}/{{os.environ['RANK']}}.pids")
time.sleep(60)
"""
    command = [sys.executable, "-m", "benchmarks.netlab", "--hosts", "2"]
    parent = subprocess.Popen([*command, str(script(tmp_path, text))], cwd=ROOT)
    files = [tmp_path / f"{rank}.pids" for rank in range(2)]
    deadline = time.monotonic() + 20
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(namespaces_of(parent.pid)) == 3 and all(map(is_running, pids))
    parent.send_signal(number)
    parent.send_signal(signal.SIGTERM)  # one more while it removes things changes nothing
    assert parent.wait(timeout=20) == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    assert namespaces_of(parent.pid) == []
    assert not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    """A zombie, whose parent has died and whom nobody has collected yet, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.usefixtures("namespaces")
def test_a_lab_of_a_dead_process_is_removed_and_one_of_a_living_one_is_not() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    living = subprocess.Popen(["sleep", "60"])
    names = [f"s2lab-{dead.pid}-0-switch", f"s2lab-{dead.pid}-0-0", f"s2lab-{living.pid}-0-0"]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        with Lab(1), Lab(1):  # two of one process do not meet either
            assert len(namespaces_of(os.getpid())) == 4
            assert namespaces_of(dead.pid) == []
            assert namespaces_of(living.pid) == names[2:]
    finally:
        living.kill()
        living.wait()
        for name in set(names) & set(os.listdir("/run/netns")):
            subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.usefixtures("namespaces")
def test_a_lab_that_cannot_be_built_to_the_end_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_module, "shaper", lambda rate: ["no-such-queue"])
    with pytest.raises(LabError, match=r"`tc .* no-such-queue`: "), Lab(2):
        pass
    assert namespaces_of(os.getpid()) == []
