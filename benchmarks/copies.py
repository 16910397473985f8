# SPDX-License-Identifier: MIT
"""The C library's memcpy, of contiguous bytes and of rows one by one, as yardsticks.

The loop over rows is C, for a call from Python would take longer than a row.  numpy has such loops,
but does more than copy: ``take`` checks each index, and ``table[rows] = packed`` goes through its
general iterator.
"""

import ctypes
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from torch import Tensor

_SOURCE = Path(__file__).with_name("copy_rows.c")
_libc = ctypes.CDLL(None)
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def memcpy(to: Tensor, source: Tensor) -> None:
    _libc.memcpy(to.data_ptr(), source.data_ptr(), source.nbytes)


class RowCopies:
    """``gather`` and ``scatter`` of rows of a contiguous [n, m] table, one memcpy a row.

    Compiles a few lines of C with ``$CC`` (default ``cc``), and ends the program with a sentence
    where that fails.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="s2reducer-bench-") as folder:
            path = Path(folder, "copy_rows.so")
            # The size of a row is not known to the compiler, so that every memcpy is libc's.
            flags = ["-std=c99", "-O2", "-fPIC", "-shared", "-o", str(path), str(_SOURCE)]
            command = [*shlex.split(os.environ.get("CC", "cc")), *flags]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = getattr(error, "stderr", None) or error
                sys.exit(f"the benchmark needs a C compiler, in $CC or as cc: {reason}")
            library = ctypes.CDLL(str(path))
        self._gather, self._scatter = library.gather_rows, library.scatter_rows
        for function in (self._gather, self._scatter):
            function.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_size_t]
            function.restype = None

    def gather(self, packed: Tensor, table: Tensor, rows: Tensor) -> None:
        self._gather(*_arguments(packed, table, rows))

    def scatter(self, packed: Tensor, table: Tensor, rows: Tensor) -> None:
        self._scatter(*_arguments(packed, table, rows))


def _arguments(packed: Tensor, table: Tensor, rows: Tensor) -> tuple[int, ...]:
    addresses = (tensor.data_ptr() for tensor in (packed, table, rows))
    return (*addresses, rows.numel(), table[0].nbytes)
