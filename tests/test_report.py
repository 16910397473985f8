# SPDX-License-Identifier: MIT
"""The report: as numbers, and as a table to be read."""

import json
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Given, Ranks
from torch.nn.parallel import DistributedDataParallel

import s2reducer
from s2reducer import Report, S2State, SketchConfig, TopK
from s2reducer.chooser import Change
from s2reducer.config import RECORD_NBYTES, Config
from s2reducer.report import PlanTotals, readable_bytes
from s2reducer.segments import ParameterRecord


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (12345, "12.3 kB"),
        (4.5e6, "4.5 MB"),
        (2e10, "20 GB"),
    ],
)
def test_readable_bytes(nbytes: float, text: str) -> None:
    assert readable_bytes(nbytes) == text


def make_report() -> Report:
    table = ParameterRecord(
        name="table.weight",
        shape=(1000, 64),
        dtype=torch.float32,
        block=64,
        nblocks=1000,
        steps=2,
        live=20,
        union_live=30,
        plan="union",
        reason="1.5 % of dense bytes",
    )
    bias = ParameterRecord(None, (7,), torch.bfloat16, 7, 1)
    plans = {"union": PlanTotals(2, 1500, 0.25, 0.125), "dense": PlanTotals(2, 500, 0.5, 0.25)}
    changes = [Change(1, "bucket of table.weight", "union", "why")]
    settings = Config(select=TopK(0.01), sketch=SketchConfig(rows=2)).changed()
    return Report(2, 4, 2000, 768_000, [table, bias], plans, changes, settings)


def test_as_dict_has_every_number_in_plain_types() -> None:
    report = make_report().as_dict()
    assert json.loads(json.dumps(report)) == report
    assert report == {
        "steps": 2,
        "world_size": 4,
        "seconds": 0.75,
        "bytes_sent": 2000,
        "bytes_dense": 768_000,
        "parameters": [
            {
                "name": "table.weight",
                "shape": [1000, 64],
                "dtype": "float32",
                "block": 64,
                "density": 0.01,
                "union_density": 0.015,
                "plan": "union",
                "reason": "1.5 % of dense bytes",
            },
            {
                "name": None,
                "shape": [7],
                "dtype": "bfloat16",
                "block": 7,
                "density": None,
                "union_density": None,
                "plan": "none",
                "reason": "not reduced yet",
            },
        ],
        "plans": {
            "union": {"buckets": 2, "bytes": 1500, "seconds": 0.25, "predicted_seconds": 0.125},
            "dense": {"buckets": 2, "bytes": 500, "seconds": 0.5, "predicted_seconds": 0.25},
        },
        "changes": [
            {"step": 1, "bucket": "bucket of table.weight", "plan": "union", "reason": "why"}
        ],
        "settings": {"select": str(TopK(0.01)), "sketch rows": 2},
    }


def test_the_table() -> None:
    assert str(make_report()).splitlines() == [
        "2 steps on 4 ranks: sent 2 kB a rank, where dense AllReduce sends 768 kB",
        f"  with select={TopK(0.01)}, sketch rows=2",
        "  union: 2 buckets, 1.5 kB, 125 ms each (62.5 ms predicted)",
        "  dense: 2 buckets, 500 B, 250 ms each (125 ms predicted)",
        "parameter     dtype     block  density  union  plan   why",
        "table.weight  float32   64     1 %      1.5 %  union  1.5 % of dense bytes",
        "7             bfloat16  7      -        -      none   not reduced yet",
    ]


def test_before_the_first_step() -> None:
    report = S2State().report()
    assert report.as_dict() == {
        "steps": 0,
        "world_size": 0,
        "seconds": 0,
        "bytes_sent": 0,
        "bytes_dense": 0,
        "parameters": [],
        "plans": {},
        "changes": [],
        "settings": {},
    }
    assert str(report).startswith("0 steps")


def train(plan: str) -> tuple[dict[str, Any], int]:
    """Three steps in which 2 + rank rows of 500 are live; a bias; a parameter that is frozen."""
    model = Given(torch.zeros(500, 40), torch.zeros(9), torch.zeros(3))
    model.p[2].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    state = s2reducer.register(ddp, plan=plan)
    early = state.report()
    for _ in range(3):
        gradient = torch.zeros(500, 40)
        gradient[: 2 + dist.get_rank()] = 1.0
        ddp.zero_grad()
        ddp({0: gradient, 1: torch.ones(9)}).backward()
    assert early.steps == 0  # a report does not change any more
    report = state.report()
    assert report.settings == ({} if plan == "auto" else {"plan": plan})
    assert len(str(report).splitlines()) == 4 + len(report.plans) + len(report.settings)
    return report.as_dict(), len(early.parameters)


@pytest.mark.parametrize("plan", ["auto", "union"])
def test_of_a_training(ranks: Ranks, plan: str) -> None:
    results = ranks.run(2, train, plan)
    for rank, (report, known) in enumerate(results):
        assert known == 2
        table, bias = report["parameters"]
        assert table["name"] == "p.0" and bias["name"] == "p.1"
        assert table["density"] == pytest.approx((2 + rank) / 500)
        assert table["union_density"] == pytest.approx(3 / 500)
        assert bias["density"] == bias["union_density"] == 1.0
        assert report["steps"] == 3 and report["world_size"] == 2
        used = "gather" if plan == "auto" else "union"
        compared = 2  # DDP has rebuilt its bucket
        assert set(report["plans"]) == {used}
        totals = report["plans"][used]
        assert totals["buckets"] == 3
        assert report["bytes_dense"] == 3 * (500 * 40 + 9) * 4
        # Two ranks' indices take as much by an all-gather as by an AllReduce.
        assert totals["bytes"] == 3 * (128 + 64 + 8 + (3 * 40 + 9) * 4)
        assert report["bytes_sent"] == RECORD_NBYTES + compared * 128 + totals["bytes"]
        assert totals["predicted_seconds"] > 0
        assert 0 < report["seconds"] == totals["seconds"]


def test_of_a_dense_training(ranks: Ranks) -> None:
    report, _ = ranks.run(2, train, "dense")[0]
    assert report["bytes_sent"] == report["bytes_dense"] + RECORD_NBYTES + 2 * 128
    assert {entry["reason"] for entry in report["parameters"]} == {"as set"}
    assert report["parameters"][0]["density"] is None


def test_of_one_rank(ranks: Ranks) -> None:
    report, _ = ranks.run(1, train, "auto")[0]
    assert report["bytes_sent"] == report["bytes_dense"] == 0
    assert report["parameters"][0]["plan"] == "none"
    assert report["parameters"][0]["reason"] == "one rank"
