"""The unmodified ``openai`` and ``anthropic`` clients; the golden record has further requests."""

import json
from types import SimpleNamespace

import anthropic
import httpx2
import openai
import pytest
from mlx_lm.sample_utils import make_logits_processors
from random_models import random_prompt
from serving import CHAT, running
from starlette.testclient import TestClient

from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.client_request import ClientRequest
from specstream_mlx.serve.fields import RefusedError
from specstream_mlx.serve.openai_api import request_of_chat

SAID = CHAT[0]["content"]
TOOL = {"type": "function", "function": {"name": "noon"}}
CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "noon", "arguments": "{}"}}]}


@pytest.mark.parametrize(("model", "template"), [("base", ""), ("base:shared", "Say it again: ")])
def test_a_chat_is_what_generate_writes(chat, tiny, model, template):
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": f"{template}the numbers"},
        {"role": "assistant", "content": "in the table"},
        {"role": "user", "content": f"{template}the team"},
    ]
    parts = [{"type": "text", "text": text} for text in ("the ", "numbers")]
    turns = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    turns += [plain[2], {"role": "user", "content": "the team"}]
    text, tokens = tiny.solo(model, plain, 12)
    for draft in (True, False):
        found = chat(model, turns, extra_body={"draft": draft})
        (choice,) = found.choices
        assert choice.message.content == text
        assert choice.finish_reason == "length"
        assert found.usage.completion_tokens == len(tokens)
        assert found.specstream["draft"] is draft
        assert found.specstream["accepted_length"] >= 1
        seen, calls = found.specstream["seen"], found.specstream["target_calls"]
        assert (seen and seen["steps"]) == (calls if draft else None)
    assert found.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1
    assert found.specstream["drafted_tokens"] == 0
    assert found.specstream["target_calls"] == len(tokens)


def test_choices_have_seeds_one_apart(chat, tiny):
    drawn = chat(temperature=0.8, n=2)  # of which the server says the seed
    for number, choice in enumerate(drawn.choices):
        seed = drawn.specstream["seed"] + number
        assert choice.message.content == tiny.solo("base", CHAT, 12, 0.8, seed)[0]
    assert drawn.specstream["seen"]["steps"] == drawn.specstream["target_calls"]


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
        for number in range(3):  # the end of a text is said at once, not with the last one's
            assert f"\n: text {number} has ended: length\n" in stream.text
        assert texts == [chat(name).choices[0].message.content for name in tiny.models]
        refused = httpx2.post(f"{address}/together", json={"chats": [{**chats[0], "model": "x"}]})
        assert refused.status_code == 404


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


def test_texts_that_fit_a_schema(chat, openai_client):
    kinds = {"name": {"type": "string", "maxLength": 5}, "kind": {"enum": ["fish", "bird"]}}
    schema = {"type": "object", "properties": kinds, "required": ["name", "kind"]}
    schema = {"name": "x", "schema": {**schema, "additionalProperties": False}}
    wanted = {"type": "json_schema", "json_schema": schema}
    ask = {"max_tokens": 200, "temperature": 1.0, "seed": 1, "response_format": wanted}
    text = chat(**ask).choices[0].message.content
    value = json.loads(text)
    assert list(value) == ["name", "kind"] and value["kind"] in ("fish", "bird")
    ask = {"max_output_tokens": 200, "temperature": 1.0, "extra_body": {"seed": 1}}
    wanted = {"format": {"type": "json_schema", **schema}}
    response = openai_client.responses.create(model="base", input=SAID, text=wanted, **ask)
    assert (response.output_text, response.status) == (text, "completed")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"messages": [{"role": "user"}]}, "a message of the user has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
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
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            chat(**{"stream": stream, **fields})
        message = error.value.body["message"]
        assert sentence in message
        assert "\n" not in message


LONG = {"role": "system", "content": "please send the report to the team. " * 80}
PARTS = [{"type": "text", "text": "noon", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
FLAT = {"type": "function", "name": "noon", "strict": False, "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "x", "tools": [FLAT]}
PROGRAMS = {
    "llm": ("/v1/chat/completions", {"messages": CHAT, "tools": [TOOL]}, ["tools"]),
    "aider": ("/v1/chat/completions", {"messages": [LONG, *CHAT, CHAT[0]], "temperature": 0}, None),
    "Continue": ("/v1/chat/completions", {"messages": [LONG, *CHAT], "tools": [TOOL]}, ["tools"]),
    "opencode": (
        "/v1/chat/completions",
        {"messages": [LONG, *CHAT], "max_tokens": 32000, "tools": [TOOL], "tool_choice": "auto"},
        ["tools"],
    ),
    "codex": (
        "/v1/responses",
        {
            "input": [
                {"type": "message", "id": "msg_1", "role": role, "content": [part]}
                for role in ("developer", "user")
                for part in [{"type": "input_text", "text": LONG["content"]}]
            ],
            "tools": [FLAT, NAMESPACE, {"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "x",
            "client_metadata": {"session_id": "x"},
        },
        ["tools.1", "tools.2", "tools"],
    ),
    "Claude Code": (
        "/v1/messages",
        {
            "messages": [{"role": "user", "content": PARTS}, LONG],
            "system": PARTS,
            "tools": [{"name": "noon", "input_schema": {"type": "object"}}],
            "metadata": {"user_id": "x"},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
        },
        ["thinking", "tools"],
    ),
}
"""By program: where it asks, what it says by default, and what the model does not get of it."""


@pytest.mark.parametrize(("path", "body", "ignored"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_programs_ask_by_default_is_answered(address, path, body, ignored):
    usage = {"stream_options": {"include_usage": True}} if "chat" in path else {}
    for further in ({}, {"stream": True, **usage}):
        asked = {"model": "base", **body, **further}
        reply = httpx2.post(f"{address}{path}", json=asked, timeout=60)
        assert reply.status_code == 200, reply.text
        events = [line[6:] for line in reply.text.split("\n") if line.startswith("data: {")]
        *_, last = (
            found for found in map(json.loads, events or [reply.text]) if "specstream" in str(found)
        )
        figures = last.get("response", last)["specstream"]
        assert figures.get("ignored") == ignored


SAYS = {"role": "assistant", "content": "yes"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
REASONED = {"type": "reasoning", "id": "rs_1", "summary": []}
SUMMARY = [{"type": "summary_text", "text": "hm"}]
ENCRYPTED = [{"type": "reasoning.encrypted", "data": "x"}]
CHATS = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "earlier", "ignored"),
    [
        (CHATS, [SAYS | {"reasoning_content": "hm"}], ["reasoning_content"]),
        (CHATS, [SAYS | {"reasoning_content": ""}], None),
        (CHATS, [SAYS | {"reasoning": "hm"}], ["reasoning"]),
        (CHATS, [SAYS | {"reasoning_details": ENCRYPTED}], ["reasoning_details"]),
        (CHATS, [SAYS | {"content": [REDACTED]}], ["redacted_thinking"]),
        (CHATS, [{"role": "assistant", "content": None, "reasoning": "hm"}], ["reasoning"]),
        ("/v1/messages", [SAYS | {"content": [THOUGHT, PARTS[0]]}], ["thinking"]),
        ("/v1/messages", [SAYS | {"content": [REDACTED, PARTS[0]]}], ["redacted_thinking"]),
        ("/v1/messages", [SAYS | {"content": [REDACTED]}], ["redacted_thinking"]),
        ("/v1/responses", [REASONED, SAYS], None),
        ("/v1/responses", [REASONED | {"summary": SUMMARY}, SAYS], ["reasoning"]),
        ("/v1/responses", [REASONED | {"encrypted_content": "x"}, SAYS], ["reasoning"]),
        ("/v1/responses", [SAYS, REASONED | {"content": SUMMARY, "summary": None}], None),
    ],
)
def test_thoughts_that_no_template_takes(address, path, earlier, ignored):
    field = "input" if path == "/v1/responses" else "messages"
    body = {"model": "base", field: [*CHAT, *earlier, *CHAT]}
    reply = httpx2.post(address + path, json=body | ({"max_tokens": 2} if field != "input" else {}))
    assert reply.status_code == 200, reply.text
    assert reply.json()["specstream"].get("ignored") == ignored


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


def test_penalties_are_mlx_lms(chat, tiny):
    bias = {7: 3.0, 9: -2.5}
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 0.7, "frequency_penalty": 1.2}
    processors = make_logits_processors(bias, **penalties)
    for sampled in ({}, {"temperature": 0.9, "seed": 4}):
        expected, _ = tiny.solo("base", CHAT, 30, *sampled.values(), logits_processors=processors)
        for draft in (True, False):
            body = {**penalties, "draft": draft, "logit_bias": {str(n): v for n, v in bias.items()}}
            found = chat(max_tokens=30, extra_body=body | sampled).choices[0].message.content
            assert found == expected
    assert expected != tiny.solo("base", CHAT, 30, 0.9, 4)[0]


def test_too_large_max_tokens_are_what_there_is_room_for(tiny):
    context = tiny.models["base"].config["max_position_embeddings"]
    service = tiny.service(100_000)
    for asked, expected in ((50_000, context - 40), (30, 30)):
        [job] = service.jobs(ClientRequest("base", [5] * 40, max_tokens=asked))
        assert job.max_tokens == expected
    service.worker.stop()


def test_names_of_others_other_sites_and_a_front_page(tiny):
    service = tiny.service(aliases={"gpt-4o-mini": "base:other"})
    streams = tiny.models["base:other"].adapter.path.resolve()
    cards = {streams: SimpleNamespace(facts=lambda: {"does": "x"})}
    app = make_app(service, origins=["http://editor.example"], cards=cards)
    origin = {"origin": "http://editor.example", "access-control-request-method": "POST"}
    with TestClient(app, "http://localhost:8080") as client:
        listed = client.get("/v1/models").json()["data"]
        said = {one["id"]: one["specstream"].get("tool") for one in listed}
        assert [*said] == [*tiny.models, "gpt-4o-mini"]
        told = {name for name, facts in said.items() if facts == {"does": "x"}}
        assert told == {"base", "base:other", "gpt-4o-mini"}  # all of the same directory
        asked = {"model": "gpt-4o-mini", "messages": CHAT, "max_tokens": 12}
        found = client.post("/v1/chat/completions", json=asked, headers=origin)
        assert found.json()["model"] == "gpt-4o-mini"
        text = found.json()["choices"][0]["message"]["content"]
        assert text == tiny.solo("base:other", CHAT, 12)[0]
        assert found.headers["access-control-allow-origin"] == "http://editor.example"
        assert client.options("/v1/messages", headers=origin).status_code == 200
        other = client.options("/v1/messages", headers=origin | {"origin": "http://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        page = client.get("/").text
        assert "http://localhost:8080/v1\n" in page and "gpt-4o-mini" in page


def test_tokens_are_counted_without_a_text(anthropic_client):
    counted = anthropic_client.messages.count_tokens(model="base", messages=CHAT, system="be brief")
    whole = anthropic_client.messages.create(**MESSAGES, system="be brief").usage
    assert counted.input_tokens == whole.input_tokens + whole.cache_read_input_tokens
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client.messages.count_tokens(model="x", messages=CHAT)


def test_arguments_of_the_chat_template(tiny, monkeypatch):
    template = "{{ messages[0].content }}{{ style }}{{ '!' if add_generation_prompt }}"
    monkeypatch.setattr(tiny.tokenizer._tokenizer, "chat_template", template)
    service = tiny.service()
    body = {"model": "base", "messages": CHAT}
    given = {"chat_template_kwargs": {"style": " the numbers"}}
    [job] = service.jobs(request_of_chat(body | given))
    assert tiny.tokenizer.decode(job.prompt) == f"{SAID} the numbers!"
    service.worker.stop()
    # What is the server's own, a client does not replace.
    for name in ("chat_template", "tokenize", "messages", "add_generation_prompt", "bos_token"):
        with pytest.raises(RefusedError, match=rf"^chat_template_kwargs\.{name} is not supported"):
            request_of_chat(body | {"chat_template_kwargs": {name: "{{ messages }}"}})


def prompts(openai_client, prompt, **further):
    asked = {"model": "base", "prompt": prompt, "max_tokens": 6, **further}
    return openai_client.completions.create(**asked)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", ["texts", "ids"])
def test_several_prompts_are_one_choice_each(openai_client, tiny, kind, n):
    asked = ["please send", "the team", "noon"]
    if kind == "ids":
        asked = [tiny.tokenizer.encode(one) for one in asked]
    drawn = {"temperature": 1, "seed": 4, "n": n}
    alone = [prompts(openai_client, one, **drawn) for one in asked]
    expected = [choice.text for one in alone for choice in one.choices]
    whole = prompts(openai_client, asked, **drawn)
    assert [(one.index, one.text) for one in whole.choices] == [*enumerate(expected)]
    assert whole.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone)
    assert whole.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)
    texts = dict.fromkeys(range(len(expected)), "")
    for chunk in prompts(openai_client, asked, stream=True, **drawn):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == expected
    assert prompts(openai_client, asked[:1], **drawn).choices[0].text == expected[0]


def test_more_texts_than_the_queue_holds(openai_client):
    with pytest.raises(openai.BadRequestError, match="asks for 74 texts, expected at most 36"):
        prompts(openai_client, ["noon"] * 37, n=2)


@pytest.mark.parametrize("top_p", [0, 1e-300, 1e-50, 1e-9, 1e-6])
@pytest.mark.parametrize("extra", [{}, {"top_k": 5}, {"min_p": 0.01}], ids=str)
def test_the_least_top_p_is_the_likeliest_token(address, tiny, top_p, extra):
    asked = {"model": "base", "temperature": 1, "top_p": top_p, "seed": 7}
    expected = tiny.solo("base", CHAT, 12)[0]
    further = {"messages": CHAT, "max_tokens": 12, **extra}
    found = httpx2.post(f"{address}/v1/chat/completions", json=asked | further, timeout=60).json()
    assert found["choices"][0]["message"]["content"] == expected
    assert found["specstream"]["seed"] == (None if top_p == 0 else 7)


def test_a_temperature_next_to_0_is_the_likeliest_token(address, tiny):
    expected = tiny.solo("base", CHAT, 12)[0]
    for temperature in (1e-30, 1e-300, 5e-324):
        asked = {"model": "base", "messages": CHAT, "max_tokens": 12, "temperature": temperature}
        found = httpx2.post(f"{address}/v1/chat/completions", json=asked, timeout=60).json()
        assert found["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize("name", ["openai/gpt-x", "a/b/c", "x y/é", "base:x/y", "tail/"])
def test_names_with_slashes(tiny, name):
    service = tiny.service(aliases={name: "base"})
    with TestClient(make_app(service), "http://127.0.0.1") as client:
        asked = openai.OpenAI(base_url="http://127.0.0.1/v1", api_key="x", http_client=client)
        assert asked.models.retrieve(name).id == name
        assert client.get(f"/v1/models/{name}").json()["id"] == name
        missing = client.get("/v1/models/no/such")
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "model_not_found"
        assert [one["id"] for one in client.get("/v1/models/").json()["data"]][-1] == name


def test_the_stop_sequence_that_was_met(anthropic_client, tiny):
    """Of several in one text the one that is complete first, whole and streamed."""
    text = tiny.solo("base", CHAT, MESSAGES["max_tokens"])[0]
    inner, outer = text[5:7], text[4:9]
    for stops, met in [([outer, inner], inner), ([text[4:7], inner], text[4:7])]:
        whole = anthropic_client.messages.create(**MESSAGES, stop_sequences=stops)
        with anthropic_client.messages.stream(**MESSAGES, stop_sequences=stops) as stream:
            streamed = stream.get_final_message()
        for found in (whole, streamed):
            assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", met)
            assert found.content[0].text == text[: text.index(met)]
