# SPDX-License-Identifier: Apache-2.0
"""The program under test ($BATON, or that of the release build), the default model, and one worker
that the tests share."""
import os
import pathlib
import resource
import subprocess

import openai
import pytest

from fleet import COUNT, Fleet
from worker import PATIENCE, Worker, running

TREE = pathlib.Path(__file__).resolve().parents[2]

at_length = pytest.mark.skipif(not COUNT, reason="make test-fleet does it")

# For a thousand connections.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))


@pytest.fixture(scope="session")
def baton():
    path = os.environ.get("BATON", str(TREE / "build/release/baton"))
    assert os.access(path, os.X_OK), f"{path} is not built"
    return path


@pytest.fixture(scope="session")
def model():
    got = subprocess.run([TREE / "scripts/get-default-model.sh"], stdout=subprocess.PIPE, text=True)
    if got.returncode == 69:
        pytest.skip("the default model cannot be downloaded: there is no way to PyPI")
    assert got.returncode == 0
    return got.stdout.strip()


@pytest.fixture(scope="session")
def worker(baton, model):
    # What others are compared with may be of a faster build: $BATON_REFERENCE.
    with running(os.environ.get("BATON_REFERENCE", baton), model, "--log-level", "info") as shared:
        yield shared


@pytest.fixture(scope="session")
def client(worker):
    return openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0,
                         timeout=60 * PATIENCE)


@pytest.fixture
def start(baton, model):
    """Starts workers of one's own: start("--tp-size", "3"). They are ended with the test."""
    started = []

    def start_one(*options, model=model, **more):
        started.append(Worker(baton, model, *options, **more))
        return started[-1]

    yield start_one
    for one in started:
        one.close()


@pytest.fixture
def fleet(baton, model):
    """Starts a prefill and a decode worker: fleet("--verify-transfer", decode=["--tp-size", "3"])."""
    started = []

    def start(*options, model=model, **more):
        started.append(Fleet(baton, model, *options, **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def run(baton):
    """A whole run of the program: run("run", model, "prompt"), with what it said."""

    def run_once(*arguments, **options):
        options.setdefault("stdin", subprocess.DEVNULL if "input" not in options else None)
        if options["stdin"] is None:
            del options["stdin"]
        return subprocess.run([baton, *arguments], capture_output=True,
                              timeout=60 * PATIENCE, **options)

    return run_once
