"""Refusals of requests: the field, what was found and what was expected, in no words of ours."""

import copy
import re

import pytest

from specstream_mlx.serve.bodies import Chat, Completion, Messages, Response, Together
from specstream_mlx.serve.errors import RefusedError, checked

TEXT = {"type": "text", "text": "noon"}
FUNCTION = {"name": "find", "parameters": {}}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [TEXT]}]
FORMAT = {"type": "json_schema", "json_schema": {"schema": {}}}
RIGHT = {
    Chat: {
        "model": "base",
        "messages": [*TURNS, {"role": "assistant", "tool_calls": [CALL]}],
        "temperature": 1,
        "seed": 1,
        "stop": ["x"],
        "n": 1,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "auto",
        "response_format": FORMAT,
        "frequency_penalty": 0,
    },
    Completion: {"model": "base", "prompt": [1, 2], "stop": "x"},
    Response: {
        "model": "base",
        "input": [
            {"type": "message", "role": "user", "content": [TEXT]},
            {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "x"},
        ],
        "text": {"format": {"type": "json_schema", "schema": {}}},
        "tools": [{"type": "function", **FUNCTION}],
    },
    Messages: {
        "model": "base",
        "max_tokens": 3,
        "messages": [
            {
                "role": "user",
                "content": [
                    TEXT,
                    {"type": "tool_use", "id": "1", "name": "find", "input": {}},
                    {"type": "tool_result", "tool_use_id": "1", "content": "x"},
                ],
            }
        ],
        "tools": [{"name": "find", "input_schema": {}}],
        "tool_choice": {"type": "auto"},
    },
    Together: {"chats": [{"model": "base", "messages": TURNS}]},
}
WRONG = ["", "x" * 2000, 5, -1, 1.5, True, None, [], ["x", 3], [{}], {}, {"type": "x"}, {"type": 5}]
SENTENCE = re.compile(
    r"[a-z_\d.]+ (is missing|is not supported|is .+, expected "
    r"(true or false|(an? )?(object|string|list|integer|number)\b[\w ]*|(at|less) \w+ [\d.]+"
    r"|one (of|whose) [\w', ]+|'\w+'(, '\w+')*( or '\w+')?))"
)


def places(values, place=()):
    """Yield the ways to all values within ``values``."""
    if place:
        yield place
    found = dict(enumerate(values)) if isinstance(values, list) else values
    for name, value in found.items() if isinstance(found, dict) else ():
        yield from places(value, (*place, name))


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)
def test_every_wrong_value_is_refused_in_a_sentence_of_the_request(kind):
    checked(kind, RIGHT[kind])
    refused = 0
    for *way, last in places(RIGHT[kind]):
        for wrong in WRONG:
            values = copy.deepcopy(RIGHT[kind])
            parent = values
            for name in way:
                parent = parent[name]
            parent[last] = wrong
            try:
                checked(kind, values)
            except RefusedError as error:
                assert SENTENCE.fullmatch(str(error)), str(error)
                assert str(error).startswith(error.field)
                refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": None}, "model is missing"),
        ({"messages": ["x"]}, "messages.0 is 'x', expected an object"),
        ({"messages": []}, "messages is [], expected a list of 1 or more"),
        ({"stop": 5}, "stop is 5, expected a string or a list"),
        ({"seed": 1 << 63}, f"seed is {1 << 63}, expected less than {1 << 63}"),
        ({"tool_choice": "any"}, "tool_choice is 'any', expected 'auto' or 'none'"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type is 'xml', expected one of 'text', 'json_object', 'json_schema'",
        ),
        ({"response_format": {}}, "response_format.type is missing"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages.0.mood is not sup"),
    ],
)
def test_what_was_expected(changes, sentence):
    with pytest.raises(RefusedError, match=re.escape(sentence)):
        checked(Chat, RIGHT[Chat] | changes)


def test_an_integer_may_be_written_with_a_point():
    found = checked(Completion, {"model": "base", "prompt": [1.0, 2], "max_tokens": 4.0, "n": 2.0})
    assert (found.prompt, found.max_tokens, found.n) == ([1, 2], 4, 2)
    with pytest.raises(RefusedError, match=re.escape("max_tokens is 4.5, expected an integer")):
        checked(Completion, {"model": "base", "prompt": "x", "max_tokens": 4.5})


def test_the_schemas_say_what_is_refused():
    """What a client that reads the document would not have guessed."""
    chat, completion = Chat.model_json_schema(), Completion.model_json_schema()
    assert chat["properties"]["store"]["enum"] == [None, False, 0, "", [], {}]
    for nothing in chat["properties"]["store"]["enum"]:
        checked(Chat, RIGHT[Chat] | {"store": nothing})
    assert [way["required"] for way in chat["$defs"]["Message"]["anyOf"]] == [
        ["content"],
        ["tool_calls"],
    ]
    assert completion["properties"]["prompt"]["anyOf"][0]["minLength"] == 1
    with pytest.raises(RefusedError, match="prompt is '', expected a string of 1 or more"):
        checked(Completion, {"model": "base", "prompt": ""})
