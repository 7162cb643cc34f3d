# SPDX-License-Identifier: Apache-2.0
"""sglang-router, as it comes from PyPI, in front of our workers: its policies, streams, batches and
logprobs, its mini_lb, and a worker that dies and comes back."""
import http.client
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile

import pytest

from conftest import at_length
from fleet import Fleet, greedy, outcome, prompt_of
from worker import PATIENCE, Reply, events, running, wait_until

VERSION = "0.3.2"


def version():
    try:
        return importlib.metadata.version("sglang-router")
    except importlib.metadata.PackageNotFoundError:
        return None


pytestmark = pytest.mark.skipif(version() != VERSION,
                                reason=f"sglang-router {VERSION} could not be installed")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Router:
    def __init__(self, pair, *options):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", "--pd-disaggregation",
             "--host", "127.0.0.1", "--port", str(self.port),
             "--prometheus-port", str(free_port()),
             "--prefill", pair.prefill.url, str(pair.prefill.bootstrap_port),
             "--decode", pair.decode.url, *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            # It would look for the model's tokenizer at huggingface.co.
            env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "1"})

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def get(self, path):
        return self.request("GET", path)

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * PATIENCE)
        try:
            connection.request(method, path, body and json.dumps(body),
                               {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def answers(self, path):
        try:
            return self.get(path).status == 200
        except OSError:
            assert self.process.poll() is None, self.said()
            return False

    def ask(self, path, body):
        reply = self.request("POST", path, body)
        assert reply.status == 200, (reply.body, self.said()[-2000:])
        return reply

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture(scope="module")
def pair(baton, model):
    one = Fleet(baton, model)
    yield one
    one.close()


@pytest.fixture
def router():
    started = []

    def start(pair, *options, ready="/readiness"):
        started.append(Router(pair, *options))
        wait_until(lambda: started[-1].answers(ready), 60, "a router")
        return started[-1]

    yield start
    for one in started:
        one.close()


def stream_of(reply, path):
    """The text of each choice of a stream."""
    texts = {}
    for event in events(reply.body.splitlines()):
        if path == "/generate":
            texts[event.get("index", 0)] = event["text"]
        for choice in event.get("choices", []):
            piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return texts


def completion(words, **more):
    return {"model": "m", "prompt": prompt_of(words), "max_tokens": 5, "temperature": 0, **more}


def chat(words, **more):
    return {"model": "m", "messages": [{"role": "user", "content": prompt_of(words)}],
            "max_tokens": 5, "temperature": 0, **more}


@pytest.fixture(scope="module")
def reference(baton, model):
    """One worker of the same name, so that replies are the same to the byte."""
    with running(baton, model, "--threads", "1") as one:
        yield one


@pytest.mark.parametrize("policy", [pytest.param("random", marks=at_length), "cache_aware",
                                    pytest.param("round_robin", marks=at_length),
                                    pytest.param("power_of_two", marks=at_length)])
def test_policies(pair, router, reference, policy):
    front = router(pair, "--policy", policy)
    before = pair.decode.metric("baton:handovers_total")
    sent = 0
    for path, body in (("/generate", greedy(30)), ("/v1/completions", completion(40)),
                       ("/v1/chat/completions", chat(20))):
        whole = front.ask(path, body).json()
        alone = reference.ask(path, **body)
        whole.pop("model", None), alone.pop("model", None)
        assert strip(whole) == strip(alone)
        streamed = stream_of(front.ask(path, {**body, "stream": True}), path)
        one_worker = stream_of(reference.post(path, {**body, "stream": True}), path)
        assert streamed == one_worker
        sent += 2
    assert pair.decode.metric("baton:handovers_total") == before + sent
    pair.wait_clean()


def strip(found):
    return outcome(Reply(200, {}, json.dumps(found)))


def test_batches_n_and_logprobs(pair, router, reference):
    front = router(pair, "--policy", "round_robin")
    ids = [[1, 20, 300] * 9, [400, 50, 6] * 30]
    batch = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    assert strip(front.ask("/generate", batch).json()) == strip(reference.ask("/generate", **batch))
    assert (stream_of(front.ask("/generate", {**batch, "stream": True}), "/generate")
            == stream_of(reference.post("/generate", {**batch, "stream": True}), "/generate"))
    two = chat(25, n=2, temperature=0.8, seed=5)
    for one, other in zip(front.ask("/v1/chat/completions", two).json()["choices"],
                          reference.ask("/v1/chat/completions", **two)["choices"], strict=True):
        assert one == other
    prompts = completion(0, prompt=[prompt_of(20), prompt_of(50)])
    assert (front.ask("/v1/completions", prompts).json()["choices"]
            == reference.ask("/v1/completions", **prompts)["choices"])
    # What prefill says of the prompt and decode of the answer, put together by the router.
    rated = greedy(30, 4, return_logprob=True, logprob_start_len=0)
    merged, alone = front.ask("/generate", rated).json(), reference.ask("/generate", **rated)
    for key in ("input_token_logprobs", "output_token_logprobs"):
        assert merged["meta_info"][key] == alone["meta_info"][key], key
    chosen = chat(15, logprobs=True, top_logprobs=2)
    assert (front.ask("/v1/chat/completions", chosen).json()["choices"]
            == reference.ask("/v1/chat/completions", **chosen)["choices"])
    pair.wait_clean()


@at_length
def test_its_own_questions(pair, router):
    """What it asks workers on behalf of others."""
    front = router(pair)
    assert front.get("/health").status == 200
    workers = front.get("/workers").json()["workers"]
    assert {one["worker_type"] for one in workers} == {"prefill", "decode"}
    assert front.get("/get_model_info").status == 200
    assert front.get("/get_loads").status == 200
    assert front.request("POST", "/flush_cache", {}).status == 200


def test_bad_requests_are_not_retried(pair, router):
    front = router(pair)
    before = pair.decode.metric("baton:http_requests_total")
    reply = front.request("POST", "/generate", greedy(9000, 4))
    assert reply.status == 400, reply.body
    assert b"tokens" in reply.body
    assert pair.decode.metric("baton:http_requests_total") <= before + 3  # two are our questions
    pair.wait_clean()


@pytest.mark.parametrize("role", ["prefill", pytest.param("decode", marks=at_length)])
def test_worker_is_killed_and_restarted(fleet, router, reference, role):
    pair = fleet()
    front = router(pair, "--policy", "round_robin", "--health-check-interval-secs", "1",
                   "--health-failure-threshold", "1", "--health-success-threshold", "1",
                   "--retry-max-retries", "2", "--cb-timeout-duration-secs", "1")
    body = greedy(30)
    right = strip(reference.ask("/generate", **body))
    assert strip(front.ask("/generate", body).json()) == right
    pair.kill(getattr(pair, role))
    assert front.request("POST", "/generate", body).status >= 500
    pair.wait_clean()
    getattr(pair, f"start_{role}")()

    def answered():
        reply = front.request("POST", "/generate", body)
        assert reply.status >= 500 or strip(reply.json()) == right
        return reply.status == 200

    wait_until(answered, 60, "an answer through the router")
    pair.wait_clean()


def test_client_leaves(pair, router):
    front = router(pair)
    for words, tokens in ((30, 2000), (400, 4)):
        plain = socket.create_connection(("127.0.0.1", front.port))
        body = json.dumps({**greedy(words, tokens), "stream": True}).encode()
        plain.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_until(lambda: pair.decode.metric("sglang:num_running_reqs")
                   or pair.decode.metric("sglang:num_decode_transfer_queue_reqs"), what="a request")
        plain.close()
        pair.wait_clean()


def test_mini_lb(pair, router, reference):
    front = router(pair, "--mini-lb", ready="/health")
    for path, body in (("/generate", greedy(30)), ("/v1/completions", completion(40)),
                       ("/v1/chat/completions", chat(20)),
                       ("/generate", {**greedy(10), "text": [prompt_of(20), prompt_of(60)]})):
        whole, alone = front.ask(path, body).json(), reference.ask(path, **body)
        assert strip(whole) == strip(alone)
        if path != "/generate" or isinstance(body["text"], str):
            assert (stream_of(front.ask(path, {**body, "stream": True}), path)
                    == stream_of(reference.post(path, {**body, "stream": True}), path))
    prompts = completion(0, prompt=[prompt_of(20), prompt_of(50)])
    assert (front.ask("/v1/completions", prompts).json()["choices"]
            == reference.ask("/v1/completions", **prompts)["choices"])
    rated = greedy(30, 4, return_logprob=True, logprob_start_len=0)
    merged, alone = front.ask("/generate", rated).json(), reference.ask("/generate", **rated)
    assert (merged["meta_info"]["input_token_logprobs"]
            == alone["meta_info"]["input_token_logprobs"])
    pair.wait_clean()
