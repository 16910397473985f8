# SPDX-License-Identifier: MIT
"""COO gradients of which only the device knows how many different rows they have.

As in ``device_lists.py`` a list has room for all rows that may come, and a count of those that did,
so that nothing waits for the device; what lies behind these means nothing.  On CUDA devices the
operators that make the lists are, where ``cuda.py`` loads them:

    coo_sort_counted(Tensor indices, int nrows, Tensor(a!) order, Tensor(b!) rows,
        Tensor(c!) starts, Tensor(d!) count, Tensor(e!) valid) -> ()
    coo_sum_counted(Tensor values, Tensor order, Tensor starts, Tensor count, Tensor(a!) sums)
        -> ()

They are ``coo_sort``, which does not raise but sets ``valid``, int64 [1], to 0 where a row is not
of the table, and ``coo_sum`` of as many rows as there are.  Where they are not there, torch sums
rows that come more than once (``coalesce``), for which the host waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2reducer import cuda
from s2reducer.device import to_device
from s2reducer.device_lists import choose
from s2reducer.rows import Table, coalesced, number_rows, rows_of

_ops: Any = torch.ops.s2reducer


@dataclass(frozen=True)
class Rows:
    """A COO gradient without repeats.

    Attributes:
        numbers: int64 [n], of the rows, which ascend.
        values: [n, width].
        count: int64 [1], how many of them there are, or -1 where one is not of the table.
    """

    numbers: Tensor
    values: Tensor
    count: Tensor


def _takes_counts(device: torch.device) -> bool:
    return cuda.has_for(device, _ops, "coo_sort_counted")


def coalesced_on_device(tensor: Tensor, table: Table) -> Rows:
    """``rows.coalesced``, for which nothing waits if there are kernels for the device."""
    device = tensor.device
    if _takes_counts(device):
        return _counted(*rows_of(tensor, table), table.nrows)
    if device.type == "cpu":
        numbers, values = coalesced(*rows_of(tensor, table), table.nrows)
    else:
        tensor = tensor.coalesce()
        numbers, values = rows_of(tensor, table)
    return Rows(numbers, values, to_device(torch.tensor([len(numbers)]), device))


def _counted(indices: Tensor, values: Tensor, nrows: int) -> Rows:
    n = len(indices)
    order, numbers, starts, count, valid = (indices.new_empty(size) for size in (n, n, n + 1, 1, 1))
    _ops.coo_sort_counted.default(indices, nrows, order, numbers, starts, count, valid)
    # Of invalid rows there are none, so that no sum is made of what order and starts then hold.
    count.mul_(valid)
    sums = torch.empty_like(values)
    _ops.coo_sum_counted.default(values, order, starts, count, sums)
    return Rows(numbers, sums, count.add_(valid - 1))


def numbered_on_device(tables: Sequence[Table], rows: Sequence[Rows]) -> tuple[Tensor, Tensor, int]:
    """One list for all tables, whose rows are numbered one behind the other.

    Returns:
        The list, int64 [n], with room for all rows; how many there are, int64 [1], or -1; and how
        many the tables have together.
    """
    numbers, nrows = number_rows(tables, [part.numbers for part in rows])
    if len(rows) == 1:
        return numbers, rows[0].count, nrows
    counts = torch.cat([part.count for part in rows])
    listed = [torch.arange(len(part.numbers), device=counts.device) < part.count for part in rows]
    chosen = choose(torch.cat(listed))
    everything = chosen.count.masked_fill(counts.min() < 0, -1)
    return numbers[chosen.order], everything, nrows
