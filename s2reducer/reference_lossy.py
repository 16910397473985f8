# SPDX-License-Identifier: MIT
"""Selection with error feedback in plain PyTorch, all ranks in one place: to be compared with."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from s2reducer import reference_select as ref
from s2reducer.segments import derive_seed
from s2reducer.selection import RandomK, Selection, SharedTopK, Threshold, TopK


class LossyRanks:
    """One parameter on all ranks.

    Args:
        name, shape: of the parameter.
        select: how to choose blocks.
        nranks: P.
        seed: of the state.
        error_feedback: whether what is not sent is added to the next gradient.

    Attributes:
        owed: float32 [P, numel].
        step: steps so far.
    """

    def __init__(
        self,
        name: str | None,
        shape: tuple[int, ...],
        select: Selection,
        nranks: int,
        seed: int = 0,
        error_feedback: bool = True,
    ) -> None:
        self._identity = zlib.crc32(f"{name} {shape}".encode())
        self._select = select
        self._seed = seed
        self._block = min(select.block, torch.Size(shape).numel())
        self._feedback = error_feedback
        self.owed = torch.zeros(nranks, torch.Size(shape).numel())
        self.step = 0

    def reduce(self, gradients: Sequence[Tensor], scale: float = 1.0) -> Tensor:
        """The mean of what is sent of the ranks' gradients, flat, in their dtype; each sum is made
        in float64.

        A step with a mean that is not finite is undone.
        """
        self.step += 1
        dtype = gradients[0].dtype
        before = self.owed.clone() if self._feedback else torch.zeros_like(self.owed)
        flats = [gradient.reshape(-1) for gradient in gradients]
        owed = [ref.add(flat, row, 1 / scale) for flat, row in zip(flats, before, strict=True)]
        touched = [bool(flat.any()) for flat in flats]
        chosen = self._choose(owed, touched)
        total = torch.zeros(self.owed.shape[1], dtype=torch.float64)
        for rank, (array, blocks) in enumerate(zip(owed, chosen, strict=True)):
            self.owed[rank] = before[rank]
            if touched[rank]:
                values, self.owed[rank] = ref.deliver(array, self._block, blocks, dtype, scale)
                total += values
        mean = (total / len(owed)).to(dtype)
        if not mean.isfinite().all():
            self.owed = before
        return mean

    def _choose(self, owed: Sequence[Tensor], touched: Sequence[bool]) -> list[list[int]]:
        select, single = self._select, self._block == 1
        scores = [array if single else ref.energies(array, self._block) for array in owed]
        if isinstance(select, Threshold):
            least = select.least_score(self._block)
            return [ref.above(score, least) for score in scores]
        assert isinstance(select, TopK | SharedTopK | RandomK)
        keep = select.keep(len(scores[0]), self.step)
        if isinstance(select, TopK):
            return [ref.top(score, keep) for score in scores]
        if isinstance(select, SharedTopK):
            pairs = zip(scores, touched, strict=True)
            total = torch.stack([score * is_touched for score, is_touched in pairs]).sum(0)
            return [ref.top(total, keep)] * len(owed)
        drawn = ref.random(derive_seed(self._seed, self.step, self._identity), len(scores[0]), keep)
        return [sorted({*drawn, *ref.above(score, torch.inf)}) for score in scores]
