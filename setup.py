# SPDX-License-Identifier: MIT
"""Builds the C core as C, and s2reducer._C, which links it with torch's operators and pybind11.

torch's own BuildExtension is not used: it would compile the C files as C++ under ninja, and pass
the C++ standard to the C compiler without it.
"""

import re
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
    """build_ext alone links the libraries of setup(), but does not build them."""

    def run(self) -> None:
        self.run_command("build_clib")
        super().run()


def version() -> str:
    with open("csrc/s2.h", encoding="utf-8") as header:
        return re.search(r'#define S2_VERSION "(.+)"', header.read()).group(1)


def quoted(text: str) -> str:
    return f'"{text}"'


c_sources = sorted(glob("csrc/*.c") + glob("csrc/cpu/*.c"))
cxx_sources = ["csrc/python/module.cpp", *sorted(glob("csrc/torch/*.cpp"))]
headers = sorted(glob("csrc/**/*.h", recursive=True))

core = {
    "sources": c_sources,
    "obj_deps": {"": [*headers, "setup.py"]},
    "include_dirs": ["csrc"],
    "cflags": [f"-std={C_STANDARD}", "-O3", "-g0", "-Wall", "-fPIC", "-fvisibility=hidden"],
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

setuptools.setup(
    version=version(),
    libraries=[("s2core", core)],
    ext_modules=[extension],
    cmdclass={"build_clib": BuildCoreAnew, "build_ext": BuildCoreFirst},
)
