# SPDX-License-Identifier: MIT
"""The all-gather of coordinates, as Horovod and gloo do it for sparse gradients.

1. All ranks learn how many rows each has.
2. An all-gather, filled up to the longest, brings each rank's positions (int32) and rows to all.
3. Every rank adds them up in rank order.

Bytes a rank sends: (P-1) (most rows of a rank) (4 + bytes of a row), and 8 (P-1) for the numbers.
"""

import torch

from .rows import Rows, Source, mean_of
from .wire import Wire


def exchange_coo(source: Source, wire: Wire) -> list[Rows]:
    """The means of the rows that any rank has, in one part."""
    own = source.numbers.numel()
    counts = wire.all_gather(torch.tensor([own])).view(-1).tolist()
    most = max(counts)
    message = torch.zeros(most * (1 + source.width))  # float32, and int32 of the same size
    message[:own].view(torch.int32).copy_(source.numbers)
    source.read(source.numbers, message[most : most + own * source.width])
    gathered = wire.all_gather(message)
    parts = [
        Rows(piece[:count].view(torch.int32).long(), piece[most : most + count * source.width])
        for piece, count in zip(gathered, counts, strict=True)
    ]
    return [mean_of(parts, source.nrows, source.width)]
