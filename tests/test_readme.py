# SPDX-License-Identifier: MIT
"""The README's Python blocks run as they stand, one after the other, on two ranks."""

import re
from pathlib import Path

import pytest
import torch
from ranks import Ranks
from torch.nn.parallel import DistributedDataParallel

import s2reducer

README = Path(__file__).parent.parent / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def run_blocks(blocks: list[str]) -> dict[str, object]:
    def model() -> DistributedDataParallel:
        return DistributedDataParallel(torch.nn.Embedding(4096, 16))

    names: dict[str, object] = {"ddp_model": model(), "another_ddp_model": model()}
    names["gradient"] = torch.ones(5000)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
        for name in ("ddp_model", "another_ddp_model"):
            ddp = names[name]
            assert isinstance(ddp, DistributedDataParallel)
            if ddp._comm_hooks:
                ddp(torch.tensor([3, 1, 4])).sum().backward()
    report = names["state"].report().as_dict()  # type: ignore[attr-defined]
    total = names["total"]
    assert isinstance(total, torch.Tensor)
    return {
        "steps": report["steps"],
        "plan": report["parameters"][0]["plan"],
        "total": float(total.sum()),
    }


def test_readme_blocks_run(ranks: Ranks) -> None:
    blocks = python_blocks()
    assert len(blocks) == 5
    for answer in ranks.run(2, run_blocks, blocks):
        assert answer == {"steps": 4, "plan": "gather", "total": 10_000.0}


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README.read_text()))
def test_readme_links_lead_somewhere(path: str) -> None:
    package = Path(s2reducer.__file__).parent.parent  # which need not lie beside the README
    assert (README.parent / path).exists() or (package / path).exists()
