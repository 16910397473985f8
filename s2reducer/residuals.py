# SPDX-License-Identifier: MIT
"""What this rank's gradients still owe: what was not delivered, by parameter.

There are two forms.  *Blocks* are for what is seldom owed, such as the stuck blocks of a sketch.
An *array* of float32 with the parameter's elements, in memory order, is for what a selection keeps
or a narrow wire rounds away.  Where only a device knows which blocks are owed, there is room for
all of them, and a mask: a *grid*.  On a device all is written in place, where a CUDA graph looks
for it.

What a step leaves counts from the next step on, and only if every bucket came out finite.  A step
that a GradScaler skips must lose nothing and gain nothing: then what was owed before is owed again.
So there are two arrays for a parameter that is selected from, one for each of two steps.  Where a
step changes few blocks, those are kept beside the array until it is over.

All of it is unscaled: a gradient times a GradScaler's scale is divided by it before it is kept.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from s2reducer.block_ops import ops_for
from s2reducer.segments import ParameterRecord, segments_of


@dataclass(frozen=True)
class Residual:
    """Blocks of one parameter.

    Attributes:
        blocks: int64 [n], their numbers in the parameter, which ascend; rows of a COO gradient.
        rows: float32 [n, block], what they owe, not yet divided by the number of ranks; zeros
            beyond the end of the parameter.
    """

    blocks: Tensor
    rows: Tensor

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.rows.nbytes


@dataclass
class _Grid:
    """The blocks of one parameter on a device.

    Attributes:
        mask: bool [nblocks], those that are owed.
        rows: float32 [nblocks, block], zeros in the others.
        next_mask, next_rows: the same, as this step leaves it.
    """

    mask: Tensor
    rows: Tensor
    next_mask: Tensor
    next_rows: Tensor

    def settle(self, rejected: Tensor) -> None:
        """Takes what the step has left, unless it was rejected: a bool on the device."""
        _take_over(self.mask, self.next_mask, rejected)
        _take_over(self.rows, self.next_rows, rejected)

    def blocks(self) -> Residual | None:
        """On the CPU."""
        where = self.mask.nonzero().view(-1)
        return Residual(where.cpu(), self.rows[where].cpu()) if where.numel() else None


@dataclass
class _Owed:
    """What one parameter owes in one step or the next; every form may be missing."""

    record: ParameterRecord
    blocks: Residual | None = None
    array: Tensor | None = None
    next_array: Tensor | None = None  # on a device
    grid: _Grid | None = None


@dataclass
class _Step:
    """What a step leaves.

    Attributes:
        blocks: by parameter, of those whose blocks were taken; None where nothing is owed now.
        arrays: by parameter, which take the place of those before.
        changes: blocks that replace those of an array, or are added to them, in this order.
    """

    blocks: dict[int, Residual | None] = field(default_factory=dict)
    arrays: dict[int, Tensor] = field(default_factory=dict)
    changes: list[tuple[int, Residual, bool]] = field(default_factory=list)
    rejected: bool = False


class Residuals:
    """By the parameter, which its record stands for: buckets come and go.

    Lanes take what a bucket's parameters owe and put what they owe next; no two buckets of a step
    share a parameter, and steps do not overlap.

    Attributes:
        scale: of this step's gradients.
        rejected: whether the step before left nothing, as it was not finite.
        in_use: whether some rank may owe something, which this rank alone could not tell.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.rejected = False
        self.in_use = False
        self._owed: dict[int, _Owed] = {}
        self._spare: dict[int, Tensor] = {}
        self._step = _Step()
        self._not_finite: dict[int, Tensor] = {}  # bool [1] on the device, for each bucket

    def begin_step(self, scale: float) -> None:
        """Settles the step before; the gradients of this one are ``scale`` times too large."""
        self.settle()
        self.rejected, self._step = self._step.rejected, _Step()
        self.scale = scale

    def reject(self) -> None:
        """A bucket of this step came out with a value that is not finite."""
        self._step.rejected = True

    def reject_if(self, bucket: int, not_finite: Tensor) -> None:
        """The same where only the device knows: a bool on it, for a bucket by any number.

        Each bucket has its own flag, as they may end on several streams.
        """
        if bucket not in self._not_finite:
            self._not_finite[bucket] = torch.zeros_like(not_finite).view(1)
        self._not_finite[bucket].copy_(not_finite)

    def settle(self) -> None:
        """Makes what the step has left count, unless it was rejected; calling it again is fine."""
        step, self._step = self._step, _Step(rejected=self._step.rejected)
        self._settle_on_device(step.rejected)
        if step.rejected:
            self._spare.update(step.arrays)
            return
        for key, blocks in step.blocks.items():
            self._owed[key].blocks = blocks
        for key, array in step.arrays.items():
            before, self._owed[key].array = self._owed[key].array, array
            if before is not None:
                self._spare[key] = before
        for key, change, adds in step.changes:
            _change(self.array(self._owed[key].record), change, adds)

    def _settle_on_device(self, is_rejected: bool) -> None:
        flags = list(self._not_finite.values())
        if not flags:
            return
        rejected = torch.cat(flags).any() | is_rejected
        for owed in self._owed.values():
            if owed.grid is not None:
                owed.grid.settle(rejected)
            if owed.array is not None and owed.next_array is not None:
                _take_over(owed.array, owed.next_array, rejected)
        for flag in flags:
            flag.zero_()

    # --------------------------------------------------------------------------------------------
    # On a device
    # --------------------------------------------------------------------------------------------

    def take_grid(self, record: ParameterRecord, device: torch.device) -> tuple[Tensor, Tensor]:
        """What a parameter owes, at this step's scale: bool [nblocks], float32 [nblocks, block].

        The caller is to put what it owes next, in any case.
        """
        owed = self._of(record)
        if owed.grid is None:
            mask = torch.zeros(record.nblocks, dtype=torch.bool, device=device)
            rows = torch.zeros(record.nblocks, record.block, device=device)
            if owed.blocks is not None:  # what was loaded
                self.take(record, record.block)
                where = owed.blocks.blocks.to(device)
                mask[where], rows[where] = True, owed.blocks.rows.to(device)
            owed.grid = _Grid(mask, rows, mask.clone(), rows.clone())
        return owed.grid.mask, _divided(owed.grid.rows, 1.0 / self.scale)

    def put_grid(self, record: ParameterRecord, mask: Tensor, rows: Tensor) -> None:
        """What a parameter owes next; ``rows`` are at this step's scale."""
        grid = self._of(record).grid
        assert grid is not None
        grid.next_mask.copy_(mask)
        grid.next_rows.copy_(_divided(rows, self.scale))

    def array_on(self, record: ParameterRecord, device: torch.device) -> Tensor:
        """float32 [numel], what a parameter owes; to be read."""
        owed = self._of(record)
        if owed.next_array is None:
            loaded = owed.array
            owed.array = torch.zeros(record.numel, device=device)
            if loaded is not None:
                owed.array.copy_(loaded)
            owed.next_array = owed.array.clone()
        assert owed.array is not None
        return owed.array

    def next_array_on(self, record: ParameterRecord) -> Tensor:
        """float32 [numel], to be written: what the parameter owes next, once ``array_on`` has given
        what it owes now."""
        array = self._of(record).next_array
        assert array is not None
        return array

    # --------------------------------------------------------------------------------------------
    # Blocks
    # --------------------------------------------------------------------------------------------

    def take(self, record: ParameterRecord, block: int) -> Residual | None:
        """What a parameter owes, in blocks of this length, at this step's scale; the caller is to
        deliver it, or to put it again.

        Raises:
            ValueError: it owes blocks of another length: what was saved with other settings.
        """
        residual = self._of(record).blocks
        if residual is None:
            return None
        if residual.rows.shape[1] != block:
            raise ValueError(
                f"parameter {record.label()} owes blocks of {residual.rows.shape[1]} elements from "
                f"steps before, but now it has blocks of {block}"
            )
        self._step.blocks[id(record)] = None
        return Residual(residual.blocks, _divided(residual.rows, 1.0 / self.scale))

    def put(self, record: ParameterRecord, blocks: Tensor, rows: Tensor) -> None:
        """What a parameter owes next; ``rows`` are at this step's scale."""
        self._of(record)
        if blocks.numel():
            self._step.blocks[id(record)] = Residual(blocks, _divided(rows, self.scale))

    # --------------------------------------------------------------------------------------------
    # Arrays
    # --------------------------------------------------------------------------------------------

    def array(self, record: ParameterRecord) -> Tensor:
        """float32 [numel], what a parameter owes; to be read."""
        owed = self._of(record)
        if owed.array is None:
            owed.array = torch.zeros(record.numel)
        return owed.array

    def next_array(self, record: ParameterRecord) -> Tensor:
        """float32 [numel], to be written: what the parameter owes next."""
        self._of(record)
        spare = self._spare.pop(id(record), None)
        array = torch.empty(record.numel) if spare is None else spare
        self._step.arrays[id(record)] = array
        return array

    def keep(self, record: ParameterRecord) -> None:
        """The parameter owes the same next: what ``next_array`` gave is not used."""
        self._spare[id(record)] = self._step.arrays.pop(id(record))

    def replace(self, record: ParameterRecord, blocks: Tensor, rows: Tensor) -> None:
        """What these blocks owe next; ``rows`` are unscaled."""
        self._of(record)
        self._step.changes.append((id(record), Residual(blocks, rows), False))

    def add(self, record: ParameterRecord, blocks: Tensor, rows: Tensor) -> None:
        """What these blocks owe next beside what else they do; ``rows`` are unscaled."""
        array = self._of(record).next_array
        if array is None:
            array = self._step.arrays.get(id(record))
        change = Residual(blocks, rows)
        if array is not None:
            _change(array, change, adds=True)
        else:
            self._step.changes.append((id(record), change, True))

    # --------------------------------------------------------------------------------------------
    # Between steps
    # --------------------------------------------------------------------------------------------

    def of(self, record: ParameterRecord) -> Residual | None:
        """What a parameter owes, as blocks; None if nothing."""
        self.settle()
        owed = self._owed.get(id(record))
        if owed is not None and owed.grid is not None:
            return owed.grid.blocks()
        if owed is None or owed.array is None:
            return owed.blocks if owed else None
        nblocks = -(-record.numel // record.block)
        rows = torch.zeros(nblocks, record.block)
        rows.view(-1)[: record.numel].copy_(owed.array)
        blocks = rows.any(dim=1).nonzero().view(-1)
        return Residual(blocks, rows[blocks]) if blocks.numel() else None

    def save(self, record: ParameterRecord, array: bool) -> dict[str, Tensor]:
        """What a parameter owes, to be given to ``load``; ``array`` if there is to be one in any
        case."""
        self.settle()
        saved = {"owed": torch.zeros(record.numel)} if array else {}
        owed = self._owed.get(id(record))
        blocks = owed.grid.blocks() if owed and owed.grid else owed and owed.blocks
        if blocks:
            saved |= {"owed_blocks": blocks.blocks, "owed_rows": blocks.rows}
        if owed is not None and owed.array is not None:
            saved["owed"] = torch.empty(record.numel).copy_(owed.array)  # the next steps write it
        return saved

    def load(self, record: ParameterRecord, saved: dict[str, Tensor]) -> None:
        """Goes on from what ``save`` gave."""
        owed = self._of(record)
        if "owed_rows" in saved:
            owed.blocks = Residual(saved["owed_blocks"], saved["owed_rows"])
        if "owed" in saved:
            owed.array = saved["owed"].clone()

    def _of(self, record: ParameterRecord) -> _Owed:
        return self._owed.setdefault(id(record), _Owed(record))


def _take_over(before: Tensor, after: Tensor, rejected: Tensor) -> None:
    before.copy_(torch.where(rejected, before, after))
    after.copy_(before)


def _change(array: Tensor, change: Residual, adds: bool) -> None:
    alone = segments_of([array.numel()], [change.rows.shape[1]])
    blocks = ops_for(array.device)
    operator = blocks.blocks_add if adds else blocks.blocks_scatter
    operator(change.rows.view(-1), alone, change.blocks, array, parallel=False)


def _divided(rows: Tensor, divisor: float) -> Tensor:
    if divisor == 1.0:
        return rows
    quotient = torch.empty_like(rows)
    convert = ops_for(rows.device).values_convert
    convert(rows.view(-1), quotient.view(-1), divisor, parallel=False)
    return quotient
