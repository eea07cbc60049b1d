"""Requests that nobody should send, and clients that leave."""

import gzip
import json
import re
import socket

import pytest
from serving import running, until
from starlette.testclient import TestClient

from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.decoding import Batcher

CHAT = {"model": "base", "messages": [{"role": "user", "content": "noon"}], "max_tokens": 2}
POSTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
HERE = "http://127.0.0.1"


@pytest.fixture(scope="module")
def client(tiny):
    with TestClient(make_app(tiny.service()), HERE) as client:
        yield client
        assert client.post(POSTS[0], json=CHAT).status_code == 200  # unharmed


def post(client, content, path=POSTS[0], **headers):
    headers = {"content-type": "application/json", **headers}
    return client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"model": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"model": NaN}',
        b'{"model": 1e999}',
        b'{"model": "\\ud800"}',
        b'{"model": ' + b"9" * 5000 + b"}",
        b'{"model": -' + b"9" * 401 + b"}",
        b'{"model": "base", "temperature": ' + b"9" * 400 + b"}",
        b'{"model": "base", "messages": {}, "prompt": {}, "input": {}, "max_tokens": 1}',
        b'{"model": 5}',
        b"{}",
    ],
    ids=lambda content: str(content[:20]),
)
def test_bodies_that_say_nothing_sensible(client, path, content):
    response = post(client, content, path)
    assert response.status_code == 400, response.text
    assert re.fullmatch(".+", response.json()["error"]["message"])  # one line


def test_deep_schemas_and_large_ones(client):
    deep = {}
    for _ in range(150):
        deep = {"type": "array", "items": deep}
    wide = {"enum": ["x" * 50 + str(number) for number in range(10_000)]}
    for schema in (deep, wide, {"$ref": "#"}, {"$ref": "file:///etc/passwd"}):
        wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
        response = client.post(POSTS[0], json={**CHAT, "response_format": wanted})
        assert response.status_code in (200, 400), response.text


def test_bodies_that_are_too_large_or_of_another_kind(client):
    assert post(client, b"x" * ((1 << 20) + 1)).status_code == 413
    assert post(client, iter([b"x" * (1 << 19)] * 3)).status_code == 413  # without a length
    assert post(client, b"{}", **{"content-length": "9" * 30}).status_code == 413
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        response = client.post(POSTS[0], content=json.dumps(CHAT), headers={"content-type": kind})
        assert response.status_code == 415
        found = f"is '{kind}'" if kind else "is missing"
        sentence = f"the Content-Type {found}, expected application/json"
        assert response.json()["error"]["message"] == sentence
    for kind in ("Application/JSON", "application/json; charset=UTF-8", "APPLICATION/JSON;x=y"):
        response = client.post(POSTS[0], content=json.dumps(CHAT), headers={"content-type": kind})
        assert response.status_code == 200


PLACES = "expected POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, "
PLACES += "POST /v1/messages, GET /v1/models"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/v1/embeddings", "embeddings"),
        ("/embeddings", "embeddings"),
        ("/v1/audio/speech", "audio"),
        ("/v1/audio/transcriptions", "audio"),
        ("/v1/images/generations", "images"),
        ("/v1/messages/batches", "batches"),
        ("/chat/completions", None),
        ("/v1/v1/chat/completions", None),
        ("/v1/" + "x" * 500, None),
        ("/v1/%ff%00", None),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_places_where_nothing_is(client, method, path, what):
    response = client.request(method, path, json={})
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert message.startswith("there is no '/")
    assert message.endswith(f"; {PLACES}")
    assert what is None or f": this server writes text, it has no {what};" in message


def test_another_method(client):
    for method, path, takes in [("GET", POSTS[0], "POST"), ("DELETE", "/v1/models", "GET, HEAD")]:
        response = client.request(method, path)
        assert response.status_code == 405
        assert {*response.headers["allow"].split(", ")} == {*takes.split(", ")}
        message = f"'{path}' was asked by {method}, expected {takes}"
        assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"n": ' + b"9" * 5000 + b"}", "has an integer of 5000 digits, expected at most 400"),
        (b'{"n": 1e999}', "has the number '1e999', expected a finite one"),
        (b'{"n": "\\ud83d"}', "has \\ud83d, which is half a character"),
    ],
)
def test_values_that_python_refuses(client, content, sentence):
    assert post(client, content).json()["error"]["message"] == f"the body {sentence}"


def test_bodies_in_another_encoding(client):
    content = json.dumps(CHAT).encode()
    assert post(client, b"\xef\xbb\xbf" + content).status_code == 200
    for coding in ("", "identity", "Identity"):
        assert post(client, content, **{"content-encoding": coding}).status_code == 200
    for coding in ("gzip", "zstd", "gzip, br"):
        response = post(client, gzip.compress(content), **{"content-encoding": coding})
        sentence = f"the Content-Encoding is '{coding}', expected a body that is not compressed"
        assert response.status_code == 415
        assert response.json()["error"]["message"] == sentence
    response = post(client, content.replace(b"noon", "né".encode("latin-1")))
    message = response.json()["error"]["message"]
    assert re.fullmatch("byte [0-9]+ of the body is no text in UTF-8", message)


HUGE = [2**31, 2**31 + 1, 2**63, 10**30, 10**399, -(10**30), 1e300]
SIZES = ("frequency_context_size", "presence_context_size", "repetition_context_size")
LIMITED = {
    POSTS[0]: ("max_tokens", "top_k", "n", "top_logprobs", "seed", "temperature", "top_p", *SIZES),
    POSTS[1]: (
        "max_tokens",
        "logprobs",
        "frequency_penalty",
        "repetition_penalty",
        "min_p",
        *SIZES,
    ),
    POSTS[2]: ("max_output_tokens", "seed", "temperature", "top_p"),
    POSTS[3]: ("max_tokens", "top_k", "seed", "temperature", "top_p"),
}


@pytest.mark.parametrize(("path", "name"), [(p, name) for p in POSTS for name in LIMITED[p]])
def test_huge_numbers_of_each_field(client, path, name):
    body = {"model": "base", "prompt": "noon", "input": "noon", "messages": CHAT["messages"]}
    said = {POSTS[1]: "prompt", POSTS[2]: "input"}.get(path, "messages")
    body = {"model": "base", said: body[said], "repetition_penalty": 1.1, "logprobs": True}
    if path != POSTS[0]:
        del body["repetition_penalty"], body["logprobs"]
    body |= {"max_tokens": 2} if path == POSTS[3] else {}
    for value in HUGE:
        if name == "seed" and 0 <= value < 2**63:
            continue
        response = client.post(path, json=body | {name: value})
        assert response.status_code == 400, (name, value, response.text)
        assert response.json()["error"]["message"].startswith(f"{name} is ")


@pytest.mark.parametrize("key", ["9" * 5000, "9" * 11, "-1", "", "x", "٣", "1.0", " 1", "320"])
def test_keys_of_logit_bias(client, key):
    response = client.post(POSTS[0], json=CHAT | {"logit_bias": {key: 1}})
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith(f"logit_bias has {'token' if key == '320' else 'the key'} ")


def test_pages_of_other_sites_get_nothing(client):
    for host in ("evil.example", "127.0.0.1.evil.example", "[::1", "", "evil@127.0.0.1:x:y"):
        response = client.get("/v1/models", headers={"host": host})
        assert response.status_code == 403, host
    for host in ("localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = client.options(POSTS[0], headers=asked)
    assert response.status_code == 405
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_an_api_key(tiny):
    app = make_app(tiny.service(), api_key="sésame")
    with TestClient(app, HERE) as client:
        assert client.get("/health").status_code == 200
        right = {"authorization": "Bearer sésame".encode()}
        wrong = [{"authorization": x} for x in ("Bearer wrong", "Basic sésame".encode(), "Bearer")]
        for headers in ({}, {"x-api-key": "sesame"}, *wrong):
            for path in ("/v1/models", "/openapi.json"):
                assert client.get(path, headers=headers).status_code == 401
        assert client.get("/v1/models", headers=right).status_code == 200
        assert client.get("/v1/models", headers={"x-api-key": "sésame".encode()}).status_code == 200


def test_the_document_lists_what_is_read(client):
    document = client.get("/openapi.json").json()
    assert list(document["paths"]) == POSTS
    content = document["paths"][POSTS[0]]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    chat = document["components"]["schemas"][name]
    assert (chat["additionalProperties"], chat["required"]) == (False, ["model", "messages"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [1, 900], ids=["text", "prompt"])
def test_a_client_that_leaves_stops_its_work(tiny, stream, words, monkeypatch):
    completes, remove = [], Batcher.remove

    def seen(self, number, complete=False):
        completes.append(complete)
        remove(self, number, complete)

    monkeypatch.setattr(Batcher, "remove", seen)
    service = tiny.service(1900)
    worker = service.worker
    said = [{"role": "user", "content": " noon" * words}]
    body = json.dumps(CHAT | {"messages": said, "max_tokens": 1000, "stream": stream}).encode()
    head = f"POST {POSTS[0]} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with running(service) as address:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: worker.decoding)
        until(lambda: not worker.decoding)
        assert completes == [False]


def test_who_waits_learns_that_the_server_is_alive(tiny):
    said = {"messages": [{"role": "user", "content": " noon" * 900}], "stream": True}
    with TestClient(make_app(tiny.service(patience=0.001)), HERE) as client:
        lines = client.post(POSTS[0], json=CHAT | said).text.splitlines()
    assert ": keep-alive" in lines
    read = [int(line.split()[1]) for line in lines if line.endswith("prompt tokens are read")]
    assert read == sorted(read)
    assert len(read) > 1
    assert all(line[:2] in ("", ": ", "da") for line in lines)
