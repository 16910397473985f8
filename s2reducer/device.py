# SPDX-License-Identifier: MIT
"""Between the host and a device: copies that do not wait, one that does, and a stream beside.

On the CPU all of it is nothing: tensors are where they should be, and work is done when a call
returns.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future


def is_capturing(tensor: Tensor) -> bool:
    """Whether work on ``tensor`` would go into a CUDA graph, and not be done now."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def pinned_for(device: torch.device, tensor: Tensor) -> Tensor:
    """``tensor``, which is on the CPU, in memory from which copies to ``device`` wait for nothing.

    torch does not use that memory again before the copy is done.  A CUDA graph, though, makes the
    copy again in every replay: for that the tensor has to be kept.
    """
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``, by a copy on the current stream; the host does not wait for it."""
    if tensor.device == device:
        return tensor
    return pinned_for(device, tensor).to(device, non_blocking=True)


class HostCopy:
    """Tensors on their way to the host."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copies = tensors
        if tensors[0].is_cuda:
            self._copies = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
            )
            for copy, tensor in zip(self._copies, tensors, strict=True):
                copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> tuple[Tensor, ...]:
        """They, once they are here."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies


def future_on(device: torch.device) -> Future[Any]:
    """A future of results on ``device``, whose streams will wait for them with who asks for them.

    torch says of one that does not know its devices that it silently leaves that out.
    """
    return Future(devices=[device] if device.type == "cuda" else None)


class SideStream:
    """A stream of a device beside those of the backward pass.

    On theirs, gradients that are yet to be computed would wait for the network.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def after(self, *tensors: Tensor) -> Iterator[None]:
        """Makes it current, after what is on the current one by now, which wrote ``tensors``.

        Their memory is not used again before the work that is begun here is done with it.
        """
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            for tensor in tensors:
                tensor.record_stream(self._stream)
        with self.current():
            yield

    def current(self) -> AbstractContextManager[object]:
        """Makes it current, for work on what was made on it."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
