# SPDX-License-Identifier: MIT
"""The package as others get it: built from a copy of the tree, installed into a new environment.

Nothing here touches the working tree.  The wheel's environment has nothing but what pip installs
there, torch included, from where pip is set to look.
"""

import email
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = [".ci", "benchmarks", "csrc", "docs", "examples", "s2reducer", "scripts", "tests"]
FILES = ["CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "pyproject.toml"]
FILES += ["setup.py", ".clang-format", ".gitignore"]
BUILT = shutil.ignore_patterns("__pycache__", "build*", "*.so", "*.o", "*.a", "*.pyc", ".*_cache")


def run(
    command: Sequence[object], cwd: Path, ok: bool = True, seconds: float = 600, **env: str
) -> str:
    """What the command printed. PYTHONPATH goes, so that the folder `cwd` alone decides."""
    inherited = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert (done.returncode == 0) == ok, f"{command} returned {done.returncode}:\n{done.stdout}"
    return done.stdout


def copy_tree(destination: Path) -> Path:
    for folder in FOLDERS:
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, destination / folder, ignore=BUILT)
    for name in FILES:
        shutil.copy2(ROOT / name, destination / name)
    return destination


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@dataclass
class Distributions:
    tree: Path  # that they were built in
    files: set[str]  # of the tree before that
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Both, built with a ninja on the PATH that fails if called."""
    tree = copy_tree(tmp_path_factory.mktemp("dist"))
    files = files_below(tree)
    ninja = tmp_path_factory.mktemp("bin") / "ninja"
    ninja.write_text("#!/bin/sh\nexit 1\n")
    ninja.chmod(0o755)
    path = f"{ninja.parent}{os.pathsep}{os.environ['PATH']}"
    run([sys.executable, "-m", "build", "--sdist", "--wheel", "--no-isolation"], tree, PATH=path)
    (sdist,) = (tree / "dist").glob("*.tar.gz")
    (wheel,) = (tree / "dist").glob("*.whl")
    return Distributions(tree, files, sdist, wheel)


@pytest.fixture(scope="module")
def path_without_ninja(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of links to every program on the PATH but ninja."""
    links = tmp_path_factory.mktemp("links")
    for folder in os.get_exec_path():
        programs = Path(folder).iterdir() if Path(folder).is_dir() else ()
        for program in programs:
            link = links / program.name
            if not program.name.startswith("ninja") and not link.is_symlink():
                link.symlink_to(program)
    assert shutil.which("ninja", path=str(links)) is None
    return str(links)


def new_environment(folder: Path, wheel: Path) -> Path:
    """The interpreter of a new environment that has torch, the wheel and what its extras bring.

    torch is of the version that runs now, unless `make TORCH=...` says otherwise.
    """
    version = importlib.metadata.version("torch").partition("+")[0]
    torch = shlex.split(os.environ.get("TORCH", f"torch=={version}"))
    venv.create(folder, with_pip=True, symlinks=True)
    python = folder / "bin" / "python"
    for what in (torch, [f"{wheel}[dev]"]):
        run([python, "-m", "pip", "--disable-pip-version-check", "install", *what], folder)
    return python


def borrowing_environment(folder: Path) -> Path:
    """The interpreter of a new environment, which also sees the packages of the present one.

    Folders that a .pth file names are searched, but their own .pth files are not followed: so an
    s2reducer that is installed in place stays out of sight.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    present = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "present.pth").write_text("\n".join(present) + "\n")
    return folder / "bin" / "python"


def pip_install(python: Path, cwd: Path, *arguments: object, **env: str) -> None:
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "--python", python, "install", *options, *arguments]
    run(command, cwd, **env)


def unpack(sdist: Path, folder: Path) -> Path:
    shutil.unpack_archive(sdist, folder)
    (tree,) = folder.iterdir()
    return tree


def where_installed(python: Path, cwd: Path) -> Path:
    code = "import s2reducer, s2reducer._C as c; print(c.__file__)"
    return Path(run([python, "-c", code], cwd).splitlines()[-1])


def test_sdist_holds_all_that_building_and_testing_needs(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert distributions.files - names == set()
    assert [name for name in names if name.endswith((".so", ".o", ".a", ".pyc"))] == []


def test_wheel_holds_the_package_alone(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
        (extension,) = (name for name in names if re.fullmatch(r"s2reducer/_C\..*\.so", name))
        code = archive.read(extension)

    package = {name for name in names if ".dist-info/" not in name}
    expected = {name for name in distributions.files if name.startswith("s2reducer/")}
    on_cuda = set() if torch.version.cuda is None else {"s2reducer/_cuda.abi3.so"}
    assert expected | {extension} <= package <= expected | {extension} | on_cuda
    assert "s2reducer/py.typed" in package

    header = (ROOT / "csrc" / "s2.h").read_text()
    assert f'#define S2_VERSION "{metadata["Version"]}"' in header
    assert "torch>=2.11" in metadata.get_all("Requires-Dist", [])
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "MIT"

    # No rpath: torch is found through the import before it, not where the build machine had it.
    assert sys.prefix.encode() not in code


def test_wheel_passes_the_fast_tests_in_a_new_environment(
    distributions: Distributions, tmp_path: Path
) -> None:
    elsewhere = unpack(distributions.sdist, tmp_path / "sdist")
    shutil.rmtree(elsewhere / "s2reducer")
    python = new_environment(tmp_path / "environment", distributions.wheel)
    # The interpreter sees no folder of this one, and takes the package from nowhere else.
    paths = run([python, "-c", "import sys; print(*sys.path, sep='\\n')"], elsewhere).splitlines()
    assert not any(path.endswith("site-packages") for path in paths if str(tmp_path) not in path)
    assert tmp_path / "environment" in where_installed(python, elsewhere).parents
    printed = run([python, "-m", "pytest", "-x", "-m", "not slow"], elsewhere, seconds=900)
    passed = re.search(r"(\d+) passed", printed)
    assert passed and int(passed[1]) > 400, printed


def test_build_in_place_builds_what_changed(distributions: Distributions) -> None:
    tree = distributions.tree  # holds what the wheel was made of
    assert list(tree.glob("s2reducer/_C*.so")) == []

    # A compiler that cannot run shows whether one was wanted.
    build = [sys.executable, "setup.py", "build_ext", "--inplace"]
    run(build, tree, CC="false", CXX="false")
    assert len(list(tree.glob("s2reducer/_C*.so"))) == 1

    (tree / "csrc" / "s2.h").touch()
    assert "csrc/bitmap.c" in run(build, tree, ok=False, CC="false", CXX="false")


def test_editable_install_from_the_sdist_without_ninja(
    distributions: Distributions, tmp_path: Path, path_without_ninja: str
) -> None:
    tree = unpack(distributions.sdist, tmp_path / "sdist")
    python = borrowing_environment(tmp_path / "environment")
    pip_install(python, tmp_path, "--editable", tree, PATH=path_without_ninja)
    assert where_installed(python, tmp_path).parent == tree / "s2reducer"


def test_setup_without_torch_says_what_to_do() -> None:
    # -S leaves out all packages, -I all paths from outside.
    printed = run([sys.executable, "-I", "-S", "setup.py", "--version"], ROOT, ok=False)
    assert printed.count("\n") == 1
    assert "No module named 'torch'" in printed
    assert "pip install torch" in printed
    assert "pip install --no-build-isolation ." in printed


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built for CUDA")
@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("1", "S2_CUDA=1 wants the CUDA kernels of s2reducer, but torch .* is built without CUDA"),
        ("yes", "S2_CUDA is 'yes', but must be auto, 0 or 1"),
    ],
)
def test_setup_says_why_cuda_cannot_be_built(wanted: str, sentence: str) -> None:
    command = [sys.executable, "setup.py", "--version"]
    printed = run(command, ROOT, ok=False, S2_CUDA=wanted)
    assert re.fullmatch(sentence, printed.removesuffix("\n"))


@pytest.mark.parametrize(
    ("torch", "setuptools", "sentence"),
    [
        ("2.10.1+cpu", "80.0", "needs torch 2.11 or newer to build, but found 2.10.1+cpu"),
        ("2.11.0", "65.5.0", "needs setuptools 77.0 or newer to build, but found 65.5.0"),
    ],
)
def test_setup_refuses_what_is_too_old(
    tmp_path: Path, torch: str, setuptools: str, sentence: str
) -> None:
    for module, version in {
        "torch": torch,
        "torch/utils": "",
        "torch/utils/cpp_extension": "",
        "setuptools": setuptools,
        "setuptools/command": "",
    }.items():
        (tmp_path / module).mkdir()
        (tmp_path / module / "__init__.py").write_text(f"__version__ = {version!r}\n")
    for name in ("build_clib", "build_ext"):
        (tmp_path / f"setuptools/command/{name}.py").write_text(f"{name} = object\n")

    command = [sys.executable, "-S", "setup.py", "--version"]
    printed = run(command, ROOT, ok=False, PYTHONPATH=str(tmp_path))
    assert printed.count("\n") == 1
    assert sentence in printed
    assert "pip install" in printed
