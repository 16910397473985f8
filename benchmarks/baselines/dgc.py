# SPDX-License-Identifier: MIT
"""Deep Gradient Compression (arXiv 1712.01887): the largest elements, and momentum for the rest.

Of each parameter of two or more dimensions a rank keeps u, its velocity, and v, what has not been
sent.  In each step, g the gradient:

1. g is scaled down to a norm of ``clip`` / sqrt(P), where its norm is larger (local clipping).
2. u = m u + g and v = v + u (momentum correction).
3. The share ``density`` of v with the largest magnitudes is sent, by an all-gather of positions
   (int32) and values, and set to zero in v and in u (momentum factor masking).
4. The gradient becomes the mean of what the ranks have sent.

In the beginning more is sent (warm-up): 1/4 of the elements, then 1/16, 1/64 and 1/256, each for
``warm_up`` steps.  Other parameters are reduced densely and get u = m u + g of the mean.  So the
optimizer has to be SGD without momentum of its own, and its weight decay is without momentum too.

Bytes a rank sends: 8 (P-1) k, k elements in the mean, beside the dense rest.

The largest are searched as in the paper, by a threshold from a sample of 1 % and then among what
is above it; they are exact here, so that all ranks send equally many.

Left out: the norm that is clipped is that of one parameter, where the paper takes that of all;
Nesterov's momentum; COO gradients, for their zeros never need to be sent.

No postponed annotations here: DDP looks at the hook's annotations as objects.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.futures import Future

from s2reducer import ops

from .hooks import DenseRest, WireState, done, pieces_of, refuse_coo
from .rows import Rows, mean_of, one_segment, packed, unpacked

DENSITY = 0.001
STRIDE = 101  # of the elements from which a threshold is taken; no common width is a multiple


@dataclass
class _Memory:
    """Of one parameter, all flat and in its memory's order."""

    velocity: Tensor
    unsent: Tensor
    steps: int = 0


class DgcState(WireState):
    """The state of ``dgc_hook``; it takes twice the gradients' memory.

    Args:
        density: share of a parameter's elements that are sent once the warm-up is over.
        momentum: m, as SGD has it.
        clip: norm of the mean gradient above which ranks clip theirs; None for no clipping.
        warm_up: steps of each density of the warm-up; 0 for none.
    """

    def __init__(
        self,
        density: float = DENSITY,
        momentum: float = 0.9,
        clip: float | None = None,
        warm_up: int = 0,
        group=None,
    ) -> None:
        super().__init__(group)
        if not 0 < density <= 1:
            raise ValueError(f"density must be above 0 and at most 1, but is {density}")
        self._density, self._momentum, self._clip = density, momentum, clip
        self._warm_up = warm_up
        self._memories: dict[int, _Memory] = {}

    def density(self, step: int) -> float:
        """Of a parameter's step, from 0."""
        if not self._warm_up or step >= 4 * self._warm_up:
            return self._density
        return max(self._density, 0.25 ** (1 + step // self._warm_up))

    def select(self, parameter: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Steps 1 to 3: positions, ascending, and values of what this rank sends."""
        memory = self._memory(parameter, gradient)
        if self._clip is not None:
            limit = self._clip / self.wire.world_size**0.5
            norm = float(gradient.norm())
            gradient = gradient * (limit / norm) if norm > limit else gradient
        memory.velocity.mul_(self._momentum).add_(gradient)
        memory.unsent.add_(memory.velocity)
        count = max(1, round(self.density(memory.steps) * gradient.numel()))
        memory.steps += 1
        positions = largest(memory.unsent.abs(), count)
        values = memory.unsent[positions]
        memory.unsent[positions] = 0.0
        memory.velocity[positions] = 0.0
        return positions, values

    def follow(self, parameter: Tensor, mean: Tensor) -> None:
        """The momentum of a parameter that is reduced densely, in place."""
        memory = self._memory(parameter, mean)
        mean.copy_(memory.velocity.mul_(self._momentum).add_(mean))

    def _memory(self, parameter: Tensor, gradient: Tensor) -> _Memory:
        key = id(parameter)
        if key not in self._memories:
            unsent = torch.zeros_like(gradient) if parameter.dim() > 1 else gradient.new_empty(0)
            self._memories[key] = _Memory(torch.zeros_like(gradient), unsent)
        return self._memories[key]


def largest(magnitudes: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest: int64, ascending."""
    sample = magnitudes[::STRIDE]
    # Half as many again as the sample should hold, so that the candidates are seldom too few.
    wanted = 10 + 3 * count // (2 * STRIDE)
    if wanted < sample.numel():
        threshold = sample.topk(wanted).values[-1]
        candidates = (magnitudes >= threshold).nonzero().view(-1)
        if candidates.numel() >= count:
            among = magnitudes[candidates].topk(count, sorted=False).indices
            return candidates[among].sort().values
    return magnitudes.topk(count, sorted=False).indices.sort().values


def dgc_hook(state: DgcState, bucket) -> Future[Tensor]:
    """Matrices and tables by their largest elements, everything else densely."""
    buffer = bucket.buffer()
    refuse_coo(buffer, "DGC")
    selected, dense = [], []
    for parameter, offset, piece in pieces_of(bucket):
        if parameter.dim() > 1:
            positions, values = state.select(parameter, piece)
            selected.append(Rows(offset + positions, values))
        else:
            dense.append((parameter, piece))
    rest = DenseRest([piece for _, piece in dense], state.wire)
    buffer.zero_()
    if selected:
        numbers = torch.cat([part.numbers for part in selected])
        values = torch.cat([part.values for part in selected])
        messages = state.wire.all_gather(packed(numbers, values))
        parts = [unpacked(message, numbers.numel()) for message in messages]
        mean = mean_of(parts, buffer.numel(), 1)
        ops.blocks_scatter(mean.values, one_segment(buffer.numel(), 1), mean.numbers, buffer)
    rest.finish()
    for parameter, piece in dense:
        state.follow(parameter, piece)
    return done(buffer)
