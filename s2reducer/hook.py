# SPDX-License-Identifier: MIT
"""The hook, and how to register it.

No postponed annotations here: DDP looks at the hook's annotations as objects.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from s2reducer.ddp_module import complex_sentence, reduced_parameters
from s2reducer.state import S2State


def s2_hook(
    state: S2State,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # not among what torch exports by name
) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: gives every rank the mean of the ranks' gradients.

    1. Find the bucket's live blocks, and tell all ranks which they are.
    2. Sum those blocks by the plan that is set, or under ``"auto"`` by the one that should take the
       least time, while the backward pass goes on (over gloo on other threads).

    Args:
        state: this rank's ``S2State``.
        bucket: the gradients that DDP hands over: float32, float64, float16 or bfloat16 may travel
            sparsely, other dtypes travel as they would without a hook.

    Returns:
        A future of the bucket's buffer, which has been written in place, or of a coalesced COO
        tensor where the bucket holds one.

    Raises:
        S2Error: from ``backward()``, with what failed, for which bucket, in which round and step.
            Where it comes after the hook has returned, as from another thread, ``backward()``
            raises a plain RuntimeError that quotes its text: DDP keeps no more of it.

    Example::

        >>> ddp_model.register_comm_hook(s2reducer.S2State(), s2reducer.s2_hook)
    """
    return state._reduce(bucket)


def register(ddp: DistributedDataParallel, **settings: Any) -> S2State:
    """Registers ``s2_hook`` with a new state on a DDP module, and returns the state.

    The process group and the parameters' names come from the module.

    Args:
        ddp: a module that has no communication hook yet.
        **settings: those of ``S2State``, but for ``process_group``.

    Raises:
        TypeError: ``ddp`` is no DistributedDataParallel, a parameter is complex, or a setting is
            unknown or of the wrong kind.
        ValueError: the module has a hook already, or a setting is not among the accepted values.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"register() takes a DistributedDataParallel module, but got {type(ddp).__name__}"
        )
    if "process_group" in settings:
        raise TypeError("register() takes the process group from the module: leave it out")
    if ddp._comm_hooks:
        raise ValueError("this module has a communication hook already, and can have only one")
    for name, parameter in reduced_parameters(ddp):
        if parameter.is_complex():
            raise TypeError(complex_sentence(name))
    state = S2State(ddp.process_group, **settings)
    state._belong_to(ddp)
    ddp.register_comm_hook(state, s2_hook)
    return state
