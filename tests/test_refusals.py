# SPDX-License-Identifier: MIT
"""What cannot be kept is refused, on all ranks alike, before anything has been sent."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from test_failures_hook import Bucket, error_of
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import S2State, TopK, bucket_order, config, engine, s2_hook, transport

VALUES = {0: torch.ones(400, 64)}


def ddp_of() -> DistributedDataParallel:
    return DistributedDataParallel(Given(torch.zeros(400, 64)))


# ------------------------------------------------------------------------------------------------
# More ranks than plans are made for
# ------------------------------------------------------------------------------------------------


def test_the_most_ranks_are_those_of_the_core() -> None:
    header = Path(__file__).resolve().parents[1] / "csrc" / "s2.h"
    assert f"#define S2_MAX_RANKS {config.MAX_RANKS}\n" in header.read_text()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"plan": "owner"}, "plan='owner'"),
        ({"plan": "gather"}, "plan='gather'"),
        ({"deterministic": True}, "deterministic=True"),
        ({"wire": "bf16", "plan": "union"}, "wire"),
        ({"select": TopK(0.1)}, "select"),
        ({"plan": "auto"}, None),
        ({"plan": "union"}, None),
        ({"plan": "union", "select": TopK(0.1)}, None),
        ({"plan": "dense"}, None),
        ({"plan": "sketch"}, None),
    ],
)
def test_some_settings_are_for_so_many_ranks(settings: dict[str, Any], named: str | None) -> None:
    chosen = config.Config(**settings)
    chosen.check_world_size(config.MAX_RANKS)
    if named is None:
        chosen.check_world_size(config.MAX_RANKS + 1)
        return
    sentence = f"^{re.escape(named)} is for up to 256 ranks, but the process group has 257: "
    with pytest.raises(ValueError, match=sentence):
        chosen.check_world_size(config.MAX_RANKS + 1)


def with_too_many(settings: dict[str, Any]) -> tuple[str, str]:
    """The error, and the reason of the plan."""
    ddp = ddp_of()
    state = s2reducer.register(ddp, **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "MAX_RANKS", 1)
        error = error_of(lambda: ddp(VALUES).backward())
    return error, state.report().parameters[0].reason


def test_with_more_ranks_auto_goes_dense_and_others_are_refused(ranks: Ranks) -> None:
    dense = ("no error", "on more than 1 ranks, where only dense is supported")
    assert ranks.run(2, with_too_many, {}) == [dense] * 2
    for error, _ in ranks.run(2, with_too_many, {"plan": "owner"}):
        assert "plan='owner' is for up to 1 ranks, but the process group has 2" in error


# ------------------------------------------------------------------------------------------------
# Other refusals
# ------------------------------------------------------------------------------------------------


def deterministic_without_a_way() -> tuple[str, str]:
    """As on CUDA tensors over gloo: of the hook, and of ``all_reduce``."""
    ddp = ddp_of()
    s2reducer.register(ddp, deterministic=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "_WAYS", {})
        hook = error_of(lambda: ddp(VALUES).backward())
        alone = error_of(lambda: s2reducer.all_reduce(torch.ones(9000), deterministic=True))
    return hook, alone


def test_deterministic_is_refused_where_gradients_go_dense(ranks: Ranks) -> None:
    for hook, alone in ranks.run(2, deterministic_without_a_way):
        assert "deterministic=True cannot be kept by an AllReduce: on cpu over gloo" in hook
        assert alone.startswith("ValueError: deterministic=True is for a tensor on the CPU of a")


def two_devices() -> str:
    state = S2State(plan="owner")
    parameter = torch.zeros(400, 64)
    s2_hook(state, Bucket(parameter, torch.ones(400 * 64), 0, 2)).wait()
    elsewhere = torch.zeros(400, 64, device="meta")
    buffer = torch.ones(400 * 64, device="meta")
    return error_of(s2_hook, state, Bucket(elsewhere, buffer, 1, 2))


def test_a_module_on_two_devices(ranks: Ranks) -> None:
    for error in ranks.run(2, two_devices):
        assert "the bucket of 400x64 is on meta, but those before were on cpu: all grad" in error


def one_scaler(settings: dict[str, Any]) -> str:
    scaler = torch.amp.GradScaler("cpu") if dist.get_rank() == 1 else None
    ddp = ddp_of()
    s2reducer.register(ddp, scaler=scaler, **settings)
    return error_of(lambda: ddp(VALUES).backward())


def test_a_scaler_that_only_one_rank_has_given(ranks: Ranks) -> None:
    """What is owed would be in other units; where nothing is owed it does not matter."""
    for error in ranks.run(2, one_scaler, {"select": TopK(0.1)}):
        assert "must have the same scaler, but it is 'none' on rank 0, 'given' on rank 1" in error
    assert ranks.run(2, one_scaler, {}) == ["no error"] * 2


def join(with_scaler: bool, values: list[torch.Tensor]) -> str:
    """Rank 0 has a step for each of these, rank 1 has two."""
    scaler = torch.amp.GradScaler("cpu") if with_scaler else None
    ddp = ddp_of()
    s2reducer.register(ddp, plan="owner", wire="bf16", scaler=scaler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)

    def train() -> None:
        with ddp.join():
            for gradient in values if dist.get_rank() == 0 else values[:2]:
                optimizer.zero_grad()
                ddp({0: gradient}).backward()
                optimizer.step()

    return error_of(train)


def test_a_scaler_is_refused_under_join_where_something_is_owed(ranks: Ranks) -> None:
    for error in ranks.run(2, join, True, [VALUES[0]] * 3):
        assert "join() with S2State(scaler=...) goes with settings that owe nothing" in error


def test_a_rank_that_has_joined_does_not_miss_a_scaler(ranks: Ranks) -> None:
    """It changes no parameters, so that those which are finite show no step that was skipped."""
    values = [VALUES[0], VALUES[0], torch.full((400, 64), torch.nan), VALUES[0], VALUES[0]]
    assert ranks.run(2, join, False, values) == ["no error"] * 2


def backends_of_new_groups() -> list[str | None]:
    """The private groups are of gloo whatever the default group is of."""
    asked = []
    new_group = dist.new_group

    def recording(*arguments: Any, **options: Any) -> Any:
        asked.append(options.get("backend"))
        return new_group(*arguments, **options)

    group = new_group(list(range(dist.get_world_size())))
    if dist.get_rank() == 0:
        new_group([0], use_local_synchronization=True)  # that the other rank has not
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.dist, "new_group", recording)
        s2reducer.all_reduce(torch.ones(9000), group=group, plan="owner")
    return asked


def test_private_groups_are_of_gloo(ranks: Ranks) -> None:
    assert ranks.run(2, backends_of_new_groups) == [["gloo"] * 2, ["gloo"] * 3]


def fail_before_the_bucket_is_known() -> tuple[str, str]:
    """An error of one rank alone, before it has sent anything of the step."""
    ddp = ddp_of()
    state = s2reducer.register(ddp, plan="owner")
    for _ in range(2):
        ddp(VALUES).backward()

    def broken(*arguments: Any) -> bool:
        raise MemoryError("no memory for this test")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 0:
            patch.setattr(bucket_order.BucketOrder, "begins_step", broken)
        return error_of(lambda: ddp(VALUES).backward()), repr(state.last_error)


def test_peers_of_a_rank_that_fails_there_are_told_at_once(ranks: Ranks) -> None:
    (failed, _), (told, _) = ranks.run(2, fail_before_the_bucket_is_known)
    assert "step 2: no memory for this test" in failed
    assert re.search(r"step 3, bucket of p\.0, plan owner, index: .*onnection", told, re.DOTALL)
