"""``generate``'s ways to draft on the command line: the same text, and what it says it did."""

import json

import mlx_lm
import pytest
from command_line import generate

from specstream_mlx import load, stream_generate

REPEATING = "the report the report the report the report"


@pytest.mark.parametrize(
    ("adapter", "flags", "tree"),
    [
        (None, ("--drafter", "lookup", "--tree-size", 8), "lookup of up to 4-grams to depth 10"),
        (
            "streams",
            ("--drafter", "lookup", "--lookup-size", 3, "--lookup-ngram", 2, "--tree-size", 12),
            "with lookup of up to 2-grams to depth 3",
        ),
        ("shared", ("--tree-width", 2), "full 2-ary"),
    ],
)
def test_the_text_is_the_same(adapter, flags, tree, base, request):
    if adapter:
        flags += ("--adapter-path", request.getfixturevalue(adapter))
    result = generate(base, *flags, "--json", "--compare", prompt=REPEATING)
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["identical"] is True
    assert tree in values["tree"]
    assert "nothing is drafted" not in result.stderr


@pytest.mark.parametrize(
    "flags", [("--drafter", "lookup", "--no-speculation"), ("--num-streams", 0)]
)
def test_one_token_a_step(flags, base, streams):
    result = generate(base, "--adapter-path", streams, *flags, "--json", prompt=REPEATING)
    values = json.loads(result.stdout)
    assert values["target_calls"] == values["generation_tokens"]
    assert values["tree"] == "no drafts"


def test_from_python_on_a_bare_model(base):
    model, tokenizer = load(base)
    plain = mlx_lm.stream_generate(model.model, tokenizer, REPEATING, 40)
    expected = [response.token for response in plain]
    found = list(stream_generate(model, tokenizer, REPEATING, 40, drafter="lookup"))
    assert [response.token for response in found] == expected
    assert found[-1].accepted_tokens == sum(response.from_draft for response in found)
