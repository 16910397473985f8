# SPDX-License-Identifier: MIT
"""What the tests want of a machine: where it is missing they are skipped, but never on CI.

CI fails before the first test instead, or nobody would see what it leaves out.  The exceptions are
AVX-512 and a CUDA device, which no installation can bring, and nvcc, which comes with no
distribution: a line above the tests says that they are not there.
"""

import importlib.util
import platform
import shutil
from pathlib import Path

import torch

from s2reducer import _C

_MODULES = ("hypothesis", "matplotlib", "numpy", "rich")
_PROGRAMS = ("gcc", "clang")
# What the training scripts read, by Debian's package.
DATA = {
    "dataset-fashion-mnist": Path("/usr/share/datasets/fashion-mnist"),
    "dict-gcide": Path("/usr/share/dictd/gcide.dict.dz"),
    "dict-freedict-deu-eng": Path("/usr/share/dictd/freedict-deu-eng.dict.dz"),
}


def missing() -> list[str]:
    """What CI must have and this machine has not."""
    lacking = [f"the package {name}" for name in _MODULES if not importlib.util.find_spec(name)]
    lacking += [f"the program {name}" for name in _PROGRAMS if not shutil.which(name)]
    lacking += [f"Debian's {name}" for name, path in DATA.items() if not path.exists()]
    if _is_x86() and "avx2" not in _C.cpu_variants():
        lacking.append("a CPU with AVX2")
    return lacking


def describe_kernels() -> str:
    """One line on the kernels that are tested here."""
    variants = _C.cpu_variants()
    notes = ""
    if _is_x86() and "avx512" not in variants:
        notes += "; NOT TESTED: avx512, which this CPU does not have"
    if not shutil.which("nvcc"):
        notes += "; NOT TESTED: what nvcc makes of the CUDA kernels, since it is not installed"
    if not torch.cuda.is_available():
        notes += "; NOT TESTED: a CUDA device, since there is none"
    return f"kernels: {', '.join(variants)}{notes}"


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")
