# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions, as the OpenAI client sees it."""
import math
import threading

import openai
import pytest

QUESTION = [{"role": "user", "content": "Name three colours."}]
NAME = "any"


def chat(client, **more):
    more = {"messages": QUESTION, "max_tokens": 24, "temperature": 0, "model": NAME, **more}
    return client.chat.completions.create(**more)


def test_whole_reply(client):
    reply = chat(client)
    choice = reply.choices[0]
    assert reply.object == "chat.completion" and reply.model == NAME
    assert reply.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content.strip()
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage.prompt_tokens + reply.usage.completion_tokens == reply.usage.total_tokens
    assert 0 < reply.usage.completion_tokens <= 24
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    assert reply.metadata["weight_version"] == "default"


def test_length_and_end(client):
    cut = chat(client, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 3
    assert cut.choices[0].model_extra["matched_stop"] is None
    ended = chat(client, messages=[{"role": "user", "content": "Say hello."}], max_tokens=200)
    assert ended.choices[0].finish_reason == "stop"
    assert isinstance(ended.choices[0].model_extra["matched_stop"], int)  # the end token


def test_stream_is_the_whole_reply_in_pieces(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    # Without being asked for, a chunk without choices would confuse some clients.
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert len(chunks) > 10


def test_usage_of_a_stream(client):
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    every = list(chat(client, stream=True, stream_options={"include_usage": True,
                                                           "continuous_usage_stats": True}))
    counts = [chunk.usage.completion_tokens for chunk in every]
    assert counts == sorted(counts) and counts[-1] == whole.usage.completion_tokens


def test_logprobs(client):
    reply = chat(client, logprobs=True, top_logprobs=5)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    said = b"".join(bytes(token.bytes) for token in tokens)
    assert said.startswith(reply.choices[0].message.content.encode())
    for token in tokens:
        assert len(token.top_logprobs) == 5
        values = [top.logprob for top in token.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] <= 0
        assert sum(math.exp(value) for value in values) <= 1 + 1e-5
        assert token.token == token.top_logprobs[0].token  # greedy
        assert token.logprob == values[0]
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None


def test_logprobs_of_a_stream(client):
    whole = chat(client, logprobs=True, top_logprobs=2)
    pieces = []
    for chunk in chat(client, logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            pieces += chunk.choices[0].logprobs.content
    assert pieces == whole.choices[0].logprobs.content


def test_stop_strings(client):
    text = chat(client).choices[0].message.content
    stop = text[8:11]
    first = text.index(stop)
    reply = chat(client, stop=[stop, "never said by anybody"])
    assert reply.choices[0].message.content == text[:first]
    assert reply.choices[0].finish_reason == "stop"
    assert reply.choices[0].model_extra["matched_stop"] == stop
    chunks = list(chat(client, stop=stop, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[:first]
    assert chunks[-1].choices[0].model_extra["matched_stop"] == stop
    kept = chat(client, stop=stop, extra_body={"no_stop_trim": True})
    assert kept.choices[0].message.content == text[:first] + stop


def texts(reply):
    return [choice.message.content for choice in reply.choices]


def test_two_choices_with_a_seed(client):
    settings = dict(n=2, seed=1234, temperature=1.2)
    reply = chat(client, **settings)
    assert [choice.index for choice in reply.choices] == [0, 1]
    alone = texts(reply)
    assert alone[0] != alone[1]
    assert texts(chat(client, **settings)) == alone
    assert texts(chat(client, **{**settings, "seed": 4321})) != alone
    # Whatever else is in the batch.
    others = [threading.Thread(target=chat, args=(client,), kwargs=dict(
        temperature=1, max_tokens=40, messages=[{"role": "user", "content": f"Tell {i} tales."}]))
        for i in range(8)]
    for other in others:
        other.start()
    among = texts(chat(client, **settings))
    for other in others:
        other.join()
    assert among == alone
    streamed = ["", ""]
    for chunk in chat(client, stream=True, **settings):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == alone


def test_seeds_differ_where_none_is_given(client):
    assert len({texts(chat(client, temperature=1.5))[0] for _ in range(3)}) > 1


def test_continued_message(client):
    begun = QUESTION + [{"role": "assistant", "content": "The three colours are red,"}]
    reply = chat(client, messages=begun, extra_body={"continue_final_message": True})
    prompt = chat(client, messages=begun, max_tokens=1)
    assert reply.choices[0].message.content
    assert reply.usage.prompt_tokens < prompt.usage.prompt_tokens


def test_reasoning_is_taken_apart(client):
    thinking = QUESTION + [{"role": "assistant", "content": "<think>"}]
    more = {"continue_final_message": True}
    reply = chat(client, messages=thinking, max_tokens=8, extra_body=more)
    message = reply.choices[0].message
    assert message.model_extra["reasoning_content"] and message.content == ""
    count = reply.usage.completion_tokens
    assert reply.usage.completion_tokens_details.reasoning_tokens == count > 0
    assert reply.usage.model_extra["reasoning_tokens"] == count
    chunks = chat(client, messages=thinking, max_tokens=8, extra_body=more, stream=True)
    said = "".join((c.choices[0].delta.model_extra or {}).get("reasoning_content") or ""
                   for c in chunks)
    assert said == message.model_extra["reasoning_content"]
    plain = chat(client, messages=thinking, max_tokens=8,
                 extra_body={**more, "separate_reasoning": False})
    assert plain.choices[0].message.content.strip() == said


def test_tools_are_accepted(client):
    tools = [{"type": "function", "function": {"name": "sum", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}}}}}]
    reply = chat(client, tools=tools)
    assert reply.choices[0].message.content or reply.choices[0].message.tool_calls
    called = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "sum", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"}]
    assert chat(client, messages=called, tools=tools).choices[0].finish_reason


@pytest.mark.parametrize("change, parameter, part", [
    (dict(messages=[]), "messages", "missing or empty"),
    (dict(temperature=-1), "temperature", "from 0 to 100"),
    (dict(extra_body={"temperature": "hot"}), "temperature", "not a string"),
    (dict(max_tokens=-5), "max_tokens", "from 0"),
    (dict(n=0), "n", "from 1"),
    (dict(top_logprobs=3), "top_logprobs", "needs \"logprobs\""),
    (dict(response_format={"type": "json_object"}), "response_format", "grammar"),
    (dict(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required"),
     "tool_choice", "cannot be enforced"),
    (dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {
        "url": "x"}}]}]), "messages", "text only"),
    (dict(stop=["x"] * 65), "stop", "65 strings"),
])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(client, change, parameter, part, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, stream=stream, **change)
    assert caught.value.status_code == 400
    assert caught.value.param == parameter
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["code"] == 400
    assert part in caught.value.body["message"]


def test_models(client):
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model"
    assert models[0].model_extra["max_model_len"] == 8192
