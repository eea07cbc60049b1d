"""Refusals of requests: the field, what was found and what was expected, in no words of ours."""

import copy
import re

import pytest

from specstream_mlx.serve.fields import (
    CHAT,
    COMPLETION,
    MESSAGES,
    RESPONSE,
    TOGETHER,
    RefusedError,
    checked,
)

TEXT = {"type": "text", "text": "noon"}
FUNCTION = {"name": "find", "parameters": {}}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [TEXT]}]
FORMAT = {"type": "json_schema", "json_schema": {"schema": {}}}
USED = {"type": "tool_use", "id": "1", "name": "find", "input": {}}
BLOCKS = [TEXT, USED, {"type": "tool_result", "tool_use_id": "1", "content": "x"}]
TOOL = {"type": "function", "function": FUNCTION}
ITEMS = [
    {"type": "message", "role": "user", "content": [TEXT]},
    {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "x"},
]
CHATS = {"messages": [*TURNS, {"role": "assistant", "tool_calls": [CALL]}], "tools": [TOOL]}
CHATS |= {"model": "base", "temperature": 1, "seed": 1, "stop": ["x"], "n": 1}
CHATS |= {"tool_choice": "auto", "response_format": FORMAT, "frequency_penalty": 0}
RESPONSES = {"model": "base", "input": ITEMS, "tools": [{"type": "function", **FUNCTION}]}
RESPONSES |= {"text": {"format": {"type": "json_schema", "schema": {}}}}
BLOCK = {"model": "base", "max_tokens": 3, "messages": [{"role": "user", "content": BLOCKS}]}
BLOCK |= {"tools": [{"name": "find", "input_schema": {}}], "tool_choice": {"type": "auto"}}
RIGHT = {
    "chat": (CHAT, {**CHATS, "stream_options": {"include_usage": True}}),
    "completion": (COMPLETION, {"model": "base", "prompt": [1, 2], "stop": "x"}),
    "response": (RESPONSE, RESPONSES),
    "messages": (MESSAGES, BLOCK),
    "together": (TOGETHER, {"chats": [{"model": "base", "messages": TURNS}]}),
}
WRONG = ["", "x" * 2000, 5, -1, 1.5, True, None, [], ["x", 3], [{}], {}, {"type": "x"}, {"type": 5}]
SENTENCE = re.compile(
    r"[a-z_\d.]+ (is missing|is not supported|is .+, expected "
    r"(true or false|(an? )?(object|string|list|integer|number)\b[\w ]*|(at|less) \w+ [\d.]+"
    r"|one (of|whose) [\w', ]+|'\w+'(, '\w+')*( or '\w+')?))"
)


def places(values, place=()):
    if place:
        yield place
    found = dict(enumerate(values)) if isinstance(values, list) else values
    for name, value in found.items() if isinstance(found, dict) else ():
        yield from places(value, (*place, name))


@pytest.mark.parametrize("kind", RIGHT)
def test_every_wrong_value_is_refused_in_a_sentence_of_the_request(kind):
    shape, right = RIGHT[kind]
    assert checked(shape, right) == right
    refused = 0
    for *way, last in places(right):
        for wrong in WRONG:
            values = copy.deepcopy(right)
            parent = values
            for name in way:
                parent = parent[name]
            parent[last] = wrong
            try:
                checked(shape, values)
            except RefusedError as error:
                assert SENTENCE.fullmatch(str(error)), str(error)
                assert str(error).startswith(error.field)
                refused += 1
    assert refused > 40


def test_what_means_the_same_is_taken():
    found = checked(COMPLETION, {"model": "base", "prompt": [1.0, 2], "max_tokens": 4.0, "n": 2.0})
    assert (found["prompt"], found["max_tokens"], found["n"]) == ([1, 2], 4, 2)
    for nothing in (None, False, 0, "", [], {}):
        checked(CHAT, RIGHT["chat"][1] | {"store": nothing})
