# SPDX-License-Identifier: Apache-2.0
"""The end of a worker: what is there finishes, what comes is refused, the last byte gets out."""
import json
import signal
import time

import pytest

from worker import PATIENCE, wait_until

LONG = {"text": "Go on.", "sampling_params": {"max_new_tokens": 40, "ignore_eos": True,
                                              "temperature": 0}}
ENDLESS = {"text": "Go on.", "sampling_params": {"max_new_tokens": 8000, "ignore_eos": True}}


def refuses(worker):
    return worker.get("/health").status == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_running_stream_finishes(start, number):
    worker = start()
    waiting = worker.send("/generate", {**LONG, "text": "word " * 600})  # a long prompt, too
    idle = worker.connect()
    idle.request("GET", "/health")
    assert idle.getresponse().read() == b""
    events = worker.stream("/generate", **LONG)
    next(events)
    worker.signal(number)
    wait_until(lambda: refuses(worker), what="refusals")
    for path, body in (("/generate", LONG), ("/v1/chat/completions", {}), ("/tokenize", {})):
        reply = worker.post(path, body)
        assert reply.status == 503
        assert reply.error()["message"] == "the worker is shutting down"
    assert worker.metric("sglang:num_running_reqs") >= 1  # it is still watched
    last = list(events)[-1]
    assert last["meta_info"]["completion_tokens"] == 40
    reply = waiting.makefile("rb").read()
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert json.loads(reply.split(b"\r\n\r\n", 1)[1])["meta_info"]["completion_tokens"] == 40
    assert worker.wait() == 0
    waiting.close()
    idle.close()


def test_second_signal_ends_at_once(start):
    worker = start()
    events = worker.stream("/generate", **ENDLESS)
    next(events)
    whole = worker.send("/generate", ENDLESS)
    wait_until(lambda: worker.metric("sglang:num_running_reqs") == 2, what="two requests")
    worker.signal()
    wait_until(lambda: refuses(worker), what="refusals")
    worker.signal()
    assert worker.wait(15) == 1
    assert "2 requests are cut off" in worker.errors()
    try:
        assert list(events)[-1]["meta_info"]["finish_reason"]["type"] == "abort"
    except (OSError, AssertionError):
        pass  # or the stream was cut before that was out
    whole.close()


def test_last_bytes_get_out(start):
    """A reply that is larger than what the kernel buffers, read slowly, ends whole."""
    worker = start()
    body = {"text": "a b c", "return_logprob": True, "top_logprobs_num": 128,
            "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 1, "n": 1}}
    body["text"] = "word " * 500
    with worker.send("/generate", body, receive_bytes=4096) as plain:
        wait_until(lambda: worker.metric("sglang:num_running_reqs") == 1, what="a request")
        worker.wait_idle()
        worker.signal()
        time.sleep(1)
        plain.settimeout(60 * PATIENCE)
        reply = plain.makefile("rb").read()
    head, body = reply.split(b"\r\n\r\n", 1)
    assert len(body) > 1e6
    assert len(json.loads(body)["meta_info"]["input_top_logprobs"]) > 500
    assert worker.wait() == 0


def test_idle_worker_ends(start):
    worker = start()
    worker.signal()
    assert worker.wait() == 0
    assert worker.errors() == ""
