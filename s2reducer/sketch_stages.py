# SPDX-License-Identifier: MIT
"""The stages of a bucket, or of COO gradients, by the plan ``sketch``.

The sizes of the tables follow from the unions of the steps before, so that tables need not wait for
the union of this step: the lane of the values sums them while the lane of the index learns it.
Where there were no steps before, the union comes first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

import torch
from torch import Tensor

from s2reducer import ops
from s2reducer.constants import Cost
from s2reducer.errors import Disagreement
from s2reducer.exchange import Header, identity
from s2reducer.job import Job, Part
from s2reducer.plans.choice import Choice
from s2reducer.plans.contribution import Blocks, Contribution, Rows, split_positions
from s2reducer.plans.sketch import Message, are_whole, fill, lay_out
from s2reducer.plans.sketch_decoder import Decoded, Decoder
from s2reducer.residuals import Residual
from s2reducer.rows import Table, coalesced, gather_rows, rows_of, table_of
from s2reducer.segments import ParameterRecord, derive_seed
from s2reducer.sketch_config import SketchConfig
from s2reducer.stages import remember
from s2reducer.transport import Transport, ring_nbytes
from s2reducer.worker import Begun

Result = TypeVar("Result")


@dataclass(frozen=True)
class Union:
    """What all ranks know once the bitmaps or lists have come.

    Attributes:
        places: of the blocks that any rank has, for each segment.
        finite: for each segment, whether all ranks' values are.
        nbytes: what this rank has sent for it.
    """

    places: Sequence[Tensor]
    finite: list[bool]
    nbytes: int

    @property
    def counts(self) -> list[int]:
        return [places.numel() for places in self.places]


def sketch_stage(job: Job, transport: Transport) -> Begun[Tensor, Union]:
    """The first stage of a bucket that has been scanned."""
    job.plan, job.round = "sketch", "sketch"
    return _begin(_Bucket(job), transport)


def sketch_rows_stage(job: Job, transport: Transport) -> Begun[list[Tensor], Union]:
    """The first stage of ``job.tables``."""
    job.plan, job.round = "sketch", "sketch"
    return _begin(_Tables(job), transport)


class _Kind(ABC, Generic[Result]):
    """What differs between buckets and COO gradients."""

    def __init__(self, job: Job, own: Contribution, records: Sequence[ParameterRecord]) -> None:
        self.job = job
        self.own = own
        self.records = records
        self.seed = derive_seed(job.config.seed, job.step, identity(job.layout, job.dtype))

    @abstractmethod
    def learn(self, transport: Transport) -> Union:
        """The round or rounds of the index."""

    @abstractmethod
    def lay_out(self, unions: Sequence[int]) -> Message:
        """The message for so many blocks of each segment."""

    @abstractmethod
    def write(self, total: Tensor, message: Message, tables: list[Decoded]) -> Result:
        """The result of the bucket."""


def expected_unions(records: Sequence[ParameterRecord], config: SketchConfig) -> list[int] | None:
    """Blocks that are expected in the union of each segment; None unless all are known of."""
    unions = [record.expected_union(config.fixed, config.margin) for record in records]
    known = [union for union in unions if union is not None]
    return known if len(known) == len(unions) else None


def _begin(kind: _Kind[Result], transport: Transport) -> Begun[Result, Union]:
    job, config = kind.job, kind.job.config.sketch
    expected = expected_unions(kind.records, config)
    known: Union | None = None
    if expected is None:
        job.round = "union"
        known = kind.learn(transport)
        expected = known.counts
    job.round = "sketch"
    message = kind.lay_out(expected)
    total = fill(message, kind.own, config)

    def learn(transport: Transport) -> Union:
        try:
            return known or kind.learn(transport)
        except Exception:
            job.round = "union"  # whatever the other lane is at
            raise

    def finish(transport: Transport, learnt: Callable[[], Union]) -> Result:
        sent_before = transport.bytes_sent
        job.round = "sum of the sketches"
        transport.sum(total)
        job.round = "union"
        union = learnt()
        job.round = "repair"
        decoder = Decoder(kind.own, message, config, union.places, union.finite)
        tables = decoder.decode(total, transport)
        result = kind.write(total, message, tables)
        for record, count in zip(kind.records, union.counts, strict=True):
            record.remember_union(count)
        for number, blocks, rows in decoder.owed:
            job.residuals.put(kind.records[number], blocks, rows)
        nbytes = transport.bytes_sent - sent_before + union.nbytes
        cost = Cost(
            rounds=1, wire=union.nbytes, dense=ring_nbytes(total.nbytes, job.transport.world_size)
        )
        choice = Choice("sketch", str(decoder.tally), cost)
        remember(job, job.layout, choice)
        job.parts.append(Part("sketch", choice.reason, kind.records, nbytes, cost))
        return result

    return Begun(finish, learn)


# ------------------------------------------------------------------------------------------------
# Buckets
# ------------------------------------------------------------------------------------------------


class _Bucket(_Kind[Tensor]):
    """An OR of the bitmaps, in which flags and a few words travel, too."""

    own: Blocks

    def __init__(self, job: Job) -> None:
        config, layout = job.config.sketch, job.compared
        self.layout = layout
        expected = expected_unions(layout.records, config)
        whole = [False] * len(layout.records)
        if expected is not None:
            whole = are_whole(layout, expected, config)
        pairs = zip(layout.records, layout.blocks.tolist(), strict=True)
        owed = [job.residuals.take(record, block) for record, block in pairs]
        own = Blocks(job.buffer, layout, job.bitmap, owed, whole, job.divisor)
        super().__init__(job, own, layout.records)

    def learn(self, transport: Transport) -> Union:
        layout, own = self.layout, self.own
        sent_before = transport.bytes_sent
        flags = torch.zeros((len(own.finite) + 7) // 8 * 8, dtype=torch.uint8)
        flags[: len(own.finite)] = ~torch.tensor(own.finite)
        words = words_of(self.job)
        message = torch.cat([own.bitmap, flags, words])
        transport.or_bitmap(message)

        sizes = [own.bitmap.numel(), flags.numel(), words.numel()]
        bitmap, flags, words = torch.split_with_sizes(message, sizes)
        check_words(words)
        places = split_positions(bitmap, layout)
        self.job.counts = (list(map(len, own.places)), list(map(len, places)))
        self.bitmap = bitmap
        finite = [not flag for flag in flags[: len(own.finite)].tolist()]
        return Union(places, finite, transport.bytes_sent - sent_before)

    def lay_out(self, unions: Sequence[int]) -> Message:
        config = self.job.config.sketch
        are = are_whole(self.layout, unions, config)
        numels = self.layout.segments[:, 1].tolist()
        whole = {number: numels[number] for number, is_whole in enumerate(are) if is_whole}
        return lay_out(self.own.blocks, whole, unions, config, self.seed)

    def write(self, total: Tensor, message: Message, tables: list[Decoded]) -> Tensor:
        buffer, segments = self.job.buffer, self.layout.segments
        for number, (begin, end) in message.whole.items():
            offset, numel, _, _ = segments[number].tolist()
            target = buffer[offset : offset + numel]
            ops.values_convert(total[begin:end], target, parallel=False)
        for one in tables:
            rows = one.rows.view(-1)
            ops.blocks_scatter(rows, segments, one.places, buffer, parallel=False)
        if self.job.has_negative_zeros:
            ops.blocks_clear_dead(self.bitmap, segments, buffer, parallel=False)
        return buffer


_WORDS = ("segments or dtypes", "steps")


def words_of(job: Job) -> Tensor:
    """uint8, what ranks must have alike, and its complement: where they differ in a bit, both have
    it in the OR."""
    words = torch.tensor([identity(job.compared, job.dtype), job.step])
    return torch.cat([words, ~words]).view(torch.uint8)


def check_words(words: Tensor) -> None:
    """Of the OR of the ranks' words; raises Disagreement, the same on every rank."""
    for pair, name in zip(words.view(torch.int64).view(2, -1).t(), _WORDS, strict=True):
        if int(pair[0] & pair[1]):
            raise Disagreement(f"the ranks reduce different buckets: their {name} differ")


# ------------------------------------------------------------------------------------------------
# COO gradients
# ------------------------------------------------------------------------------------------------


class _Tables(_Kind[list[Tensor]]):
    """Lists of rows, after a header with the flags; nothing has the length of a table."""

    own: Rows

    def __init__(self, job: Job) -> None:
        self.tables = [table_of(tensor) for tensor in job.tables]
        records = job.layout.records
        rows, values = [], []
        for tensor, table, record in zip(job.tables, self.tables, records, strict=True):
            owed = job.residuals.take(record, table.width)
            where, what = coalesced(*_with_owed(tensor, table, owed), table.nrows)
            rows.append(where)
            values.append(what)
        firsts = list(accumulate((table.nrows for table in self.tables), initial=0))[:-1]
        super().__init__(job, Rows(rows, values, firsts, job.divisor), records)
        self.rows = rows

    def learn(self, transport: Transport) -> Union:
        own, job = self.own, self.job
        flags = sum(1 << number for number, finite in enumerate(own.finite) if not finite)
        live = sum(map(len, self.rows))
        header = Header(identity(job.layout, job.dtype), job.step, live=live, flags=flags)
        unions, index, headers = gather_rows(transport, self.tables, self.rows, header)
        job.counts = (index.counts[transport.rank], index.union_counts)
        self.unions = unions
        places = [union + first for union, first in zip(unions, own.firsts, strict=True)]
        finite = [not headers.flags >> number & 1 for number in range(len(unions))]
        return Union(places, finite, index.nbytes)

    def lay_out(self, unions: Sequence[int]) -> Message:
        return lay_out(self.own.blocks, {}, unions, self.job.config.sketch, self.seed)

    def write(self, total: Tensor, message: Message, tables: list[Decoded]) -> list[Tensor]:
        results: dict[int, Tensor] = {}
        for one in tables:
            parts = torch.split_with_sizes(one.rows, one.sizes)
            for number, rows in zip(one.table.segments, parts, strict=True):
                values = rows.new_empty(rows.shape, dtype=self.job.dtype)
                ops.values_convert(rows.view(-1), values.view(-1), parallel=False)
                results[number] = self.tables[number].tensor(self.unions[number], values)
        return [results[number] for number in range(len(self.tables))]


def _with_owed(tensor: Tensor, table: Table, owed: Residual | None) -> tuple[Tensor, Tensor]:
    """A tensor's rows, in float32, and those that are owed behind them."""
    indices, values = rows_of(tensor, table)
    values = values.float()
    if owed is None:
        return indices, values
    return torch.cat([indices, owed.blocks]), torch.cat([values, owed.rows])
