# SPDX-License-Identifier: MIT
"""What is said of the operators on CUDA tensors, and which operators take their place."""

import functools
import types
from pathlib import Path

import pytest
import torch

from s2reducer import (
    block_ops,
    cuda,
    cuda_blocks,
    device_blocks,
    device_lists,
    device_rows,
    ops,
)

LOADED = cuda._NOT_LOADED is None


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device has been asked for before, nor will it have been."""
    for name in ("_runs_on", "_refused"):
        monkeypatch.setattr(cuda, name, functools.cache(getattr(cuda, name).__wrapped__))


def test_each_device_has_its_operators() -> None:
    on_cuda = cuda_blocks if cuda.missing() is None else device_blocks
    assert block_ops.ops_for(torch.device("cpu")) is ops
    assert block_ops.ops_for(torch.device("cuda", 0)) is on_cuda
    for device in ("meta", "xpu"):
        assert block_ops.ops_for(torch.device(device)) is device_blocks


@pytest.mark.usefixtures("nothing_known")
def test_a_device_that_takes_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if kernels were built, for one of two devices."""
    asked = []

    def launch(device: torch.device) -> None:
        asked.append(device.index)
        if device.index == 1:
            raise RuntimeError("the CUDA runtime refused a launch\nand more")

    monkeypatch.setattr(cuda, "_NOT_LOADED", None)
    monkeypatch.setattr(cuda, "_launch", launch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"number {device} of all")
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: True)
    monkeypatch.setattr(device_lists, "_ops", types.SimpleNamespace(sketch_peel_counted=None))
    monkeypatch.setattr(device_rows, "_ops", types.SimpleNamespace(coo_sort_counted=None))
    said = (
        "the CUDA kernels of s2reducer do not run on device 1, number 1 of all: "
        "the CUDA runtime refused a launch"
    )
    devices = [torch.device("cuda", number) for number in (0, 1)]
    for _ in range(2):
        assert cuda.missing() == said
        assert [block_ops.ops_for(device) for device in devices] == [cuda_blocks, device_blocks]
        assert [device_lists.missing(device, "x") for device in devices] == [None, said]
        assert [device_lists.waits_for_lengths(device) for device in devices] == [False, True]
        assert [device_rows._takes_counts(device) for device in devices] == [True, False]
    assert sorted(asked) == [0, 1]


def test_operators_are_registered_where_they_are_loaded() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has("s2reducer::blocks_gather", "CUDA") == LOADED


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_what_is_missing_is_said() -> None:
    missing = cuda.missing()
    assert missing is not None
    if torch.version.cuda is None:
        assert missing == f"torch {torch.__version__} is built without CUDA"
    elif LOADED:
        assert missing == f"torch {torch.__version__}, which is built for CUDA, finds no device"
    else:
        assert "S2_CUDA=1" in missing


def test_an_object_that_is_missing_or_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda, "__file__", str(tmp_path / "cuda.py"))
    assert cuda._load() == (
        "s2reducer is built without its CUDA kernels: S2_CUDA=1 builds them, or says why not"
    )
    (tmp_path / "_cuda.abi3.so").write_bytes(b"no object at all")
    reason = cuda._load()
    assert reason is not None
    assert reason.startswith("the CUDA kernels of s2reducer cannot be loaded: ")
    assert str(tmp_path / "_cuda.abi3.so") in reason


def test_an_operator_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, device = torch.device("cpu"), torch.device("cuda", 0)
    assert device_lists.missing(cpu, "sketch_peel") is None
    assert device_lists.missing(cpu, "coo_sort") is None
    if not LOADED:
        assert device_lists.missing(device, "sketch_peel") == cuda.missing()
    monkeypatch.setattr(cuda, "missing", lambda device=None: None)  # as if they could run
    lacks = "the CUDA kernels of s2reducer lack coo_sort"  # which needs the host
    assert device_lists.missing(device, "coo_sort") == lacks
