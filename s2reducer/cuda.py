# SPDX-License-Identifier: MIT
"""The operators on CUDA tensors: in a shared object of their own, which not every torch can load.

>>> s2reducer.cuda.missing()
'torch 2.13.0+cpu is built without CUDA'

Where it is not loaded, CUDA tensors are worked on by torch's own operators.
"""

import functools
from pathlib import Path
from typing import Any

import torch

from s2reducer import _C as _C  # has the operators' schemas


def _load() -> str | None:
    """Registers them, or says why it cannot."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    built = list(Path(__file__).parent.glob("_cuda.*so"))
    if not built:
        return "s2reducer is built without its CUDA kernels: S2_CUDA=1 builds them, or says why not"
    try:
        torch.ops.load_library(str(built[0]))  # type: ignore[no-untyped-call]
    except OSError as error:
        return f"the CUDA kernels of s2reducer cannot be loaded: {error}"
    return None


_NOT_LOADED = _load()


def missing(device: int | None = None) -> str | None:
    """What the kernels for CUDA devices lack here, in one sentence; None where they can run.

    Args:
        device: its index; None for torch's current device.
    """
    if _NOT_LOADED is not None:
        return _NOT_LOADED
    if not torch.cuda.is_available():
        return f"torch {torch.__version__}, which is built for CUDA, finds no device"
    return _refused(torch.cuda.current_device() if device is None else device)


def run_on(device: torch.device) -> bool:
    """Whether operators on tensors of this device run our kernels."""
    return device.type == "cuda" and _runs_on(device.index)


def has_for(device: torch.device, operators: Any, name: str) -> bool:
    """Whether there is an operator that is for devices alone, and this device runs it.

    ``operators`` is a namespace of ``torch.ops``.
    """
    if device.type == "cpu" or not hasattr(operators, name):
        return False
    return device.type != "cuda" or run_on(device)


@functools.cache
def _runs_on(device: int) -> bool:
    return missing(device) is None


@functools.cache
def _refused(device: int) -> str | None:
    """Whether the device has taken a kernel: it may be of an architecture that none is built for.

    Asked for where there is work for it, not where the package is imported, which must not make a
    context: processes that are forked later could not use the device.
    """
    try:
        _launch(torch.device("cuda", device))
    except RuntimeError as error:
        name = torch.cuda.get_device_name(device)
        said = str(error).splitlines()[0]
        return f"the CUDA kernels of s2reducer do not run on device {device}, {name}: {said}"
    return None


def _launch(device: torch.device) -> None:
    """One kernel; raises RuntimeError if the device has no code for it."""
    operators: Any = torch.ops.s2reducer
    number = torch.zeros(1, device=device)
    operators.values_finite.default(number, torch.zeros(1, dtype=torch.int64, device=device))
