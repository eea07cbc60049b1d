"""``generate``'s other ways to draft: lookup and static trees on the command line."""

import json

import mlx_lm
import pytest
from command_line import generate, refusal

from specstream_mlx import DraftSettings, load, stream_generate
from specstream_mlx.drafting.drafter import describe
from specstream_mlx.drafting.settings import draft_settings
from specstream_mlx.drafting.static_tree import StaticTree

TABLE = StaticTree(((0.5, 0.2), (0.4, 0.1)), 5)
REPEATING = "the report the report the report the report"


@pytest.mark.parametrize(
    "flags",
    [("--lookup",), ("--lookup", "--lookup-size", 3, "--lookup-ngram", 2, "--tree-size", 12)],
)
@pytest.mark.parametrize("adapter", [None, "streams", "shared"])
def test_lookup_writes_the_same_text(flags, adapter, base, request):
    if adapter:
        flags += ("--adapter-path", request.getfixturevalue(adapter))
    result = generate(base, *flags, "--json", "--compare", prompt=REPEATING)
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["identical"] is True
    assert "lookup of up to" in values["tree"]
    assert "nothing is drafted" not in result.stderr


def test_without_speculation_nothing_is_looked_up(base):
    result = generate(base, "--lookup", "--no-speculation", "--json", prompt=REPEATING)
    values = json.loads(result.stdout)
    assert values["target_calls"] == values["generation_tokens"]
    assert values["tree"] == "no drafts"
    assert "nothing is drafted" in result.stderr


@pytest.mark.parametrize("adapter", ["streams", "shared"])
def test_a_tree_file(adapter, base, tmp_path, request):
    TABLE.save(tmp_path / "tree.json")
    flags = ("--adapter-path", request.getfixturevalue(adapter), "--tree", tmp_path / "tree.json")
    for more, shape in (
        ((), "static, 5 nodes"),
        (("--tree-size", 3), "static, 3 nodes"),
        (("--tree-width", 1), "static, 5 nodes"),
        (("--lookup",), "static, 5 nodes, with lookup of up to 4-grams to depth 10"),
    ):
        result = generate(base, *flags, *more, "--json", "--compare")
        assert result.exit_code == 0, result.stderr
        values = json.loads(result.stdout)
        assert values["identical"] is True
        assert values["tree"] == shape


def test_bad_tree_files(base, streams, tmp_path):
    path = tmp_path / "tree.json"
    flags = ("--adapter-path", streams, "--tree", path)
    assert f"{path} cannot be read" in refusal(generate(base, *flags))
    path.write_text('{"acceptance": [[2]]}')
    assert "rank 0 is 2, expected a probability" in refusal(generate(base, *flags))


@pytest.mark.parametrize("flag", ["--lookup-size", "--lookup-ngram"])
def test_sizes_are_at_least_one(flag, base):
    assert "at least 1" in refusal(generate(base, "--lookup", flag, 0))


def test_a_tree_that_is_too_large_without_streams_too(base):
    sentence = refusal(generate(base, "--lookup", "--tree-size", 5000))
    assert "5000 nodes, expected at most 4096" in sentence


@pytest.mark.parametrize("name", ["lookup_size", "lookup_ngram"])
def test_python_refuses_sizes_below_one(name):
    with pytest.raises(ValueError, match=f"{name} is 0, expected an integer of at least 1"):
        DraftSettings(**{name: 0})


def test_from_python_on_a_bare_model(base):
    model, tokenizer = load(base)
    plain = mlx_lm.stream_generate(model.model, tokenizer, REPEATING, 40)
    expected = [response.token for response in plain]
    found = list(stream_generate(model, tokenizer, REPEATING, 40, lookup=True))
    assert [response.token for response in found] == expected
    assert found[-1].accepted_tokens == sum(response.from_draft for response in found)


@pytest.mark.parametrize(
    ("settings", "streams", "words"),
    [
        (DraftSettings(lookup=True), True, "best-first, 8 nodes, width 4, with lookup of up to 4"),
        (DraftSettings(lookup=True), False, "best-first, 8 nodes, lookup of up to 4-grams"),
        (DraftSettings(lookup=True, num_streams=0, tree_size=None), True, "best-first, 10 nodes"),
        (DraftSettings(), False, "no drafts"),
        (draft_settings(static_tree=TABLE), True, "static, 5 nodes"),
    ],
)
def test_a_few_words_for_people(settings, streams, words):
    assert describe(settings, streams).startswith(words)
