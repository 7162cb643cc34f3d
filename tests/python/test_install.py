# SPDX-License-Identifier: Apache-2.0
"""Where the library is looked for, what is said when it is not there, and that pip can install."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import baton

PACKAGE = Path(baton.__file__).resolve().parent
LIBRARY = Path(baton.library_path())
PROGRAM = "import baton, os; print(baton.library_path())"


def run(folder: Path, library: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "BATON_LIBRARY"}
    environment["PYTHONPATH"] = str(folder)
    if library is not None:
        environment["BATON_LIBRARY"] = library
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package alone, away from the tree."""
    shutil.copytree(
        PACKAGE,
        tmp_path / "site" / "baton",
        ignore=shutil.ignore_patterns("__pycache__", "*.so*"),
    )
    return tmp_path / "site"


def test_named_library_is_used_and_no_other(copied: Path, tmp_path: Path) -> None:
    assert run(copied, str(LIBRARY)).stdout.strip() == str(LIBRARY)
    missing = run(copied, str(tmp_path / "libbaton.so"))
    assert missing.returncode == 1
    assert "ImportError: baton: the library libbaton.so was not found" in missing.stderr
    assert "`make` in the source tree builds it" in missing.stderr
    assert str(tmp_path / "libbaton.so") in missing.stderr


def test_another_library_is_not_taken_for_ours(copied: Path, tmp_path: Path) -> None:
    other = run(copied, "libc.so.6")
    assert other.returncode == 1
    assert "not a libbaton of this version" in other.stderr


def test_library_beside_the_modules_is_found(copied: Path) -> None:
    carried = copied / "baton" / "libbaton.so"
    shutil.copy(LIBRARY.resolve(), carried)
    assert run(copied, None).stdout.strip() == str(carried)


@pytest.mark.parametrize("preset", ["release", "debug", "asan"])
def test_library_of_the_tree_is_found(copied: Path, preset: str) -> None:
    tree = copied.parent / "tree"
    (tree / "include").mkdir(parents=True)
    (tree / "include" / "baton.h").touch()
    (tree / "build" / preset).mkdir(parents=True)
    copied.rename(tree / "python")
    built = tree / "build" / preset / "libbaton.so"
    shutil.copy(LIBRARY.resolve(), built)
    assert run(tree / "python", None).stdout.strip() == str(built)


def test_import_needs_no_numpy(copied: Path) -> None:
    (copied / "numpy.py").write_text("raise ImportError('not here')\n")
    environment = {
        **os.environ,
        "PYTHONPATH": str(copied),
        "BATON_LIBRARY": str(LIBRARY),
    }
    program = """if True:
        import baton
        pool = baton.Pool(4096)
        manager = baton.KVManager(
            baton.KVArgs(kv_data_ptrs=[pool.address], kv_data_lens=[4096], kv_item_lens=[64]))
        receiver = baton.KVReceiver(manager, "2.2.2.2:1", 1)
        receiver.init([1, 2])
        pollset = baton.PollSet(1)
        pollset.add(0, receiver)
        assert receiver.wait(20) == baton.KVPoll.Success
        print(list(pollset.poll()))
        """
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("[4]\n", 0), ended.stderr


def test_pip_installs_the_package(tmp_path: Path) -> None:
    for needed in ("pip", "setuptools", "wheel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    project = tmp_path / "python"  # a copy: building leaves files beside the source
    shutil.copytree(PACKAGE.parent, project, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
    target = tmp_path / "target"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    command += ["--no-build-isolation", "--target", str(target), str(project)]
    installed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert installed.returncode == 0, installed.stderr
    assert (target / "baton" / "py.typed").is_file()
    assert run(target, str(LIBRARY)).stdout.strip() == str(LIBRARY)


def test_version_and_backends() -> None:
    assert baton.version() == baton.__version__
    found = {backend.name: backend for backend in baton.backends()}
    for name in ("shm", "cma", "tcp", "loopback"):
        assert name in found and found[name].about
    assert all(backend.available or backend.why for backend in found.values())


def test_program_tells_what_is_loaded() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "BATON_LIBRARY": str(LIBRARY),
    }
    command = [sys.executable, "-m", "baton"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert baton.version() in ended.stdout and str(LIBRARY) in ended.stdout
    assert "poll of 256 rooms" in ended.stdout
