# SPDX-License-Identifier: MIT
"""The plan ``sketch`` where collectives are only enqueued: what it sends does not wait for counts.

The lanes know on the host which blocks are live, and so how long every list is.  Here lists have
room for all blocks, and their lengths stay on the device (``device_lists.py``).  So the union of
the bitmaps, the sum of the tables and the decoding are enqueued in one go, in the first stage.

What the host reads, once for each bucket, is how many blocks there were, for the next tables, and
how many have to be summed once more.  With a table of fixed size, and blocks that are deferred or
estimated, it reads nothing.  Then blocks cannot be summed once more either: those of a parameter
with a value that is not finite become NaNs, and so do those of a table whose sums overflow.

Where the union has not been seen yet, it is read first, and the tables are made after that.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from s2reducer.constants import Cost
from s2reducer.device import HostCopy, to_device
from s2reducer.device_lists import bits_of, sketch_insert, sketch_weigh
from s2reducer.exchange import identity
from s2reducer.job import Job, Part
from s2reducer.ordered_contribution import Own, places_of
from s2reducer.ordered_decoder import Decoded, decode
from s2reducer.ordered_stages import Planner, Second
from s2reducer.plans.choice import Choice
from s2reducer.plans.sketch import are_whole, cells_of, lay_out, magnitudes_of
from s2reducer.plans.sketch_decoder import Tally
from s2reducer.segments import derive_seed
from s2reducer.sketch_stages import check_words, expected_unions, words_of
from s2reducer.stages import remember
from s2reducer.transport import Transport, ring_nbytes


def begin_sketch(job: Job, transport: Transport) -> Planner[Tensor]:
    """The first stage of a flat bucket."""
    job.plan, job.round = "sketch", "sketch"
    bucket = _Bucket(job, transport)
    expected = expected_unions(job.compared.records, job.config.sketch)
    bucket.learn(silent=expected is not None and job.config.sketch.reads_nothing)
    if expected is not None:
        bucket.send(expected)
    arriving = bucket.on_its_way()

    def plan() -> Second[Tensor]:
        tallies = _read(job, arriving)
        if expected is None:
            assert job.counts is not None
            bucket.send(job.counts[1])
            tallies = _read(job, bucket.on_its_way())
        return lambda transport: bucket.finish(tallies)

    return plan


def _read(job: Job, arriving: HostCopy | None) -> list[list[int]] | None:
    """The tally of each table; ``job`` gets the counts.  None where nothing is read."""
    if arriving is None:
        return None
    words, counts, tallies = arriving.wait()
    job.round = "union"
    check_words(words)
    own, union = counts.tolist()
    job.counts = own, union
    listed: list[list[int]] = tallies.tolist()
    return listed


class _Bucket:
    """One bucket in one step."""

    def __init__(self, job: Job, transport: Transport) -> None:
        self._job = job
        self._config = job.config.sketch
        self._transport = transport
        self._own = Own(job)
        self._decoded: list[Decoded] = []
        self._nbytes = [0, 0]  # sent for the index, and for the values

    def learn(self, silent: bool) -> None:
        """Enqueues the OR of the bitmaps; ``silent`` if nobody will read what came of it."""
        job, own = self._job, self._own
        sent_before = self._transport.bytes_sent
        nsegments, device = len(own.finite), own.live.device
        flags = torch.zeros((nsegments + 7) // 8 * 8, dtype=torch.uint8, device=device)
        flags[:nsegments] = ~own.finite
        parts = [own.bitmap, flags]
        if not silent:
            parts.append(to_device(words_of(job), device))
        message = torch.cat(parts)
        self._transport.or_bitmap(message)
        bitmap, flags, *words = torch.split_with_sizes(message, [part.numel() for part in parts])
        self._live, self._finite = bits_of(bitmap), flags[:nsegments] == 0
        self._words = None if silent else words[0]
        self._nbytes[0] = self._transport.bytes_sent - sent_before

    def send(self, expected: Sequence[int]) -> None:
        """Enqueues the sum of the tables, for so many blocks in each segment, and decodes them."""
        job, own, config, layout = self._job, self._own, self._config, self._job.compared
        sent_before = self._transport.bytes_sent
        are = are_whole(layout, expected, config)
        whole = {number: layout.rows[number][1] for number, is_whole in enumerate(are) if is_whole}
        seed = derive_seed(job.config.seed, job.step, identity(job.layout, job.dtype))
        self._message = lay_out(layout.blocks.tolist(), whole, expected, config, seed)
        self._total = total = torch.zeros(self._message.numel, device=own.live.device)
        for number, (begin, end) in self._message.whole.items():
            total[begin:end] = own.divided(own.rows[number]).view(-1)[: end - begin]
        parts = [own.part(table.segments) for table in self._message.tables]
        for table, part in zip(self._message.tables, parts, strict=True):
            chosen, values = part.chosen, part.divided[part.chosen.order]
            sketch_insert(cells_of(table, total, config), table.seed, part.ids, chosen, values)
            magnitudes = magnitudes_of(table, total, config)
            sketch_weigh(magnitudes, table.seed, part.ids, chosen, values)
        job.round = "sum of the sketches"
        self._transport.sum(total)
        self._decoded = [
            decode(part, table, total, self._live, self._finite, config, self._transport.world_size)
            for table, part in zip(self._message.tables, parts, strict=True)
        ]
        self._nbytes[1] += self._transport.bytes_sent - sent_before

    def on_its_way(self) -> HostCopy | None:
        """To the host: the words, int64 [2, S] with this rank's and the union's blocks in each
        segment, and the tallies, int64 [T, 3]."""
        if self._words is None:
            return None
        layout, device = self._job.compared, self._live.device
        nsegments = len(layout.records)
        places = places_of(layout, tuple(range(nsegments)), device)
        live = torch.stack([self._own.live[places.bits], self._live[places.bits]])
        counts = torch.zeros(2, nsegments, dtype=torch.int64, device=device)
        counts.index_add_(1, places.segments, live.to(torch.int64))
        tallies = [one.tally() for one in self._decoded]
        empty = counts.new_empty(0, 3)
        return HostCopy(self._words, counts, torch.stack(tallies) if tallies else empty)

    # --------------------------------------------------------------------------------------------
    # What comes of it
    # --------------------------------------------------------------------------------------------

    def finish(self, tallies: list[list[int]] | None) -> Tensor:
        """Writes the bucket; ``tallies`` are None where nothing was read."""
        sent_before = self._transport.bytes_sent
        self._job.round = "repair"
        if tallies is None:
            for one in self._decoded:
                one.rows.masked_fill_(one.exactly.unsqueeze(1), torch.nan)
        else:
            self._sum_exactly([exactly for _, exactly, _ in tallies])
        self._write()
        if self._config.owes:
            self._owe()
        self._nbytes[1] += self._transport.bytes_sent - sent_before
        self._note(tallies)
        return self._job.buffer

    def _sum_exactly(self, counts: list[int]) -> None:
        pairs = zip(self._decoded, counts, strict=True)
        chosen = [(one, *one.exact_places(count)) for one, count in pairs if count]
        if not chosen:
            return
        packed = torch.cat([rows.view(-1) for *_, rows in chosen])
        self._transport.sum(packed)
        sums = torch.split_with_sizes(packed, [rows.numel() for *_, rows in chosen])
        for (one, where, rows), exact in zip(chosen, sums, strict=True):
            one.rows.index_copy_(0, where, exact.view_as(rows))

    def _write(self) -> None:
        buffer, rows = self._job.buffer, self._job.compared.rows
        for number, (begin, end) in self._message.whole.items():
            offset, numel, block, bit = rows[number]
            target = buffer[offset : offset + numel]
            target.copy_(self._total[begin:end])
            _clear_dead(target, block, self._live[bit : bit - (-numel // block)])
        for one in self._decoded:
            for number, part in one.part.by_segment(one.chosen.restored(one.rows)):
                offset, numel, _, _ = rows[number]
                buffer[offset : offset + numel].copy_(part.view(-1)[:numel])

    def _owe(self) -> None:
        residuals, records = self._job.residuals, self._job.compared.records
        for number in self._message.whole:
            rows = torch.zeros_like(self._own.rows[number])
            residuals.put_grid(records[number], rows.new_zeros(len(rows), dtype=torch.bool), rows)
        for one in self._decoded:
            assert one.owed is not None
            mask, rows = one.owed
            masks = one.part.by_segment(one.chosen.restored(mask))
            owed = rows.masked_fill(~mask.unsqueeze(1), 0.0)
            parts = one.part.by_segment(one.chosen.restored(owed))
            for (number, chosen), (_, part) in zip(masks, parts, strict=True):
                residuals.put_grid(records[number], chosen, part)

    def _note(self, tallies: list[list[int]] | None) -> None:
        """For the report, and for the tables of the next step."""
        job, (index, values) = self._job, self._nbytes
        reason = "a table of fixed size, of which nothing is read"
        if tallies is not None:
            assert job.counts is not None
            for record, count in zip(job.compared.records, job.counts[1], strict=True):
                record.remember_union(count)
            reason = str(self._tally(tallies))
        dense = ring_nbytes(self._total.nbytes, job.transport.world_size)
        cost = Cost(rounds=1, wire=index, dense=dense)
        choice = Choice("sketch", reason, cost)
        remember(job, job.layout, choice)
        job.parts.append(Part("sketch", reason, job.compared.records, index + values, cost))

    def _tally(self, tallies: list[list[int]]) -> Tally:
        blocks, exactly, stuck = torch.tensor(tallies).view(-1, 3).sum(0).tolist()
        tally = Tally(blocks, exactly)
        if self._config.on_overflow == "defer":
            tally.deferred = stuck
        elif self._config.on_overflow == "estimate":
            tally.estimated = stuck
        return tally


def _clear_dead(values: Tensor, block: int, live: Tensor) -> None:
    """Zeros of either sign become +0.0 in the blocks of a segment that no rank has."""
    whole = values.numel() // block
    values[: whole * block].view(whole, block).masked_fill_(~live[:whole].unsqueeze(1), 0.0)
    if len(live) > whole:
        values[whole * block :].masked_fill_(~live[-1], 0.0)
