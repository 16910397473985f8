# SPDX-License-Identifier: MIT
"""What ranks compare before they reduce: their settings once, and every bucket that is new.

Ranks that are set differently, or reduce different models, all raise the same.
"""

import torch

from s2reducer.config import Config, first_difference
from s2reducer.device_lists import missing
from s2reducer.exchange import Header, compare, identity
from s2reducer.segments import Layout
from s2reducer.transport import Transport


def compare_settings(transport: Transport, config: Config, has_scaler: bool) -> None:
    """Raises ValueError where the ranks' settings or builds differ."""
    device = transport.device
    is_whole = not (config.takes_kernels and missing(device, "sketch_peel"))
    records = transport.all_gather_records(config.record(is_whole, has_scaler), device)
    difference = first_difference(records)
    if difference is not None:
        raise ValueError(difference)


def compare_bucket(transport: Transport, layout: Layout, dtype: torch.dtype, step: int) -> None:
    """Raises Disagreement where the ranks' buckets differ.

    Sketches are as large as remembered unions say, so a state that only some ranks have loaded, or
    another one, has to be found out.
    """
    unions = str([record.unions for record in layout.records])
    compare(transport, Header(identity(layout, dtype, unions), step), transport.device)
    layout.memory.compared = True
