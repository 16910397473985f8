# SPDX-License-Identifier: MIT
"""Wrong use and failures: a sentence on every rank that can get one, and no hang."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, RankFailure, Ranks, own_ranks, recorded_collectives
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import s2reducer
from s2reducer import S2Error, S2State, config, ops, s2_hook


def make_ddp(**flags: Any) -> DistributedDataParallel:
    """Two buckets of float32 after the rebuild, and one of float64."""
    model = Given(torch.zeros(128, 64), torch.zeros(128, 32).double(), torch.zeros(300, 40))
    return DistributedDataParallel(model, **{"bucket_cap_mb": 0.03} | flags)


def backward(ddp: DistributedDataParallel) -> None:
    ddp.zero_grad()
    ddp({index: torch.ones_like(p) for index, p in enumerate(ddp.module.p)}).backward()


def error_of(function: Any, *arguments: Any, **options: Any) -> str:
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# ------------------------------------------------------------------------------------------------
# Settings that ranks do not share
# ------------------------------------------------------------------------------------------------


def differ_in(name: str, values: list[Any]) -> tuple[str, str]:
    ddp = make_ddp()
    own = values[dist.get_rank()]
    if name == "version":
        config._C = type("C", (), {"version": staticmethod(lambda: own)})
        state = s2reducer.register(ddp)
    else:
        state = s2reducer.register(ddp, **{name: own})
    try:
        first = error_of(backward, ddp)
    finally:
        config._C = s2reducer._C
    assert isinstance(state.last_error, ValueError)
    return first, error_of(s2_hook, state, Bucket(torch.zeros(128, 64), *ddp.module.p[:1]))


@pytest.mark.parametrize(
    ("name", "values", "listed"),
    [
        ("plan", ["union", "dense", "union"], "'union' on ranks 0, 2, 'dense' on rank 1"),
        ("block", [None, 8, 8], "None on rank 0, 8 on ranks 1, 2"),
        ("seed", [0, 0, 2**64 - 1], f"0 on ranks 0, 1, {2**64 - 1} on rank 2"),
        ("version", ["0.1.0", "0.1.1", "0.1.0"], "'0.1.0' on ranks 0, 2, '0.1.1' on rank 1"),
    ],
)
def test_ranks_that_are_set_differently_all_say_so(
    ranks: Ranks, name: str, values: list[Any], listed: str
) -> None:
    answers = ranks.run(3, differ_in, name, values)
    assert len({first for first, _ in answers}) == 1
    first, second = answers[0]
    assert first.startswith("S2Error: step 1, bucket of p.")
    assert first.endswith(f"all ranks must have the same {name}, but it is {listed}")
    assert "has failed before" in second and listed in second


# ------------------------------------------------------------------------------------------------
# Wrong use
# ------------------------------------------------------------------------------------------------


def misuse_register() -> dict[str, str]:
    ddp = make_ddp()
    errors = {
        "not DDP": error_of(s2reducer.register, nn.Linear(2, 2)),
        "group": error_of(s2reducer.register, ddp, process_group=dist.group.WORLD),
        "plan": error_of(s2reducer.register, ddp, plan="sparse"),
        "unknown": error_of(s2reducer.register, ddp, blocks=4),
    }
    s2reducer.register(ddp)  # which none of the failed calls has spoilt
    errors["twice"] = error_of(s2reducer.register, ddp)
    other = make_ddp()
    other.register_comm_hook(S2State(), s2_hook)
    errors["other hook"] = error_of(s2reducer.register, other)
    backward(ddp)
    return errors


def test_register_refuses_with_a_sentence(ranks: Ranks) -> None:
    errors = ranks.run(1, misuse_register)[0]
    assert errors["not DDP"] == (
        "TypeError: register() takes a DistributedDataParallel module, but got Linear"
    )
    assert "takes the process group from the module" in errors["group"]
    assert errors["plan"] == (
        "ValueError: plan must be one of 'auto', 'dense', 'gather', 'owner', 'sketch', 'union', "
        "but is 'sparse'"
    )
    assert "blocks" in errors["unknown"]
    assert "has a communication hook already" in errors["twice"]
    assert "has a communication hook already" in errors["other hook"]


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.ones(3))
        self.wave = nn.Parameter(torch.ones(40, 2, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.wave.abs().sum() + self.real.sum()) * x


def use_complex() -> tuple[str, str, int]:
    registered = error_of(s2reducer.register, DistributedDataParallel(Complex()))
    ddp = DistributedDataParallel(Complex())
    ddp.register_comm_hook(S2State(plan="union"), s2_hook)
    with recorded_collectives() as calls:
        failed = error_of(lambda: ddp(torch.ones(())).backward())
    return registered, failed, len(calls)


def test_complex_parameters_are_named(ranks: Ranks) -> None:
    for registered, failed, calls in ranks.run(2, use_complex):
        assert registered.startswith("TypeError: parameter wave is complex")
        assert "parameter wave is complex, but gradients must be float32" in failed
        assert calls <= 1  # of the settings, by a bucket of real numbers that came before


def use_one_state_twice(flags: dict[str, Any]) -> list[str]:
    state = S2State()
    models = [make_ddp(**flags), make_ddp(**flags)]
    for model in models:
        model.register_comm_hook(state, s2_hook)
    return [error_of(backward, model) for _ in range(3) for model in models]


# Not with static_graph: its first step does not tell the buckets of two modules apart.
@pytest.mark.parametrize("flags", [{}, {"bucket_cap_mb": 25}])
def test_a_state_serves_one_module_only(ranks: Ranks, flags: dict[str, Any]) -> None:
    for errors in ranks.run(2, use_one_state_twice, flags):
        first = next(error for error in errors if error != "no error")
        assert "buckets come from more than one DDP module" in first
        assert errors.index(first) == 1
        assert "has failed before" in errors[2]


def use_fake_backend() -> str:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    ddp = make_ddp(init_sync=False)
    s2reducer.register(ddp)
    try:
        return error_of(backward, ddp)
    finally:
        dist.destroy_process_group()


def test_a_backend_that_is_not_known(ranks: Ranks) -> None:
    error = ranks.run(1, use_fake_backend)[0]
    assert "works with the backends gloo and nccl, but this process group uses 'fake'" in error
    assert "tensors on cpu" in error


def test_there_must_be_a_process_group() -> None:
    assert not dist.is_initialized()
    bucket = Bucket(torch.zeros(4))
    with pytest.raises(S2Error, match="call init_process_group"):
        s2_hook(S2State(), bucket)


class Bucket:
    """What DDP hands to a hook, where a test makes it up."""

    def __init__(self, buffer: Tensor, *parameters: Tensor, index: int = 0, last: bool = True):
        self._buffer, self._index, self._last = buffer, index, last
        self._parameters = list(parameters) or [torch.zeros(4)]

    def buffer(self) -> Tensor:
        return self._buffer

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last


def test_a_single_gradient_instead_of_a_bucket() -> None:
    parameter = nn.Parameter(torch.ones(3))
    with pytest.raises(S2Error, match=r"set torch\._dynamo\.config\.optimize_ddp"):
        s2_hook(S2State(), (torch.ones(3), parameter))


def test_a_bucket_that_holds_more_than_its_parameters() -> None:
    buffer = torch.ones(5)
    with pytest.raises(S2Error, match="bucket of 4 has 5 elements, but its parameters have 4"):
        s2_hook(S2State(), Bucket(buffer, torch.zeros(4)))
    assert buffer.eq(1).all()


@pytest.mark.parametrize("group", ["union", -100, 3])
def test_a_process_group_that_is_none(group: Any) -> None:
    with pytest.raises(TypeError, match="process_group must be a group that this rank belongs to"):
        S2State(group)


# ------------------------------------------------------------------------------------------------
# Failures in the middle of training
# ------------------------------------------------------------------------------------------------


def fail_in(where: str, failing: list[int]) -> dict[str, str]:
    """Two good steps, then an operator fails on some ranks; what each rank's backward() raised."""
    ddp = make_ddp()
    state = s2reducer.register(ddp, plan="union")
    for _ in range(2):
        backward(ddp)
    original = getattr(ops, where)

    def broken(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no memory for this test")

    if dist.get_rank() in failing:
        setattr(ops, where, broken)
    try:
        raised = error_of(backward, ddp)
    finally:
        setattr(ops, where, original)
    refused = error_of(s2_hook, state, Bucket(torch.zeros(128, 64), *ddp.module.p[:1]))
    return {"raised": raised, "refused": refused, "last": type(state.last_error).__name__}


ROUNDS = {
    "bitmap_from_nonzero": "scan",
    "blocks_gather": "values",
    "blocks_scatter": "values",
}


@pytest.mark.parametrize("where", ROUNDS)
def test_a_failure_on_all_ranks(ranks: Ranks, where: str) -> None:
    for result in ranks.run(2, fail_in, where, [0, 1]):
        sentence = f"step 3, bucket of p.2, plan union, {ROUNDS[where]}: no memory for this test"
        assert sentence in result["raised"]
        # Of several callbacks any may be the first to fail.
        refused = r"S2Error: this S2State has failed before: step 3, bucket of p\.\d, plan union, "
        assert re.match(refused + f"{ROUNDS[where]}: no memory for this test", result["refused"])
        assert result["last"] == "MemoryError"


def test_a_failure_in_a_lane_reaches_its_peer_at_once(ranks: Ranks) -> None:
    failed, other = ranks.run(2, fail_in, "blocks_scatter", [0])
    assert "no memory for this test" in failed["raised"]
    # The rank that failed has closed its private groups, and gloo says so to the other.
    assert re.search(r"step 3, bucket of p\.\d, .*onnection", other["raised"])
    assert "has failed before" in failed["refused"] and "has failed before" in other["refused"]


def leave_after_a_failure(where: str, folder: str) -> None:
    """As a training script does: an exception that nobody catches ends the process."""
    if where == "killed":
        ddp = make_ddp()
        s2reducer.register(ddp, plan="union")
        for _ in range(2):
            backward(ddp)
        if dist.get_rank() == 0:
            os._exit(1)
        result = error_of(backward, ddp)
    else:
        result = fail_in(where, [0])["raised"]
    (Path(folder) / f"rank{dist.get_rank()}").write_text(result)
    os._exit(1)


@pytest.mark.parametrize("where", ["blocks_gather", pytest.param("killed", marks=pytest.mark.slow)])
def test_the_end_of_one_rank_ends_the_others(where: str, tmp_path: Path) -> None:
    with own_ranks(2) as pool, pytest.raises(RankFailure, match="rank 1: died with code 1"):
        pool.run(2, leave_after_a_failure, where, str(tmp_path))
    if where != "killed":
        assert "no memory for this test" in (tmp_path / "rank0").read_text()
    peer = (tmp_path / "rank1").read_text()
    assert re.search(
        r"step 3, bucket of p\.\d, plan union, .*(onnection|closed)", peer
    )  # gloo's words


def test_the_cause_is_kept() -> None:
    state = S2State()
    with pytest.raises(S2Error) as info:
        s2_hook(state, Bucket(torch.zeros(4)))
    assert info.value.__cause__ is state.last_error
    with pytest.raises(S2Error, match="has failed before"):
        s2_hook(state, Bucket(torch.zeros(4)))
