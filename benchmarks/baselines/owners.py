# SPDX-License-Identifier: MIT
"""What exchanges with an owner for each row have in common: the way of rows to their owners."""

import torch
from torch import Tensor

from .rows import Rows, Source, packed, packed_numel, unpacked
from .wire import Wire


def push(source: Source, owners: Tensor, wire: Wire) -> list[Rows]:
    """Sends each row, with its number, to its owner; gives the ranks' rows that this one owns.

    ``owners`` are of the rows at ``source.numbers``.  A rank that sends k rows of b bytes evenly
    to all P sends (P-1)/P k (b + 4) bytes, and 8 (P-1) for how many they are.
    """
    mine = [source.numbers[owners == owner] for owner in range(wire.world_size)]
    counts = wire.exchange_counts([numbers.numel() for numbers in mine])

    outgoing = [Rows(numbers, _read(source, numbers)) for numbers in mine]
    kept, outgoing[wire.rank] = outgoing[wire.rank], Rows(torch.empty(0), torch.empty(0))
    sizes = [packed_numel(count, source.width) for count in counts]
    sizes[wire.rank] = 0
    arrived = wire.all_to_all([packed(rows.numbers, rows.values) for rows in outgoing], sizes)
    return [
        kept if peer == wire.rank else unpacked(message, count)
        for peer, (message, count) in enumerate(zip(arrived, counts, strict=True))
    ]


def _read(source: Source, numbers: Tensor) -> Tensor:
    rows = torch.empty(numbers.numel() * source.width)
    source.read(numbers, rows)
    return rows
