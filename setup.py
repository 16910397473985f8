# SPDX-License-Identifier: MIT
"""Builds the C core as C, s2reducer._C, which links it with torch's operators and pybind11, and
s2reducer._cuda, the operators on CUDA tensors, which S2_CUDA=1 demands and S2_CUDA=0 leaves out;
otherwise it is built where torch has CUDA and nvcc is there.

torch's own BuildExtension is not used: it would compile the C files as C++ under ninja, and pass
the C++ standard to the C compiler without it.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from glob import glob
from pathlib import Path

# The oldest torch that csrc/torch is written for (its TORCH_TARGET_VERSION says the same), and the
# oldest setuptools that reads the licence in pyproject.toml.
OLDEST_TORCH = (2, 11)
OLDEST_SETUPTOOLS = (77, 0)

C_STANDARD = "c99"
CXX_STANDARD = "c++20"  # torch's own, and one that the headers of the oldest torch compile under


def check_version(name: str, found: str, oldest: tuple[int, int], advice: str) -> None:
    if tuple(int(number) for number in re.findall(r"\d+", found)[:2]) < oldest:
        wanted = ".".join(map(str, oldest))
        sys.exit(f"s2reducer needs {name} {wanted} or newer to build, but found {found}: {advice}")


# Both checks come before anything of setuptools runs, so that their sentence is what the user sees.
ADVICE = "first `pip install torch`, then `pip install --no-build-isolation .`"
try:
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(
        "s2reducer is built with the torch it will run with, but torch cannot be imported here "
        f"({error}): {ADVICE}"
    )
check_version("torch", torch.__version__, OLDEST_TORCH, ADVICE)

try:
    import setuptools
    from setuptools.command.build_clib import build_clib
    from setuptools.command.build_ext import build_ext
except ImportError as error:
    sys.exit(f"s2reducer needs setuptools to build ({error}): first `pip install setuptools`")
check_version(
    "setuptools", setuptools.__version__, OLDEST_SETUPTOOLS, "first `pip install -U setuptools`"
)


class BuildCoreAnew(build_clib):
    """An archive keeps its members, so that one of a file which is gone would still be linked."""

    def build_libraries(self, libraries: list[tuple[str, dict[str, object]]]) -> None:
        for name, _ in libraries:
            Path(self.build_clib, f"lib{name}.a").unlink(missing_ok=True)
        super().build_libraries(libraries)


class BuildCoreFirst(build_ext):
    """build_ext alone links the libraries of setup(), but does not build them, nor knows nvcc."""

    def run(self) -> None:
        self.run_command("build_clib")
        if missing:
            # Of an earlier build; it would be loaded.
            for built in Path(self.get_ext_fullpath("s2reducer._C")).parent.glob("_cuda.*so"):
                built.unlink()
        super().run()

    def build_extension(self, extension: setuptools.Extension) -> None:
        if extension.name == "s2reducer._cuda":
            extension.extra_objects = self.cuda_objects()
        super().build_extension(extension)

    def cuda_objects(self) -> list[str]:
        from setuptools.modified import newer_group

        folder = Path(self.build_temp, "csrc", "cuda")
        objects = [str(folder / f"{Path(source).stem}.o") for source in cuda_sources]
        folder.mkdir(parents=True, exist_ok=True)
        made_by, told = folder / "made-by.txt", version_of_nvcc()
        if not made_by.exists() or made_by.read_text() != told:
            made_by.write_text(told)
        depends = [*cuda_depends, str(made_by)]
        if self.force or any(newer_group(depends, each, "newer") for each in objects):
            try:
                self.spawn([nvcc, *NVCC_FLAGS, "-odir", str(folder), "-c", *cuda_sources])
            except setuptools.errors.ExecError as error:
                sys.exit(f"{error}; with S2_CUDA=0 s2reducer is built without its CUDA kernels")
        return objects


def version() -> str:
    with open("csrc/s2.h", encoding="utf-8") as header:
        return re.search(r'#define S2_VERSION "(.+)"', header.read()).group(1)


def quoted(text: str) -> str:
    return f'"{text}"'


c_sources = sorted(glob("csrc/*.c") + glob("csrc/cpu/*.c"))
cxx_sources = ["csrc/python/module.cpp", *sorted(glob("csrc/torch/*.cpp"))]
headers = sorted(glob("csrc/**/*.h", recursive=True))

# A product that is fused into a sum is not rounded, so that machines would differ in last bits.
CORE_FLAGS = ["-O3", "-g0", "-Wall", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden"]

core = {
    "sources": c_sources,
    "obj_deps": {"": [*headers, "setup.py"]},
    "include_dirs": ["csrc"],
    "cflags": [f"-std={C_STANDARD}", *CORE_FLAGS],
}

cxx_flags = [f"-std={CXX_STANDARD}", "-O2", "-g0", "-Wall", "-fvisibility=hidden"]
# Messages from torch's headers name their file; not where this machine has it.
cxx_flags += [f"-fmacro-prefix-map={path}/=" for path in cpp_extension.include_paths()]

# No rpath: the package imports torch before _C, so the loader already holds torch's libraries,
# wherever they lie.
extension = setuptools.Extension(
    "s2reducer._C",
    sources=cxx_sources,
    depends=[*c_sources, *headers, "setup.py"],
    include_dirs=["csrc", *cpp_extension.include_paths()],
    library_dirs=cpp_extension.library_paths(),
    libraries=["torch_cpu"],
    define_macros=[
        ("S2_BUILD_C_STANDARD", quoted(C_STANDARD)),
        ("S2_BUILD_CXX_STANDARD", quoted(CXX_STANDARD)),
        ("S2_BUILD_TORCH", quoted(torch.__version__)),
        ("S2_BUILD_TORCH_OLDEST", quoted(".".join(map(str, OLDEST_TORCH)))),
    ],
    extra_compile_args=cxx_flags,
    language="c++",
)

# ------------------------------------------------------------------------------------------------
# CUDA
# ------------------------------------------------------------------------------------------------

# As in csrc/cuda/nvcc.mk, but that warnings stay warnings, and all processors take part.
NVCC_FLAGS = ["--options-file", "csrc/cuda/nvcc_flags.txt", "--threads", "0"]
NVCC_FLAGS += ["--options-file", "csrc/cuda/nvcc_archs.txt"]

nvcc = cpp_extension.CUDA_HOME and shutil.which("nvcc", path=f"{cpp_extension.CUDA_HOME}/bin")
cuda_sources = sorted(glob("csrc/cuda/*.cu"))
cuda_depends = [*sorted(glob("csrc/cuda/*")), *headers, "setup.py"]


@functools.cache
def version_of_nvcc() -> str:
    """All that it says of itself; empty where it does not run."""
    try:
        return subprocess.run(
            [nvcc, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def why_no_cuda() -> str | None:
    """What keeps _cuda from being built."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not nvcc:
        return "nvcc is neither below CUDA_HOME nor on the PATH"
    release = re.search(r"release (\d+)", version_of_nvcc())
    if release is None:
        return f"{nvcc} --version does not say of which release it is"
    if release[1] != torch.version.cuda.partition(".")[0]:
        return f"torch is built with CUDA {torch.version.cuda}, but {nvcc} is of CUDA {release[1]}"
    return None


wanted = os.environ.get("S2_CUDA", "auto")
if wanted not in ("auto", "0", "1"):
    sys.exit(f"S2_CUDA is {wanted!r}, but must be auto, 0 or 1")
missing = "it is not wanted" if wanted == "0" else why_no_cuda()
if wanted == "1" and missing:
    sys.exit(f"S2_CUDA=1 wants the CUDA kernels of s2reducer, but {missing}")

extensions = [extension]
if not missing:
    # No Python is in it, so that it serves any.  CUDA's runtime comes with libtorch_cuda.  Of the
    # core it has a copy of what checks sizes; the choice of kernels for the CPU, which comes along,
    # is asked by nobody.
    extensions += [
        setuptools.Extension(
            "s2reducer._cuda",
            sources=sorted(glob("csrc/torch/cuda/*.cpp")),
            depends=[*c_sources, *cuda_depends],
            include_dirs=["csrc", *cpp_extension.include_paths()],
            library_dirs=cpp_extension.library_paths(),
            libraries=["torch_cpu", "torch_cuda"],
            define_macros=[("USE_CUDA", None)],
            extra_compile_args=cxx_flags,
            language="c++",
            py_limited_api=True,
        )
    ]

setuptools.setup(
    version=version(),
    libraries=[("s2core", core)],
    ext_modules=extensions,
    cmdclass={"build_clib": BuildCoreAnew, "build_ext": BuildCoreFirst},
)
