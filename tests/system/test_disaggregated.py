# SPDX-License-Identifier: Apache-2.0
"""Prefill here, decode there: the same bytes as from one worker, whatever carries the pages, however the
prompts are cut and whatever each side has cached. A few prompts for a few fleets; `make test-fleet`
takes 200, and all the fleets."""
import concurrent.futures
import itertools
import os
import random

import pytest

from fleet import COUNT, greedy, outcome, prompt_of
from random_folder import CHAT_TEMPLATE, random_folder
from worker import running

CHUNK = "--chunked-prefill-size"
DEFAULT, FOUR, TWO = "default", "4 KV heads", "2 KV heads"
SHAPES = {FOUR: {"num_key_value_heads": 4},
          TWO: {"num_key_value_heads": 2, "model_type": "qwen3"}}
# Ranks of prefill and decode. Four ranks on two KV heads have each of them twice.
RANKS = {DEFAULT: ((1, 1), (3, 1), (1, 3)),
         FOUR: ((2, 1), (1, 2), (4, 2), (2, 4), (4, 1), (1, 4), (4, 4)),
         TWO: ((4, 4), (4, 2), (2, 4), (4, 1), (1, 4), (2, 1), (1, 2))}


def matrix():
    """name: model, options of both, of prefill, of decode; every page checked on arrival."""
    for model, backend, chunk, cache in itertools.product(
            RANKS, ("shm", "tcp"), ("512", "32"), (True, False)):
        for prefill, decode in RANKS[model]:
            both = ["--transfer-backend", backend, "--verify-transfer"]
            name = f"{model}, ranks {prefill}-{decode}, {backend}, chunks of {chunk}"
            if not cache:
                both.append("--disable-radix-cache")
                name += ", no cache"
            yield name, (model, both, ("--tp-size", str(prefill), CHUNK, chunk),
                         ("--tp-size", str(decode)))


FLEETS = dict(matrix()) | {
    "auto": (DEFAULT, (), (), ()),
    "cma": (DEFAULT, ("--transfer-backend", "cma"), (), ()),
    "ucx": (DEFAULT, ("--transfer-backend", "ucx"), (), ()),
    "1 rank to 3 by head": (DEFAULT, (), (), ("--tp-size", "3", "--page-order", "head")),
    "4 ranks to 4 on 2 KV heads by head": (TWO, (), ("--tp-size", "4"),
                                           ("--tp-size", "4", "--page-order", "head")),
    "pages by layer to pages by head": (DEFAULT, (), ("--page-order", "layer"),
                                        ("--page-order", "head")),
    "pages of 32 to pages of 16": (DEFAULT, (), ("--page-size", "32"), ("--page-size", "16")),
    "whole chunks, no guessing": (DEFAULT, (), ("--no-layerwise", "--no-optimistic"), ()),
    "short prompts stay at decode": (DEFAULT, (), (), ("--local-prefill-tokens", "64")),
}
# Those in `make test`: both backends, both chunk sizes, with and without the cache, all the ranks.
FEW = ["auto", "cma", "ucx", "1 rank to 3 by head",
       "default, ranks 1-1, tcp, chunks of 32, no cache",
       "default, ranks 3-1, shm, chunks of 32",
       "4 KV heads, ranks 2-1, tcp, chunks of 512",
       "4 KV heads, ranks 1-2, shm, chunks of 32, no cache",
       "4 KV heads, ranks 4-2, shm, chunks of 512",
       "4 KV heads, ranks 2-4, tcp, chunks of 32",
       "2 KV heads, ranks 4-4, shm, chunks of 32",
       "2 KV heads, ranks 4-4, tcp, chunks of 512, no cache",
       "2 KV heads, ranks 4-2, tcp, chunks of 32",
       "2 KV heads, ranks 2-4, shm, chunks of 512",
       "2 KV heads, ranks 4-1, shm, chunks of 32",
       "2 KV heads, ranks 1-4, tcp, chunks of 32"]


def requests(count, longest):
    """Requests of every kind. Many are short and some are long; their order is mixed."""
    draw = random.Random(7)
    made = []
    for i in range(count):
        words = 1 + int(longest * (i / count) ** 3)
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
    """By model. A word has more tokens where the tokenizer is small."""
    return {model: (requests(COUNT, 640 if model == DEFAULT else 150) if COUNT
                    else requests(10, 130)) + others() for model in RANKS}


@pytest.fixture(scope="module")
def models(model, tmp_path_factory):
    """name: file or folder."""
    folder = tmp_path_factory.mktemp("models")
    return {DEFAULT: model} | {
        name: random_folder(folder / name, seed=3, chat_template=CHAT_TEMPLATE, hidden_size=128,
                            intermediate_size=224, num_hidden_layers=2, num_attention_heads=8,
                            max_position_embeddings=2048, **shape)
        for name, shape in SHAPES.items()}


def answers_of(worker, made):
    def ask(path, body):
        reply = worker.post(path, body)
        assert reply.status == 200, reply.body
        return outcome(reply)
    return all_at_once(ask, made)


@pytest.fixture(scope="module")
def expected_of(baton, worker, models, made):
    """What `baton serve` answers with a model."""
    found = {}

    def of(name):
        if name not in found and name == DEFAULT:
            found[name] = answers_of(worker, made[name])
        elif name not in found:
            with running(os.environ.get("BATON_REFERENCE", baton), models[name]) as one:
                found[name] = answers_of(one, made[name])
        return found[name]

    return of


def compare(got, expected, made):
    for one, right, (path, body) in zip(got, expected, made):
        assert one == right, f"{path} {body}"


@pytest.mark.parametrize("name", FLEETS if COUNT else FEW)
def test_same_bytes(baton, monkeypatch, fleet, models, expected_of, made, name):
    model, both, prefill, decode = FLEETS[name]
    if name == "ucx":
        monkeypatch.setenv("UCX_TLS", "tcp")  # it is for RDMA, and wants to be asked for less
        if not os.path.exists(os.path.join(os.path.dirname(baton), "libbaton_ucx.so")):
            pytest.skip("built without UCX")
    made, expected = made[model], expected_of(model)
    pair = fleet(*both, prefill=prefill, decode=decode, model=models[model])
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


def test_decode_first(fleet, expected_of, made):
    """The client knows decode only, which asks a prefill worker for a room."""
    pair = fleet(decode_first=True)
    made = made[DEFAULT]
    compare(answers_of(pair.decode, made), expected_of(DEFAULT), made)
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
