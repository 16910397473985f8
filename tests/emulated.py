# SPDX-License-Identifier: MIT
"""The operators on CUDA tensors: on the emulated device of tests/cuda, and on a real one."""

import ctypes
import functools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

from s2reducer import _C as _C  # registers the operators on the CPU

CUDA = Path(__file__).resolve().parent / "cuda"
BUILD = CUDA / "build-operators"
ON_HOST = ("segments", "lengths")  # on a device too
DEVICE_ARRAYS, DEVICE_NBYTES = 16, 1 << 22  # as device.h has them
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
DEVICES = ["emulated", pytest.param("real", marks=pytest.mark.cuda)]


def build() -> Path:
    flags = " ".join(f"-isystem {path}" for path in cpp_extension.include_paths())
    (libraries,) = cpp_extension.library_paths()[:1]
    command = ["make", "--silent", "-C", str(CUDA), "-f", "operators.mk", "CC=gcc", "CXX=g++"]
    command += [f"TORCH_FLAGS={flags}", f"TORCH_LIBRARIES={libraries}", f"-j{os.cpu_count()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return BUILD / "operators.so"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """But for which NaN a NaN is."""
    if one.is_floating_point():
        nans = one.isnan()
        if not torch.equal(nans, other.isnan()):
            return False
        one, other = (x.masked_fill(nans, 1.0).view(BITS[x.element_size()]) for x in (one, other))
    return torch.equal(one, other)


def schemas_of(namespace: str) -> dict[str, Any]:
    """Of its operators, by name."""
    schemas = torch._C._jit_get_all_schemas()
    named = ((schema.name.partition("::"), schema) for schema in schemas)
    return {name: schema for (space, _, name), schema in named if space == namespace}


class Device:
    """The operators for a device, in a namespace of ``torch.ops`` and for a kind of tensors.

    Attributes:
        schemas: by name; also of those that the device lacks.
        operators: the namespace.
    """

    def __init__(self, namespace: str, kind: str) -> None:
        self._kind = kind
        self.schemas = schemas_of(namespace)
        self.operators = getattr(torch.ops, namespace)

    def names(self) -> set[str]:
        """Of the operators that there are."""
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        return {name for name in self.schemas if has(f"{self.operators.name}::{name}", self._kind)}

    def _placed(self, tensor: Tensor, array: int | None) -> Tensor:
        """A copy in an array of the device, or in one of the host."""
        raise NotImplementedError

    def call(self, name: str, *arguments: Any) -> list[Tensor]:
        """All tensors among the arguments after the call, which went to copies on the device."""
        used = iter(range(DEVICE_ARRAYS))
        placed: list[Any] = []
        for parameter, argument in zip(self.schemas[name].arguments, arguments, strict=False):
            on_host = parameter.name in ON_HOST
            if isinstance(argument, list):
                placed.append([self._placed(each, next(used)) for each in argument])
            elif isinstance(argument, Tensor):
                placed.append(self._placed(argument, None if on_host else next(used)))
            else:
                placed.append(argument)
        getattr(self.operators, name).default(*placed)
        return [each.cpu().clone() for each in tensors_of(placed)]


class Real(Device):
    """The device that torch knows."""

    def __init__(self) -> None:
        super().__init__("s2reducer", "CUDA")

    def _placed(self, tensor: Tensor, array: int | None) -> Tensor:
        if array is None:
            return tensor.clone()
        if tensor.layout != torch.strided or tensor.is_contiguous():
            return tensor.to("cuda")
        placed = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda"
        )
        return placed.copy_(tensor)


class Emulated(Device):
    """That of tests/cuda; its operators have the schemas of the real ones."""

    def __init__(self) -> None:
        path = build()
        torch.ops.load_library(str(path))
        self._library = torch.library.Library("s2reducer_emulated", "DEF")
        defined = schemas_of("s2reducer_emulated")
        for name, schema in schemas_of("s2reducer").items():
            if name not in defined:
                self._library.define(str(schema).partition("::")[2])
        super().__init__("s2reducer_emulated", "CPU")
        self._device = ctypes.CDLL(str(path))
        for function in ("device_array", "emulated_host_array"):
            getattr(self._device, function).restype = ctypes.c_void_p
        self._device.emulated_begin()

    def _placed(self, tensor: Tensor, array: int | None) -> Tensor:
        nbytes = tensor.numel() * tensor.element_size()
        source = ctypes.c_void_p(tensor.data_ptr())
        size = ctypes.c_int64(nbytes)
        assert nbytes <= DEVICE_NBYTES and (array is None or array < DEVICE_ARRAYS)
        if nbytes == 0 or not tensor.is_contiguous():
            return tensor.clone()
        if array is None:
            address = self._device.emulated_host_array(source, size)
        else:
            unit = ctypes.c_int64(max(8, tensor.element_size()))
            address = self._device.device_array(array, source, size, unit)
        memory = (ctypes.c_byte * nbytes).from_address(address)
        return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


@functools.cache
def device_named(name: str) -> Device:
    """One of ``DEVICES``."""
    return Emulated() if name == "emulated" else Real()


def tensors_of(arguments: Any) -> list[Tensor]:
    lists = [each if isinstance(each, (list, tuple)) else [each] for each in arguments]
    return [each for several in lists for each in several if isinstance(each, Tensor)]


def sentence_of(error: Exception) -> str:
    """What an operator says, as if tensors were on the CPU."""
    said = str(error).partition("s2reducer::")[2].splitlines()[0]
    return said.replace("CUDA tensor", "CPU tensor")


def copied(arguments: Any) -> list[Any]:
    return [
        [each.clone() for each in argument]
        if isinstance(argument, list)
        else argument.clone()
        if isinstance(argument, Tensor)
        else argument
        for argument in arguments
    ]
