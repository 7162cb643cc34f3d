# SPDX-License-Identifier: Apache-2.0
"""What a worker tells of a request afterwards: moments, bytes, the way its pages took; by name over HTTP
and as a trace file."""
import json

import pytest

from fleet import greedy
from worker import wait_until

CHUNK = "--chunked-prefill-size"
ORDER = ("queued", "admitted", "computed", "landed", "finished")


def told(worker, rid):
    """Once it is over here."""
    def found():
        reply = worker.get(f"/requests/{rid}")
        return reply.json() if reply.status == 200 and reply.json()["finish"] else None
    return wait_until(found, 10, f"{rid} to end at {worker.role}")


def in_order(moments, names):
    times = [moments[name] for name in names]
    assert times == sorted(times), moments


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_layers_are_sent_before_the_last_is_computed(fleet, backend):
    pair = fleet("--transfer-backend", backend, prefill=(CHUNK, "4096"))
    pair.ask("/generate", **greedy(900, 4, rid="long"))
    prefill, decode = told(pair.prefill, "long"), told(pair.decode, "long")
    assert prefill["role"] == "prefill" and decode["role"] == "decode"
    assert prefill["backend"] == decode["backend"] == backend
    assert prefill["bytes"] == decode["bytes"] > 0
    assert 0 < prefill["early_bytes"] < prefill["bytes"]  # the last layer goes with the first token
    pages = (prefill["prompt_tokens"] + 15) // 16
    assert prefill["plan"].endswith(f"; layer by layer, {pages} of {pages} pages")
    assert "early_bytes" not in decode
    in_order(prefill["timeline_ms"], ORDER)
    in_order(prefill["timeline_ms"], ("first_sent", "last_byte", "landed"))
    in_order(decode["timeline_ms"], ("queued", "granted", "landed", "first_token", "finished"))


def test_the_plan_says_why_not(fleet):
    pair = fleet(prefill=(CHUNK, "64"))
    pair.ask("/generate", **greedy(200, 2, rid="chunks"))
    chunks = told(pair.prefill, "chunks")
    assert chunks["plan"].endswith("; whole chunks: none of 256 tokens to compute")
    assert 0 < chunks["early_bytes"] < chunks["bytes"]  # the chunks before the last
    pair = fleet(prefill=("--no-layerwise",))
    pair.ask("/generate", **greedy(300, 2, rid="off"))
    off = told(pair.prefill, "off")
    assert off["plan"].endswith("; whole chunks: layer-wise is off")
    assert off["early_bytes"] == 0 < off["bytes"]


def test_trace_file(fleet, tmp_path):
    files = [tmp_path / "prefill.json", tmp_path / "decode.json"]
    pair = fleet(prefill=("--trace-file", str(files[0])), decode=("--trace-file", str(files[1])))
    pair.ask("/generate", **greedy(400, 3, rid="traced"))
    record = told(pair.prefill, "traced")
    pair.close()
    spans = [json.loads(file.read_text().rstrip().rstrip(",") + "]") for file in files]
    for side in spans:
        assert {span["args"]["rid"] for span in side} == {"traced"}
        assert all(span["ph"] == "X" and span["dur"] >= 0 for span in side)
    landed = [next(span["args"] for span in side if span["name"] == "landed") for side in spans]
    assert landed[0]["bytes"] == landed[1]["bytes"] == record["bytes"]
    assert landed[0]["early_bytes"] == record["early_bytes"] and landed[0]["plan"] == record["plan"]


def test_unknown_names(fleet):
    pair = fleet()
    reply = pair.prefill.get("/requests/nobody")
    assert reply.status == 404 and "nobody" in reply.error()["message"]
