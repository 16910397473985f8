# SPDX-License-Identifier: MIT
"""Whether a CUDA graph may capture a call of the hook: one of which the host reads nothing.

What is captured is repeated as it is, collectives and their sizes included, whatever the values
then are.
"""

from collections.abc import Sequence

from torch import Tensor
from torch.amp import GradScaler

from s2reducer.config import Config
from s2reducer.device_lists import waits_for_lengths
from s2reducer.segments import Layout


def refusal(
    config: Config, scaler: GradScaler | None, buffer: Tensor, layout: Layout
) -> str | None:
    """Why not, in a sentence that says what can be captured; None if it may."""
    found = _settings(config, scaler)
    if buffer.is_sparse:
        found = f"the {layout.describe()} is a COO gradient"
    elif config.plan == "sketch" and waits_for_lengths(buffer.device):
        found = "the operators at hand want to know how long lists are"
    if found is not None:
        return (
            'a CUDA graph can capture the hook with plan="dense", or with plan="sketch" and '
            'SketchConfig(fixed=True, on_overflow="defer") or "estimate", for dense gradients '
            f"without select=, wire=, check_every= and an enabled scaler=, but {found}"
        )
    if not layout.memory.compared:
        return (
            "a CUDA graph can capture the hook once DDP's buckets have passed it without one, but "
            f"the {layout.describe()} comes for the first time: warm up for some steps more"
        )
    return None


def _settings(config: Config, scaler: GradScaler | None) -> str | None:
    """The first of the settings for which the host has to read something."""
    wants: Sequence[tuple[bool, str]] = (
        (config.plan not in ("dense", "sketch"), f"plan is {config.plan!r}"),
        (config.select is not None, f"select is {config.select}"),
        (config.wire is not None, f"wire is {config.wire!r}"),
        (config.check_every > 0, f"check_every is {config.check_every}"),
        (scaler is not None and scaler.is_enabled(), "the scaler is enabled"),
        (
            config.plan == "sketch" and not config.sketch.reads_nothing,
            f"fixed is {config.sketch.fixed} and on_overflow is {config.sketch.on_overflow!r}",
        ),
    )
    return next((text for applies, text in wants if applies), None)
