# SPDX-License-Identifier: MIT
"""OmniReduce's streaming aggregation of non-zero blocks (SIGCOMM 2021), aggregators colocated.

A bucket is cut into blocks of 256 floats, and every rank aggregates 1/P of them: block j is in
*lane* j mod L, and rank (lane mod P) aggregates it.  Within a lane only blocks that some rank has
are visited, by *look-ahead*:

1. Every rank tells the aggregators the first non-zero block that it has in each lane.
2. The aggregator asks all ranks for the lowest of those, in each lane.
3. A rank that has the block sends it, with the number of its next non-zero block in the lane.
4. The aggregator adds up what it got, in rank order, and sends the sum to all ranks, with the
   number of the block that it asks for next: the lowest one again.  From 3. until none is left.

Who has what follows from the numbers, so nothing else is sent: neither bitmaps nor sizes.

Bytes a rank sends in the mean, for k blocks of its own and K in the union, b bytes a block:
(P-1)/P (k + K) (b + 4), and 8 L (P-1)/P for the first numbers.

Left out.  In the paper lanes stream by themselves and in small packets (RDMA or DPDK, with
retransmission), so that one round's network time hides another's; here a round takes one block of
every lane at once (the paper's block fusion) and all lanes wait for each other, so L has to be
large where the network is fast.  The paper sends the first block of a lane even where it is zero,
has aggregators on hosts of their own as well, and a form for lists of keys and values; a COO
gradient goes by rows here, each a block.
"""

import torch
from torch import Tensor

from .rows import Rows, Source, mean_of, packed, packed_numel, unpacked
from .wire import Wire

BLOCK = 256
LANES = 512
NONE = 2**31 - 1  # the number of the block behind the last one


class OmniReduceExchange:
    """The exchange.

    Args:
        lanes: of one aggregator; a bucket of fewer blocks has fewer.
    """

    def __init__(self, lanes: int = LANES) -> None:
        self._lanes = lanes

    def __call__(self, source: Source, wire: Wire) -> list[Rows]:
        """The means of the blocks that any rank has, a part for each aggregator and round."""
        lanes = min(self._lanes, -(-source.nrows // wire.world_size)) * wire.world_size
        own, aggregator = _Ahead(source.numbers, lanes), _Aggregator(lanes, wire)
        asked = aggregator.begin(own)
        results = [Rows(source.numbers[:0], torch.empty(0))]  # a part even where nobody has a block
        while any(numbers.numel() for numbers in asked):
            messages = []
            for numbers in asked:
                mine = numbers[own.next[numbers % lanes] == numbers]
                blocks = torch.empty(mine.numel() * source.width)
                source.read(mine, blocks)
                messages.append(packed(own.pass_by(mine), blocks))
            sums = aggregator.aggregate(messages, asked, source.width)
            results += [
                Rows(numbers, part.values) for numbers, part in zip(asked, sums, strict=True)
            ]
            asked = [part.numbers[part.numbers != NONE].sort().values for part in sums]
        return results


class _Ahead:
    """A rank's view of its own blocks: the next one of each lane that was not sent yet."""

    def __init__(self, numbers: Tensor, lanes: int) -> None:
        self._numbers, self._lanes = numbers, lanes
        by_lane = (numbers % lanes).argsort(stable=True)
        lane, ordered = numbers[by_lane] % lanes, numbers[by_lane]
        self._following = torch.full_like(numbers, NONE)
        is_followed = lane[1:] == lane[:-1]
        self._following[by_lane[:-1][is_followed]] = ordered[1:][is_followed]
        begins = torch.ones_like(lane, dtype=torch.bool)
        begins[1:] = ~is_followed
        self.next = torch.full([lanes], NONE)
        self.next[lane[begins]] = ordered[begins]

    def pass_by(self, numbers: Tensor) -> Tensor:
        """Those blocks are sent; gives what follows each in its lane."""
        following = self._following[torch.searchsorted(self._numbers, numbers)]
        self.next[numbers % self._lanes] = following
        return following


class _Aggregator:
    """A rank's part as an aggregator: which block each rank has next in each of its lanes."""

    def __init__(self, lanes: int, wire: Wire) -> None:
        self._lanes, self._wire = lanes, wire
        self._next = torch.empty(wire.world_size, lanes // wire.world_size, dtype=torch.int64)

    def begin(self, own: _Ahead) -> list[Tensor]:
        """Gives the blocks that each aggregator asks for first: ascending."""
        rank, ranks = self._wire.rank, self._wire.world_size
        firsts = [own.next[aggregator::ranks].int() for aggregator in range(ranks)]
        kept, firsts[rank] = firsts[rank], firsts[rank][:0]
        sizes = [0 if peer == rank else kept.numel() for peer in range(ranks)]
        for peer, numbers in enumerate(self._wire.all_to_all(firsts, sizes)):
            self._next[peer] = kept if peer == rank else numbers
        lowest = self._wire.all_gather(self._next.amin(0).int()).long()
        return [numbers[numbers != NONE].sort().values for numbers in lowest]

    def aggregate(self, messages: list[Tensor], asked: list[Tensor], width: int) -> list[Rows]:
        """Gives, for each aggregator, what is asked for next in the same lanes, and the means.

        ``messages`` are for the aggregators: this rank's share of the blocks that were asked for.
        """
        wire, own = self._wire, asked[self._wire.rank]
        lanes = own % self._lanes // wire.world_size
        has = self._next[:, lanes] == own
        counts = has.sum(1).tolist()
        kept, messages[wire.rank] = messages[wire.rank], torch.empty(0)
        sizes = [packed_numel(count, width) for count in counts]
        sizes[wire.rank] = 0
        arrived = wire.all_to_all(messages, sizes)
        arrived[wire.rank] = kept
        parts = []
        for peer, message in enumerate(arrived):
            part = unpacked(message, counts[peer])
            self._next[peer, lanes[has[peer]]] = part.numbers
            parts.append(Rows(has[peer].nonzero().view(-1), part.values))
        means = mean_of(parts, own.numel(), width).values
        result = packed(self._next[:, lanes].amin(0), means)
        sizes = [packed_numel(numbers.numel(), width) for numbers in asked]
        return [
            unpacked(message, numbers.numel())
            for message, numbers in zip(wire.all_gather_uneven(result, sizes), asked, strict=True)
        ]
