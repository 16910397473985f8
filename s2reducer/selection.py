# SPDX-License-Identifier: MIT
"""Which blocks of a dense gradient are sent: settings, and how many that makes.

Selection is by parameter, so that it does not depend on how DDP cuts buckets.  What is not sent is
kept for the next step (``residuals.py``), unless ``error_feedback`` is off.
"""

import math
from dataclasses import dataclass, field

from s2reducer.arguments import number, whole


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the ways to select have in common.

    Attributes:
        block: consecutive elements, in memory order, that are sent or kept together; 1 for single
            elements.  Longer blocks need a shorter index, but leave less choice.
        least_numel: parameters with fewer elements are sent whole.
        vectors: whether parameters with less than two dimensions, which are biases, gains and the
            parameters of norms, are selected from, too.
    """

    block: int = 64
    least_numel: int = 4096
    vectors: bool = False

    def __post_init__(self) -> None:
        whole("block of a selection", self.block, 1, (1 << 40) - 1)
        whole("least_numel of a selection", self.least_numel, 0, (1 << 62) - 1)
        if not isinstance(self.vectors, bool):
            raise TypeError(
                f"vectors of a selection must be True or False, but is {self.vectors!r}"
            )

    def selects_from(self, shape: tuple[int, ...]) -> bool:
        """Whether a parameter of this shape is selected from; else it is sent whole."""
        return math.prod(shape) >= max(1, self.least_numel) and (self.vectors or len(shape) >= 2)


@dataclass(frozen=True)
class _ByDensity(Selection):
    """A share of the blocks, which may shrink to its final value.

    Attributes:
        density: the share of a parameter's blocks, above 0 and at most 1; one block at least.
        warmup_steps: until then the density falls from 1, by the same factor in each step: the
            first gradients of a training are the largest, and the least alike (Deep Gradient
            Compression, arXiv 1712.01887).
    """

    density: float
    warmup_steps: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        number("density", self.density)
        if not 0.0 < self.density <= 1.0:
            raise ValueError(f"density must be above 0 and at most 1, but is {self.density}")
        whole("warmup_steps", self.warmup_steps, 0, (1 << 62) - 1)

    def keep(self, nblocks: int, step: int) -> int:
        """How many of so many blocks are sent in step number ``step``, the first of which is 1."""
        density = self.density
        if step <= self.warmup_steps:
            density **= (step - 1) / self.warmup_steps
        return min(nblocks, max(1, round(density * nblocks)))


@dataclass(frozen=True)
class TopK(_ByDensity):
    """The blocks of largest norm, chosen on each rank by itself.

    ``TopK(density, *, warmup_steps=0, block=64, least_numel=4096, vectors=False)``
    """


@dataclass(frozen=True)
class SharedTopK(_ByDensity):
    """The blocks in which the ranks together have most.

    The squares of the blocks' norms are summed over the ranks first.  So all ranks send the same
    blocks, which need no index, and the union is no larger than what one rank sends.

    ``SharedTopK(density, *, warmup_steps=0, block=64, least_numel=4096, vectors=False)``
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block == 1:
            raise ValueError(
                "block of SharedTopK must be 2 or more, but is 1: the squares of single elements "
                "are as many as the elements"
            )


@dataclass(frozen=True)
class RandomK(_ByDensity):
    """Blocks by lot, the same on all ranks, others in each step.

    Blocks with a value that is not finite are sent in any case.

    ``RandomK(density, *, warmup_steps=0, block=64, least_numel=4096, vectors=False)``
    """


@dataclass(frozen=True)
class Threshold(Selection):
    """The blocks whose elements have a root mean square of at least ``threshold``.

    ``Threshold(threshold, *, block=64, least_numel=4096, vectors=False)``
    """

    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        number("threshold", self.threshold)
        if not 0.0 < self.threshold < math.inf:
            raise ValueError(f"threshold must be above 0 and finite, but is {self.threshold}")

    def least_score(self, block: int) -> float:
        """Of the blocks that are sent: the sum of their squares, or a single element."""
        return self.threshold if block == 1 else self.threshold * self.threshold * block


SELECTIONS = (TopK, SharedTopK, RandomK, Threshold)
