# SPDX-License-Identifier: Apache-2.0
"""What clients and routers really send: odd, wrong, too large, too deep; and the endpoints that
tell about the worker."""
import json
import socket

import pytest

TINY = {"text": "a b c", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


def test_prompt_longer_than_the_context(worker):
    ids = [17] * 9000
    for path, body in [("/generate", {"input_ids": ids}),
                       ("/v1/completions", {"prompt": ids}),
                       ("/v1/chat/completions", {"messages": [
                           {"role": "user", "content": "word " * 9000}]})]:
        reply = worker.post(path, body)
        assert reply.status == 400
        message = reply.error()["message"]
        assert "8192" in message and ("9000" in message or "90" in message), message


@pytest.mark.parametrize("body, part", [
    (b"", "no body"),
    (b"not json", "not JSON"),
    (b'{"text": "a"', "not JSON"),
    (b'[{"text": "a"}]', "an array"),
    (b'{"text": "\xff\xfe"}', "not JSON"),
    (b'{"text": "a", "x": 99999999999999999999}', "not JSON"),
    (b'{"text":' + b"[" * 100000 + b"]" * 100000 + b"}", "depth"),
    (b'{"a":' * 5000 + b"1" + b"}" * 5000, "depth"),
])
def test_bodies_that_are_no_request(worker, body, part):
    for path in ("/generate", "/v1/chat/completions", "/v1/completions", "/tokenize"):
        reply = worker.post(path, body)
        assert reply.status == 400
        assert part in reply.error()["message"]
    assert worker.post("/generate", TINY).status == 200


def test_unknown_fields_and_nulls(worker):
    """What sglang-router adds to a body, and nulls wherever something is optional."""
    plain = worker.ask("/generate", **TINY)
    odd = worker.ask("/generate", **TINY, model=None, lora_path=None, bootstrap_port=None,
                     bootstrap_host="127.0.0.1", bootstrap_room=8821514230958995926,
                     log_metrics=True, return_hidden_states=False, background=False,
                     no_logs=False, return_bytes=False, return_entropy=False, priority=None,
                     rid=None, logprob_start_len=None, stream=None, x={"deep": [None]})
    assert odd["output_ids"] == plain["output_ids"]
    messages = [{"role": "user", "content": "hi", "name": None, "refusal": None}]
    fields = ("model", "temperature", "top_p", "n", "stop", "seed", "logprobs", "top_logprobs",
              "tools", "tool_choice", "stream_options", "response_format", "max_tokens", "user",
              "logit_bias", "parallel_tool_calls", "kv_transfer_params", "chat_template_kwargs")
    reply = worker.ask("/v1/chat/completions", messages=messages, max_completion_tokens=2,
                       **{name: None for name in fields}, separate_reasoning=True,
                       stream_reasoning=True, bootstrap_room=(1 << 63) - 1)
    assert reply["usage"]["completion_tokens"] <= 2
    assert worker.ask("/v1/completions", prompt="a", max_tokens=1, logprobs=None, echo=None,
                      seed=(1 << 63) - 1, best_of=None, suffix=None)


def test_paths_and_methods(worker):
    assert worker.get("/health").status == 200
    assert worker.get("//health").status == 200
    assert worker.get("///health//").status in (200, 404)
    assert worker.get("/health?x=1").status == 200
    assert worker.request("HEAD", "/health").status == 200
    missing = worker.get("/no/such/thing")
    assert missing.status == 404 and missing.error()["type"] == "not_found_error"
    wrong = worker.get("/generate")
    assert wrong.status == 405 and wrong.headers["allow"] == "POST"
    assert worker.post("/health", "").status == 405
    assert worker.request("DELETE", "/v1/models").status == 405
    injected = worker.get("/a%0d%0aSet-Cookie:%20x")
    assert injected.status == 404 and "set-cookie" not in injected.headers


def test_http2_preface_is_closed_at_once(worker):
    with worker.socket() as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 27)
        plain.settimeout(4)  # a router waits 5 s for each of its two probes
        got = b""
        while piece := plain.recv(4096):
            got += piece
        assert b"HTTP/1.1 200" not in got


def test_chunked_and_pipelined_requests(worker):
    body = json.dumps(TINY).encode()
    with worker.socket() as plain:
        plain.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                      + b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 7]), body[i:i + 7])
                                 for i in range(0, len(body), 7)) + b"0\r\n\r\n"
                      + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = b""
        while piece := plain.recv(65536):
            got += piece
    assert got.count(b"HTTP/1.1 200 ") == 2 and b'"output_ids":[' in got


def test_errors_of_streams_have_no_length(worker):
    reply = worker.post("/v1/chat/completions", {"messages": [], "stream": True})
    assert reply.status == 400 and reply.error()["param"] == "messages"
    assert "content-length" not in reply.headers  # routers would cut what they relay


def test_what_it_tells_about_itself(worker, model):
    info = worker.get("/server_info").json()
    assert info == {**worker.get("/get_server_info").json(),
                    "internal_states": info["internal_states"]}
    assert info["model_path"] == model and info["disaggregation_mode"] == "null"
    assert info["tp_size"] == 1 and info["dp_size"] == 1
    assert info["max_total_num_tokens"] >= info["context_length"] == 8192
    described = worker.get("/model_info").json()
    assert described == worker.get("/get_model_info").json()
    assert described["architectures"] == ["LlamaForCausalLM"] and described["is_generation"]
    assert described["model_type"] and described["weight_version"] == "default"
    assert {"tokenizer_path", "preferred_sampling_params"} <= set(described)
    load = worker.get("/get_load").json()
    assert isinstance(load, list) and load[0]["dp_rank"] == 0
    assert {"num_reqs", "num_waiting_reqs", "num_tokens"} <= set(load[0])
    loads = worker.get("/v1/loads?include=all").json()
    assert loads["dp_rank_count"] == len(loads["loads"]) == 1
    assert 0 <= loads["loads"][0]["token_usage"] <= 1
    assert {"total_running_reqs", "total_waiting_reqs", "total_reqs", "total_tokens",
            "avg_token_usage"} <= set(loads["aggregate"])
    assert worker.get("/health_generate").status == 200
    assert worker.post("/flush_cache?timeout=5", "").status == 200


def test_counters_count(worker):
    before = worker.metrics()
    worker.ask("/generate", **TINY)
    worker.post("/generate", "no")
    worker.wait_idle()
    after = worker.metrics()
    grown = {name: after[name] - before[name] for name in after}
    assert grown["sglang:num_requests_total"] == 1
    assert grown["sglang:generation_tokens_total"] == 2
    assert grown['sglang:time_to_first_token_seconds_count'] == 1
    assert grown['sglang:inter_token_latency_seconds_count'] == 1
    assert grown['sglang:e2e_request_latency_seconds_bucket{le="+Inf"}'] == 1
    assert grown['baton:http_replies_total{kind="refused"}'] == 1
    assert grown['baton:http_replies_total{kind="ok"}'] == 1


def test_abort_by_name(worker):
    long = {"text": "Go on.", "rid": "to-be-aborted", "sampling_params": {
        "max_new_tokens": 4000, "ignore_eos": True}}
    events = worker.stream("/generate", **long)
    next(events)
    assert worker.post("/abort_request", {"rid": "another"}).status == 200
    next(events)
    assert worker.post("/abort_request", {"rid": "to-be-aborted"}).status == 200
    last = list(events)[-1]
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert last["meta_info"]["completion_tokens"] < 4000
    assert worker.post("/abort_request", {}).status == 400
    worker.wait_idle()


def test_flush_waits_only_if_asked(worker):
    events = worker.stream("/generate", text="Go on.", rid="flush", sampling_params={
        "max_new_tokens": 4000, "ignore_eos": True})
    next(events)
    assert worker.post("/flush_cache", "").status == 400
    # Flushes that wait do not keep long prompts from being read.
    waiting = []
    for _ in range(4):
        plain = worker.socket()
        plain.sendall(b"POST /flush_cache?timeout=60 HTTP/1.1\r\nHost: x\r\n"
                      b"Content-Length: 0\r\n\r\n")
        waiting.append(plain)
    long = worker.ask("/tokenize", prompt="word " * 3000)
    assert long["count"] >= 3000
    worker.post("/abort_request", {"rid": "flush"})
    list(events)
    for plain in waiting:
        assert plain.recv(100).startswith(b"HTTP/1.1 200")
        plain.shutdown(socket.SHUT_RDWR)
        plain.close()
