# SPDX-License-Identifier: Apache-2.0
"""The same tokens, always: in the terminal, behind the API, alone, among others, whatever the
number of ranks, the size of the chunks, and with or without the cache."""
import concurrent.futures

import pytest

PROMPTS = ["The capital of France is",
           "def fibonacci(n):\n    \"\"\"The n-th Fibonacci number.\"\"\"\n",
           "Il était une fois, dans une forêt lointaine, " * 8]
TOKENS = 16
OPTIONS = [(), ("--tp-size", "3"), ("--chunked-prefill-size", "32"), ("--disable-radix-cache",),
           ("--tp-size", "3", "--chunked-prefill-size", "32", "--disable-radix-cache"),
           ("--page-size", "1", "--max-running-requests", "3", "--page-order", "head")]


def complete(worker, prompt):
    reply = worker.ask("/v1/completions", prompt=prompt, max_tokens=TOKENS, temperature=0)
    return reply["choices"][0]["text"]


@pytest.fixture(scope="module")
def expected(run_module, model):
    """What `baton run --raw` says: one prompt, one process."""
    said = []
    for prompt in PROMPTS:
        ended = run_module("run", model, prompt, "--raw", "--max-tokens", str(TOKENS))
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout.decode().removesuffix("\n"))
    return said


@pytest.fixture(scope="module")
def run_module(baton):
    import subprocess
    from worker import PATIENCE
    return lambda *arguments: subprocess.run([baton, *arguments], capture_output=True,
                                             stdin=subprocess.DEVNULL, timeout=60 * PATIENCE)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "default")
def test_same_tokens(start, expected, options):
    worker = start(*options)
    alone = [complete(worker, prompt) for prompt in PROMPTS]
    assert alone == expected
    # Among 16 others that sample, and the three at once.
    others = [{"text": f"Story number {i}: " + "word " * (2 * i), "sampling_params": {
        "max_new_tokens": 12, "temperature": 1, "ignore_eos": True}} for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        noise = [pool.submit(worker.ask, "/generate", **other) for other in others]
        among = list(pool.map(lambda prompt: complete(worker, prompt), PROMPTS))
        assert all(one.result()["meta_info"]["completion_tokens"] == 12 for one in noise)
    assert among == expected
    # Again, from the cache where there is one.
    assert [complete(worker, prompt) for prompt in PROMPTS] == expected


def test_chat_is_what_run_says(worker, run, model):
    question = "Name three colours."
    reply = worker.ask("/v1/chat/completions", temperature=0, max_tokens=16,
                       messages=[{"role": "user", "content": question}])
    ended = run("run", model, question, "--max-tokens", "16")
    assert ended.stdout.decode() == reply["choices"][0]["message"]["content"] + "\n"
