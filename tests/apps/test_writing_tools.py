"""The writing tools on a tiny random model that stands in for the bundled one."""

import json

import command_line
import mlx.core as mx
import pytest
from specstream_mlx.apps.writing_tools.tools import (
    ToolFinished,
    ToolStarted,
    ToolText,
    WritingTools,
)
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import bundled, demonstration, generate, load
from specstream_mlx.prompts import chat_prompt

TEXT = "please send the report"
TEMPLATES = {"a": "Fix this: {text}", "b": "Shorten this: {text}"}
KEYS = {
    *("tool", "text", "swap_seconds", "adapter_bytes"),
    *("generation_tokens", "generation_tps", "accepted_length"),
}


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """What the demonstration model consists of: base, streams, and the adapters ``a`` and ``b``."""
    root = tmp_path_factory.mktemp("bundled")
    base = tiny_llama_directory(root / "base", tie_word_embeddings=False)
    stream_adapter_directory(root / "streams", base)
    for seed, (name, template) in enumerate(TEMPLATES.items(), start=1):
        fields = {"lora_rank": 4 * seed, "lora_scale": 2.0, "prompt_template": template}
        stream_adapter_directory(root / "adapters" / name, base, mode="shared", seed=seed, **fields)
    return root


@pytest.fixture(autouse=True)
def installed(installation, monkeypatch):
    monkeypatch.setattr(bundled, "ROOT", installation)
    monkeypatch.setattr(demonstration, "base_path", lambda *_: installation / "base")
    return installation


@pytest.fixture
def never_load(monkeypatch):
    """Fail where the model is loaded."""

    def refuse(*args, **kwargs):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("specstream_mlx.apps.writing_tools.tools.load", refuse)


def run(*args, stdin=None):
    return command_line.run("writing-tools", "--max-tokens", 8, *args, stdin=stdin)


def expected_text(root, tool, max_tokens=8):
    model, tokenizer = load(root / "base", adapter_path=root / "adapters" / tool)
    prompt = chat_prompt(tokenizer, TEXT, TEMPLATES[tool])
    return generate(model, tokenizer, prompt, max_tokens=max_tokens)


def test_events_come_in_order_and_hold_the_whole_text(installed):
    tools = WritingTools()
    for name in ("b", "a", "b"):
        first, *pieces, last = tools.apply(TEXT, name, max_tokens=8)
        assert isinstance(first, ToolStarted)
        assert isinstance(last, ToolFinished)
        assert {type(piece) for piece in pieces} == {ToolText}
        assert {event.tool for event in (first, *pieces, last)} == {name}
        assert "".join(piece.text for piece in pieces) == expected_text(installed, name)
        assert first.swap_seconds > 0
        assert first.adapter_bytes == sum(
            tensor.nbytes
            for file in (installed / "adapters" / name).glob("*.safetensors")
            for tensor in mx.load(str(file)).values()
        )
        assert last.generation_tokens == 8
        assert last.generation_tps > 0
        assert last.accepted_length >= 1


def test_json_is_one_object_per_tool(installed):
    result = run("--json", TEXT)
    values = [json.loads(line) for line in result.stdout.splitlines()]
    assert [value["tool"] for value in values] == ["a", "b"]
    for value in values:
        assert set(value) == KEYS
        assert value["text"] == expected_text(installed, value["tool"])
        assert value["generation_tokens"] == 8


def test_unknown_tool_is_refused_before_anything_happens(never_load):
    result = run("--tool", "a", "--tool", "poem", TEXT)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: there is no tool 'poem', expected one of a, b\n"


@pytest.mark.parametrize("options", [("--port", 0), ("--no-browser",)])
def test_options_of_the_page_are_refused_with_a_text(options, never_load):
    sentence = f"{options[0]} was given with a text, expected for the page"
    assert sentence in command_line.refusal(run(*options, TEXT))


@pytest.mark.parametrize(("args", "stdin"), [([""], None), ([], " \n")])
def test_empty_text_is_refused(args, stdin, never_load):
    result = run(*args, stdin=stdin)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: the text is empty, expected")


def test_missing_bundle_is_one_sentence(tmp_path, monkeypatch, never_load):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    result = run(TEXT)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: this installation has no bundled adapters (")
