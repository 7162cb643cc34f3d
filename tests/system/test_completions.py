# SPDX-License-Identifier: Apache-2.0
"""/v1/completions: text and tokens, lists of them, echo and logprobs."""
import openai
import pytest

PROMPT = "The capital of France is"


def complete(client, **more):
    return client.completions.create(**{"model": "any", "prompt": PROMPT, "max_tokens": 12,
                                        "temperature": 0, **more})


def tokens_of(worker, text):
    return worker.ask("/tokenize", prompt=text)["tokens"]


def test_whole_and_stream(client):
    whole = complete(client)
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    assert whole.choices[0].text and whole.choices[0].finish_reason in ("stop", "length")
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details})
    assert complete(client, max_tokens=openai.omit).usage.completion_tokens <= 16


def test_token_prompts_are_the_text(client, worker):
    ids = tokens_of(worker, PROMPT)
    text = complete(client).choices[0].text
    assert complete(client, prompt=ids).choices[0].text == text
    both = complete(client, prompt=[ids, tokens_of(worker, "One, two,")])
    assert len(both.choices) == 2 and both.choices[0].text == text


def test_lists_of_prompts(client):
    prompts = [PROMPT, "One, two, three,", "Once upon a time"]
    alone = [complete(client, prompt=prompt) for prompt in prompts]
    reply = complete(client, prompt=prompts)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [c.text for c in reply.choices] == [one.choices[0].text for one in alone]
    assert reply.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert reply.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    # n of each, those of a prompt together
    many = complete(client, prompt=prompts[:2], n=2)
    assert [c.text for c in many.choices] == [alone[0].choices[0].text] * 2 + \
        [alone[1].choices[0].text] * 2
    assert many.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone[:2])
    streamed = [""] * 3
    for chunk in complete(client, prompt=prompts, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [one.choices[0].text for one in alone]


def test_echo_and_logprobs(client, worker):
    reply = complete(client, echo=True, logprobs=2)
    choice, ids = reply.choices[0], tokens_of(worker, PROMPT)
    assert choice.text == PROMPT + complete(client).choices[0].text
    logprobs = choice.logprobs
    count = len(ids) + reply.usage.completion_tokens
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == count
    assert len(logprobs.top_logprobs) == len(logprobs.text_offset) == count
    assert "".join(logprobs.tokens[:len(ids)]) == PROMPT
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert all(len(top) == 2 for top in logprobs.top_logprobs[1:])
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        assert choice.text[offset:].startswith(token) or offset >= len(choice.text)
    streamed = list(complete(client, echo=True, logprobs=2, stream=True))
    assert "".join(c.choices[0].text for c in streamed) == choice.text
    assert sum((c.choices[0].logprobs.token_logprobs for c in streamed), []) == \
        logprobs.token_logprobs


def test_prompt_logprobs_are_those_of_generating(client, worker):
    """What a token had when it was generated is what it has as part of a prompt."""
    said = worker.ask("/generate", text=PROMPT, return_logprob=True,
                      sampling_params={"max_new_tokens": 10, "temperature": 0,
                                       "ignore_eos": True})
    ids = tokens_of(worker, PROMPT) + said["output_ids"]
    reply = complete(client, prompt=ids, max_tokens=0, echo=True, logprobs=0)
    generated = [value for value, _, _ in said["meta_info"]["output_token_logprobs"]]
    assert reply.choices[0].logprobs.token_logprobs[-10:] == generated
    assert reply.usage.completion_tokens == 0 and reply.choices[0].finish_reason == "length"


def test_characters_of_several_bytes(client):
    prompt = "Grüße an die Welt: 你好, 😀!"
    reply = complete(client, prompt=prompt, echo=True, logprobs=0, max_tokens=1)
    assert reply.choices[0].text.startswith(prompt)
    offsets = reply.choices[0].logprobs.text_offset
    assert offsets == sorted(offsets) and offsets[-1] == len(prompt)


@pytest.mark.parametrize("change, parameter", [
    (dict(prompt=""), "prompt"),
    (dict(prompt=[]), "prompt"),
    (dict(prompt=[[]]), "prompt"),
    (dict(prompt=["a", 5]), "prompt"),
    (dict(prompt=[49152]), "prompt"),
    (dict(prompt=[-1]), "prompt"),
    (dict(extra_body={"prompt": {"a": 1}}), "prompt"),
    (dict(suffix="end"), "suffix"),
    (dict(best_of=3), "best_of"),
    (dict(logprobs=1000), "logprobs"),
    (dict(extra_body={"regex": "a+"}), "regex"),
])
def test_bad_requests(client, change, parameter):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **change)
    assert caught.value.param == parameter
