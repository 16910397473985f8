# SPDX-License-Identifier: MIT
"""Collectives that count the bytes a rank sends."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

# torch 2.13 renamed it; the old name warns there, and is the only one before.
ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"


class Wire:
    """One process group (None: the default one), seen from one rank.

    Attributes:
        nbytes: sent by this rank, by the formulas of rings: (P-1) n of an all-gather of n bytes a
            rank, 2 (P-1)/P n of an AllReduce, and what leaves the rank of an all-to-all.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world_size = dist.get_world_size(group)
        self.nbytes = 0

    def all_gather(self, piece: Tensor) -> Tensor:
        """[P, n]: every rank's piece ([n]), all of one size."""
        gathered = piece.new_empty(self.world_size, piece.numel())
        self.nbytes += (self.world_size - 1) * piece.nbytes
        getattr(dist, ALL_GATHER)(gathered.view(-1), piece, group=self.group)
        return gathered

    def all_to_all(self, parts: list[Tensor], incoming_sizes: list[int]) -> list[Tensor]:
        """Sends part r to rank r, and gives what came from each; sizes are in elements.

        A rank's part to itself is empty.
        """
        assert parts[self.rank].numel() == 0 and incoming_sizes[self.rank] == 0
        outgoing = torch.cat(parts)
        incoming = outgoing.new_empty(sum(incoming_sizes))
        self.nbytes += outgoing.nbytes
        dist.all_to_all_single(
            incoming, outgoing, incoming_sizes, [part.numel() for part in parts], group=self.group
        )
        return list(incoming.split_with_sizes(incoming_sizes))

    def exchange_counts(self, outgoing: list[int]) -> list[int]:
        """Tells each rank its number, and gives what each has told this one."""
        parts = [torch.tensor([count]) for count in outgoing]
        own, parts[self.rank] = outgoing[self.rank], torch.empty(0, dtype=torch.int64)
        sizes = [int(peer != self.rank) for peer in range(self.world_size)]
        arrived = self.all_to_all(parts, sizes)
        return [own if peer == self.rank else int(part) for peer, part in enumerate(arrived)]

    def all_gather_uneven(self, piece: Tensor, sizes: list[int]) -> list[Tensor]:
        """Every rank's piece, each as long as it is: ``sizes`` are in elements, in rank order."""
        parts = [piece] * self.world_size
        parts[self.rank] = piece[:0]
        incoming = [0 if peer == self.rank else size for peer, size in enumerate(sizes)]
        pieces = self.all_to_all(parts, incoming)
        pieces[self.rank] = piece
        return pieces

    def swap(self, peer: int, outgoing: Tensor, incoming_size: int) -> Tensor:
        """Sends to one rank and gives what it has sent; what is empty is not sent at all."""
        incoming = outgoing.new_empty(incoming_size)
        self.nbytes += outgoing.nbytes
        sending = None
        if outgoing.numel():
            sending = dist.isend(outgoing, group=self.group, group_dst=peer)
        if incoming_size:
            dist.recv(incoming, group=self.group, group_src=peer)
        if sending is not None:
            sending.wait()
        return incoming

    def begin_all_reduce(self, tensor: Tensor) -> "Future[list[Tensor]]":
        """Begins the sum over the ranks, in place."""
        self.nbytes += 2 * (self.world_size - 1) * tensor.nbytes // self.world_size
        future: Future[list[Tensor]] = dist.all_reduce(
            tensor, group=self.group, async_op=True
        ).get_future()
        return future
