# SPDX-License-Identifier: MIT
"""What this rank's gradients still owe: blocks that were not delivered, by parameter."""

from dataclasses import dataclass, field

from torch import Tensor

from s2reducer.segments import ParameterRecord


@dataclass(frozen=True)
class Residual:
    """Blocks of one parameter.

    Attributes:
        blocks: int64 [n], their numbers in the parameter, which ascend; rows of a COO gradient.
        rows: float32 [n, block], what they owe, not yet divided by the number of ranks.
    """

    blocks: Tensor
    rows: Tensor

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.rows.nbytes


@dataclass
class Residuals:
    """By the parameter, which its record stands for: buckets come and go.

    A lane takes what a bucket's parameters owe and puts what they owe next; no two buckets of a
    step share a parameter, and steps do not overlap.
    """

    _by_parameter: dict[int, tuple[ParameterRecord, Residual]] = field(default_factory=dict)

    def take(self, record: ParameterRecord, block: int) -> Residual | None:
        """What a parameter owes, in blocks of this length, which is then the caller's to deliver:
        should that fail, the state has failed, and nothing is delivered any more.

        Raises:
            ValueError: it owes blocks of another length: what was saved with other settings.
        """
        _, residual = self._by_parameter.pop(id(record), (None, None))
        if residual is not None and residual.rows.shape[1] != block:
            raise ValueError(
                f"parameter {record.label()} owes blocks of {residual.rows.shape[1]} elements from "
                f"steps before, but now it has blocks of {block}"
            )
        return residual

    def put(self, record: ParameterRecord, blocks: Tensor, rows: Tensor) -> None:
        if blocks.numel():
            self._by_parameter[id(record)] = (record, Residual(blocks, rows))

    def of(self, record: ParameterRecord) -> Residual | None:
        """What a parameter owes."""
        _, residual = self._by_parameter.get(id(record), (None, None))
        return residual
