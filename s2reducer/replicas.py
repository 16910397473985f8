# SPDX-License-Identifier: MIT
"""Whether all ranks got the same: ``check_every``.

A checksum of each parameter's reduced gradient is taken when its bucket is done, and compared at
the first bucket of the next step: a callback may not issue collectives, and the backward pass that
produced the gradients should not wait.
"""

import ctypes
import threading
import zlib

import torch
from torch import Tensor

from s2reducer.errors import Disagreement
from s2reducer.segments import Layout
from s2reducer.transport import Transport


class ReplicaCheck:
    """The checksums of one rank.

    Args:
        every: steps from one check to the next; 0 for none.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._lock = threading.Lock()  # buckets end on several threads
        self._step = 0
        self._sums: dict[int, list[tuple[str, int]]] = {}  # by the order of the hook's calls

    def wants(self, step: int) -> bool:
        return self._every > 0 and step % self._every == 0

    def take(self, step: int, place: int, layout: Layout, result: Tensor) -> None:
        """The checksums of a bucket, the one number ``place`` of its step."""
        labels = [record.label() for record in layout.records]
        if result.is_sparse:
            checksum = _checksum(result._values(), _checksum(result._indices()))
            sums = [(labels[0], checksum)]
        else:
            pieces = torch.split_with_sizes(result, layout.segments[:, 1].tolist())
            sums = [(label, _checksum(part)) for label, part in zip(labels, pieces, strict=True)]
        with self._lock:
            self._step = step
            self._sums[place] = sums

    def compare(self, transport: Transport, device: torch.device) -> None:
        """One round, if there are checksums to be compared.

        Raises:
            Disagreement: the ranks differ; the same sentence on every rank.
        """
        with self._lock:
            step, by_place, self._sums = self._step, self._sums, {}
        sums = [pair for place in sorted(by_place) for pair in by_place[place]]
        if not sums:
            return
        own = torch.tensor([checksum for _, checksum in sums], dtype=torch.int64, device=device)
        gathered = transport.all_gather(own.view(torch.uint8)).cpu().contiguous().view(torch.int64)
        differs = (gathered != gathered[0]).any(0).nonzero().flatten().tolist()
        if differs:
            label, first = sums[differs[0]][0], differs[0]
            listed = ", ".join(
                f"{value:08x} on rank {rank}"
                for rank, value in enumerate(gathered[:8, first].tolist())
            )
            more = f" (and {len(differs) - 1} more parameters)" if len(differs) > 1 else ""
            raise Disagreement(
                f"the ranks' replicas have parted: after step {step} the reduced gradients of "
                f"parameter {label}{more} must be the same, but their checksums are {listed}"
            )


def _checksum(tensor: Tensor, before: int = 0) -> int:
    """CRC-32 of the tensor's bytes, behind those that gave ``before``."""
    data = tensor.contiguous().cpu()
    if data.numel() == 0:
        return before
    view = (ctypes.c_char * data.nbytes).from_address(data.data_ptr())
    return zlib.crc32(view, before)
