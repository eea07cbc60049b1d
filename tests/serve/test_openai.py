"""The unmodified ``openai`` client."""

import json
from collections import Counter

import httpx2
import openai
import pytest
from random_models import random_prompt
from serving import CHAT, running, until

SAID = CHAT[0]["content"]
TOOL = {"type": "function", "function": {"name": "noon"}}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "noon", "arguments": "{}"}}]}


@pytest.mark.parametrize("model", ["base", "base:shared"])
def test_a_chat_is_what_generate_writes(chat, tiny, model):
    said = SAID if model == "base" else f"Say it again: {SAID}"
    text, tokens = tiny.solo(model, [{"role": "user", "content": said}], 12)
    for draft in (True, False):
        found = chat(model, extra_body={"draft": draft})
        (choice,) = found.choices
        assert choice.message.content == text
        assert choice.finish_reason == "length"
        assert found.usage.completion_tokens == len(tokens)
        assert found.specstream["draft"] is draft
        assert found.specstream["accepted_length"] >= 1
    assert found.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1
    assert found.specstream["drafted_tokens"] == 0
    assert found.specstream["target_calls"] == len(tokens)


def test_a_stream_is_the_same_text(chat):
    ask = {"temperature": 0.9, "seed": 3, "n": 2}
    whole, texts, reasons, steps = chat(**ask), ["", ""], ["", ""], []
    for chunk in chat(**ask, stream=True, stream_options={"include_usage": True}):
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


def test_beside_a_page_chats_of_several_models_come_in_one_stream(chat, tiny, tmp_path):
    (tmp_path / "index.html").write_text("a page")
    (tmp_path / "others.txt").write_text("no part of it")
    chats = [{"model": name, "messages": CHAT, "max_tokens": 12, "n": None} for name in tiny.models]
    with running(tiny.service(), page=tmp_path) as address:
        assert httpx2.get(address).text == "a page"
        assert httpx2.get(f"{address}/others.txt").status_code == 404
        texts = ["", "", ""]
        stream = httpx2.post(f"{address}/together", json={"chats": chats}, timeout=60)
        for line in stream.text.split("\n"):
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == [chat(name).choices[0].message.content for name in tiny.models]
        refused = httpx2.post(f"{address}/together", json={"chats": [{**chats[0], "model": "x"}]})
        assert refused.status_code == 404


def test_choices_have_seeds_one_apart(chat, tiny):
    ask = {"temperature": 0.8, "top_p": 0.9}
    for number, choice in enumerate(chat(**ask, seed=5, n=2).choices):
        again = chat(**ask, seed=5 + number)
        assert choice.message.content == again.choices[0].message.content
    unfiltered = chat(temperature=0.8, seed=5).choices[0].message.content
    assert unfiltered == tiny.solo("base", CHAT, 12, 0.8, seed=5)[0]
    drawn = chat(temperature=0.8)  # of which the server says the seed
    again = chat(temperature=0.8, seed=drawn.specstream["seed"])
    assert again.choices[0].message.content == drawn.choices[0].message.content


def test_stop_strings(chat, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    stop = text[5:7]
    found = chat(stop=[stop, "never so"])
    assert found.choices[0].message.content == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    pieces = [c.choices[0].delta.content for c in chat(stop=stop, stream=True)]
    assert "".join(filter(None, pieces)) == text[: text.index(stop)]


def test_log_probabilities(chat):
    ask = {"logprobs": True, "top_logprobs": 3}
    found = chat(**ask).choices[0].logprobs.content
    assert len(found) == 12
    for token in found:
        best = [one.logprob for one in token.top_logprobs]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        assert token.logprob == best[0]  # the likeliest was taken
    streamed = [
        one
        for chunk in chat(**ask, stream=True)
        for one in (chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or ()
    ]
    assert [one.token for one in streamed] == [one.token for one in found]


def test_conversations_parts_and_roles(chat, tiny):
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
    found = chat(messages=turns).choices[0].message.content
    assert found == tiny.solo("base", plain, 12)[0]


def test_completions(openai_client, tiny):
    ids, ask = random_prompt(20), {"model": "base", "max_tokens": 8}
    for prompt in ("the meeting is at", ids):
        found = openai_client.completions.create(prompt=prompt, logprobs=2, **ask)
        text, tokens = tiny.solo("base", prompt, 8)
        assert found.choices[0].text == text
        assert len(found.choices[0].logprobs.tokens) == len(tokens)
    stream = openai_client.completions.create(prompt=ids, stream=True, **ask)
    assert "".join(chunk.choices[0].text for chunk in stream) == text


def test_responses(openai_client, tiny):
    create, ask = openai_client.responses.create, {"model": "base", "max_output_tokens": 12}
    text, _ = tiny.solo("base", CHAT, 12)
    found = create(input=SAID, **ask)
    assert found.output_text == text
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.usage.output_tokens == 12
    events = list(create(input=CHAT, stream=True, **ask))
    assert [one.sequence_number for one in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == text
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text
    plain = [{"role": "system", "content": "be brief"}, *CHAT]
    found = create(input=SAID, instructions="be brief", **ask)
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


def test_texts_that_fit_a_schema(chat, openai_client):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    ask = {"max_tokens": 200, "temperature": 1.0, "seed": 1, "response_format": wanted}
    found = [chat(extra_body={"draft": draft}, **ask).choices[0] for draft in (True, False)]
    text, same = (choice.message.content for choice in found)
    assert text == same
    value = json.loads(text)
    assert list(value) == SCHEMA["required"]
    assert len(value["name"]) <= 5
    assert value["kind"] in ("fish", "bird")
    assert 1 <= len(value["right"]) <= 3
    assert set(value["right"]) <= {True, False}
    response = openai_client.responses.create(
        model="base",
        input=SAID,
        temperature=1.0,
        max_output_tokens=200,
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        extra_body={"seed": 1},
    )
    assert (response.output_text, response.status) == (text, "completed")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"parallel_tool_calls": True}, "parallel_tool_calls is not supported"),
        ({"max_tokens": 401}, "max_tokens is 401, this server writes at most 400"),
        ({"messages": [{"role": "user"}]}, "a message of the user has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"tools": [TOOL]}, "tools are not supported: the model's chat template"),
        ({"messages": [*CHAT, CALLS]}, "tool_calls are not supported: the model's chat template"),
        ({"top_logprobs": 2}, "top_logprobs was given without logprobs"),
        ({"max_completion_tokens": 3}, "expected one"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "the schema cannot be followed",
        ),
        ({"messages": [{"role": "user", "content": "noon " * 2100}]}, "the model's context"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_supported_is_refused_by_its_name(chat, fields, sentence):
    """What the golden record of the server has is not repeated here."""
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            chat(**{"stream": stream, **fields})
        message = error.value.body["message"]
        assert sentence in message
        assert "\n" not in message


def test_unknown_models(chat):
    for model in ("base:none", "../base", "base:../shared", "base:shared/", "", "BASE"):
        with pytest.raises(openai.NotFoundError) as error:
            chat(model)
        assert error.value.code == "model_not_found"


def test_a_full_queue_says_when_to_come_again(tiny):
    service = tiny.service(2000, most_texts=1, most_waiting=1)
    with running(service) as address, openai.OpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0
    ) as client:  # fmt: skip
        ask, create = {"model": "base", "messages": CHAT}, client.chat.completions.create
        streams = [create(stream=True, max_tokens=1900, **ask) for _ in range(2)]
        until(lambda: service.worker.waiting == 1)
        with pytest.raises(openai.RateLimitError) as error:
            create(**ask)
        assert int(error.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()
        until(lambda: not service.worker.decoding and not service.worker.waiting)
        assert create(max_tokens=2, **ask).usage.completion_tokens == 2
        assert "specstream_clients_left_total 2.0" in httpx2.get(f"{address}/metrics").text
