"""Tools: calls of a model whose text is planted, through the unmodified clients."""

import json

import httpx2
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools, mistral, pythonic
from planting import FLAT_TOOLS, TOOLS, WEATHER, Planting
from serving import Resident
from tiny_models import stream_adapter_directory, tiny_llama_directory, tiny_tokenizer

from specstream_mlx.serve.tool_calls import ToolCallParser

TEMPLATE = (
    "{%- if tools -%}{{- '<|system|>' + tools | tojson + '<|end|>' -}}{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>' + message.content -}}"
    "{%- for tool_call in message.tool_calls or [] -%}"
    "{%- set tool_call = tool_call.function -%}"
    "{{- '<tool_call>' + ({'name': tool_call.name, 'arguments': tool_call.arguments} | tojson) "
    "+ '</tool_call>' -}}"
    "{%- endfor -%}{{- '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
SAID = "Let me look.\n"
CALLS = [("weather", {"city": "Łódź", "days": 2}), ("noon", {})]
PLANTED = SAID + "\n".join(
    f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
    for name, arguments in CALLS
)
CHAT = [{"role": "user", "content": "the team in Łódź"}]
BACK = "".join(
    f"<tool_call>{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}</tool_call>"
    for n, a in CALLS
)
BACK = f"{SAID.rstrip()}{BACK}<|end|><|tool|>-3<|end|><|tool|>soon<|end|><|assistant|>"


@pytest.fixture(scope="module")
def planting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    base = tiny_llama_directory(folder / "model", max_position_embeddings=2048)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(base)
    return Planting(PLANTED, Resident(base, stream_adapter_directory(folder / "streams", base)))


@pytest.fixture(scope="module")
def service(planting):
    return planting.service


@pytest.fixture(autouse=True)
def planted(planting):
    planting.text = PLANTED


def test_chats_call_and_get_results(openai_client, planting):
    chats, ask = openai_client.chat.completions, {"model": "base", "tools": TOOLS}
    (whole,) = chats.create(messages=CHAT, **ask).choices
    assert planting.prompts[-1].startswith(f"<|system|>{json.dumps(TOOLS)}<|end|>")
    with chats.stream(messages=CHAT, **ask) as stream:
        chunks = [event.chunk.choices for event in stream if event.type == "chunk"]
        (streamed,) = stream.get_final_completion().choices
    for choice in (whole, streamed):
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", SAID.rstrip())
        calls = [one.function for one in choice.message.tool_calls]
        assert [(one.name, json.loads(one.arguments)) for one in calls] == CALLS
        assert len({call.id for call in choice.message.tool_calls}) == 2
    deltas = [choices[0].delta for choices in chunks if choices]
    assert not any("<tool" in (delta.content or "") for delta in deltas)
    assert [one.index for delta in deltas for one in delta.tool_calls or ()] == [0, 1]
    assert any(delta.content for delta in deltas[: len(deltas) // 2])  # said before the calls came
    # The message goes back as it came, with what the tools brought.
    planting.text = "cold"
    turns = [*CHAT, whole.message]
    for call, result in zip(whole.message.tool_calls, ("-3", "soon"), strict=True):
        turns.append({"role": "tool", "tool_call_id": call.id, "content": result})
    (choice,) = chats.create(messages=turns, **ask).choices
    assert (choice.message.content, choice.finish_reason) == ("cold", "stop")
    assert planting.prompts[-1].endswith(BACK)


def test_responses_call_and_get_results(openai_client, planting):
    ask = {"model": "base", "tools": [*FLAT_TOOLS, {"type": "web_search"}]}
    reply = openai_client.responses.create(input=CHAT, **ask)
    assert reply.specstream["ignored"] == ["tools.2"]  # the model never hears of it
    assert planting.prompts[-1].startswith(f"<|system|>{json.dumps(TOOLS)}<|end|>")
    with openai_client.responses.stream(input=CHAT, **ask) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    for found in (reply, streamed):
        calls = found.output[1:]
        assert (found.status, found.output_text) == ("completed", SAID.rstrip())
        assert [(one.name, json.loads(one.arguments)) for one in calls] == CALLS
        assert {one.status for one in found.output} == {"completed"}
        assert len({one.id for one in found.output} | {one.call_id for one in calls}) == 5
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.output_index, event.arguments) for event in done] == [
        (number, call.arguments) for number, call in enumerate(calls, 1)
    ]
    items = [event for event in events if event.type.startswith("response.output_item")]
    assert [event.type.rpartition(".")[2] for event in items] == ["added", "done"] * 3
    assert [event.item.id for event in items[1::2]] == [item.id for item in streamed.output]
    # What came goes back as it came, with what the tools brought.
    planting.text = "cold"
    turns = [*CHAT, *streamed.output]
    for call, result in zip(calls, ("-3", "soon"), strict=True):
        output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
        turns.append(output)
    last = openai_client.responses.create(input=turns, **ask)
    assert (last.output_text, len(last.output)) == ("cold", 1)
    assert planting.prompts[-1].endswith(BACK)


def test_anthropic_calls_and_their_results(anthropic_client, planting):
    tools = [
        {"name": "weather", "input_schema": WEATHER},
        {"name": "noon", "description": "Says when noon is.", "input_schema": {"type": "object"}},
    ]
    ask = {"model": "base", "max_tokens": 300, "tools": tools}
    reply = anthropic_client.messages.create(messages=CHAT, **ask)
    with anthropic_client.messages.stream(messages=CHAT, **ask) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    for found in (reply, streamed):
        assert found.stop_reason == "tool_use"
        assert [block.type for block in found.content] == ["text", "tool_use", "tool_use"]
        assert found.content[0].text == SAID.rstrip()
        assert [(block.name, block.input) for block in found.content[1:]] == CALLS
    kinds = [e.type for e in events if e.type.startswith("content_block_st")]
    assert kinds == ["content_block_start", "content_block_stop"] * 3
    planting.text = "cold"
    results = [
        {"type": "tool_result", "tool_use_id": reply.content[1].id, "content": "-3"},
        {"type": "tool_result", "tool_use_id": reply.content[2].id, "is_error": True},
        {"type": "text", "text": "and?"},
    ]
    turns = [*CHAT, {"role": "assistant", "content": reply.content}]
    turns.append({"role": "user", "content": results})
    reply = anthropic_client.messages.create(messages=turns, **ask)
    assert (reply.content[0].text, reply.stop_reason) == ("cold", "end_turn")
    assert planting.prompts[-1].endswith(
        "</tool_call><|end|><|tool|>-3<|end|><|tool|>Error: <|end|><|user|>and?<|end|><|assistant|>"
    )


def test_where_tools_must_not_be_called_calls_are_text(openai_client, anthropic_client, planting):
    chats = openai_client.chat.completions
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        (choice,) = chats.create(model="base", messages=CHAT, **fields).choices
        assert (choice.message.content, choice.finish_reason) == (PLANTED, "stop")
    reply = anthropic_client.messages.create(model="base", messages=CHAT, max_tokens=300)
    assert [block.text for block in reply.content] == [PLANTED]
    # What breaks off is text too.
    (choice,) = chats.create(model="base", messages=CHAT, tools=TOOLS, max_tokens=40).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert "<tool_call>" in choice.message.content and PLANTED.startswith(choice.message.content)


CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USE = {"type": "tool_use", "id": "x", "name": "x", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
BROKEN = {"name": "noon", "arguments": "[1"}
NAN, INFINITE = BROKEN | {"arguments": '{"a": NaN}'}, BROKEN | {"arguments": '{"a": 1e999}'}
HALF = BROKEN | {"arguments": '{"a": "\\ud800"}'}
PRIVATE = "".join(map(chr, range(0xE000, 0xF900)))
CALL = {"type": "function_call", "call_id": "x"}


@pytest.mark.parametrize(
    ("path", "turn", "sentence"),
    [
        (MESSAGES, {"role": "user", "content": [USE]}, "a tool_use stands in a turn of the user"),
        (MESSAGES, {"role": "assistant", "content": [RESULT]}, "a tool_result stands in a turn of"),
        (
            CHATS,
            {"role": "assistant", "tool_calls": [{"function": BROKEN}]},
            "the arguments of a call",
        ),
        (RESPONSES, CALL | BROKEN, "the arguments of a call of 'noon' are no JSON object"),
        (RESPONSES, CALL | NAN, "the arguments of a call of 'noon' are no JSON object"),
        (RESPONSES, CALL | INFINITE, "the arguments of a call of 'noon' are no JSON object"),
        (RESPONSES, CALL | HALF, "the arguments of a call of 'noon' are no JSON object"),
        (RESPONSES, {"type": "web_search_call"}, "one whose type is message, function_call, fun"),
        (RESPONSES, None, "the input has no message"),
        (CHATS, {"role": "user", "content": PRIVATE}, "all characters from U+E000 to U+F8FF"),
    ],
)
def test_turns_that_are_none(address, path, turn, sentence):
    field = "input" if path == RESPONSES else "messages"
    turns = [{"type": "reasoning", "summary": []}] if turn is None else [*CHAT, turn]
    body = {"model": "base", field: turns} | ({"max_tokens": 1} if path == MESSAGES else {})
    reply = httpx2.post(address + path, json=body)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]


MISTRAL = '[TOOL_CALLS]weather[ARGS]{"city": "x"}noon[ARGS]{}'
PYTHONIC = "<|tool_call_start|>[weather(city='x'), noon()]<|tool_call_end|>"
HERMES = '<tool_call>{"name": "weather", "arguments": {"city": "x"}}</tool_call>'
X = ("weather", '{"city": "x"}')


@pytest.mark.parametrize(
    ("module", "text", "expected"),
    [
        (mistral, f"so: {MISTRAL}", ["so:", X, ("noon", "{}")]),
        (pythonic, f"{PYTHONIC} done", [X, ("noon", "{}"), " done"]),
        (json_tools, f"{HERMES}\n\n{HERMES}\n", [X, X]),
        (json_tools, f"a < b <tool {HERMES} c", ["a < b <tool", X, " c"]),
        (json_tools, " plain text \n", [" plain text \n"]),
        (json_tools, "<tool_call>no</tool_call> <tool_", ["<tool_call>no</tool_call> <tool_"]),
        (json_tools, '<tool_call>{"name": 3}</tool_call>', ['<tool_call>{"name": 3}</tool_call>']),
        (json_tools, '<tool_call>{"name": "a", "arguments": {"b": NaN}}</tool_call>', None),
        (mistral, "[TOOL_CALLS]weather[ARGS]{", ["[TOOL_CALLS]weather[ARGS]{"]),
    ],
)
def test_texts_are_split_however_they_come(module, text, expected):
    tokenizer = TokenizerWrapper(
        tiny_tokenizer(),
        tool_call_start=module.tool_call_start,
        tool_call_end=module.tool_call_end,
        tool_parser=module.parse_tool_call,
    )
    for size in (1, 2, 5, len(text)):
        said, found = ToolCallParser(tokenizer, TOOLS), []
        pieces = [text[n : n + size] for n in range(0, len(text), size)]
        for piece in (*(p for one in pieces for p in said.add(one)), *said.end()):
            if isinstance(piece, dict):
                found.append((piece["function"]["name"], piece["function"]["arguments"]))
            elif found and isinstance(found[-1], str):
                found[-1] += piece
            else:
                found.append(piece)
        assert found == ([text] if expected is None else expected)
