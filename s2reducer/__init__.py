# SPDX-License-Identifier: MIT
"""A DDP communication hook that sends only what is not zero.

>>> state = s2reducer.register(ddp_model)
>>> # train as before
>>> print(state.report())
"""

from pathlib import Path as _Path

import torch as _torch  # noqa: F401  (first: _C finds torch's libraries already loaded)

try:
    from s2reducer import _C
except ImportError as error:
    if list(_Path(__file__).parent.glob("_C.*.so")):
        raise  # it is there and cannot be loaded
    raise ImportError(
        f"{_Path(__file__).parent} is a source tree that has not been built, and it hides an "
        "installed s2reducer: run from another directory, or build it in place with `make build`"
    ) from error
from s2reducer.bitmap import Bitmap
from s2reducer.count_sketch import CountSketch
from s2reducer.errors import S2Error
from s2reducer.functional import all_reduce
from s2reducer.hook import register, s2_hook
from s2reducer.report import Report
from s2reducer.selection import RandomK, SharedTopK, Threshold, TopK
from s2reducer.sketch_config import SketchConfig
from s2reducer.state import S2State

__version__ = _C.version()

__all__ = [
    "Bitmap",
    "CountSketch",
    "RandomK",
    "Report",
    "S2Error",
    "S2State",
    "SharedTopK",
    "SketchConfig",
    "Threshold",
    "TopK",
    "__version__",
    "all_reduce",
    "register",
    "s2_hook",
]
