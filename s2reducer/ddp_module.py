# SPDX-License-Identifier: MIT
"""What a hook is not told of its DDP module: names, the ranks it reduces over, how join() divides.

``register`` announces the module.  Where a hook is registered by hand nothing does, so the module
is looked for among all objects, once.
"""

import gc
import weakref

import torch.distributed as dist
from torch.nn import Embedding, EmbeddingBag, Parameter
from torch.nn.parallel import DistributedDataParallel


class DdpModule:
    """The module of a state, as far as it is known; it is not kept alive."""

    def __init__(self) -> None:
        self._reference: weakref.ref[DistributedDataParallel] | None = None

    def set(self, module: DistributedDataParallel) -> None:
        """Announces the module."""
        self._reference = weakref.ref(module)

    def check_group(self, group: dist.ProcessGroup) -> None:
        """Compares ``group``, over which its state is going to reduce, with the module's.

        Raises:
            ValueError: they have different ranks.
        """
        module = self._module()
        if module is None:
            return
        own, ours = (dist.get_process_group_ranks(g) for g in (module.process_group, group))
        if own != ours:
            raise ValueError(
                f"the DDP module reduces over the ranks {own}, but its S2State over {ours}: give "
                "the module's group to S2State(process_group=...), or call s2reducer.register"
            )

    @property
    def is_known(self) -> bool:
        """Whether it has been announced."""
        return self._reference is not None

    @property
    def joins(self) -> bool:
        """Whether it is under join(), where ranks that have no inputs left reduce zeros."""
        module = self._module()
        return module is not None and module._join_config.enable

    def check_join(self, owes_at_scale: bool) -> None:
        """Raises ValueError where means should be over the ranks that still have inputs, or where
        such a rank may owe at the scale of a GradScaler, which it no longer follows."""
        if not self.joins:
            return
        if owes_at_scale:
            raise ValueError(
                "join() with S2State(scaler=...) goes with settings that owe nothing, since a rank "
                "without inputs does not update its GradScaler: use error_feedback=False, or no "
                "scaler"
            )
        if not getattr(self._module(), "_divide_by_initial_world_size", True):
            raise ValueError(
                "join(divide_by_initial_world_size=False) is not supported, since a hook is not "
                "told how many ranks still have inputs: leave it at True, or use no hook"
            )

    def _module(self) -> DistributedDataParallel | None:
        return self._reference() if self._reference is not None else None


def reduced_parameters(module: DistributedDataParallel) -> list[tuple[str, Parameter]]:
    """Those that the module reduces, by name, in its own order."""
    return [
        (name, parameter)
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in module.parameters_to_ignore
    ]


def tables_of(module: DistributedDataParallel) -> set[int]:
    """id() of the parameters whose gradients are COO: DDP lets no others have them."""
    kinds = (Embedding, EmbeddingBag)
    sparse = (part for part in module.modules() if isinstance(part, kinds) and part.sparse)
    return {id(part.weight) for part in sparse}


def module_with(state: object) -> DistributedDataParallel | None:
    """The module on which ``state`` was registered, whatever the hook."""
    # Not isinstance(), which asks the object, and objects may do anything then.
    everything = gc.get_objects()
    modules = (thing for thing in everything if issubclass(type(thing), DistributedDataParallel))
    for module in modules:
        assert isinstance(module, DistributedDataParallel)
        if any(registered is state for _, registered in module._comm_hooks):
            return module
    return None


def complex_sentence(label: str) -> str:
    """Why the parameter ``label`` is refused."""
    return (
        f"parameter {label} is complex, but gradients must be float32, float64, float16 or "
        "bfloat16: keep its real and imaginary parts as a float parameter (torch.view_as_real)"
    )
