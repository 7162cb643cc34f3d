# SPDX-License-Identifier: Apache-2.0
"""`--transfer-backend fake`: one side of a fleet by itself, for load tests. Rooms succeed at once, a prefill
worker computes and sends nothing, a decode worker generates from pages that nobody filled. Health checks
go the same way on every backend, so that they need no second worker."""
import concurrent.futures
import json
import subprocess
import urllib.error
import urllib.request

import pytest

from fleet import ALWAYS, WORKER, greedy, new_room
from worker import wait_until

FAKE = ("--transfer-backend", "fake")


def legs(count, tokens):
    """Requests as a router sends them; nobody is at the address."""
    return [{**greedy(40 + i, tokens, seed=i), "bootstrap_host": "127.0.0.1", "bootstrap_port": 9,
             "bootstrap_room": new_room()} for i in range(count)]


def metric_becomes(worker, name, value):
    """An answer may be out before it is counted."""
    wait_until(lambda: worker.metric(name) == value, what=f"{name} {value}")


def all_at_once(worker, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: worker.post("/generate", body), bodies))


@pytest.mark.parametrize("backend", ["auto", "fake"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_health_needs_nobody(start, role, backend):
    worker = start("--transfer-backend", backend, *WORKER, role=role)
    before = worker.metric("baton:handovers_total")
    assert worker.get("/health_generate").status == 200
    metric_becomes(worker, "baton:handovers_total", before + 1)
    assert worker.metric("sglang:num_transfer_failed_reqs_total") == 0


def test_prefill_alone(start):
    worker = start(*FAKE, *WORKER, "--bootstrap-port", "0", role="prefill")
    for reply in all_at_once(worker, legs(20, 6)):
        assert reply.status == 200
        assert reply.json()["meta_info"]["finish_reason"]["type"] == "length"
        assert reply.json()["output_ids"] == []
    metric_becomes(worker, 'baton:pages{state="used"}', 0)


def test_decode_alone(start):
    worker = start(*FAKE, *WORKER, *ALWAYS, role="decode")
    for reply in all_at_once(worker, legs(20, 6)):
        assert reply.status == 200
        assert len(reply.json()["output_ids"]) == 6
    assert worker.metric("sglang:num_transfer_failed_reqs_total") == 0
    metric_becomes(worker, 'baton:pages{state="used"}', 0)


def is_ready(url):
    try:
        return urllib.request.urlopen(f"{url}/health").status == 200
    except urllib.error.HTTPError:
        return False


def test_load_through_a_router(baton, start, tmp_path):
    """Both of them, each without the other, behind a router and under `baton bench serve`."""
    prefill = start(*FAKE, *WORKER, "--bootstrap-port", "0", role="prefill")
    decode = start(*FAKE, *WORKER, *ALWAYS, role="decode")
    router = subprocess.Popen([baton, "router", "--port", "0", "--prefill", prefill.url, "9", "--decode",
                               decode.url], stdout=subprocess.PIPE, text=True)
    try:
        url = next(line for line in router.stdout if "listening on" in line).split()[-1]
        wait_until(lambda: is_ready(url), what="a router with workers")
        found = tmp_path / "found.json"
        subprocess.run([baton, "bench", "serve", "--url", url, "--requests", "24", "--concurrency", "8",
                        "--input-tokens", "100", "--output-tokens", "8", "--quiet", "--json", found],
                       check=True, stdout=subprocess.DEVNULL)
    finally:
        router.terminate()
        router.wait()
    figures = json.loads(found.read_text())
    assert figures["errors"] == 0 and figures["requests"] == 24
    for worker in (prefill, decode):  # the client has its answers from decode, which waits for nobody
        wait_until(lambda: worker.metric("baton:handovers_total") >= 24, what=worker.role)
        assert worker.metric("baton:transfer_links") == 0
