# SPDX-License-Identifier: MIT
"""What a DDP module does that its hook is not told: the ranks it reduces over, how join() divides.

``register`` announces the module.  Where a hook is registered by hand nothing does, and a state
without a group takes the default one; so if there are other groups, the module is looked for among
all objects, once.
"""

import gc
import weakref

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class DdpModule:
    """The module of a state, as far as it is known; it is not kept alive."""

    def __init__(self) -> None:
        self._reference: weakref.ref[DistributedDataParallel] | None = None

    def set(self, module: DistributedDataParallel) -> None:
        """Announces the module."""
        self._reference = weakref.ref(module)

    def check_group(self, state: object, group: dist.ProcessGroup) -> None:
        """Compares ``group``, over which ``state`` is going to reduce, with the module's.

        Raises:
            ValueError: they have different ranks.
        """
        if self._reference is None and group is dist.group.WORLD and _there_are_other_groups():
            module = _module_with(state)
            if module is not None:
                self.set(module)
        module = self._module()
        if module is None:
            return
        own, ours = (dist.get_process_group_ranks(g) for g in (module.process_group, group))
        if own != ours:
            raise ValueError(
                f"the DDP module reduces over the ranks {own}, but its S2State over {ours}: give "
                "the module's group to S2State(process_group=...), or call s2reducer.register"
            )

    def check_join(self) -> None:
        """Raises ValueError where means should be over the ranks that still have inputs."""
        module = self._module()
        if module is None or not module._join_config.enable:
            return
        if not getattr(module, "_divide_by_initial_world_size", True):
            raise ValueError(
                "join(divide_by_initial_world_size=False) is not supported, since a hook is not "
                "told how many ranks still have inputs: leave it at True, or use no hook"
            )

    def _module(self) -> DistributedDataParallel | None:
        return self._reference() if self._reference is not None else None


def _there_are_other_groups() -> bool:
    return len(dist.distributed_c10d._world.pg_map) > 1


def _module_with(state: object) -> DistributedDataParallel | None:
    """The module on which ``state`` was registered, whatever the hook."""
    # Not isinstance(), which asks the object, and objects may do anything then.
    everything = gc.get_objects()
    modules = (thing for thing in everything if issubclass(type(thing), DistributedDataParallel))
    for module in modules:
        assert isinstance(module, DistributedDataParallel)
        if any(registered is state for _, registered in module._comm_hooks):
            return module
    return None
