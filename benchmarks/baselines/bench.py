# SPDX-License-Identifier: MIT
"""The frame of a bench on several ranks: one script, which its ranks run again with an order.

The order is a file of JSON with the settings, and rank 0 writes its records beside it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import netlab
import torch
import torch.distributed as dist
from paired import machine, write_json

Settings = dict[str, Any]
Record = dict[str, Any]

RESULTS = Path(__file__).resolve().parent.parent / "results"


def measure_on(script: str, ranks: int, rate: str, settings: Settings) -> list[Record]:
    """What rank 0 of the script recorded, on a network of its own."""
    with tempfile.TemporaryDirectory() as folder, netlab.ends_on_signals():
        order = Path(folder) / "order.json"
        order.write_text(json.dumps(settings))
        with netlab.open_network(ranks, rate) as network:
            # torch warns that a host has no name.
            quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
            netlab.run(network, script, ["--order", str(order)], environment=quiet)
        return json.loads((order.parent / "records.json").read_text())


def measure_here(order: Path, measure: Callable[[Settings], list[Record]]) -> NoReturn:
    """A rank's part: measures, and ends the process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    records = measure(json.loads(order.read_text()))
    if dist.get_rank() == 0:
        (order.parent / "records.json").write_text(json.dumps(records))
    dist.barrier()
    os._exit(0)  # gloo's threads may still be closing what another rank has closed already


def say(text: str) -> None:
    """Progress, from rank 0 alone."""
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {text}", file=sys.stderr, flush=True)


def write_results(
    out: Path, title: str, records: Sequence[Record], table_of: Callable[[Sequence[Record]], str]
) -> None:
    """The records as JSON and as a table in Markdown, which is printed as well."""
    command = f"python benchmarks/{' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}"
    where = f"{machine()}, which all ranks share; torch {torch.__version__}"
    if any(record["kind"] == "loopback" for record in records):
        where += "; LOOPBACK: no link has a rate, and bytes are of all ranks together"
    result = {"command": command, "machine": where, "records": list(records)}
    write_json(out.with_suffix(".json"), result)
    text = (
        f"# {title}\n\n`{command}` on {where}.\nMedians, with quartiles in brackets; what the "
        f"columns mean is said by `--help`.\n\n{table_of(records)}\n"
    )
    out.with_suffix(".md").write_text(text)
    print(text)
