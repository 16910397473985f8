# SPDX-License-Identifier: MIT
"""The CUDA kernels on the CPU, beside the C core; and that what is wrong with a kernel is found.

tests/cuda has the emulator and the tests, in C; cuda_mutants.py what is done to the kernels.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cuda_mutants import MUTANTS, RACES, SANITIZE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
CUDA = ROOT / "tests" / "cuda"


def make(*arguments: str) -> None:
    command = ["make", "--silent", "-C", str(CUDA), "CC=gcc", "CXX=g++", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def run(program: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Prints the seed, which `S2_TEST_SEED=...` repeats."""
    environment = os.environ | env
    done = subprocess.run([program], env=environment, capture_output=True, text=True, timeout=600)
    print(done.stdout + done.stderr)
    return done


@pytest.fixture(scope="module")
def built() -> None:
    for kind in (SANITIZE, RACES):
        make("all", kind, f"-j{os.cpu_count()}")


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("kind", ["build-sanitize", "build-races"])
@pytest.mark.parametrize(
    "program",
    [
        *("bitmap", "blocks", "sums", "values", "lists", "plan", "coo", "coo_sort"),
        *("sketch", "select", "owed"),
    ],
)
def test_kernels_give_the_bits_of_the_core(program: str, kind: str) -> None:
    done = run(CUDA / kind / f"test_cuda_{program}")
    assert done.returncode == 0
    assert done.stdout.endswith(f"test_cuda_{program}: passed\n")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("unit", ["values", "rows", "sums", "coo", "sketch", "peel", "owed"])
def test_nvcc_keeps_to_ieee_754(unit: str, tmp_path: Path) -> None:
    """What the emulator cannot show: no fused, approximate or flushing instruction is made."""
    options = ["--options-file", ROOT / "csrc" / "cuda" / "nvcc_flags.txt", "-arch=compute_90"]
    ptx = tmp_path / "kernels.ptx"
    source = ROOT / "csrc" / "cuda" / f"{unit}.cu"
    subprocess.run(["nvcc", *options, "-ptx", "-o", ptx, source], check=True)
    used = set(re.findall(r"^\s+([a-z0-9]+(?:\.\w+)*\.f(?:32|64))\b", ptx.read_text(), re.M))
    rounded = {name for name in used if name.split(".")[0] in ("add", "sub", "mul", "div", "sqrt")}
    assert "add.rn.f32" in rounded or "div.rn.f32" in rounded
    assert all(name.split(".")[1] == "rn" for name in rounded), rounded
    assert not any(re.search(r"fma|mad|ftz|approx|full|rcp|rsqrt", name) for name in used), used


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_programs_for_a_device_say_where_there_is_none() -> None:
    subprocess.run(["make", "--silent", "cuda"], cwd=ROOT, check=True, timeout=900)
    done = run(CUDA / "build-device" / "test_cuda_coo_sort")
    assert done.returncode == 77
    assert re.fullmatch(r"This test needs a CUDA device, [^\n]+\.\n", done.stderr)


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str, tmp_path: Path) -> None:
    mutant = MUTANTS[name]
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    file = tmp_path / "csrc" / "cuda" / mutant.file
    source = file.read_text()
    assert source.count(mutant.old) == 1, f"the mutant of {mutant.file} no longer applies"
    file.write_text(source.replace(mutant.old, mutant.new))

    output = tmp_path / "mutant"
    make(
        "mutant",
        mutant.kind,
        f"PROGRAM=test_cuda_{mutant.program}",
        f"UNIT={mutant.unit or Path(mutant.file).stem}",
        f"MUTATED={file.parent}",
        f"OUTPUT={output}",
    )
    done = run(output, S2_TEST_SEED="1")  # so that it is caught always or never
    assert done.returncode != 0
    assert re.search(mutant.says, done.stderr)
