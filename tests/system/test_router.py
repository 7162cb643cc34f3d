# SPDX-License-Identifier: Apache-2.0
"""`baton up`: real workers behind the router. What it says is what `baton serve` says; a worker that
is killed costs some requests their answer at worst, with a reason, and the fleet heals."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading

import pytest

from worker import PATIENCE, Worker, wait_until

STORY = ("A relay race is run by four runners, who hand a baton from one to the next within a zone of "
         "twenty metres. ") * 6


class Router(Worker):
    """A router, and what stands behind it: "router", "--decode", url ... or "up", model ..."""

    def __init__(self, baton, role, *options):
        self.log = tempfile.TemporaryFile()
        self.role = role
        self.tls = self.bootstrap_port = None
        self.process = subprocess.Popen(
            [baton, role, *options, "--port", "0"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=self.log)
        for line in self.process.stdout:
            if found := re.search(rb"listening on (http)://([0-9.]+):(\d+)", line):
                self.scheme, self.host = found[1].decode(), found[2].decode()
                self.port = int(found[3])
                return
        raise RuntimeError(f"baton {role} ended with {self.process.wait()}:\n{self.errors()}")

    def pids(self):
        """{"prefill 0": pid}, the newest of each."""
        found = re.findall(r"^([a-z]+(?: \d+)?): listening on port \d+ \(pid (\d+)\)$", self.errors(),
                           re.MULTILINE)
        return {name: int(pid) for name, pid in found}

    def workers(self):
        return self.get("/workers").json()["workers"]

    def ready(self):
        reply = self.get("/readiness")
        return reply.status == 200 and reply.json()["healthy_workers"] == len(self.workers())


@pytest.fixture
def up(baton, model):
    started = []

    def up_one(*options):
        started.append(Router(baton, "up", model, *options))
        return started[-1]

    yield up_one
    for one in started:
        one.close()


@pytest.fixture(scope="module")
def fleet(baton, model):
    shared = Router(baton, "up", model)
    yield shared
    shared.close()


def chat(server, prompt, **more):
    reply = server.ask("/v1/chat/completions", messages=[{"role": "user", "content": prompt}],
                       max_tokens=24, **more)
    return reply["choices"], reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]


# ---- the same answers ----

SETTINGS = [{"temperature": 0}, {"temperature": 1, "seed": 7}, {"temperature": 0.8, "seed": 8, "n": 3},
            {"temperature": 0, "logprobs": True, "top_logprobs": 2}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_chat_is_what_serve_says(fleet, worker, settings):
    for prompt in ("Name three colours.", STORY + "What is handed over?"):
        assert chat(fleet, prompt, **settings) == chat(worker, prompt, **settings)


def test_token_ids_and_batches_are_what_serve_says(fleet, worker):
    for body in ({"text": STORY, "sampling_params": {"temperature": 0, "max_new_tokens": 16}},
                 {"text": [STORY, "Once upon a time", STORY * 2],
                  "sampling_params": {"temperature": 0, "max_new_tokens": 8}}):
        mine, theirs = fleet.ask("/generate", **body), worker.ask("/generate", **body)
        if not isinstance(mine, list):
            mine, theirs = [mine], [theirs]
        assert [(one["text"], one["output_ids"]) for one in mine] == \
            [(one["text"], one["output_ids"]) for one in theirs]


def test_logprobs_of_the_prompt_are_what_serve_says(fleet, worker):
    for more in ({"text": STORY, "logprob_start_len": 0}, {"text": STORY, "logprob_start_len": 150},
                 {"text": [STORY, "Short."], "logprob_start_len": 0, "top_logprobs_num": 2}):
        body = {"sampling_params": {"temperature": 0, "max_new_tokens": 3}, "return_logprob": True, **more}
        mine, theirs = fleet.ask("/generate", **body), worker.ask("/generate", **body)
        if not isinstance(mine, list):
            mine, theirs = [mine], [theirs]
        for one, other in zip(mine, theirs, strict=True):
            for name in ("input_token_logprobs", "input_top_logprobs", "output_token_logprobs"):
                assert one["meta_info"].get(name) == other["meta_info"].get(name), name


def test_many_at_once_are_what_serve_says(fleet, worker):
    prompts = [f"{i}. " + STORY[: 50 * i] for i in range(12)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        mine = list(pool.map(lambda prompt: chat(fleet, prompt, temperature=0), prompts))
        theirs = list(pool.map(lambda prompt: chat(worker, prompt, temperature=0), prompts))
    assert mine == theirs
    legs = {one["worker_type"]: one["requests_total"] for one in fleet.workers()}
    assert legs["prefill"] >= 12 and legs["decode"] >= 12


def test_decode_first_is_what_serve_says(baton, start, worker):
    prefill = start("--bootstrap-port", "0", role="prefill")
    decode = start("--prefill", prefill.url, role="decode")
    router = Router(baton, "router", "--flow", "decode-first", "--prefill", prefill.url, "--decode",
                    decode.url)
    wait_until(router.ready)
    for settings in SETTINGS[:2]:
        assert chat(router, STORY, **settings) == chat(worker, STORY, **settings)
    legs = {one["worker_type"]: one["requests_total"] for one in router.workers()}
    assert legs == {"prefill": 0, "decode": 2}
    assert prefill.metric("sglang:prompt_tokens_total") > 100  # and not decode by itself
    router.close()


def test_workers_that_do_both(baton, worker):
    router = Router(baton, "router", "--worker", worker.url)
    wait_until(router.ready)
    assert chat(router, STORY, temperature=0) == chat(worker, STORY, temperature=0)
    router.close()


def test_a_stream_comes_piece_by_piece(fleet, worker):
    body = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 24, "temperature": 0,
            "stream_options": {"include_usage": True}}

    def pieces(server):
        return [(event["choices"], event.get("usage", {}).get("completion_tokens")
                 if event.get("usage") else None)
                for event in server.stream("/v1/chat/completions", **body)]

    mine = pieces(fleet)
    assert len(mine) > 20
    assert "".join(choice["delta"].get("content") or "" for choices, _ in mine for choice in choices) \
        == chat(worker, STORY, temperature=0)[0][0]["message"]["content"]


def test_the_openai_client(fleet):
    import openai
    client = openai.OpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0)
    assert len(client.models.list().data) == 1
    reply = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Hello"}], max_tokens=8)
    assert reply.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="any", messages="no list")
    assert "messages" in str(refused.value)


def test_bad_bodies_are_refused(fleet):
    for body in (b"", b"[]", b"{", b'{"messages": }', b'{"text": "x"} y', b"\xff\xfe"):
        reply = fleet.post("/v1/chat/completions", body)
        assert reply.status == 400, (body, reply.body)
        assert reply.error()["message"]


# ---- faults ----

def outcome(fleet, prompt, begun):
    """("tokens" | "error", text so far, reason): whatever happens, it ends, and not without a word."""
    text, connection = "", fleet.connect()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps({
            "messages": [{"role": "user", "content": prompt}], "max_tokens": 32, "temperature": 0,
            "ignore_eos": True, "stream": True}))
        reply = connection.getresponse()
        if reply.status != 200:
            return "error", "", json.loads(reply.read())["error"]["message"]
        for line in reply:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return "tokens", text, None
            event = json.loads(line[6:])
            if "error" in event:
                return "error", text, event["error"]["message"]
            text += event["choices"][0]["delta"].get("content") or ""
            begun.set()
    except (http.client.HTTPException, ConnectionError) as gone:
        return "cut", text, repr(gone)
    finally:
        connection.close()
    return "cut", text, "the stream ended without [DONE]"


PROMPTS = [f"{i}. {STORY} Tell me more about runner {i}." for i in range(20)]


@pytest.fixture(scope="module")
def expected(worker):
    """What `baton serve` says to them."""
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        said = list(pool.map(lambda prompt: outcome(worker, prompt, threading.Event()), PROMPTS))
    assert all(kind == "tokens" for kind, _, _ in said)
    return said


@pytest.mark.parametrize("victim", ["prefill 0", "decode 0"])
@pytest.mark.parametrize("when", ["waiting", "streaming"])
def test_kill_and_heal(up, expected, victim, when):
    fleet = up()
    begun = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        running = [pool.submit(outcome, fleet, prompt, begun) for prompt in PROMPTS]
        if when == "streaming":
            assert begun.wait(60 * PATIENCE)
        else:
            wait_until(lambda: any(one["in_flight"] > 5 for one in fleet.workers()))
        os.kill(fleet.pids()[victim], signal.SIGKILL)
        ended = [one.result(60 * PATIENCE) for one in running]
    for (kind, text, reason), (_, whole, _) in zip(ended, expected):
        assert kind in ("tokens", "error"), reason
        assert kind == "error" or text == whole
        assert whole.startswith(text), "wrong tokens"
        assert kind == "tokens" or reason
    if victim == "prefill 0":
        assert all(kind == "tokens" for kind, _, _ in ended), ended
    wait_until(fleet.ready, 60, "the fleet's recovery")
    assert f"{victim}: it was ended by signal 9" in fleet.errors()
    again = [outcome(fleet, prompt, begun) for prompt in PROMPTS[:3]]
    assert again == expected[:3]
    wait_until(lambda: all(one["in_flight"] == 0 for one in fleet.workers()))
    # Every page came back.
    wait_until(lambda: fleet.post("/flush_cache", "").status == 200)


def test_two_of_each_survive_the_loss_of_one(up, worker):
    fleet = up("--prefill", "2", "--decode", "2")
    expected = chat(worker, STORY, temperature=0)
    pids = fleet.pids()
    os.kill(pids["prefill 1"], signal.SIGKILL)
    os.kill(pids["decode 0"], signal.SIGKILL)
    for _ in range(8):
        assert chat(fleet, STORY, temperature=0) == expected
    wait_until(fleet.ready, 60, "the fleet's recovery")
    assert fleet.pids()["decode 0"] != pids["decode 0"]


def test_the_router_is_started_again(up):
    fleet = up()
    os.kill(fleet.pids()["router"], signal.SIGKILL)

    def answers():
        try:
            return fleet.ready()
        except (ConnectionError, http.client.HTTPException):
            return False

    wait_until(answers, 30, "a router on the same port")
    assert chat(fleet, "Hello", temperature=0)


# ---- what happened to a request ----

def timelines(fleet, rid):
    """Of each worker that had it, by what it is."""
    answer = fleet.get(f"/requests/{rid}")
    assert answer.status == 200, answer.body
    return {one["worker_type"]: one["answer"] for one in answer.json()["workers"]}


@pytest.mark.parametrize("flow", ["pair", "decode-first"])
def test_a_request_is_known_by_its_name(up, worker, flow):
    """Both halves of it, whoever brought them together; and what is served is what serve says."""
    fleet = up("--flow", flow, "--local-prefill-tokens", "0")
    assert fleet.get("/server_info").json()["flow"] == flow
    body = {"text": STORY, "rid": "the one: #7", "sampling_params": {"temperature": 0,
                                                                    "max_new_tokens": 5}}
    assert fleet.ask("/generate", **body)["text"] == worker.ask("/generate", **body)["text"]
    known = timelines(fleet, "the%20one:%20%237")
    assert sorted(known) == ["decode", "prefill"]
    assert known["decode"]["room"] == known["prefill"]["room"]
    assert known["decode"]["completion_tokens"] == 5
    for role, one in known.items():
        assert one["rid"] == "the one: #7" and one["role"] == role
        assert {"queued", "landed"} <= set(one["timeline_ms"])
    assert fleet.get("/requests/nobody%0d%0aX:%20y").status == 404


# ---- baton up ----

def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_child_outlives_it(up, number):
    fleet = up()
    pids = fleet.pids()
    assert set(pids) == {"prefill 0", "decode 0", "router"} and all(map(alive, pids.values()))
    fleet.signal(number)
    assert fleet.wait() == (-9 if number == signal.SIGKILL else 0)
    wait_until(lambda: not any(map(alive, pids.values())))


def test_ask_prints_the_answer_and_ends(run, model):
    question = "Name three colours."
    expected = run("run", model, question, "--max-tokens", "16")
    ended = run("up", model, "--port", "0", "--ask", question, "--max-tokens", "16")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(expected.stdout) and len(expected.stdout) > 10
    lines = ended.stdout.decode().splitlines()
    assert any(line.startswith("baton: listening on http://127.0.0.1:") for line in lines)
    assert any(line.startswith("  curl http://127.0.0.1:") for line in lines)


def test_what_cannot_start_says_why(run, tmp_path, worker):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    ended = run("up", str(broken), "--port", "0")
    assert ended.returncode == 1
    assert b"could not be started" in ended.stderr and b"broken.gguf" in ended.stderr
    assert run("up", str(tmp_path / "none.gguf")).returncode == 1


def test_a_taken_port_is_said(run, model, worker):
    ended = run("up", model, "--port", str(worker.port), "--prefill", "0")
    assert ended.returncode == 1
    assert b"router could not be started" in ended.stderr


def test_options_reach_the_workers(up):
    fleet = up("--prefill", "1", "--prefill-tp", "3", "--page-size", "32", "--policy", "random",
               "--local-prefill-tokens=8", "--no-layerwise", "--api-key", "k1")
    infos = fleet.get("/get_server_info", headers={"Authorization": "Bearer k1"}).json()
    assert infos["policy"] == "random"
    found = {one["worker_type"]: one["answer"] for one in infos["workers"]}
    assert found["prefill"]["tp_size"] == 3 and found["decode"]["tp_size"] == 1
    assert found["prefill"]["page_size"] == found["decode"]["page_size"] == 32
    assert fleet.post("/generate", {"text": "x"}).status == 401
    reply = fleet.post("/generate", {"text": STORY, "sampling_params": {"max_new_tokens": 2}},
                       headers={"Authorization": "Bearer k1"})
    assert reply.status == 200, reply.body
