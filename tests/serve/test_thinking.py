"""A thinking model behind the unmodified clients: thoughts are no content."""

import json
import re
import threading
import time
from functools import partial

import httpx2
import pytest
from planting import FLAT_TOOLS, TOOLS, WEATHER, Planting, only
from serving import Resident
from thinking import OPENING, SWITCHED, thinking_tokenizer
from tiny_models import VOCAB_SIZE, stream_adapter_directory, tiny_llama_directory

from specstream_mlx import UserError, generate
from specstream_mlx.prompts import chat_prompt, chat_text
from specstream_mlx.serve.rendering import Renderer, shared_renderer

CALL = '<tool_call>{"name": "noon", "arguments": {}}</tool_call>'
MEANT = f"I could write {CALL} but .. stop"
PLANTED = f"<think>\n{MEANT}\n\n</think>\n\nNo stop."
ASKED = [{"role": "user", "content": "is it noon?"}]
ANTHROPIC_TOOLS = [
    {"name": "weather", "input_schema": WEATHER},
    {"name": "noon", "input_schema": {"type": "object"}},
]
SCHEMA = {
    "type": "object",
    "properties": {"noon": {"type": "boolean"}},
    "required": ["noon"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def planting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thinking")
    sizes = {"max_position_embeddings": 2048, "vocab_size": VOCAB_SIZE + 8}
    base = tiny_llama_directory(folder / "model", **sizes)
    thinking_tokenizer().save_pretrained(base)
    return Planting(PLANTED, Resident(base, stream_adapter_directory(folder / "streams", base)))


@pytest.fixture(scope="module")
def service(planting):
    return planting.service


@pytest.fixture(autouse=True)
def planted(planting):
    planting.text = PLANTED
    planting.service.tokenizer._tokenizer.chat_template = SWITCHED


def thought_tokens(planting):
    return planting.ids.index(planting.service.tokenizer.think_end_id) + 1


class Chats:
    """Whole and streamed replies of each API: thoughts, what is said, calls, the reply's end."""

    def __init__(self, openai_client, anthropic_client):
        self.openai, self.anthropic = openai_client, anthropic_client

    def chat(self, tools=True, **ask):
        ask = {"model": "base", "messages": ASKED, **ask} | ({"tools": TOOLS} if tools else {})
        create = self.openai.chat.completions
        yield self._chat(create.create(**ask))
        with create.stream(**ask, stream_options={"include_usage": True}) as stream:
            list(stream)
            yield self._chat(stream.get_final_completion())

    def _chat(self, reply):
        message, calls = reply.choices[0].message, reply.choices[0].message.tool_calls
        return (
            getattr(message, "reasoning_content", None),
            message.content or "",
            [call.function.name for call in calls or ()],
            reply.choices[0].finish_reason,
            getattr(reply.usage.completion_tokens_details, "reasoning_tokens", 0),
        )

    def responses(self, tools=True, **ask):
        ask = {"model": "base", "input": ASKED, **ask} | ({"tools": FLAT_TOOLS} if tools else {})
        yield self._response(self.openai.responses.create(**ask))
        with self.openai.responses.stream(**ask) as stream:
            events = list(stream)
            found = self._response(stream.get_final_response())
        deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == (found[0] or "")
        yield found

    def _response(self, reply):
        thoughts = [item for item in reply.output if item.type == "reasoning"]
        calls = [item.name for item in reply.output if item.type == "function_call"]
        reason = "length" if reply.status == "incomplete" else "tool_calls" if calls else "stop"
        thought = thoughts[0].content[0].text if thoughts else None
        counted = reply.usage.output_tokens_details.reasoning_tokens
        return thought, reply.output_text, calls, reason, counted

    def messages(self, tools=True, **ask):
        ask = {"model": "base", "max_tokens": 300, "messages": ASKED, **ask}
        ask |= {"tools": ANTHROPIC_TOOLS} if tools else {}
        whole = self.anthropic.messages.create(**ask)
        with self.anthropic.messages.stream(**ask) as stream:
            list(stream)
            streamed = stream.get_final_message()
        for reply in (whole, streamed):
            thoughts = [block for block in reply.content if block.type == "thinking"]
            assert all(block.signature for block in thoughts)
            reasons = {"tool_use": "tool_calls", "end_turn": "stop", "max_tokens": "length"}
            yield (
                thoughts[0].thinking if thoughts else None,
                "".join(block.text for block in reply.content if block.type == "text"),
                [block.name for block in reply.content if block.type == "tool_use"],
                reasons.get(reply.stop_reason, reply.stop_reason),
                getattr(reply.usage.output_tokens_details, "thinking_tokens", 0),
            )


APIS = ["chat", "responses", "messages"]


@pytest.fixture(params=APIS)
def replies(request, openai_client, anthropic_client):
    return getattr(Chats(openai_client, anthropic_client), request.param)


def test_thoughts_are_no_content_and_no_calls(replies, planting):
    for tools in (True, False):
        for thought, text, calls, reason, counted in replies(tools):
            assert (thought, text, calls, reason) == (MEANT, "No stop.", [], "stop")
            assert counted == thought_tokens(planting)


def test_calls_after_a_thought(replies, planting):
    planting.text = f"<think>\nso\n</think>\n\nLet me look. {CALL}"
    for found in replies():
        assert found[:4] == ("so", "Let me look.", ["noon"], "tool_calls")
        assert found[4] == thought_tokens(planting)


def test_a_thought_that_is_cut_off(openai_client, anthropic_client):
    apis = Chats(openai_client, anthropic_client)  # whose streams raise at such an end, but for one
    limited = apis.chat(max_tokens=9), apis.responses(max_output_tokens=9)
    for found in (*map(next, limited), *apis.messages(max_tokens=9)):
        assert found[1:] == ("", [], "length", 9)
        assert MEANT.startswith(found[0])


def test_what_the_prompt_has_opened(replies, planting):
    planting.service.tokenizer._tokenizer.chat_template = OPENING
    planting.text = f"{MEANT}\n</think>\n\nNo stop."
    for thought, text, _, _, counted in replies(False):
        assert (thought, text) == (MEANT, "No stop.")
        assert counted == thought_tokens(planting)
    assert planting.prompts[-1].endswith("<|assistant|><think>\n")


def test_no_stop_string_in_thoughts(openai_client, anthropic_client):
    apis = Chats(openai_client, anthropic_client)
    for found in (*apis.chat(stop=["stop"]), *apis.messages(stop_sequences=["stop"])):
        assert found[:3] == (MEANT, "No ", [])
        assert found[3] in ("stop", "stop_sequence")


def test_no_thought_in_the_arguments_of_a_call(openai_client, anthropic_client, planting):
    call = CALL.replace("{}", '{"where": "<think>"}')
    planting.text = f"Let me look. {call} That is all, stop."
    apis = Chats(openai_client, anthropic_client)
    for found in (*apis.chat(stop=["stop"]), *apis.messages(stop_sequences=["stop"])):
        thought, text, calls, _, counted = found
        assert (thought, calls, counted) == (None, ["noon"], 0)
        assert text.split() == "Let me look. That is all,".split()


@pytest.mark.parametrize("word", ["<think> x", "</think> x", "<tool_call> x</tool_call>"])
@pytest.mark.parametrize("thinks", [True, False])
def test_what_fits_a_schema_has_no_marks(openai_client, planting, word, thinks):
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [word]}}}
    planting.text = ("<think>\nhm\n</think>" if thinks else "") + json.dumps(word)
    apis = Chats(openai_client, None)
    for tools in (True, False):
        for thought, text, calls, *_ in apis.chat(tools, response_format=wanted):
            assert (thought, json.loads(text), calls) == ("hm" if thinks else None, word, [])
    ask = {"response_format": wanted, "stop": [" x"]}
    for _, text, *_ in apis.chat(False, **ask):
        assert text == json.dumps(word).partition(" x")[0]


WANTED = {"name": "x", "schema": SCHEMA}
FORMATS = {
    "chat": {"response_format": {"type": "json_schema", "json_schema": WANTED}},
    "responses": {"text": {"format": {"type": "json_schema", **WANTED}}},
}


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize("opened", [False, True])
def test_a_schema_begins_after_the_thought(openai_client, planting, api, opened):
    replies, ask = getattr(Chats(openai_client, None), api), FORMATS[api]
    planting.text = '<think>\n{"moon": 1\n</think>{"noon": true}'
    if opened:
        planting.service.tokenizer._tokenizer.chat_template = OPENING
        planting.text = planting.text.removeprefix("<think>\n")
    for draft in (True, False):
        for thought, text, *_ in replies(False, **ask, extra_body={"draft": draft}):
            assert (thought, json.loads(text)) == ('{"moon": 1', {"noon": True})
    # What does not fit is masked out, and so is a thought that nobody wants.
    planting.text = planting.text.replace("true", "1234")
    for _, text, *_ in replies(False, **ask, extra_body={"enable_thinking": None}):
        assert "1234" not in text
    planting.text = '{"noon": false}'
    for thought, text, *_ in replies(False, **ask, extra_body={"enable_thinking": False}):
        assert (thought, text) == (None, planting.text)


@pytest.mark.parametrize("template", [SWITCHED, OPENING])
def test_a_schema_from_python_begins_after_the_thought(planting, template):
    model, tokenizer = planting.service.model("base"), planting.service.tokenizer
    tokenizer._tokenizer.chat_template = template
    prompt = chat_prompt(tokenizer, "is it noon?")
    thought = '{"moon": 1\n</think>'
    thought = thought if template is OPENING else f"<think>\n{thought}"
    ids = tokenizer.encode(thought + '{"noon": true}', add_special_tokens=False)
    planted = partial(only, [*ids, tokenizer.eos_token_id], len(prompt))
    for speculation in (True, False):
        options = {"schema": SCHEMA, "speculation": speculation, "logits_processors": [planted]}
        text = generate(model, tokenizer, prompt, max_tokens=60, **options)
        assert json.loads(text.partition("</think>")[2]) == {"noon": True}
    ids[-2:] = tokenizer.encode("1234", add_special_tokens=False)
    planted = partial(only, ids, len(prompt))
    options["logits_processors"] = [planted]
    assert "1234" not in generate(model, tokenizer, prompt, max_tokens=60, **options)


SWITCHES = [
    ("chat", {"extra_body": {"enable_thinking": False}}),
    ("chat", {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}),
    ("chat", {"reasoning_effort": "none"}),
    ("chat", {"extra_body": {"reasoning": {"enabled": False}}}),
    ("chat", {"extra_body": {"thinking": {"type": "disabled"}}}),
    ("responses", {"reasoning": {"effort": "none"}}),
    ("responses", {"extra_body": {"enable_thinking": False}}),
    ("messages", {"thinking": {"type": "disabled"}}),
    ("messages", {"extra_body": {"enable_thinking": False}}),
]


@pytest.mark.parametrize(("api", "ask"), SWITCHES, ids=str)
def test_thinking_is_switched_off(openai_client, anthropic_client, planting, api, ask):
    planting.text = "No."
    for found in getattr(Chats(openai_client, anthropic_client), api)(False, **ask):
        assert found == (None, "No.", [], "stop", 0)
    assert planting.prompts[-1].endswith("<|assistant|><think>\n\n</think>\n\n")


ON = [
    ("chat", {}),
    ("chat", {"reasoning_effort": "high"}),
    ("responses", {"reasoning": {"effort": "low", "summary": "auto"}}),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("messages", {"thinking": {"type": "adaptive"}}),
]


@pytest.mark.parametrize(("api", "ask"), ON, ids=str)
def test_thinking_is_on(openai_client, anthropic_client, planting, api, ask):
    for found in getattr(Chats(openai_client, anthropic_client), api)(False, **ask):
        assert found[:2] == (MEANT, "No stop.")
    assert planting.prompts[-1].endswith("<|assistant|>")


def test_log_probabilities_are_of_thoughts_too(openai_client, planting):
    ask = {"model": "base", "messages": ASKED, "logprobs": True}
    [choice] = openai_client.chat.completions.create(**ask).choices
    assert len(choice.logprobs.content) == len(planting.ids)


def test_omitted_thoughts_are_signed(anthropic_client):
    ask = {"type": "adaptive", "display": "omitted"}
    reply = anthropic_client.messages.create(
        model="base", max_tokens=300, messages=ASKED, thinking=ask
    )
    thought, text = reply.content
    assert (thought.thinking, text.text) == ("", "No stop.") and thought.signature


def test_a_text_that_goes_on_has_no_thoughts(openai_client, planting):
    [choice] = openai_client.completions.create(model="base", prompt="x", max_tokens=200).choices
    assert choice.text == PLANTED


# Conversations that were begun elsewhere, or here ----------------------------------------------

HERE = "<|assistant|><think>\nso\n</think>\n\nLet me look."
BACK = f'{HERE}<tool_call>\n{{"name": "noon", "arguments": {{}}}}\n</tool_call><|end|>'
BACK += "<|tool|>12<|end|><|assistant|>"


def test_what_comes_goes_back(openai_client, anthropic_client, planting):
    """The clients' own objects, with thoughts, into a template that knows them."""
    text = planting.text = f"<think>\nso\n</think>\n\nLet me look. {CALL}"
    message = (
        openai_client.chat.completions.create(model="base", messages=ASKED, tools=TOOLS)
        .choices[0]
        .message
    )
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}
    planting.text = "Yes."
    turns = [*ASKED, message, result]
    reply = openai_client.chat.completions.create(model="base", messages=turns, tools=TOOLS)
    assert reply.choices[0].message.content == "Yes."
    assert planting.prompts[-1].endswith(BACK)
    assert "ignored" not in reply.specstream

    planting.text = text
    ask = {"model": "base", "tools": FLAT_TOOLS}
    output = openai_client.responses.create(input=ASKED, **ask).output
    result = {"type": "function_call_output", "call_id": output[-1].call_id, "output": "12"}
    planting.text = "Yes."
    reply = openai_client.responses.create(input=[*ASKED, *output, result], **ask)
    assert planting.prompts[-1].endswith(BACK)

    planting.text = text
    ask = {"model": "base", "tools": ANTHROPIC_TOOLS, "max_tokens": 300}
    content = anthropic_client.messages.create(messages=ASKED, **ask).content
    result = {"type": "tool_result", "tool_use_id": content[-1].id, "content": "12"}
    planting.text = "Yes."
    turns = [*ASKED, {"role": "assistant", "content": content}]
    anthropic_client.messages.create(
        messages=[*turns, {"role": "user", "content": [result]}], **ask
    )
    assert planting.prompts[-1].endswith(BACK)


USED = {"id": "call_1", "type": "function", "function": {"name": "noon", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "12"}
SIGNED = {"type": "reasoning.text", "text": "so", "format": "x", "index": 0, "signature": "x"}
BLOCK = {"type": "thinking", "thinking": "so", "signature": "x"}
REASONED = {"type": "reasoning", "text": "so"}
NESTED = {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "so"},
        {"reasoning": "so"},
        {"reasoning_text": "so", "reasoning_opaque": "x"},
        {"reasoning_details": [SIGNED, {"type": "reasoning.encrypted", "data": "x", "index": 1}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "so"}]},
        {"thinking_blocks": [BLOCK], "reasoning_content": "so"},
        {"thinking": "so"},
        {"content": [BLOCK, {"type": "text", "text": "Let me look."}]},
        {"content": [NESTED, {"type": "text", "text": "Let me look."}]},
        {
            "content": [
                {"type": "reasoning", "text": "so"},
                {"type": "text", "text": "Let me look."},
            ]
        },
    ],
    ids=str,
)
def test_thoughts_of_any_client_in_chats(address, planting, fields):
    planting.text = "Yes."
    turn = {"role": "assistant", "content": "Let me look.", "tool_calls": [USED], **fields}
    body = {"model": "base", "messages": [*ASKED, turn, RESULT], "tools": TOOLS}
    reply = httpx2.post(f"{address}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert planting.prompts[-1].endswith(BACK)


# As codex writes an earlier turn of another model, and opencode what it got from an Anthropic one.
CODEX = {
    "model": "base",
    "instructions": "Be brief.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "Stay in the folder."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "<context>x</context>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "is it noon?"}],
        },
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "so"}],
            "content": None,
            "encrypted_content": "gAAAA",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me look."}],
            "phase": "commentary",
        },
        {"type": "function_call", "name": "noon", "arguments": "{}", "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "12"},
    ],
    "tools": FLAT_TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "x",
}
OPENCODE = {
    "model": "base",
    "max_tokens": 32000,
    "temperature": 0,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": "Stay in the folder."},
        *ASKED,
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "so",
            "tool_calls": [USED],
        },
        RESULT,
    ],
    "tools": TOOLS,
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", CODEX), ("/v1/chat/completions", OPENCODE)],
    ids=["codex", "opencode"],
)
def test_conversations_begun_elsewhere(address, planting, path, body):
    planting.text = "<think>\nhm\n</think>\n\nYes."
    reply = httpx2.post(f"{address}{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    words = re.findall(r'"(?:delta|content)": "(\w*\.?)"', reply.text)
    assert "".join(words).endswith("Yes.")
    assert planting.prompts[-1].endswith(BACK)
    assert "<|system|>Be brief.\n\nStay in the folder.<|end|>" in planting.prompts[-1]
    planting.service.tokenizer._tokenizer.chat_template = OPENING  # which knows no thoughts
    planting.text = "hm</think>Yes."
    if "messages" in body:
        body = body | {"messages": [m for m in body["messages"] if m["role"] != "tool"]}
        del body["messages"][-1]["tool_calls"]
        body["messages"].append(ASKED[0])
        reply = httpx2.post(f"{address}{path}", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        assert '"ignored": ["reasoning_content", "tools"]' in reply.text


# Limits of templates ------------------------------------------------------------------------------

LOOP = "{% for i in range(9999) %}{% for j in range(9999) %}{{ '' }}{% endfor %}{% endfor %}"
SLOW = "{% if 'slow' in messages[0].content %}" + LOOP + "{% endif %}" + SWITCHED


def test_a_slow_template_holds_up_nobody(address, planting):
    planting.service.tokenizer._tokenizer.chat_template = SLOW
    answers = {}

    def ask(said):
        body = {"model": "base", "messages": [{"role": "user", "content": said}]}
        path = f"{address}/v1/chat/completions"
        answers[said] = httpx2.post(path, json=body, timeout=60), time.monotonic()

    for said in ("this", "that"):
        ask(said)  # whose processes are there from now on
    thread = threading.Thread(target=ask, args=("slow",))
    thread.start()
    time.sleep(0.2)
    ask("hello")
    thread.join()
    (quick, ended), (slow, late) = answers["hello"], answers["slow"]
    assert quick.status_code == 200 and ended < late
    assert slow.status_code == 400
    assert slow.json()["error"]["message"].endswith(
        "takes longer than it may for this conversation"
    )
    ask("quick again")
    assert answers["quick again"][0].status_code == 200


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (LOOP, "takes longer than it may"),
        ("{{ 'x' * 10 ** 10 }}", "takes more memory than it may"),
        (LOOP.replace("9999", "999").replace("''", "'x' * 99"), "takes more text than fits"),
        ("{{ raise_exception('no') }}", "chat template fails: no"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails: maximum recursion depth"),
        ("{{ ''.__class__.x }}", "fails: access to attribute '__class__'"),
        ("{{ messages[0].content.nope.x }}", "fails: 'str object' has no attribute 'nope'"),
    ],
)
def test_templates_have_limits(planting, template, sentence):
    tokenizer = planting.service.tokenizer
    tokenizer._tokenizer.chat_template = template
    renderer = Renderer(seconds=1.0)
    try:
        with pytest.raises(UserError, match=re.escape(sentence)):
            chat_text(tokenizer, ASKED, render=renderer.limited())
        tokenizer._tokenizer.chat_template = SWITCHED
        made = chat_text(tokenizer, ASKED, render=renderer.limited())
        assert made == chat_text(tokenizer, ASKED)
    finally:
        renderer.close()


def test_processes_render_as_mlx_lm_does(planting):
    tokenizer = planting.service.tokenizer
    turns = [{"role": "system", "content": "Łódź 😀 <|end|> \ue000"}, *ASKED]
    for template in (SWITCHED, OPENING, "{{ bos_token }}{{ eos_token }}{{ enable_thinking }}"):
        tokenizer._tokenizer.chat_template = template
        for further in ({}, {"thinking": False}, {"tools": TOOLS}):
            limited = chat_text(tokenizer, turns, render=shared_renderer().limited(), **further)
            assert limited == chat_text(tokenizer, turns, **further)
