# SPDX-License-Identifier: MIT
"""A model under DDP twice, without a hook and with s2_hook, and models to put there."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from ranks import Given, assert_same_on_all_ranks, exact_gradient
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from s2reducer import S2State, s2_hook

STEPS = 6
LEAST_BUCKETS = 4
CAP_MB = 0.03  # buckets of 31 KiB: above the size below which "auto" sends everything densely

FLAGS: dict[str, dict[str, Any]] = {
    "default": {},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "both": {"gradient_as_bucket_view": True, "static_graph": True},
}


class Pair:
    """Both models, and every bucket that the hook was given; ``wrap`` goes around the hook."""

    def __init__(
        self,
        make: Callable[[], nn.Module],
        settings: Any = None,
        wrap: Callable[[Any], Any] = lambda hook: hook,
        **flags: Any,
    ) -> None:
        flags = {"bucket_cap_mb": CAP_MB} | flags
        self.plain = DistributedDataParallel(make(), **flags)
        self.hooked = DistributedDataParallel(make(), **flags)
        self.state = S2State(flags.get("process_group"), **(settings or {}))
        # The hook must not refer to this object: a cycle through DDP's C++ is never collected.
        buckets: list[tuple[int, tuple[int, ...], int, torch.dtype]] = []
        self.buckets = buckets

        def hook(state: S2State, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            parameters = tuple(map(id, bucket.parameters()))
            buffer = bucket.buffer()
            buckets.append((bucket.index(), parameters, buffer.numel(), buffer.dtype))
            return s2_hook(state, bucket)

        self.hooked.register_comm_hook(self.state, wrap(hook))

    def step(self, *inputs: Any, zero_grad: bool = True, sync: bool = True) -> None:
        """A backward of both models."""
        for model in (self.plain, self.hooked):
            if zero_grad:
                model.zero_grad()
            with contextlib.nullcontext() if sync else model.no_sync():
                loss = model(*inputs)
                loss.sum().backward()

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """Of every parameter that has one: without the hook, and with it."""
        both = zip(self.plain.parameters(), self.hooked.parameters(), strict=True)
        grads = [(plain.grad, hooked.grad) for plain, hooked in both]
        for number, (plain, hooked) in enumerate(grads):
            assert (plain is None) == (hooked is None), f"parameter {number}"
        return [(plain, hooked) for plain, hooked in grads if plain is not None]

    def assert_equal(self) -> None:
        for number, (plain, hooked) in enumerate(self.gradients()):
            assert hooked.dtype == plain.dtype and hooked.stride() == plain.stride()
            assert torch.equal(plain, hooked), f"gradient {number}"
        assert_same_on_all_ranks([hooked for _, hooked in self.gradients()])

    def last_buckets(self) -> list[tuple[int, tuple[int, ...], int, torch.dtype]]:
        """Those of the last step."""
        return self.buckets[-self.buckets[-1][0] - 1 :]

    def assert_trained(self) -> None:
        """That all this was about as many steps and buckets as it should be."""
        assert self.state.step == STEPS
        last = self.last_buckets()
        assert [index for index, *_ in last] == list(range(len(last)))
        assert len(last) >= LEAST_BUCKETS


# ------------------------------------------------------------------------------------------------
# Eight parameters each, in four buckets or more after the rebuild
# ------------------------------------------------------------------------------------------------


def make_tables() -> Given:
    """Tables of 16 KiB, two of them alike in size."""
    torch.manual_seed(5)
    rows = (64, 64, 32, 128, 16, 256, 64, 8)
    return Given(*(torch.randn(count, 4096 // count) for count in rows))


def make_dtypes() -> Given:
    """A bucket has one dtype, so there are at least as many buckets."""
    torch.manual_seed(6)
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
    return Given(*(torch.randn(96, 128).to(dtype) for dtype in dtypes for _ in range(2)))


def make_layouts() -> Given:
    """In memory orders that are not that of the dimensions, but for the last one."""
    torch.manual_seed(7)
    channels_last, channels_last_3d = torch.channels_last, torch.channels_last_3d
    return Given(
        torch.randn(32, 24, 3, 3).contiguous(memory_format=channels_last),
        torch.randn(64, 96, 1, 1).contiguous(memory_format=channels_last),
        torch.randn(16, 12, 3, 3, 3).contiguous(memory_format=channels_last_3d),
        torch.randn(40, 90).t(),
        torch.randn(100, 50).t(),
        torch.randn(6, 20, 30).permute(2, 0, 1),
        torch.randn(48, 200)[:, ::2],  # with gaps, for which DDP makes a gradient without
        torch.randn(70, 70),
    )


MODELS = {"tables": make_tables, "dtypes": make_dtypes, "layouts": make_layouts}


def given(model: Given, step: int, density: float = 0.3, only: Any = None) -> dict[int, Tensor]:
    """Gradients in an order that is not that of the parameters; different on every rank."""
    order = [index for index in (3, 0, 6, 1, 7, 2, 5, 4) if only is None or index in only]
    rank = dist.get_rank()
    return {i: exact_gradient(model.p[i], density, step, rank, i) for i in order}
