"""The unmodified ``openai`` client."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest
from random_models import random_prompt
from serving import running, until

SAID = "please send the report to the team"
CHAT = [{"role": "user", "content": SAID}]
TOOL = {"type": "function", "function": {"name": "noon"}}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "noon", "arguments": "{}"}}]}


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, model="base", messages=CHAT, max_tokens=12, **further):
    return client.chat.completions.create(
        model=model, messages=messages, max_tokens=max_tokens, **further
    )


def test_models(client):
    assert [one.id for one in client.models.list()] == ["base", "base:shared", "base:other"]
    assert client.models.retrieve("base:shared").specstream["mode"] == "shared"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.models.retrieve("base:none")


@pytest.mark.parametrize("model", ["base", "base:shared"])
def test_a_chat_is_what_generate_writes(client, tiny, model):
    said = SAID if model == "base" else f"Say it again: {SAID}"
    text, tokens = tiny.solo(model, [{"role": "user", "content": said}], 12)
    for draft in (True, False):
        found = chat(client, model, extra_body={"draft": draft})
        (choice,) = found.choices
        assert choice.message.content == text
        assert choice.finish_reason == "length"
        assert found.usage.completion_tokens == len(tokens)
        assert found.specstream["draft"] is draft
        assert found.specstream["accepted_length"] >= 1
    assert found.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1
    assert found.specstream["drafted_tokens"] == 0
    assert found.specstream["target_calls"] == len(tokens)


def test_a_stream_is_the_same_text(client):
    whole = chat(client, temperature=0.9, seed=3, n=2)
    options = {"include_usage": True}
    texts, reasons, steps = ["", ""], ["", ""], []
    for chunk in chat(client, temperature=0.9, seed=3, n=2, stream=True, stream_options=options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
            if choice.delta.role is None and choice.finish_reason is None:
                steps.append(chunk.specstream["step"])
                assert "".join(token["text"] for token in steps[-1]) == (choice.delta.content or "")
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == ["length", "length"]
    assert chunk.usage.completion_tokens == whole.usage.completion_tokens == 24
    assert chunk.specstream["seed"] == whole.specstream["seed"] == 3
    assert len(steps) == chunk.specstream["target_calls"]
    drafted = Counter(token["drafted_by"] for step in steps for token in step)
    assert drafted.pop(None) + sum(chunk.specstream["drafted_by"].values()) == 24
    assert drafted == chunk.specstream["drafted_by"]


def test_beside_a_page_chats_of_several_models_come_in_one_stream(client, tiny, tmp_path):
    (tmp_path / "index.html").write_text("a page")
    (tmp_path / "others.txt").write_text("no part of it")
    chats = [{"model": name, "messages": CHAT, "max_tokens": 12} for name in tiny.models]
    with running(tiny.service(), page=tmp_path) as address:
        assert httpx2.get(address).text == "a page"
        assert httpx2.get(f"{address}/others.txt").status_code == 404
        texts = ["", "", ""]
        stream = httpx2.post(f"{address}/together", json={"chats": chats}, timeout=60)
        for line in stream.text.split("\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == [chat(client, name).choices[0].message.content for name in tiny.models]
        refused = httpx2.post(f"{address}/together", json={"chats": [{**chats[0], "model": "x"}]})
        assert refused.status_code == 404


def test_choices_have_seeds_one_apart(client, tiny):
    found = chat(client, temperature=0.8, top_p=0.9, seed=5, n=2)
    for number, choice in enumerate(found.choices):
        again = chat(client, temperature=0.8, top_p=0.9, seed=5 + number)
        assert choice.message.content == again.choices[0].message.content
    unfiltered = chat(client, temperature=0.8, seed=5).choices[0].message.content
    assert unfiltered == tiny.solo("base", CHAT, 12, temperature=0.8, seed=5)[0]
    drawn = chat(client, temperature=0.8)  # of which the server says the seed
    again = chat(client, temperature=0.8, seed=drawn.specstream["seed"])
    assert again.choices[0].message.content == drawn.choices[0].message.content


def test_stop_strings(client, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    stop = text[5:7]
    found = chat(client, stop=[stop, "never so"])
    assert found.choices[0].message.content == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    pieces = [c.choices[0].delta.content for c in chat(client, stop=stop, stream=True)]
    assert "".join(filter(None, pieces)) == text[: text.index(stop)]


def test_log_probabilities(client):
    found = chat(client, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(found) == 12
    for token in found:
        best = [one.logprob for one in token.top_logprobs]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert token.logprob == best[0]  # the likeliest was taken
    streamed = [
        one
        for chunk in chat(client, logprobs=True, top_logprobs=3, stream=True)
        for one in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert [one.token for one in streamed] == [one.token for one in found]


def test_conversations_parts_and_roles(client, tiny):
    turns = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("the ", "numbers")]},
        {"role": "assistant", "content": "in the table"},
        {"role": "user", "content": "the team"},
    ]
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the numbers"},
        *turns[2:],
    ]
    assert (
        chat(client, messages=turns).choices[0].message.content == tiny.solo("base", plain, 12)[0]
    )


def test_completions(client, tiny):
    ids = random_prompt(20)
    for prompt in ("the meeting is at", ids):
        found = client.completions.create(model="base", prompt=prompt, max_tokens=8, logprobs=2)
        text, tokens = tiny.solo("base", prompt, 8)
        assert found.choices[0].text == text
        assert len(found.choices[0].logprobs.tokens) == len(tokens)
    stream = client.completions.create(model="base", prompt=ids, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == text


def test_responses(client, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    found = client.responses.create(model="base", input=SAID, max_output_tokens=12)
    assert found.output_text == text
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 12
    events = list(
        client.responses.create(model="base", input=CHAT, max_output_tokens=12, stream=True)
    )
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text
    plain = [{"role": "system", "content": "be brief"}, *CHAT]
    found = client.responses.create(
        model="base", input=SAID, instructions="be brief", max_output_tokens=12
    )
    assert found.output_text == tiny.solo("base", plain, 12)[0]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["fish", "bird"]},
        "right": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "right"],
    "additionalProperties": False,
}


def assert_fits(text):
    value = json.loads(text)
    assert list(value) == SCHEMA["required"]
    assert len(value["name"]) <= 5
    assert value["kind"] in ("fish", "bird")
    assert 1 <= len(value["right"]) <= 3
    assert set(value["right"]) <= {True, False}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_that_fit_a_schema(client, temperature):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    texts = {
        chat(
            client,
            max_tokens=200,
            response_format=wanted,
            temperature=temperature,
            seed=1,
            extra_body={"draft": draft},
        )
        .choices[0]
        .message.content
        for draft in (True, False)
    }
    assert len(texts) == 1
    assert_fits(*texts)
    found = client.responses.create(
        model="base",
        input=SAID,
        temperature=temperature,
        max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        extra_body={"seed": 1},
    )
    assert found.output_text == texts.pop()
    assert found.status == "completed"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"logit_bias": {"1": 2}}, "logit_bias is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty is not supported"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls is not supported"),
        ({"extra_body": {"min_tokens": 3}}, "min_tokens is not supported"),
        ({"temperature": 3}, "temperature is 3, expected at most 2"),
        ({"temperature": "warm"}, "temperature is 'warm', expected a number"),
        ({"n": 9}, "n is 9"),
        ({"stop": [""]}, "stop.0 is ''"),
        ({"max_tokens": 401}, "max_tokens is 401, this server writes at most 400"),
        ({"messages": []}, "messages is []"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role is 'king'"),
        ({"messages": [{"role": "user"}]}, "a message of the user has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function is missing"),
        ({"tools": [TOOL]}, "tools are not supported: the model's chat template"),
        ({"messages": [*CHAT, CALLS]}, "tool_calls are not supported: the model's chat template"),
        ({"tool_choice": "required"}, "tool_choice is 'required'"),
        ({"top_logprobs": 2}, "top_logprobs was given without logprobs"),
        ({"max_completion_tokens": 3}, "expected one"),
        ({"response_format": {"type": "xml"}}, "response_format.type is 'xml', expected"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "the schema cannot be followed",
        ),
        ({"messages": [{"role": "user", "content": "noon " * 2100}]}, "the model's context"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_refused_by_its_name(client, fields, sentence):
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            chat(client, **{"stream": stream, **fields})
        message = error.value.body["message"]
        assert sentence in message
        assert "\n" not in message


def test_unknown_models(client):
    for model in ("base:none", "../base", "base:../shared", "base:shared/", "", "BASE"):
        with pytest.raises(openai.NotFoundError) as error:
            chat(client, model)
        assert error.value.code == "model_not_found"


def test_many_at_once(client, tiny):
    prompts = [f"number {number} of the table" for number in range(8)]
    models = [*tiny.models] * 3

    def ask(number):
        said = [{"role": "user", "content": prompts[number]}]
        reply = chat(client, models[number], said, 10, temperature=0.7, seed=number)
        return reply.choices[0].message.content

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    for number, text in enumerate(found):
        said = (
            prompts[number]
            if "shared" not in models[number]
            else f"Say it again: {prompts[number]}"
        )
        turns = [{"role": "user", "content": said}]
        assert text == tiny.solo(models[number], turns, 10, temperature=0.7, seed=number)[0]


def test_a_full_queue_says_when_to_come_again(tiny):
    service = tiny.service(2000, most_texts=1, most_waiting=1)
    with running(service) as address, openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0
    ) as client:  # fmt: skip
        streams = [chat(client, stream=True, max_tokens=1900) for _ in range(2)]
        until(lambda: service.worker.waiting == 1)
        with pytest.raises(openai.RateLimitError) as error:
            chat(client)
        assert int(error.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        until(lambda: not service.worker.decoding and not service.worker.waiting)
        assert chat(client, max_tokens=2).usage.completion_tokens == 2
        assert "specstream_clients_left_total 2.0" in httpx2.get(f"{address}/metrics").text
