# SPDX-License-Identifier: MIT
"""A DDP communication hook that sends only what is not zero.

>>> state = s2reducer.register(ddp_model)
>>> # train as before
>>> print(state.report())
"""

import torch as _torch  # noqa: F401  (first: _C finds torch's libraries already loaded)

from s2reducer import _C
from s2reducer.errors import S2Error
from s2reducer.hook import S2State, register, s2_hook
from s2reducer.report import Report

__version__ = _C.version()

__all__ = ["Report", "S2Error", "S2State", "__version__", "register", "s2_hook"]
