# SPDX-License-Identifier: MIT
"""What s2reducer is compared with: exchanges of others, as plain DDP communication hooks.

They stand here to be measured, so they do all that makes them fast on the wire, and their local
work is done by the same C kernels as s2reducer's.  They issue their collectives from the hook's
body, one after the other, and count what they send.

===========  =====================================================================================
`dense`      AllReduce of everything, as without a hook
`bf16`       the same in bfloat16: half the bytes, and a sum that is rounded at every step
`coo`        every rank gets every rank's non-zero rows and their positions, and adds them up
`zen`        rows go to owners that a hash spreads over all ranks; sums come back with a bitmap
`none`       nothing is sent: what a step takes without communication
===========  =====================================================================================
"""

from .coo import exchange_coo
from .hooks import (
    RowsState,
    WireState,
    bf16_hook,
    dense_hook,
    none_hook,
    rows_hook,
)
from .wire import Wire
from .zen import ZenExchange

__all__ = [
    "RowsState",
    "Wire",
    "WireState",
    "ZenExchange",
    "bf16_hook",
    "dense_hook",
    "exchange_coo",
    "none_hook",
    "rows_hook",
]
