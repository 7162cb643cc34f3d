# SPDX-License-Identifier: Apache-2.0
"""SGLang's /generate, and what its clients use beside it."""
import pytest

PROMPT = "The capital of France is"
GREEDY = {"temperature": 0, "max_new_tokens": 10, "ignore_eos": True}


def generate(worker, **body):
    return worker.ask("/generate", **{"sampling_params": GREEDY, **body})


def test_single(worker):
    reply = generate(worker, text=PROMPT, rid="my-name")
    assert set(reply) == {"text", "output_ids", "meta_info"}
    meta = reply["meta_info"]
    assert meta["id"] == "my-name"
    assert meta["finish_reason"] == {"type": "length", "length": 10}
    assert meta["completion_tokens"] == len(reply["output_ids"]) == 10
    assert meta["prompt_tokens"] == len(worker.ask("/tokenize", prompt=PROMPT)["tokens"])
    assert meta["weight_version"] == "default" and meta["e2e_latency"] > 0
    assert 0 <= meta["cached_tokens"] < meta["prompt_tokens"]
    said = worker.ask("/detokenize", tokens=reply["output_ids"], skip_special_tokens=True)["text"]
    assert said == reply["text"]
    default = worker.ask("/generate", text="a b", sampling_params={"ignore_eos": True})
    assert default["meta_info"]["completion_tokens"] == 128


def test_input_ids(worker):
    ids = worker.ask("/tokenize", prompt=PROMPT)["tokens"]
    assert generate(worker, input_ids=ids)["output_ids"] == \
        generate(worker, text=PROMPT)["output_ids"]


def test_stop_is_told(worker):
    text = generate(worker, text=PROMPT)["text"]
    reply = generate(worker, text=PROMPT, sampling_params={**GREEDY, "stop": text[4:7]})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": text[4:7]}
    ids = generate(worker, text=PROMPT)["output_ids"]
    reply = generate(worker, text=PROMPT, sampling_params={**GREEDY, "stop_token_ids": [ids[3]]})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": ids[3]}
    assert reply["output_ids"] == ids[:ids.index(ids[3]) + 1]


def test_batch(worker):
    prompts = [PROMPT, "One, two,", "Once upon a time"]
    alone = [generate(worker, text=prompt) for prompt in prompts]
    settings = [{**GREEDY, "max_new_tokens": count} for count in (3, 5, 10)]
    replies = generate(worker, text=prompts, sampling_params=settings, rid=["a", "b", "c"])
    assert isinstance(replies, list)
    for reply, one, count, rid in zip(replies, alone, (3, 5, 10), "abc"):
        assert reply["output_ids"] == one["output_ids"][:count]
        assert reply["meta_info"]["id"].startswith(rid)
    ids = [worker.ask("/tokenize", prompt=prompt)["tokens"] for prompt in prompts]
    assert [r["text"] for r in generate(worker, input_ids=ids)] == [r["text"] for r in alone]
    assert [r["text"] for r in generate(worker, text=[PROMPT])] == [alone[0]["text"]]
    twice = generate(worker, text=PROMPT, sampling_params={**GREEDY, "n": 2})
    assert [r["text"] for r in twice] == [alone[0]["text"]] * 2


def test_stream_has_all_until_now(worker):
    whole = generate(worker, text=PROMPT)
    events = list(worker.stream("/generate", text=PROMPT, sampling_params=GREEDY))
    assert len(events) == 10
    for before, after in zip(events, events[1:]):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][:len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["completion_tokens"] < after["meta_info"]["completion_tokens"]
        assert before["meta_info"]["finish_reason"] is None
    assert events[-1]["text"] == whole["text"]
    assert events[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 10}
    assert "index" not in events[0]


def test_stream_of_a_batch(worker):
    prompts = [PROMPT, "One, two,"]
    alone = [generate(worker, text=prompt)["text"] for prompt in prompts]
    last = {}
    for event in worker.stream("/generate", text=prompts, sampling_params=GREEDY):
        last[event["index"]] = event["text"]
    assert last == {0: alone[0], 1: alone[1]}


def test_logprobs(worker):
    reply = generate(worker, text=PROMPT, return_logprob=True, top_logprobs_num=3,
                     logprob_start_len=0, return_text_in_logprobs=True)
    meta, ids = reply["meta_info"], worker.ask("/tokenize", prompt=PROMPT)["tokens"]
    assert [item[1] for item in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert "".join(item[2] for item in meta["input_token_logprobs"]) == PROMPT
    assert [item[1] for item in meta["output_token_logprobs"]] == reply["output_ids"]
    assert meta["input_top_logprobs"][0] is None
    for item, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"]):
        assert top[0] == item and len(top) == 3
    plain = generate(worker, text=PROMPT, return_logprob=True)["meta_info"]
    assert plain["input_token_logprobs"] == []  # routers look for the key
    assert plain["output_token_logprobs"][0][2] is None
    assert [item[0] for item in plain["output_token_logprobs"]] == \
        [item[0] for item in meta["output_token_logprobs"]]
    some = generate(worker, text=PROMPT, return_logprob=True, logprob_start_len=2)["meta_info"]
    assert [item[0] for item in some["input_token_logprobs"]] == \
        [item[0] for item in meta["input_token_logprobs"]][2:]
    both = generate(worker, text=[PROMPT, "a b"], return_logprob=[True, True],
                    top_logprobs_num=[1, 1])
    assert all(len(one["meta_info"]["output_top_logprobs"]) == 10 for one in both)


@pytest.mark.parametrize("body, parameter", [
    ({}, "text"),
    ({"text": "a", "input_ids": [1]}, "text"),
    ({"text": 5}, "text"),
    ({"text": []}, ""),
    ({"text": ["a", 5]}, "text"),
    ({"text": ""}, "text"),
    ({"input_ids": []}, "input_ids"),
    ({"input_ids": [1, 1 << 40]}, "input_ids"),
    ({"input_ids": "1 2"}, "input_ids"),
    ({"input_ids": [[1], "a"]}, "input_ids"),
    ({"text": "a", "sampling_params": 5}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}, 5]}, "sampling_params"),
    ({"text": "a", "sampling_params": {"top_p": "x"}}, "top_p"),
    ({"text": "a", "return_logprob": "yes"}, "return_logprob"),
    ({"text": ["a", "b"], "return_logprob": [True, False]}, "return_logprob"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 99}, "logprob_start_len"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 9999}, "top_logprobs_num"),
    ({"text": "a", "rid": 5}, "rid"),
    ({"text": ["a", "b"], "rid": ["a"]}, "rid"),
    ({"text": "a", "stream": "yes"}, "stream"),
])
def test_bad_requests(worker, body, parameter):
    reply = worker.post("/generate", body)
    assert reply.status == 400, reply.body
    error = reply.error()
    assert error["code"] == 400 and error["type"] == "invalid_request_error"
    assert (error["param"] or "") == parameter and error["message"]


def test_tokenize_round_trip(worker):
    texts = ["Hello, world!", "  spaces   and\n\nlines\t", "Grüße 你好 नमस्ते 😀 🇩🇪", "x = {'a': [1, 2]}",
             "a" * 10000, "<|im_start|>user\nhi<|im_end|>"]
    for text in texts:
        tokens = worker.ask("/tokenize", prompt=text)
        assert tokens["count"] == len(tokens["tokens"]) and tokens["max_model_len"] == 8192
        assert worker.ask("/detokenize", tokens=tokens["tokens"])["prompt"] == text
    messages = [{"role": "user", "content": "Hello"}]
    templated = worker.ask("/tokenize", messages=messages)["tokens"]
    assert worker.ask("/detokenize", tokens=templated)["text"].endswith("<|im_start|>assistant\n")
    usage = worker.ask("/v1/chat/completions", messages=messages, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == len(templated)
    for path, body in [("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/detokenize", {}),
                       ("/detokenize", {"tokens": [1, "a"]}), ("/detokenize", {"tokens": [1 << 30]})]:
        assert worker.post(path, body).status == 400


def test_second_prompt_is_cached(worker):
    """Prints how much faster it is; that it was cached is what must be so."""
    words = worker.ask("/tokenize", prompt="Some words to fill a long prompt with, again. " * 200)
    ids = [17 + i % 1000 for i in range(100)] + words["tokens"][:900]
    assert worker.post("/flush_cache", "").status == 200
    one = {"input_ids": ids, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    first, second = generate(worker, **one)["meta_info"], generate(worker, **one)["meta_info"]
    assert first["cached_tokens"] == 0
    assert second["cached_tokens"] >= 960
    print(f"\n1000 tokens: {first['e2e_latency']:.3f} s, again {second['e2e_latency']:.3f} s: "
          f"{first['e2e_latency'] / second['e2e_latency']:.1f} times as fast")
    salted = generate(worker, cache_salt="mine", **one)["meta_info"]
    assert salted["cached_tokens"] == 0
