# SPDX-License-Identifier: MIT
"""From a bucket to its parameters, their blocks and bits, and what is remembered of each of them.

Everything here is keyed by the parameter itself: DDP rebuilds its buckets once or twice, so that
the same index means another bucket later, and the same size may mean other parameters.
"""

import hashlib
import itertools
import math
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.device import pinned_for
from s2reducer.selection import Selection

# A row is a block when it has this many elements.  Shorter rows cost too many bits for what they
# save; a longer row is seldom dead as a whole.
SHORTEST_ROW, LONGEST_ROW = 8, 8192

# A parameter stays dense once dense was the better choice this many times in a row.
STAYS_DENSE_AFTER = 4

# The unions of so many steps are remembered: the largest of them is what a sketch expects next.
_REMEMBERED_UNIONS = 8

# Elements of a block where rows are none: 256 bytes of float32, beside which its bit is 1/2048.
FLAT_BLOCK = 64

_CPU = torch.device("cpu")


def block_length(parameter: Tensor, override: int | None = None) -> int:
    """Elements of a block of ``parameter``, at least 1.

    A row (``numel / shape[0]``) for a contiguous parameter of two or more dimensions whose rows
    have 8 to 8192 elements; else 64 consecutive elements in memory order, which is the order of the
    bucket for channels_last and other layouts too.  ``override`` wins over both.  A block is never
    longer than the parameter, so that a small parameter is not padded when packed.
    """
    numel = parameter.numel()
    block = FLAT_BLOCK
    if override is not None:
        block = override
    elif parameter.dim() >= 2 and numel > 0 and parameter.is_contiguous():
        row = numel // parameter.shape[0]
        if SHORTEST_ROW <= row <= LONGEST_ROW:
            block = row
    return max(1, min(block, numel))


@dataclass
class ParameterRecord:
    """What a state remembers of one parameter.

    ``steps`` counts the steps in which its blocks were counted; ``live`` and ``union_live`` are
    sums over them, of the blocks that were live on this rank and on any rank.  ``dense_in_a_row``
    counts the last comparisons, in a row, by which it went dense: the same on all ranks.
    ``unions`` are the blocks that were live on any rank in the first step and in the last steps in
    which it went into a sketch.  ``is_table`` tells whether its gradient is COO, as far as known.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    block: int
    nblocks: int
    steps: int = 0
    live: int = 0
    union_live: int = 0
    dense_in_a_row: int = 0
    unions: list[int] = field(default_factory=list, repr=False)
    is_table: bool = False
    plan: str = "none"
    reason: str = "not reduced yet"

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def identity(self) -> int:
        """A number that is the same on all ranks and in all runs, whatever the buckets."""
        return zlib.crc32(f"{self.name} {self.shape}".encode())

    @property
    def stays_dense(self) -> bool:
        """Whether it is left unscanned until the next probe."""
        return self.dense_in_a_row >= STAYS_DENSE_AFTER

    def expected_union(self, fixed: bool, margin: float) -> int | None:
        """Blocks to be expected in the next union: as many as in the first, or by a margin more
        than in the last; None before."""
        if not self.unions:
            return None
        return self.unions[0] if fixed else math.ceil(margin * max(self.unions[1:]))

    def remember_union(self, count: int) -> None:
        """The blocks that were live on any rank in a step."""
        first = self.unions[:1] or [count]
        self.unions = [*first, *self.unions[1:][1 - _REMEMBERED_UNIONS :], count]

    def set_blocks(self, block: int, nblocks: int) -> None:
        """Of a COO gradient, whose rows are its blocks whatever their length."""
        self.block, self.nblocks, self.is_table = block, nblocks, True

    def density(self) -> float | None:
        """Live blocks of this rank over all blocks, the mean over steps; None if never counted."""
        return self._share(self.live)

    def union_density(self) -> float | None:
        """The same for blocks that were live on any rank."""
        return self._share(self.union_live)

    def label(self) -> str:
        return self.name if self.name is not None else "x".join(map(str, self.shape)) or "scalar"

    def _share(self, live: int) -> float | None:
        if self.steps == 0:
            return None
        return live / (self.steps * self.nblocks) if self.nblocks else 0.0


def new_record(
    tensor: Tensor, name: str | None = None, block: int | None = None
) -> ParameterRecord:
    """The record of a parameter, or of any tensor, that was not reduced yet."""
    block = block_length(tensor, block)
    return ParameterRecord(
        name=name,
        shape=tuple(tensor.shape),
        dtype=tensor.dtype,
        block=block,
        nblocks=-(-tensor.numel() // block),
    )


@dataclass
class LayoutMemory:
    """What all ranks remember alike of a bucket: it ends with its layout, as buckets are rebuilt.

    Attributes:
        compared: the ranks have found that they all have this bucket.
        most_live: the most live blocks that a rank had when it came last, None before.
        plan: by which it travelled when plans were compared last, "none" before.
        followed: another bucket came after it when it came last, in the same step.
    """

    compared: bool = False
    most_live: int | None = None
    plan: str = "none"
    followed: bool = False


@dataclass(frozen=True, eq=False)  # layouts are told apart, not compared
class Layout:
    """Segments of a bucket, one a parameter, and the records of their parameters.

    Attributes:
        segments: int64 [S, 4]: offset, numel, block, first bit; on the CPU, pinned for ``device``.
        blocks: int64 [S]: the block length of each segment.
        records: S of them.
        numel: elements of all segments.
        bitmap_nbytes: of the bits of all segments.
        device: where the bucket's elements lie.
        memory: of the ranks' past with these segments.
    """

    segments: Tensor
    blocks: Tensor
    records: tuple[ParameterRecord, ...]
    numel: int
    bitmap_nbytes: int
    device: torch.device = _CPU
    memory: LayoutMemory = field(default_factory=LayoutMemory)
    _parts: dict[tuple[bool, ...], "Layout"] = field(default_factory=dict, repr=False)

    @cached_property
    def rows(self) -> list[list[int]]:
        """``segments`` as plain numbers: where they are few, tensors take longer to be asked."""
        return self.segments.tolist()

    @cached_property
    def spans(self) -> list[slice]:
        """The bytes of the bitmap that hold each segment's bits, which begin at a byte."""
        ends = [bit // 8 for *_, bit in self.rows] + [self.bitmap_nbytes]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def part(self, kept: Sequence[bool]) -> "Layout":
        """The layout of the segments that are kept: the same offsets, other bits."""
        if all(kept):
            return self
        key = tuple(kept)
        part = self._parts.get(key)
        if part is None:
            offsets, numels, blocks, _ = zip(*itertools.compress(self.rows, key), strict=True)
            part = layout_of(
                segments_of(numels, blocks, offsets),
                tuple(itertools.compress(self.records, key)),
                self.device,
            )
            self._parts.clear()  # which segments are kept changes seldom, and not back
            self._parts[key] = part
        return part

    def ranges(self, kept: Sequence[bool]) -> Iterator[tuple[int, int]]:
        """Begin and end of the elements of the kept segments, where neighbours are one."""
        end = begin = 0
        for (offset, numel, _, _), keep in zip(self.rows, kept, strict=True):
            if keep and offset == end and end > begin:
                end += numel
            elif keep:
                if end > begin:
                    yield begin, end
                begin, end = offset, offset + numel
        if end > begin:
            yield begin, end

    def packed_numel(self, counts: Sequence[int]) -> int:
        """Elements of the packed form of so many live blocks a segment."""
        return sum(count * block for count, (_, _, block, _) in zip(counts, self.rows, strict=True))

    def describe(self) -> str:
        """The bucket by its parameters, shortened."""
        labels = [record.label() for record in self.records]
        more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
        return f"bucket of {', '.join(labels[:3])}{more}"


def layout_of(
    segments: Tensor, records: tuple[ParameterRecord, ...], device: torch.device = _CPU
) -> Layout:
    """The layout of these segments, int64 [S, 4], and their parameters' records.

    Kernels on a device read a copy of the segments, which a CUDA graph makes anew in every replay.
    So they are pinned once, here, and stay where they are as long as there is the layout.
    """
    return Layout(
        segments=pinned_for(device, segments),
        blocks=segments[:, 2].contiguous(),
        records=records,
        numel=int(segments[:, 1].sum()),
        bitmap_nbytes=ops.bitmap_nbytes(segments),
        device=device,
    )


def segments_of(
    numels: Sequence[int], blocks: Sequence[int], offsets: Sequence[int] | None = None
) -> Tensor:
    """The ``segments`` of arrays with these block lengths, one behind the other or at ``offsets``.

    The blocks of each begin at a multiple of 64 bits, so that no word of the bitmap is shared.
    """
    if offsets is None:
        offsets = list(itertools.accumulate(numels, initial=0))[:-1]
    rows = []
    bit = 0
    for offset, numel, block in zip(offsets, numels, blocks, strict=True):
        rows.append((offset, numel, block, bit))
        bit += (-(-numel // block) + 63) // 64 * 64
    return torch.tensor(rows, dtype=torch.int64).view(-1, 4)


def all_blocks(layout: Layout) -> Tensor:
    """uint8, the bits of all blocks of a bucket."""
    bitmap = torch.empty(layout.bitmap_nbytes, dtype=torch.uint8)
    spans = [(bit, bit + -(-numel // block)) for _, numel, block, bit in layout.segments.tolist()]
    ops.bitmap_from_positions(torch.cat([torch.arange(*span) for span in spans]), bitmap)
    return bitmap


def derive_seed(*numbers: int) -> int:
    """A seed that is another one for other numbers, and the same on all ranks."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


class LayoutCache:
    """Layouts by their parameters, and the records, which outlive any one layout.

    Holds parameters weakly: neither a cache nor a report should keep a model alive.  ``block`` is
    the block length of every parameter; None for that of ``select``, where a parameter is selected
    from, and else for the rule.
    """

    def __init__(self, block: int | None, select: Selection | None = None) -> None:
        self._block = block
        self._select = select
        # By id(): a Tensor compares element by element and so is no key of a dictionary.  An id may
        # come again when its object is gone, hence the reference beside the record.
        self._records: dict[int, tuple[weakref.ref[Tensor], ParameterRecord]] = {}
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._groups: dict[tuple[int, ...], Layout] = {}

    def record(self, parameter: Tensor, name: str | None = None) -> ParameterRecord:
        """The record of ``parameter``, made at the first call; ``name`` is taken then."""
        reference, record = self._records.get(id(parameter), (None, None))
        if record is None or reference is None or reference() is not parameter:
            block, select = self._block, self._select
            if block is None and select and select.selects_from(tuple(parameter.shape)):
                block = select.block
            record = new_record(parameter, name, block)
            self._records[id(parameter)] = (weakref.ref(parameter), record)
        return record

    def knows(self, parameter: Tensor) -> bool:
        """Whether there is a record of ``parameter``."""
        reference, _ = self._records.get(id(parameter), (None, None))
        return reference is not None and reference() is parameter

    def parameters(self) -> list[Tensor]:
        """Those that are still there."""
        found = (reference() for reference, _ in self._records.values())
        return [parameter for parameter in found if parameter is not None]

    def records(self) -> list[ParameterRecord]:
        """Of all parameters, in the order in which they became known."""
        return [record for _, record in self._records.values()]

    def group(self, layouts: Sequence[Layout]) -> Layout:
        """The layout of several buckets that travel together, one behind the other."""
        if len(layouts) == 1:
            return layouts[0]
        key = tuple(id(record) for layout in layouts for record in layout.records)
        group = self._groups.get(key)
        if group is None:
            numels = [numel for layout in layouts for _, numel, _, _ in layout.rows]
            blocks = [block for layout in layouts for _, _, block, _ in layout.rows]
            records = tuple(record for layout in layouts for record in layout.records)
            self._groups.clear()  # groups change with the buckets' order, and not back
            segments = segments_of(numels, blocks)
            group = self._groups[key] = layout_of(segments, records, layouts[0].device)
        return group

    def layout(self, parameters: Sequence[Tensor]) -> Layout:
        """The layout of a bucket that holds these parameters, one behind the other."""
        records = tuple(self.record(parameter) for parameter in parameters)
        key = tuple(map(id, records))  # which no other object can have while the layout exists
        layout = self._layouts.get(key)
        if layout is None:
            # After a rebuild the old layouts of these parameters do not come back.
            stale = [other for other in self._layouts if not set(key).isdisjoint(other)]
            for other in stale:
                del self._layouts[other]
            numels = [parameter.numel() for parameter in parameters]
            segments = segments_of(numels, [record.block for record in records])
            layout = self._layouts[key] = layout_of(segments, records, parameters[0].device)
        return layout
