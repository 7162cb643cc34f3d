# SPDX-License-Identifier: Apache-2.0
"""What the Python tests share: the package from the tree, a bootstrap server on a free port, and
workers, which are real processes that a test drives call by call (worker.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import baton  # noqa: E402
from driver import Worker  # noqa: E402


@pytest.fixture
def server() -> Iterator[baton.KVBootstrapServer]:
    with baton.KVBootstrapServer(0, host="127.0.0.1") as running:
        yield running


@pytest.fixture
def address(server: baton.KVBootstrapServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """start("prefill", memory="numpy", ...) runs a worker process with an open manager."""
    workers: list[Worker] = []

    def start_worker(name: str, **options: object) -> Worker:
        worker = Worker(name, tmp_path / f"{name}.stderr")
        workers.append(worker)
        worker.open(**options)
        return worker

    yield start_worker
    errors = [error for worker in workers if (error := worker.stop())]
    assert not errors, "\n".join(errors)
