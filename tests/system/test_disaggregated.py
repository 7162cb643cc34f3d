# SPDX-License-Identifier: Apache-2.0
"""Prefill here, decode there: the same bytes as from one worker, whatever carries the pages, however the
prompts are cut and whatever each side has cached. A few prompts for a few fleets; `make test-fleet`
takes 200, and all the fleets."""
import concurrent.futures
import random

import pytest

from fleet import COUNT, greedy, outcome, prompt_of

CHUNK = "--chunked-prefill-size"
# name: options of both, of prefill, of decode. Those with a star are in `make test`.
FLEETS = {
    "auto*": ((), (), ()),
    "tcp chunks of 32, verified, no cache*": (
        ("--transfer-backend", "tcp", "--verify-transfer", "--disable-radix-cache"),
        (CHUNK, "32"), ()),
    "shm verified": (("--transfer-backend", "shm", "--verify-transfer"), (), ()),
    "shm chunks of 32": (("--transfer-backend", "shm"), (CHUNK, "32"), ()),
    "shm no cache": (("--transfer-backend", "shm", "--disable-radix-cache"), (), ()),
    "tcp": (("--transfer-backend", "tcp"), (), ()),
    "cma": (("--transfer-backend", "cma"), (), ()),
    "3 ranks to 1, verified*": (("--verify-transfer",), ("--tp-size", "3", CHUNK, "32"), ()),
    "1 rank to 3*": ((), (), ("--tp-size", "3", "--page-order", "head")),
    "3 ranks to 1 over tcp": (("--transfer-backend", "tcp"), ("--tp-size", "3"), ()),
    "1 rank to 3 over tcp": (("--transfer-backend", "tcp"), (CHUNK, "32"), ("--tp-size", "3")),
    "pages by layer to pages by head": ((), ("--page-order", "layer"), ("--page-order", "head")),
    "pages of 32 to pages of 16": ((), ("--page-size", "32"), ("--page-size", "16")),
    "whole chunks, no guessing": ((), ("--no-layerwise", "--no-optimistic"), ()),
    "short prompts stay at decode": ((), (), ("--local-prefill-tokens", "64")),
}


def requests(count, longest):
    """Requests of every kind; the lengths are spread evenly, their order is not."""
    draw = random.Random(7)
    made = []
    for i in range(count):
        words = 1 + longest * i // count
        sampling = {"max_new_tokens": draw.randrange(1, 13), "temperature": 0}
        body = {"text": prompt_of(words, seed=i % 5), "sampling_params": sampling}
        kind = i % 5
        if kind == 1:
            sampling.update(temperature=0.9, top_p=0.9, sampling_seed=i, ignore_eos=True)
        elif kind == 2:
            sampling.update(temperature=1.1, sampling_seed=i, repetition_penalty=1.2,
                            frequency_penalty=0.4, presence_penalty=0.3, min_new_tokens=4)
            body.update(return_logprob=True, top_logprobs_num=3)
        elif kind == 3:
            sampling.update(stop=[" the", "\n", "er"])
        elif kind == 4:
            sampling.update(n=2, temperature=0.7, sampling_seed=i)
        made.append(("/generate", body))
    draw.shuffle(made)
    return made


def others():
    """The other formats, and batches, which have a room for each prompt."""
    messages = [{"role": "user", "content": "Say: " + prompt_of(40)}]
    return [
        ("/v1/completions", {"prompt": prompt_of(70), "max_tokens": 6, "temperature": 0,
                             "logprobs": 2}),
        ("/v1/completions", {"prompt": [prompt_of(30), prompt_of(80)], "max_tokens": 5, "n": 2,
                             "temperature": 0.8, "seed": 3}),
        ("/v1/chat/completions", {"messages": messages, "max_tokens": 6, "n": 2, "seed": 1,
                                  "logprobs": True, "top_logprobs": 2}),
        ("/generate", {"input_ids": [[1, 2, 3, 4] * 9, [5, 6, 7] * 30],
                       "sampling_params": {"temperature": 0, "max_new_tokens": 4}}),
    ]


def all_at_once(ask, made):
    with concurrent.futures.ThreadPoolExecutor(min(len(made), 64)) as pool:
        return list(pool.map(lambda one: ask(*one), made))


@pytest.fixture(scope="module")
def made():
    return requests(COUNT, 400) + others() if COUNT else requests(10, 90) + others()


@pytest.fixture(scope="module")
def expected(worker, made):
    def ask(path, body):
        reply = worker.post(path, body)
        assert reply.status == 200, reply.body
        return outcome(reply)
    return all_at_once(ask, made)


def compare(got, expected, made):
    for one, right, (path, body) in zip(got, expected, made):
        assert one == right, f"{path} {body}"


@pytest.mark.parametrize("name", [name for name in FLEETS if COUNT or name.endswith("*")])
def test_same_bytes(fleet, expected, made, name):
    both, prefill, decode = FLEETS[name]
    pair = fleet(*both, prefill=prefill, decode=decode)
    compare(all_at_once(lambda path, body: pair.ask(path, **body), made), expected, made)
    # Again, with what each side has cached now, in another order.
    again = [(right, one) for right, one in zip(expected, made)][::-2]
    got = all_at_once(lambda right, one: pair.ask(one[0], **one[1]), again)
    compare(got, [right for right, _ in again], [one for _, one in again])
    metrics = pair.decode.metrics()
    assert metrics["sglang:num_transfer_failed_reqs_total"] == 0
    assert metrics["baton:recomputed_total"] == 0
    if "short" in name:
        assert 0 < metrics["baton:handovers_declined_total"] < metrics["baton:handovers_total"]
    else:
        assert metrics["baton:handovers_total"] >= len(made)
        assert metrics["baton:transfer_received_bytes_total"] > 0
    pair.wait_clean()


def test_decode_first(fleet, expected, made):
    """The client knows decode only, which asks a prefill worker for a room."""
    pair = fleet(decode_first=True)
    def ask(path, body):
        reply = pair.decode.post(path, body)
        assert reply.status == 200, reply.body
        return outcome(reply)
    compare(all_at_once(ask, made), expected, made)
    metrics = pair.decode.metrics()
    assert metrics["baton:handovers_total"] >= len(made)
    assert metrics["baton:recomputed_total"] == 0
    pair.wait_clean()


def test_streams(fleet, worker):
    """Every event of a stream, and the prefill leg's stream, which is over at once."""
    pair = fleet()
    for path, body in (("/generate", greedy(80, 6)),
                       ("/v1/completions", {"prompt": prompt_of(60), "max_tokens": 6}),
                       ("/v1/chat/completions", {"messages": [
                           {"role": "user", "content": prompt_of(50)}], "max_tokens": 6})):
        body = {**body, "temperature": 0}
        where = pair.bootstrap()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            prefill = pool.submit(lambda: list(pair.prefill.stream(path, **body, **where)))
            got = list(pair.decode.stream(path, **body, **where))
            assert prefill.result()

        def text(all_events):
            if path == "/generate":
                return all_events[-1]["text"]
            return "".join(c["text"] if "text" in c else c["delta"].get("content") or ""
                           for event in all_events for c in event["choices"])
        assert text(got) == text(list(worker.stream(path, **body)))
    pair.wait_clean()


def test_logprobs_of_the_prompt_come_from_prefill(fleet, worker):
    """As routers expect it: what prefill says of the prompt and decode of the answer, together, is
    what one worker says."""
    pair = fleet()
    body = greedy(70, 4, return_logprob=True, logprob_start_len=0, top_logprobs_num=2)
    whole = worker.ask("/generate", **body)["meta_info"]
    prefill, decode = pair.pair("/generate", body)
    prefill, decode = prefill.json()["meta_info"], decode.json()["meta_info"]
    for key in ("input_token_logprobs", "input_top_logprobs"):
        assert prefill[key] + decode[key] == whole[key], key
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert decode[key] == whole[key], key
    pair.wait_clean()
