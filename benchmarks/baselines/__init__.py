# SPDX-License-Identifier: MIT
"""What s2reducer is compared with: exchanges of others, as plain DDP communication hooks.

They stand here to be measured, so they do all that makes them fast on the wire, and their local
work is done by the same C kernels as s2reducer's.  They issue their collectives from the hook's
body, one after the other, and count what they send.  Gradients are float32, on the CPU.

``install(ddp, name)`` makes one of them, or a plan of s2reducer, the hook of a module.

===============  =================================================================================
`none`           nothing is sent: what a step takes without communication
`dense`          AllReduce of everything, as without a hook
`bf16`, `fp16`   the same in half types: half the bytes, and a sum that is rounded at every step
`coo`            every rank gets every rank's non-zero rows and their positions, and adds them up
`sparcml`        sums of rows are swapped by recursive doubling, and become dense where that pays
`sparcml-split`  rows go to the owners of ranges of rows, and sums to everybody
`parallax`       the same with parameter servers, which never turn to dense
`omnireduce`     non-zero blocks of 256 elements go to aggregators, which ask for them one by one
`zen`            rows go to owners that a hash spreads over all ranks; sums come back with a bitmap
`powersgd`       lossy: matrices become the product of two of low rank, with error feedback
`dgc`            lossy: the largest 0.1 % of the elements, with momentum for what waits
===============  =================================================================================
"""

from .coo import exchange_coo
from .dgc import DgcState, dgc_hook
from .hooks import (
    RowsState,
    WireState,
    bf16_hook,
    dense_hook,
    fp16_hook,
    none_hook,
    rows_hook,
)
from .methods import Method, install, make_method
from .omnireduce import OmniReduceExchange
from .parallax import ParallaxExchange
from .powersgd import PowerSgdState, powersgd_hook
from .sparcml import exchange_recursive, exchange_split
from .wire import Wire
from .zen import ZenExchange

__all__ = [
    "DgcState",
    "Method",
    "OmniReduceExchange",
    "ParallaxExchange",
    "PowerSgdState",
    "RowsState",
    "Wire",
    "WireState",
    "ZenExchange",
    "bf16_hook",
    "dense_hook",
    "dgc_hook",
    "exchange_coo",
    "exchange_recursive",
    "exchange_split",
    "fp16_hook",
    "install",
    "make_method",
    "none_hook",
    "powersgd_hook",
    "rows_hook",
]
