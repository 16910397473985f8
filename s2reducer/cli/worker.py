# SPDX-License-Identifier: MIT
"""A rank of the demo: ``python -m s2reducer.cli.worker``, started by ``processes.py``.

Standard input brings one line of JSON (rank, settings, where to meet, how long to wait) and then
stays open for as long as the parent lives. Standard output carries one JSON object a line back to
the parent.
"""

import json
import os
import shutil
import sys
import threading
import traceback
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from s2reducer.cli.training import PLAIN, REDUCED, Settings, train


def main() -> None:
    events = _take_standard_output()
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_exit_with_parent, args=[order["folder"]], daemon=True).start()

    def emit(event: str, **fields: Any) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")
        events.flush()

    try:
        _train_both(order, emit)
    except BaseException as error:
        emit("error", message=_describe(error))
        # Without a teardown: the connections that it closes would make the others complain first.
        os._exit(1)
    # Not sys.exit: gloo's threads may still be closing what the other rank has closed already.
    emit("done")
    os._exit(0)


def _train_both(order: dict[str, Any], emit: Any) -> None:
    settings, rank = Settings(**order["settings"]), int(order["rank"])
    # The ranks share the cores; with one thread each, their times do not depend on who wins them.
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=order["store"],
        rank=rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=order["timeout"]),
    )
    words, held_out = _load(settings.words), _load(settings.held_out)
    for run in (PLAIN, REDUCED):

        def after_step(step: int, loss: float, run: str = run) -> None:
            emit("step", run=run, step=step, loss=loss)

        result = train(run, settings, rank, words, held_out, after_step)
        emit("result", run=run, result=asdict(result))
    dist.barrier()


def _load(path: str) -> Tensor:
    return torch.from_file(path, size=os.path.getsize(path) // 4, dtype=torch.int32)


def _take_standard_output() -> Any:
    """The pipe to the parent, alone: what libraries print goes to standard error (gloo does)."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _exit_with_parent(folder: str) -> None:
    """Standard input ends when the parent ends, however it ended; then nobody needs this rank, nor
    the parent's temporary folder."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _describe(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text} ({os.path.basename(last.filename)}, line {last.lineno})"


if __name__ == "__main__":
    main()
