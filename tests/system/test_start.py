# SPDX-License-Identifier: Apache-2.0
"""What keeps a worker from starting is said in one sentence, with exit status 1 (2 for a command
line that is not understood); what does not matter does not keep it."""
import os
import pathlib
import subprocess

import pytest

from small_model import VOCABULARY, folder_make
from worker import Worker, wait_until


def fails(run, *arguments, status=1):
    ended = run(*arguments)
    text = ended.stderr.decode()
    assert ended.returncode == status, text
    assert ended.stdout == b""
    assert text.startswith("baton") and text.endswith("\n") and text.count("\n") == 1, text
    return text


def test_port_taken(worker, run, model):
    text = fails(run, "serve", model, "--port", str(worker.port))
    assert f"port {worker.port}" in text and "is taken" in text, text


def test_model_files_that_are_none(run, model, tmp_path):
    with open(model, "rb") as file:
        head = file.read(4 << 20)
    cases = {"truncated": head, "short": head[:1000], "empty": b"",
             "text": b"This is not a model.\n" * 100,
             "garbage": head[:24] + bytes(range(256)) * 4000,
             "version": head[:4] + b"\xff" * 4 + head[8:],
             "counts": head[:8] + b"\xff" * 16 + head[24:]}
    for name, content in cases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        for command in (("serve", str(path), "--port", "0"), ("run", str(path), "hi")):
            text = fails(run, *command)
            assert str(path) in text, text


def test_model_paths_that_are_none(run, tmp_path):
    missing = str(tmp_path / "missing.gguf")
    text = fails(run, "serve", missing, "--port", "0")
    assert missing in text and "No such file" in text, text
    text = fails(run, "serve", str(tmp_path), "--port", "0")
    assert "config.json" in text, text
    text = fails(run, "serve", "/dev/null", "--port", "0")
    text = fails(run, "serve", "--port", "0", status=2)
    assert "MODEL is missing" in text


def test_folder_is_served_and_its_tokenizer_must_fit(baton, run, tmp_path):
    fitting, unfitting = tmp_path / "fits", tmp_path / "fits-not"
    fitting.mkdir()
    unfitting.mkdir()
    worker = Worker(baton, folder_make(fitting))
    reply = worker.ask("/generate", input_ids=[20, 30], sampling_params={
        "max_new_tokens": 3, "ignore_eos": True, "temperature": 0})
    assert len(reply["output_ids"]) == 3
    chat = worker.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    assert chat.status == 400 and "no chat template" in chat.error()["message"]
    worker.close()
    text = fails(run, "serve", folder_make(unfitting, 500), "--port", "0")
    assert "tokenizer does not fit" in text and str(VOCABULARY) in text and "500" in text, text
    (fitting / "tokenizer.json").write_text("{}")
    fails(run, "serve", str(fitting), "--port", "0")


@pytest.mark.parametrize("options, part, status", [
    (("--ssl-certfile", "/nowhere.pem"), "belong together", 1),
    (("--ssl-certfile", "/nowhere.pem", "--ssl-keyfile", "/nowhere.pem"), "/nowhere.pem", 1),
    (("--tp-size", "2"), "", 1),
    (("--host", "203.0.113.1"), "203.0.113.1", 1),
    (("--chat-template", "/nowhere.jinja"), "/nowhere.jinja", 1),
    (("--chat-template", "{% for"), "chat template", 1),
    (("--kernels", "abacus"), "abacus", 1),
    (("--max-total-tokens", "99T"), "--max-total-tokens", 2),
    (("--port", "70000"), "--port", 2),
    (("--chunked-prefil-size", "5"), "did you mean --chunked-prefill-size", 2),
    (("another", "operand"), "too many", 2),
])
def test_options_that_cannot_be(run, model, options, part, status):
    text = fails(run, "serve", model, "--port", "0", *options, status=status)
    assert part in text, text


def test_spellings_of_sglang(start):
    worker = start("--tp", "3", "--mem-fraction-static", "0.5", "--context-length", "256",
                   "--max-running-requests", "8", "--chunked-prefill-size", "64",
                   "--enable-metrics", "--trust-remote-code", "--page-size", "8")
    info = worker.get("/server_info").json()
    assert info["context_length"] == 256 and info["max_running_requests"] == 8
    assert info["chunked_prefill_size"] == 64 and info["page_size"] == 8
    assert info["tp_size"] == 3 and info["max_total_num_tokens"] > 256
    ids = [17] * 254
    filled = worker.ask("/generate", input_ids=ids, sampling_params={"ignore_eos": True})
    assert filled["meta_info"]["finish_reason"] == {"type": "length", "length": 2}
    refused = worker.post("/generate", {"input_ids": ids + ids})
    assert refused.status == 400 and "508" in refused.error()["message"]


def test_log_to_a_full_disk(start):
    with open("/dev/full", "w") as full:
        worker = start("--log-level", "debug", stderr=full)
        assert worker.post("/generate", "no").status == 400
        assert worker.ask("/generate", text="a", sampling_params={"max_new_tokens": 2})
        worker.close()


def test_closed_standard_files(baton, model):
    """Nothing that is opened later may take their numbers."""
    script = 'exec "$0" serve "$1" --port 0 <&- >&- 2>&-'
    process = subprocess.Popen(["sh", "-c", script, baton, model])
    try:
        files = {os.readlink(f"/proc/{process.pid}/fd/{i}") for i in wait_files(process.pid)}
        assert files == {"/dev/null"}, files
    finally:
        process.terminate()
        assert process.wait(60) == 0


def wait_files(pid):
    """Of a worker that is up: its scheduler has a thread."""
    wait_until(lambda: any(
        pathlib.Path(f"/proc/{pid}/task/{task}/comm").read_text().startswith("baton-sched")
        for task in os.listdir(f"/proc/{pid}/task")), what="the scheduler's thread")
    return range(3)
