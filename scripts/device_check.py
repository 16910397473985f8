# SPDX-License-Identifier: MIT
"""The steps of device_check.sh, which says what they need; all that they tell goes into one file.

Each step has so many seconds.  One that fails is recorded, with the end of what it printed, and the
others go on.  Steps of a stage run side by side; the figures are measured alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS_IN_ALL = 235.0
TAIL = 3000  # characters of what a step printed that are kept


@dataclass(frozen=True)
class Step:
    name: str
    seconds: float
    command: list[str]


@dataclass(frozen=True)
class Done:
    name: str
    status: int  # 124 and 137: it took too long
    seconds: float
    output: str  # the end of it, where it failed


def stages(figures: Path) -> list[list[Step]]:
    python = sys.executable
    jobs = f"-j{os.cpu_count()}"
    make = ["make", "--silent", "--keep-going", jobs, "-C", "tests/cuda", "NVCC_ARCHS=-arch=native"]

    def sanitize(tool: str) -> list[str]:
        runner = f"RUNNER=compute-sanitizer --tool {tool} --error-exitcode 1"
        return [*make, "run", "DEVICE=1", runner]

    finds_device = "import sys, s2reducer.cuda; sys.exit(s2reducer.cuda.missing())"
    bench = ["benchmarks/bench_cuda.py", "--strict", "--json", str(figures)]
    return [
        [
            Step("build the package", 120, [python, "setup.py", "build_ext", "--inplace"]),
            Step("build the kernels' tests", 120, [*make, "device"]),
        ],
        [
            Step("find the device", 40, [python, "-c", finds_device]),
            Step("kernels", 40, [*make, "run", "DEVICE=1"]),
            Step("memcheck", 60, sanitize("memcheck")),
            Step("racecheck", 60, sanitize("racecheck")),
            Step("operators and hook", 60, [python, "-m", "pytest", "-m", "cuda"]),
        ],
        [Step("figures", 60, [python, *bench])],
    ]


def run(step: Step, end: float) -> Done:
    """It ends by ``end``, of ``time.monotonic()``."""
    begun = time.monotonic()
    limit = max(1.0, min(step.seconds, end - begun))
    process = subprocess.run(
        ["timeout", "--kill-after=1", str(limit), *step.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=os.environ | {"S2_CUDA": "1", "PYTHONPATH": str(ROOT)},
    )
    good = process.returncode == 0
    seconds = round(time.monotonic() - begun, 1)
    done = Done(step.name, process.returncode, seconds, "" if good else process.stdout[-TAIL:])
    print(f"{step.name}: {'passed' if good else f'FAILED with status {done.status}'}, {seconds} s")
    print(done.output, end="", flush=True)
    return done


def run_all(stages: Sequence[Sequence[Step]], seconds: float = SECONDS_IN_ALL) -> list[Done]:
    """What became of the steps, in their order."""
    end = time.monotonic() + seconds
    done: list[Done] = []
    for stage in stages:
        with ThreadPoolExecutor(len(stage)) as pool:
            done += pool.map(run, stage, [end] * len(stage))
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, help="its name, for the record")
    default = ROOT / "benchmarks" / "results" / "device.json"
    parser.add_argument("file", type=Path, nargs="?", default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        done = run_all(stages(figures))
        record: dict[str, Any] = {
            "device": arguments.device,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "passed": all(step.status == 0 for step in done),
            "steps": [asdict(step) for step in done],
            "bench": json.loads(figures.read_text()) if figures.exists() else None,
        }
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if record["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
