# SPDX-License-Identifier: MIT
"""Parallax's parameter servers for sparse parameters (arXiv 1808.02621), one beside each worker.

A table is cut into ranges of rows, and the servers take turns in owning them.

1. Push: rows go to the servers of their ranges, with their numbers (int32).
2. The server adds them up in rank order.
3. Pull: every worker gets every server's rows, each server's as many as it has.

Parameters that are not sparse go by AllReduce, which is the other half of Parallax and what
``rows_hook`` does with them.

Bytes a rank sends in the mean, for k rows of its own and K in the union, b bytes a row:
(P-1)/P (k + K) (b + 4), and 16 (P-1) for the numbers of rows.

Left out.  Parallax keeps a sparse parameter on its server alone, which also updates it, and a
worker pulls the k rows that its next batch looks up, so it sends 2 (P-1)/P k b and the numbers.
Under DDP every rank has the whole table and updates it by itself, so it needs all K rows: that is
the variant here.  Neither has it a search for the number of ranges, which is a setting, nor sums
within one machine, for a rank is one.
"""

import torch

from .owners import push
from .rows import Rows, Source, mean_of, packed, packed_numel, unpacked
from .wire import Wire


class ParallaxExchange:
    """The exchange.

    Args:
        ranges: of a table, for each server.  More of them spread rows that are close to one
            another, as frequent words often are, more evenly.
    """

    def __init__(self, ranges: int = 1) -> None:
        self._ranges = ranges

    def __call__(self, source: Source, wire: Wire) -> list[Rows]:
        """The means of the rows that any rank has, a part for each server."""
        ranges = self._ranges * wire.world_size
        servers = source.numbers * ranges // source.nrows % wire.world_size
        own = mean_of(push(source, servers, wire), source.nrows, source.width)
        counts = wire.all_gather(torch.tensor([own.numbers.numel()])).view(-1).tolist()
        sizes = [packed_numel(count, source.width) for count in counts]
        messages = wire.all_gather_uneven(packed(own.numbers, own.values), sizes)
        return [unpacked(*pair) for pair in zip(messages, counts, strict=True)]
