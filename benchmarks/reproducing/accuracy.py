# SPDX-License-Identifier: MIT
"""One training: a script of ``examples`` on real ranks, with a method in the place of its hook."""

import contextlib
import importlib
import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import corpora
import torch
import torch.distributed as dist
from baselines.methods import Method
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .settings import IMAGES, METHODS, MODELS, PAIRS, TEXT, make

Record = dict[str, Any]

_DATA = {
    IMAGES: corpora.FASHION_MNIST,
    TEXT: corpora.DICTIONARIES / "gcide.dict.dz",
    PAIRS: corpora.DICTIONARIES / "freedict-deu-eng.dict.dz",
}


def missing_data(models: Iterable[str], text: Sequence[str]) -> str:
    """Packages of Debian's that these models need and that are not there."""
    wanted = dict.fromkeys(MODELS[model].data for model in models)
    if text:
        wanted.pop(TEXT, None)
    return " ".join(package for package in wanted if not _DATA[package].exists())


def order_of(model: str, flags: Sequence[str], steps: int, method: str, seed: int) -> Record:
    """All that a training's result depends on."""
    way = METHODS[method]
    return {
        "model": model,
        "script": MODELS[model].script,
        "flags": list(flags),
        "steps": steps,
        "method": method,
        "settings": f"{way.base} {dict(way.settings)}",
        "seed": seed,
    }


def tables_of(module: nn.Module) -> list[Tensor]:
    return [part.weight for part in module.modules() if isinstance(part, nn.Embedding)]


def train(order: Record, log: str) -> Record:
    """A rank's part.  What the script prints goes to the file ``log``.

    The record has the order, what the script reports (None for numbers that are not finite), and
    the bytes of a step, the mean over ranks.
    """
    installed: list[tuple[Method, nn.Module]] = []

    def install(ddp: DistributedDataParallel) -> Any:
        method = make(order["method"], tables_of(ddp.module), ddp.process_group)
        ddp.register_comm_hook(method.state, method.hook)
        installed.append((method, ddp.module))
        return method.state

    main = importlib.import_module(order["script"]).main
    began = time.perf_counter()
    flags = [*order["flags"], f"--steps={order['steps']}", f"--seed={order['seed']}"]
    with (
        open(log if dist.get_rank() == 0 else os.devnull, "w") as file,
        contextlib.redirect_stdout(file),
    ):
        result = main(flags, install)
    ((method, module),) = installed
    sent = torch.tensor(method.nbytes, dtype=torch.float64)
    dist.all_reduce(sent)
    return {
        **order,
        "ranks": dist.get_world_size(),
        "metric": MODELS[order["model"]].metric,
        "value": finite(result["value"]),
        "losses": [finite(loss) for loss in result["losses"]],
        "bytes": float(sent) / dist.get_world_size() / order["steps"],
        "numel": sum(parameter.numel() for parameter in module.parameters()),
        "numel_of_tables": sum(table.numel() for table in tables_of(module)),
        "seconds": time.perf_counter() - began,
        "seconds_per_step": finite(result["seconds_per_step"]),
    }


def finite(number: float) -> float | None:
    """JSON has no other numbers."""
    return number if math.isfinite(number) else None
