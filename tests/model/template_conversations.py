# SPDX-License-Identifier: Apache-2.0
"""The conversations that every real chat template is rendered with: what clients send, and what
they should not. Each is a name and the variables of the template."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place, today or \"later\" <b>&amp;</b> it's fine.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "A city, e.g. Zürich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14.5},
                "exact": {"type": "boolean"},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                          "required": ["lat", "lon"], "additionalProperties": False},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["location"],
        },
    },
}
PLAIN = {"type": "function", "function": {"name": "now", "description": "The time.",
                                          "parameters": {"type": "object", "properties": {}}}}
RETURNS = {"type": "function", "function": {"name": "add", "description": "Adds numbers.\nTwo of them.",
                                            "parameters": {"type": "object",
                                                           "properties": {"a": {"type": "number", "description": "first"},
                                                                          "b": {"type": "number", "description": "second"}},
                                                           "required": ["a", "b"]},
                                            "return": {"type": "number", "description": "the sum"}}}
ODD = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "properties": {
    "either": {"type": ["boolean", "null"]}, "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "nothing": {}}}}}
TOOLS = [WEATHER, PLAIN, RETURNS]


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id, **made} if id else made


SYSTEM = says("system", "You are a helpful assistant.")
HELLO = says("user", "Hello!")
FINE = says("assistant", "Hi, how can I help?")
ASK = says("user", "What is the weather in Zürich?")
CALLS = says("assistant", "", tool_calls=[call("get_weather", {"location": "Zürich", "days": 3}, "call00001")])
RESULT = says("tool", "{\"temperature\": 21.5}", tool_call_id="call00001", name="get_weather")
ANSWER = says("assistant", "It is 21.5 °C.")

CONVERSATIONS = {
    "user": [HELLO],
    "system": [SYSTEM, HELLO],
    "turns": [SYSTEM, HELLO, FINE, says("user", "Who are you?"), says("assistant", "  Nobody.  "), says("user", "  Oh. \n")],
    "no system turns": [HELLO, FINE, says("user", "Bye.")],
    "ends with assistant": [HELLO, FINE],
    "unicode": [says("system", "Antworte höflich: ¿qué? 你好 🙂"), says("user", "שלום\u2028नमस्ते \U0001f468\u200d\U0001f469 <|im_end|> {{ x }} {% y %}"),
                says("assistant", "Ünïcödé & <tags> \"quoted\" 'single' \\ \x07"), says("user", "\u00a0e\u0301\u3000")],
    "empty": [says("system", ""), says("user", ""), says("assistant", ""), says("user", "")],
    "null": [HELLO, says("assistant", None), says("user", "again")],
    "no content": [HELLO, {"role": "assistant"}, says("user", "again")],
    "no messages": [],
    "only system": [SYSTEM],
    "only assistant": [FINE],
    "two users": [HELLO, says("user", "Are you there?")],
    "two assistants": [HELLO, FINE, says("assistant", "Well?"), says("user", "Yes.")],
    "late system": [HELLO, FINE, says("system", "Be brief."), says("user", "Go on.")],
    "two systems": [SYSTEM, says("system", "Be brief."), HELLO],
    "odd role": [SYSTEM, HELLO, says("critic", "Bad."), says("user", "Hm.")],
    "developer": [says("developer", "Be brief."), HELLO],
    "no role": [{"content": "?"}],
    "parts": [says("system", [{"type": "text", "text": "Be kind."}]),
              says("user", [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]),
              says("assistant", [{"type": "text", "text": "A test."}]), says("user", [{"type": "text", "text": "I see."}])],
    "image": [says("user", [{"type": "image"}, {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "What is it?"}])],
    "odd parts": [says("user", ["a", {"type": "audio"}, {"text": "b"}, {"type": "video", "video": "x"}])],
    "content is a number": [says("user", 42)],
    "content is a dict": [says("user", {"text": "hi"})],
    "call": [SYSTEM, ASK, CALLS, RESULT, ANSWER, says("user", "Thanks.")],
    "call and waits": [ASK, CALLS],
    "call and result": [ASK, CALLS, RESULT],
    "call with text": [ASK, {**CALLS, "content": "Let me see."}, RESULT],
    "call without content": [ASK, {"role": "assistant", "tool_calls": CALLS["tool_calls"]}, RESULT],
    "call with null": [ASK, {**CALLS, "content": None}, RESULT, ANSWER],
    "arguments as text": [ASK, says("assistant", None, tool_calls=[call("get_weather", "{\"location\": \"Zürich\", \"exact\": null}", "call00001")]), RESULT],
    "arguments of all types": [ASK, says("assistant", "", tool_calls=[call("get_weather", {
        "location": "a <b> 'c' \"d\" é\n\t\\", "days": -3, "exact": None, "big": 1234567890123, "real": 0.1, "small": 1e-7, "yes": True,
        "where": {"lat": 47.0, "lon": 8.5, "list": []}, "tags": ["x", "y"], "empty": {}, "none": [None, False]}, "call00001")]), RESULT],
    "two calls": [ASK, says("assistant", "", tool_calls=[call("get_weather", {"location": "Bern"}, "call00001"), call("now", {}, "call00002")]),
                  says("tool", "rain", tool_call_id="call00001", name="get_weather"), says("tool", "12:00", tool_call_id="call00002", name="now"), ANSWER],
    "calls in turns": [ASK, CALLS, RESULT, says("assistant", "And now?", tool_calls=[call("now", {}, "call00002")]),
                       says("tool", "noon", tool_call_id="call00002", name="now"), ANSWER, says("user", "Thanks."), says("assistant", "Bye.")],
    "call without id": [ASK, says("assistant", "", tool_calls=[call("now", {})]), says("tool", "noon")],
    "bare call": [ASK, says("assistant", "", tool_calls=[{"name": "now", "arguments": {}}]), says("tool", "noon", name="now")],
    "result as parts": [ASK, CALLS, says("tool", [{"type": "text", "text": "21"}, {"type": "text", "text": ".5"}], tool_call_id="call00001")],
    "result as dict": [ASK, CALLS, says("tool", {"temperature": 21.5, "list": [1, "x", None]}, tool_call_id="call00001", name="get_weather")],
    "result first": [RESULT, HELLO],
    "ipython": [ASK, CALLS, says("ipython", "21.5"), ANSWER],
    "function role": [ASK, CALLS, says("function", "21.5", name="get_weather"), ANSWER],
    "thinking": [HELLO, says("assistant", "Hi.", reasoning_content="They greet me.\n"), says("user", "2+2?"),
                 says("assistant", "4", reasoning_content="Easy."), says("user", "3+3?")],
    "thinking last": [SYSTEM, HELLO, says("assistant", "Hi.", reasoning_content="They greet me.")],
    "thinking in text": [HELLO, says("assistant", "<think>\nThey greet me.\n</think>\n\nHi."), says("user", "2+2?"), says("assistant", "<think></think>4")],
    "thinking key": [HELLO, says("assistant", "Hi.", thinking="They greet me."), says("user", "Go on.")],
    "reasoning key": [HELLO, says("assistant", "Hi.", reasoning="They greet me."), says("user", "Go on.")],
    "thinking and call": [SYSTEM, ASK, {**CALLS, "reasoning_content": "I need the weather."}, RESULT, says("assistant", "Fine.", reasoning_content="Good.")],
    "thinking parts": [HELLO, says("assistant", [{"type": "thinking", "thinking": "They greet me."}, {"type": "text", "text": "Hi."}]), says("user", "Go on.")],
    "marks": [says("user", "<think>a</think> </tool_call> <tool_response>x</tool_response>"), says("assistant", "</think>"), says("user", "<tool_response>\ny\n</tool_response>")],
    "long": [SYSTEM] + [m for i in range(12) for m in (says("user", f"Question {i}"), says("assistant", f"Answer {i}"))] + [HELLO],
    "names": [says("user", "hi", name="anna"), says("assistant", "ho", name="bot"), says("user", "hu", name="bert")],
    "strange keys": [says("user", "hi", items=1, keys=2, get=3, content_type="x")],
    "messages are text": "hello",
    "messages are null": None,
    "a message is text": ["hello"],
}

DOCUMENTS = [{"title": "One", "text": "First text.", "doc_id": 1}, {"title": "Zwei", "contents": "Zweiter Text.", "snippet": "x"}]

# What comes beside the messages. The first is used with every conversation, the others with some.
SETTINGS = {
    "plain": {"add_generation_prompt": True},
    "no prompt": {},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "one tool": {"add_generation_prompt": True, "tools": [PLAIN]},
    "odd tools": {"add_generation_prompt": True, "tools": [ODD, PLAIN]},
    "no tools": {"add_generation_prompt": True, "tools": []},
    "thinks": {"add_generation_prompt": True, "enable_thinking": True, "thinking": True, "tools": TOOLS, "reasoning_effort": "high",
               "thinking_budget": 1024, "keep_past_thinking": True, "clear_thinking": False},
    "does not think": {"add_generation_prompt": True, "enable_thinking": False, "thinking": False, "reasoning_effort": "low", "thinking_budget": 0},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS, "citation_mode": "accurate", "controls": {"length": "short"}},
    "date": {"add_generation_prompt": True, "date_string": "26 Jul 2024", "tools_in_user_message": False, "tools": TOOLS,
             "builtin_tools": ["wolfram_alpha", "code_interpreter", "browser", "python"], "custom_tools": [RETURNS], "xml_tools": [PLAIN], "python_tools": [PLAIN]},
    "functions": {"functions": "[{\"name\": \"now\"}]", "datetime": "2025-01-01", "additional_special_tokens": ["<a>", "<b>", "<c>"]},
    "bare tools": {"add_generation_prompt": True, "tools": [tool["function"] for tool in TOOLS], "continue_final_message": True},
    "custom": {"add_generation_prompt": True, "custom_instructions": "Be odd.", "system_message": "S", "model_identity": "Someone", "json_schema": {"type": "object"},
               "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {}}}}, "functions": [PLAIN["function"]],
               "additional_special_tokens": ["<a>", "<b>", "<c>"], "datetime": "2025-01-01", "today": "now", "developer_instructions": "D", "role_initial": "x", "image_prompts": ["<img>"]},
}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def contexts():
    """Every conversation with the first settings, with tools, and with another one in turn."""
    others = [name for name in SETTINGS if name not in ("plain", "tools")]
    for number, (name, messages) in enumerate(CONVERSATIONS.items()):
        for setting in ("plain", "tools", others[number % len(others)], others[(number + 4) % len(others)]):
            yield f"{name}, {setting}", {"messages": messages, **TOKENS, **SETTINGS[setting]}
    for setting in others:
        yield f"system, {setting}", {"messages": CONVERSATIONS["system"], **TOKENS, **SETTINGS[setting]}
    for name in ("system", "call", "turns"):
        yield f"{name}, no tokens", {"messages": CONVERSATIONS[name], "tools": TOOLS, "add_generation_prompt": True}
    yield "no variables at all", {}
