"""The unmodified ``openai`` and ``anthropic`` clients; the golden record has further requests."""

import json

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


def test_choices_have_seeds_one_apart(chat, tiny):
    drawn = chat(temperature=0.8, n=2)  # of which the server says the seed
    for number, choice in enumerate(drawn.choices):
        seed = drawn.specstream["seed"] + number
        assert choice.message.content == tiny.solo("base", CHAT, 12, 0.8, seed)[0]


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
    for prompt in ("the meeting is at", random_prompt(20)):
        ask = {"model": "base", "prompt": prompt, "max_tokens": 8}
        found = openai_client.completions.create(logprobs=2, **ask)
        text, tokens = tiny.solo("base", prompt, 8)
        assert found.choices[0].text == text
        assert len(found.choices[0].logprobs.tokens) == len(tokens)
        stream = openai_client.completions.create(stream=True, **ask)
        assert "".join(chunk.choices[0].text for chunk in stream) == text


def test_responses(openai_client, tiny):
    create, ask = openai_client.responses.create, {"model": "base", "max_output_tokens": 12}
    plain = [{"role": "system", "content": "be brief"}, *CHAT]
    text, _ = tiny.solo("base", plain, 12)
    found = create(input=SAID, instructions="be brief", **ask)
    assert found.output_text == text
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    events = list(create(input=CHAT, instructions="be brief", stream=True, **ask))
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["fish", "bird"]},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}


def test_texts_that_fit_a_schema(chat, openai_client):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    ask = {"max_tokens": 200, "temperature": 1.0, "seed": 1, "response_format": wanted}
    found = [chat(extra_body={"draft": draft}, **ask).choices[0] for draft in (True, False)]
    text, same = (choice.message.content for choice in found)
    assert text == same
    value = json.loads(text)
    assert list(value) == SCHEMA["required"] and value["kind"] in ("fish", "bird")
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


MESSAGES = {"model": "base", "max_tokens": 12, "messages": CHAT}


def test_anthropics_stream_is_the_same_text(anthropic_client, tiny):
    turns = [{"role": "system", "content": "be brief"}, *CHAT]
    parts = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    with anthropic_client.messages.stream(**MESSAGES, system=parts) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == tiny.solo("base", turns, 12)[0]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_which_stop_sequence_was_met(anthropic_client, tiny):
    text, _ = tiny.solo("base", CHAT, 12)
    found = anthropic_client.messages.create(**MESSAGES, stop_sequences=["never so", text[5:7]])
    assert found.content[0].text == text[: text.index(text[5:7])]
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", text[5:7])
