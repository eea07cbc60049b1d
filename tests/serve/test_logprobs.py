"""Log-probabilities through all APIs, whole and streamed, with three kinds of tokenizer."""

import json

import pytest
from starlette.testclient import TestClient
from tiny_models import END, VOCAB_SIZE
from tokenizer_kinds import FOLLOWED, wrapped

from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.service import Service
from specstream_mlx.vocabulary import vocabulary_of

KINDS = ["byte-level", "Llama 2's", "Metaspace after ByteFallback", "Unigram, Metaspace"]
SAID = [{"role": "user", "content": "noon"}]
SCHEMA = {"type": "array", "items": {"enum": ["a é", "ab"]}, "minItems": 1, "maxItems": 2}
BODIES = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 24, "logprobs": True},
    "/v1/completions": {"prompt": "noon", "max_tokens": 24, "logprobs": 20},
    "/v1/responses": {"input": "noon", "max_output_tokens": 24},
    "/v1/messages": {"messages": SAID, "max_tokens": 24},
}
FORMATS = {
    "/v1/chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    },
    "/v1/responses": {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}},
}
EXTRA = {
    "plain": {},
    "sampled": {"temperature": 2, "seed": 5},
    "schema": {},
    "forbidden": {"logit_bias": {str(token): -100 for token in range(VOCAB_SIZE)}},
    "several": {"n": 3, "temperature": 1, "seed": 1},
}


def strict(text):
    """Read JSON as RFC 8259 has it."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module", params=KINDS)
def client(request, tiny, tmp_path_factory):
    tokenizer = wrapped(FOLLOWED[request.param](), tmp_path_factory.mktemp("tokenizer"), VOCAB_SIZE)
    service = Service(tiny.models, tokenizer)
    with TestClient(make_app(service), "http://127.0.0.1") as client:
        client.vocabulary = vocabulary_of(tokenizer)
        yield client


def chunks(response):
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines()]
    found = [strict(line) for line in lines if line.startswith("{")]
    assert not [one for one in found if one.get("error")]
    return found


def entries(choice):
    """(name, log-probability, bytes or None, {name: log-probability}) of each token."""
    said = choice["logprobs"]
    if said is None:
        return
    if "content" in said:
        for one in said["content"]:
            top = [(other["token"], other["logprob"]) for other in one["top_logprobs"]]
            assert len(dict(top)) == len(top)  # no two have one name
            yield one["token"], one["logprob"], bytes(one["bytes"]), dict(top)
    else:
        names, scores, tops = (said[n] for n in ("tokens", "token_logprobs", "top_logprobs"))
        yield from zip(names, scores, [None] * len(names), tops, strict=True)


@pytest.mark.parametrize("extra", EXTRA)
@pytest.mark.parametrize("path", BODIES)
def test_of_all_tokens(client, path, extra):
    body = {"model": "base"} | BODIES[path]
    if extra == "schema":
        if path not in FORMATS:
            pytest.skip("has no schema")
        body |= FORMATS[path]
    elif "completions" in path:
        body |= EXTRA[extra]
    if path == "/v1/chat/completions":
        body["top_logprobs"] = 20
    whole = client.post(path, json=body)
    assert whole.status_code == 200, whole.text
    whole = strict(whole.text)
    streamed = chunks(client.post(path, json=body | {"stream": True}))
    if "completions" not in path:
        return
    for index, choice in enumerate(whole["choices"]):
        found = list(entries(choice))
        parts = [one for chunk in streamed for one in chunk["choices"] if one["index"] == index]
        again = [one for part in parts for one in entries(part)]
        assert [one[:3:2] for one in again] == [one[:3:2] for one in found] != []
        for one, other in zip(again, found, strict=True):
            assert one[1] == pytest.approx(other[1], abs=1e-3)
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        names, raw = [one[0] for one in found], b""
        for name, score, its_bytes, top in found:
            assert -10_000 < score <= 0
            assert all(-10_000 < one <= 0 for one in top.values())
            assert name not in top or top[name] == score
            if extra == "schema":
                assert 1 <= len(top) < 20  # those that may come alone
            elif extra != "forbidden":
                assert len(top) == 20
            known = by_name(client.vocabulary)[name]
            assert its_bytes is None or its_bytes == client.vocabulary.bytes_of(known)
            raw += b"" if name == END else client.vocabulary.bytes_of(known)
        if "\ufffd" not in text:  # of which libraries write other numbers
            assert raw.decode().lstrip(" ") == text.lstrip(" ")
        assert all(names)
        if extra == "schema" and choice["finish_reason"] == "stop":
            assert set(json.loads(text)) <= {"a é", "ab"}


def by_name(vocabulary):
    return {vocabulary.name_of(token): token for token in range(VOCAB_SIZE)}
