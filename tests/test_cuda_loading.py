# SPDX-License-Identifier: MIT
"""What is said of the operators on CUDA tensors, and which operators take their place."""

from pathlib import Path

import pytest
import torch

from s2reducer import block_ops, cuda, cuda_blocks, device_blocks, device_lists, ops


def test_each_device_has_its_operators() -> None:
    on_cuda = cuda_blocks if cuda.is_loaded() else device_blocks
    assert block_ops.ops_for(torch.device("cpu")) is ops
    assert block_ops.ops_for(torch.device("cuda", 1)) is on_cuda
    for device in ("meta", "xpu"):
        assert block_ops.ops_for(torch.device(device)) is device_blocks


def test_operators_are_registered_where_they_are_loaded() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has("s2reducer::blocks_gather", "CUDA") == cuda.is_loaded()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_what_is_missing_is_said() -> None:
    missing = cuda.missing()
    assert missing is not None
    if torch.version.cuda is None:
        assert missing == f"torch {torch.__version__} is built without CUDA"
    elif cuda.is_loaded():
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
    if not cuda.is_loaded():
        assert device_lists.missing(device, "sketch_peel") == cuda.missing()
    monkeypatch.setattr(cuda, "missing", lambda: None)  # as if they could run
    lacks = "the CUDA kernels of s2reducer lack coo_sort"  # which needs the host
    assert device_lists.missing(device, "coo_sort") == lacks
