# SPDX-License-Identifier: MIT
"""The operators on CUDA tensors: in a shared object of their own, which not every torch can load.

>>> s2reducer.cuda.missing()
'torch 2.13.0+cpu is built without CUDA'

Where it is not loaded, CUDA tensors are worked on by torch's own operators.
"""

from pathlib import Path

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


def is_loaded() -> bool:
    """Whether there are operators on CUDA tensors, on a device or not."""
    return _NOT_LOADED is None


def missing() -> str | None:
    """What the kernels for CUDA devices lack here, in one sentence; None where they can run."""
    if _NOT_LOADED is None and not torch.cuda.is_available():
        return f"torch {torch.__version__}, which is built for CUDA, finds no device"
    return _NOT_LOADED
