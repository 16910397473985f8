# SPDX-License-Identifier: MIT
"""One rank fails outside of the lanes: it says where, and its peers are told at once.

No time is measured: peers that were not told would wait for longer than the watchdog does.
"""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, ops, s2_hook
from s2reducer.segments import LayoutCache
from s2reducer.sender import Sender


def make_ddp(tables: int) -> DistributedDataParallel:
    """A bucket for each table after the rebuild."""
    model = Given(*(torch.zeros(256, 64) for _ in range(tables)))
    return DistributedDataParallel(model, bucket_cap_mb=0.05)


def backward(ddp: DistributedDataParallel) -> None:
    ddp.zero_grad()
    rank = float(dist.get_rank() + 1)
    ddp({index: torch.full_like(p, rank) for index, p in enumerate(ddp.module.p)}).backward()


class Bucket:
    """What DDP hands to a hook, made up: one parameter, in bucket ``index`` of ``count``."""

    def __init__(self, parameter: Tensor, buffer: Tensor, index: int = 0, count: int = 1) -> None:
        self._parameters, self._buffer = [parameter], buffer
        self._index, self._last = index, index == count - 1

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


def error_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# ------------------------------------------------------------------------------------------------
# In the hook
# ------------------------------------------------------------------------------------------------


def fail_in_the_hook(plan: str, failing: int, bucket: int) -> tuple[list[str], int]:
    """Memory ends in the hook's own body, on one rank, in one bucket of several."""
    ddp = make_ddp(3)
    state = s2reducer.register(ddp, plan=plan)
    backward(ddp)
    backward(ddp)
    original, calls = ops.bitmap_from_nonzero, []

    def broken(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == bucket + 1:
            raise MemoryError("no memory for this test")
        original(*arguments, **options)

    if dist.get_rank() == failing:
        ops.bitmap_from_nonzero = broken
    try:
        raised = error_of(backward, ddp)
    finally:
        ops.bitmap_from_nonzero = original
    refused = error_of(s2_hook, state, Bucket(ddp.module.p[0], torch.ones(256 * 64)))
    return [raised, refused], len(calls)


@pytest.mark.parametrize("plan", ["owner", "union"])
@pytest.mark.parametrize("bucket", [0, 1, 2])
def test_peers_of_a_rank_that_fails_in_the_hook_fail_at_once(
    ranks: Ranks, plan: str, bucket: int
) -> None:
    (failed, calls), (told, _) = ranks.run(2, fail_in_the_hook, plan, 0, bucket)
    assert calls == bucket + 1
    assert re.search(rf"step 3, bucket of p\.\d, plan {plan}, scan: no memory", failed[0])
    where = rf"step 3, bucket of p\.\d, plan {plan}, (index|values): "
    assert re.search(rf"{where}.*onnection", told[0], re.DOTALL), told[0]
    assert "has failed before: step 3" in failed[1] and "has failed before: step 3" in told[1]


# ------------------------------------------------------------------------------------------------
# Where tables that waited for one another are sent
# ------------------------------------------------------------------------------------------------


class Tables(nn.Module):
    """COO gradients, which travel together from the third step on."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(300, 8, sparse=True) for _ in range(2))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.stack([table(rows).sum() for table in self.tables]).sum()


def break_joining(patch: pytest.MonkeyPatch) -> None:
    def broken(self: LayoutCache, layouts: Any) -> Any:
        raise MemoryError("no memory for this test")

    patch.setattr(LayoutCache, "group", broken)


def fail_to_join(failing: int, in_callback: bool) -> dict[str, str]:
    """In the hook of the last table, or else as none is the last, at the backward pass's end."""
    ddp = DistributedDataParallel(Tables())
    state = s2reducer.register(ddp, plan="owner")
    for _ in range(2):
        ddp(torch.arange(20)).backward()
    with pytest.MonkeyPatch.context() as patch:
        if in_callback:
            send = Sender.send
            patch.setattr(Sender, "send", lambda self, job, place, _: send(self, job, place, True))
            for layout in state._layouts._layouts.values():
                layout.memory.followed = True
        if dist.get_rank() == failing:
            break_joining(patch)
        raised = error_of(lambda: ddp(torch.arange(20)).backward())
    refused = error_of(lambda: ddp(torch.arange(20)).backward())
    return {"raised": raised, "refused": refused, "last": repr(state.last_error)}


def fail_to_join_in_the_next_step(failing: int) -> dict[str, str]:
    """A table still waits, as after a backward pass that another error has ended."""
    state = S2State(plan="owner")
    tables = [torch.zeros(300, 8), torch.zeros(300, 8)]
    first, second = (
        Bucket(table, torch.ones(300, 8).to_sparse(1), index, len(tables))
        for index, table in enumerate(tables)
    )
    for _ in range(2):
        futures = [s2_hook(state, first), s2_hook(state, second)]
        torch.futures.wait_all(futures)
    waiting = s2_hook(state, first)
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == failing:
            break_joining(patch)
        begun = error_of(lambda: s2_hook(state, first))
    raised = error_of(waiting.wait)
    refused = error_of(s2_hook, state, first)
    assert dist.get_rank() != failing or begun == refused
    last = repr(state.last_error)
    return {"raised": raised, "refused": refused, "last": last}


def assert_one_failed(failed: dict[str, str], told: dict[str, str], one: str, all_: str) -> None:
    """``one`` and ``all_`` are patterns of the first table that waited, and of all of them."""
    joining = rf"step 3, bucket of {one}, plan owner, joining with other tables: no memory"
    assert re.search(joining, failed["raised"])
    assert re.match(f"S2Error: this S2State has failed before: {joining}", failed["refused"])
    assert failed["last"] == "MemoryError('no memory for this test')"
    index = rf"step 3, bucket of {all_}, plan owner, index: .*onnection"
    assert re.search(index, told["raised"], re.DOTALL), told
    assert re.match(f"S2Error: this S2State has failed before: {index}", told["refused"]), told


@pytest.mark.parametrize("in_callback", [False, True])
def test_tables_that_cannot_be_sent_together(ranks: Ranks, in_callback: bool) -> None:
    one = r"tables\.\d\.weight"
    assert_one_failed(*ranks.run(2, fail_to_join, 0, in_callback), one, f"{one}, {one}")


def test_a_table_that_cannot_be_sent_in_the_next_step(ranks: Ranks) -> None:
    assert_one_failed(*ranks.run(2, fail_to_join_in_the_next_step, 0), "300x8", "300x8")


# ------------------------------------------------------------------------------------------------
# All ranks alike
# ------------------------------------------------------------------------------------------------


def use_another_state_after_a_disagreement() -> tuple[str, float]:
    """What all ranks raise alike spoils nothing but the state that raises it."""
    first, second = make_ddp(1), make_ddp(1)
    other = s2reducer.register(second, plan="owner")
    backward(second)
    state = s2reducer.register(first, plan="owner", check_every=1)
    backward(first)
    ((place, sums),) = state._replicas._sums.items()
    state._replicas._sums[place] = [(name, value + dist.get_rank()) for name, value in sums]
    raised = error_of(backward, first)
    backward(second)
    assert other.last_error is None
    return raised, float(second.module.p[0].grad.unique())


def test_a_disagreement_leaves_other_modules_alone(ranks: Ranks) -> None:
    for raised, mean in ranks.run(2, use_another_state_after_a_disagreement):
        assert "the ranks' replicas have parted" in raised
        assert mean == 1.5
