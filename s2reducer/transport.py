# SPDX-License-Identifier: MIT
"""The collectives that plans need, on the backend at hand, and the bytes they send.

The union of bitmaps is a bitwise OR.  gloo's AllReduce has one, for whole numbers of 8, 32 and 64
bits; NCCL's has none, and a SUM would carry from a rank's bit into its neighbour's.  There each
rank ORs a slice of all bitmaps, which an all-to-all brings, and an all-gather hands the slices out.

Over NCCL a collective here has only been enqueued, on the current stream, when it returns.

Bytes are those that one rank sends in a ring of P ranks: 2 (P-1)/P of an AllReduce's buffer, P-1
times the piece of an all-gather.
"""

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor

from s2reducer import collectives

# The backends that this package knows.
BACKENDS = ("gloo", "nccl")

# How buckets may travel sparsely over a backend and from a kind of device: in lanes (engine.py), or
# in the order of the hook's calls (ordered_engine.py).  Where there is neither, they go dense.
LANES, ORDERED = "lanes", "ordered"
_WAYS = {("gloo", "cpu"): LANES, ("nccl", "cuda"): ORDERED}

# An all-gather of pieces that differ is filled up by this share of them, or by what the rounds
# would take that do without: 1 Gbit/s carries so much in the time of one.
_FILLED_SHARE = 0.05
_ROUND_NBYTES = 16 * 1024

# Of tensors that gloo was given and may still hold.
_lent: list[weakref.ref[Tensor]] = []
_lent_lock = threading.Lock()


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """The name of the group's backend for tensors on ``device``, in lower case.

    A group may have one for each kind of device: its configuration then reads
    ``"cpu:gloo,cuda:nccl"``.
    """
    by_device = dict(
        entry.split(":", 1) for entry in dist.get_backend_config(group).split(",") if ":" in entry
    )
    return str(by_device.get(device.type, dist.get_backend(group))).lower()


def ring_nbytes(nbytes: int, world_size: int) -> int:
    """What each of so many ranks sends of an AllReduce of so many bytes."""
    return 2 * (world_size - 1) * nbytes // world_size


def _lend(tensor: Tensor) -> Tensor:
    """The same elements for a collective, in a tensor that dies when gloo lets go of it."""
    lent = tensor.detach()
    with _lent_lock:
        _lent[:] = [other for other in _lent if other() is not None]
        _lent.append(weakref.ref(lent))
    return lent


def wait_until_released(deadline: float) -> bool:
    """Waits until gloo has let go of what it was lent; False if not by ``deadline``.

    Its thread completes a future first and releases callbacks and tensors afterwards, for which it
    needs the interpreter.  A weak reference's own callback would be run by that very thread, which
    would still be about to come back from it, so this looks again and again.
    """
    while any(lent() is not None for lent in _lent):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


class Transport:
    """One process group, seen from one rank.

    Attributes:
        group: the process group.
        device: on which its tensors are.
        rank, world_size: within the group.
        backend: its name for tensors on the device.
        way: how buckets may travel sparsely: ``LANES``, ``ORDERED``, or None for not at all.
        bytes_sent: by this rank, since construction.
        seconds: in collectives that were waited for.

    Raises:
        RuntimeError: the group's backend for tensors on ``device`` is not one of ``BACKENDS``.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        backend = backend_of(group, device)
        if backend not in BACKENDS:
            raise RuntimeError(
                f"s2reducer works with the backends {' and '.join(BACKENDS)}, but this process "
                f"group uses {backend!r} for tensors on {device.type}"
            )
        self._group: dist.ProcessGroup | None = group
        self.device = device
        self.backend = backend
        self.way = _WAYS.get((backend, device.type))
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.bytes_sent = 0
        self.seconds = 0.0

    @property
    def group(self) -> dist.ProcessGroup:
        """Raises RuntimeError once it has been closed."""
        if self._group is None:
            raise RuntimeError("the process group has been closed after an error")
        return self._group

    def close(self) -> None:
        """Destroys the group, which must be private: peers that wait in it fail at once.

        gloo closes its connections when the last reference goes, which ``abort`` and ``shutdown``
        do not bring about.
        """
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            with suppress(ValueError):  # destroyed already, with all others
                dist.destroy_process_group(group)

    def ring_nbytes(self, nbytes: int) -> int:
        """What a rank sends of an AllReduce of so many bytes."""
        return ring_nbytes(nbytes, self.world_size)

    def all_gather_records(self, record: bytes, device: torch.device) -> list[bytes]:
        """Every rank's record, all of one length, in rank order."""
        own = torch.frombuffer(bytearray(record), dtype=torch.uint8).to(device)
        return [bytes(piece.tolist()) for piece in self.all_gather(own)]

    def all_gather(self, piece: Tensor) -> Tensor:
        """[P, n]: every rank's piece (contiguous, [n]), all of one size, in rank order."""
        gathered = piece.new_empty(self.world_size, piece.numel())
        with self._sending((self.world_size - 1) * piece.nbytes):
            collectives.all_gather(gathered.view(-1), piece, group=self.group)
        return gathered

    def all_gather_uneven(self, piece: Tensor, sizes: list[int]) -> list[Tensor]:
        """Every rank's piece, of which rank r has ``sizes[r]`` elements, in rank order.

        All are filled up to the longest; or, where that is worth their rounds, go to one peer after
        another, each as it is.  ``piece`` may be longer than this rank's size: one as long as the
        longest is not copied to be filled up.
        """
        world_size, rank = self.world_size, self.rank
        longest, total = max(sizes), sum(sizes)
        filled = (world_size * longest - total) * piece.element_size()
        if filled <= max(_FILLED_SHARE * total * piece.element_size(), _ROUND_NBYTES * world_size):
            padded = piece[:longest]
            if piece.numel() < longest:
                padded = piece.new_zeros(longest)
                padded[: piece.numel()] = piece
            gathered = self.all_gather(padded)
            return [row[:size] for row, size in zip(gathered, sizes, strict=True)]

        piece = piece[: sizes[rank]]
        pieces = [piece if peer == rank else piece.new_empty(n) for peer, n in enumerate(sizes)]
        for distance in range(1, world_size):
            target, source = (rank + distance) % world_size, (rank - distance) % world_size
            outgoing, incoming = [0] * world_size, [0] * world_size
            outgoing[target], incoming[source] = piece.numel(), sizes[source]
            self.all_to_all(pieces[source], piece, incoming, outgoing)
        return pieces

    def all_to_all(
        self,
        incoming: Tensor,
        outgoing: Tensor,
        incoming_sizes: list[int],
        outgoing_sizes: list[int],
    ) -> None:
        """Sends each rank its part of ``outgoing``; sizes are elements, one for each rank."""
        away = outgoing.numel() - outgoing_sizes[self.rank]
        with self._sending(away * outgoing.element_size()):
            collectives.all_to_all(
                incoming, outgoing, incoming_sizes, outgoing_sizes, group=self.group
            )

    def or_bitmap(self, bitmap: Tensor) -> None:
        """``bitmap`` (uint8, a multiple of 8 bytes) becomes the OR of all ranks' bitmaps."""
        if self.way == ORDERED:
            self._or_by_slices(bitmap)
            return
        with self._sending(self.ring_nbytes(bitmap.numel())):
            # gloo combines element by element: eight bytes at once are eight times fewer.
            collectives.all_reduce(bitmap.view(torch.int64), dist.ReduceOp.BOR, group=self.group)

    def _or_by_slices(self, bitmap: Tensor) -> None:
        world_size, nbytes = self.world_size, bitmap.numel()
        size = -(-nbytes // (8 * world_size)) * 8
        outgoing = bitmap.new_zeros(world_size * size)
        outgoing[:nbytes] = bitmap
        incoming = torch.empty_like(outgoing)
        self.all_to_all(incoming, outgoing, [size] * world_size, [size] * world_size)
        union, *others = incoming.view(world_size, size)
        for other in others:
            union |= other
        bitmap.copy_(self.all_gather(union).view(-1)[:nbytes])

    def sum(self, tensor: Tensor) -> None:
        """``tensor`` becomes its sum over all ranks."""
        with self._sending(self.ring_nbytes(tensor.nbytes)):
            collectives.all_reduce(tensor, group=self.group)

    def begin_sum(self, tensor: Tensor) -> "torch.futures.Future[list[Tensor]]":
        """Begins the sum of ``tensor`` over all ranks, in place."""
        self.bytes_sent += self.ring_nbytes(tensor.nbytes)
        return self._begin_sum(tensor)

    def begin_sum_of_sparse(self, tensor: Tensor) -> "torch.futures.Future[list[Tensor]]":
        """The same for a coalesced COO tensor, by the backend's own sparse AllReduce.

        gloo all-gathers indices and values, and fills up to the longest: that is not counted.
        """
        nbytes = tensor.indices().nbytes + tensor.values().nbytes
        self.bytes_sent += (self.world_size - 1) * nbytes
        return self._begin_sum(tensor)

    def _begin_sum(self, tensor: Tensor) -> "torch.futures.Future[list[Tensor]]":
        if self.backend == "gloo" and not tensor.is_sparse:  # whose elements a sum replaces
            tensor = _lend(tensor)
        work = collectives.all_reduce(tensor, group=self.group, async_op=True)
        future: torch.futures.Future[list[Tensor]] = work.get_future()
        return future

    @contextmanager
    def _sending(self, nbytes: int) -> Iterator[None]:
        """Around a collective that is waited for."""
        self.bytes_sent += nbytes
        begun = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - begun
