"""Random bodies through all APIs: each is answered or refused in a sentence, and none is a 500."""

import copy
import json
import random
import re

import pytest
from starlette.testclient import TestClient

from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.fields import RefusedError

HERE = "http://127.0.0.1"
ASKED = {"role": "user", "content": "noon"}
FUNCTION = {"name": "find", "description": "x", "parameters": {"type": "object"}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", 3, None]}, "b": {"type": "integer", "minimum": 3}},
    "required": ["a"],
}
CALL = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
SAMPLED = {"model": "base", "temperature": 0.5, "top_p": 0.5, "seed": 3, "stream": False}
OPENAI = SAMPLED | {
    **{"max_tokens": 2, "min_p": 0.1, "top_k": 3, "stop": ["x"], "n": 2, "logit_bias": {"3": 1}},
    **{"frequency_penalty": 1, "frequency_context_size": 5, "repetition_penalty": 1.1},
    "stream_options": {"include_usage": True},
}
RIGHT = {
    "/v1/chat/completions": OPENAI
    | {
        "messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}],
        **{
            "logprobs": True,
            "top_logprobs": 3,
            "tools": [{"type": "function", "function": FUNCTION}],
        },
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
    },
    "/v1/completions": OPENAI | {"prompt": ["noon", "at"], "logprobs": 3},
    "/v1/responses": SAMPLED
    | {
        "input": [{"type": "message", **ASKED}, {"type": "message", **ASKED}],
        **{
            "instructions": "x",
            "max_output_tokens": 2,
            "tools": [{"type": "function", **FUNCTION}],
        },
        "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/v1/messages": SAMPLED
    | {
        **{"messages": [ASKED], "max_tokens": 2, "system": "x", "stop_sequences": ["y"]},
        **{"top_k": 3, "tools": [{"name": "find", "input_schema": {"type": "object"}}]},
    },
    "/v1/messages/count_tokens": {"model": "base", "messages": [ASKED], "system": "x"},
}
DEEP = {f"DEEP{depth}": depth for depth in (100, 400, 5000)}  # what stands for nested values
VALUES = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        5,
        2**31 - 1,
        2**31,
        2**31 + 1,
        2**32,
        2**53 + 1,
        2**63,
        2**64,
    ),
    *(10**30, -(10**30), 10**399, 0.5, -0.0, 1e-300, 5e-324, 1e300, 1.0, 3.0),
    *("", "x", "x" * 5000, "\x00", "\u2028", "é😀", "base", "user", "tool", "٣", "²", "1", "-1"),
    *("9" * 5000, "NaN", "<|end|>", "<|user|>", "{}", "function", "json_object", "text"),
    *([], {}, [[]], [{}], ["x"], [1, 2], [2**31], [[1, 2], [3]], ["a", "b"], [None], [1, "x"]),
    *({"type": "x"}, {"type": "text"}, {"9" * 5000: 1}, {"3": 100}, {"-3": 1}, {"400": 1}, *DEEP),
    *({"const": 2**53 + 1}, {"$ref": "#"}, {"enum": []}, {"type": "nothing"}, {"minItems": 10**20}),
    *(ASKED, CALL, FUNCTION, SCHEMA, [ASKED] * 3, {"role": "tool", "content": "x"}),
]
NAMES = ["x", "", "type", "9" * 5000, "echo", "best_of", "functions", "é", "__class__"]


def places(values, place=()):
    yield place
    found = dict(enumerate(values)) if isinstance(values, list) else values
    for name, value in found.items() if isinstance(found, dict) else ():
        yield from places(value, (*place, name))


def changed(values, rng):
    """A body with one thing changed, left out or added."""
    values = copy.deepcopy(values)
    *way, last = rng.choice([*places(values)][1:])
    parent = values
    for name in way:
        parent = parent[name]
    match rng.choice(["value", "value", "value", "gone", "added"]):
        case "value":
            biases = [value for value in VALUES if isinstance(value, dict)]
            values_here = biases if last == "logit_bias" else VALUES
            parent[last] = copy.copy(rng.choice(values_here))
        case "gone":
            del parent[last]
        case "added" if isinstance(parent, dict):
            parent[rng.choice(NAMES)] = copy.copy(rng.choice(VALUES))
    return values


def random_body(seed):
    """(path, body): often only a few fields are wrong, so that all checks are reached."""
    rng = random.Random(seed)
    path = rng.choice([*RIGHT])
    body = RIGHT[path]
    for name in rng.sample([*body], rng.randint(0, len(body))):
        if name not in ("model", "messages", "prompt", "input", "max_tokens"):
            body = {other: value for other, value in body.items() if other != name}
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        if len([*places(body)]) > 1:
            body = changed(body, rng)
    text = json.dumps(body)
    for name, depth in DEEP.items():
        text = text.replace(f'"{name}"', '{"a": [' * depth + "]}" * depth)
    if rng.random() < 0.05:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(["", '"', "}", "\ud83d", "9" * 4400]) + text[place + 1 :]
    return path, text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def client(service):
    with TestClient(make_app(service), HERE, raise_server_exceptions=False) as client:
        yield client


def answer(client, path, content):
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code < 500, (content[:2000], response.text)
    assert "the server failed" not in response.text, content[:2000]
    if response.status_code >= 400:
        message = response.json()["error"]["message"]
        assert re.fullmatch(".{10,}", message), message  # one line
        assert not re.search(r"Traceback|object at 0x|<class|set_int_max|Exceeds", message), message
    return response.status_code


def test_none_is_a_fault_of_the_server(client, service, monkeypatch):
    """All up to the queue, which takes none: 2,000 bodies."""
    taken = []

    def submit(jobs):
        taken.append(jobs)
        raise RefusedError(429, "the queue is full")

    monkeypatch.setattr(service.worker, "submit", submit)
    statuses = [answer(client, *random_body(seed)) for seed in range(2000)]
    assert statuses.count(400) > 800
    assert len(taken) == statuses.count(429) > 200


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))]
)
def test_none_fails_while_it_is_written(client, start):
    seeds = range(start * 100, start * 100 + 100)
    assert [answer(client, *random_body(seed)) for seed in seeds].count(200) > 10
