# SPDX-License-Identifier: MIT
"""PowerSGD (arXiv 1905.13727): matrices of low rank, by one step of power iteration.

A parameter of two or more dimensions is a matrix M of n rows and m columns.  With the error E that
the last step has left and the factor Q [m, r] that it found, in each step:

1. M = gradient + E.
2. P = M Q, the mean over ranks, with orthonormal columns after that.
3. Q = M^T P, the mean over ranks.
4. The gradient becomes P Q^T, and E = M - P Q^T.

Parameters of one dimension, and matrices that the factors would not make smaller, are reduced
densely.  Bytes a rank sends: 2 (P-1)/P 4 r (n + m) for each matrix, and 2 (P-1)/P 4 numbers of the
rest.

It is written here once more, as torch's own hook waits for collectives in callbacks of futures,
which on gloo may hang with several buckets (https://github.com/pytorch/pytorch/issues/48478).  This
one waits in the hook's body, and its memory belongs to parameters, so it may begin with the first
step.

Left out: what torch's hook overlaps with the backward pass, its batches of matrices of one shape,
half types, and COO gradients.  Rows that are zero on all ranks may come back as rounding errors.

No postponed annotations here: DDP looks at the hook's annotations as objects.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from .hooks import DenseRest, WireState, done, pieces_of, refuse_coo

RANK = 2


@dataclass
class Memory:
    """Of one parameter: E [n, m] and Q [m, r]."""

    error: Tensor
    right: Tensor


class PowerSgdState(WireState):
    """The state of ``powersgd_hook``; it takes the gradients' memory once more.

    Args:
        rank: r, at most; less in matrices of fewer rows or columns.
        seed: of the Q that a matrix begins with: the same on all ranks, and for matrices of as
            many columns.
    """

    def __init__(self, rank: int = RANK, seed: int = 0, group=None) -> None:
        super().__init__(group)
        if rank < 1:
            raise ValueError(f"rank must be at least 1, but is {rank}")
        self._rank = rank
        self._seed = seed
        self._memories: dict[int, Memory] = {}

    def memory(self, parameter: Tensor) -> Memory | None:
        """None where it is reduced densely."""
        if parameter.dim() < 2:
            return None
        n, m = parameter.shape[0], parameter.shape[1:].numel()
        rank = min(self._rank, n, m)
        if rank * (n + m) >= n * m:
            return None
        if id(parameter) not in self._memories:
            generator = torch.Generator().manual_seed(self._seed)
            right = torch.randn(m, rank, generator=generator)
            self._memories[id(parameter)] = Memory(torch.zeros(n, m), right)
        return self._memories[id(parameter)]

    def mean(self, factors: list[Tensor]) -> list[Tensor]:
        """Over the ranks, in one AllReduce."""
        flat = torch.cat([factor.flatten() for factor in factors]).div_(self.wire.world_size)
        self.wire.begin_all_reduce(flat).wait()
        parts = flat.split_with_sizes([factor.numel() for factor in factors])
        return [part.view_as(factor) for part, factor in zip(parts, factors, strict=True)]


def powersgd_hook(state: PowerSgdState, bucket) -> Future[Tensor]:
    """Matrices by their factors, everything else densely."""
    buffer = bucket.buffer()
    refuse_coo(buffer, "PowerSGD")
    memories, matrices, dense = [], [], []
    for parameter, _, piece in pieces_of(bucket):
        memory = state.memory(parameter)
        if memory is None:
            dense.append(piece)
        else:
            memories.append(memory)
            matrices.append(piece.view_as(memory.error).add_(memory.error))
    rest = DenseRest(dense, state.wire)
    if matrices:
        pairs = list(zip(matrices, memories, strict=True))
        lefts = state.mean([matrix @ memory.right for matrix, memory in pairs])
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = state.mean([m.T @ left for m, left in zip(matrices, lefts, strict=True)])
        for (matrix, memory), left, right in zip(pairs, lefts, rights, strict=True):
            approximation = left @ right.T
            torch.sub(matrix, approximation, out=memory.error)
            matrix.copy_(approximation)
            memory.right = right
    rest.finish()
    return done(buffer)
