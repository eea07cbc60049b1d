"""The replay of drafters that know only the text, against decoding, and its report."""

import json
from collections import Counter
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from command_line import refusal, run_program
from random_models import chain_of, random_prompt, request, speculative_model
from tiny_models import tiny_llama_directory
from typer.testing import CliRunner

from benchmarks.report import table
from benchmarks.studies import text_drafters
from benchmarks.studies.text_drafters import (
    COLUMNS,
    DRAFTERS,
    NODES,
    Setting,
    accepted,
    ranked,
    replay,
    settings_of,
)
from specstream_mlx import DraftSettings
from specstream_mlx.drafting.datastore import write_datastore
from specstream_mlx.drafting.earlier_answers import Answers
from specstream_mlx.drafting.fixed import fixed_drafting
from specstream_mlx.drafting.proposal import FREE, NOTHING_VERIFIED, Material
from specstream_mlx.drafting.rest import Retrieval
from specstream_mlx.drafting.settings import Drafters
from specstream_mlx.engine.tree import DraftTree
from specstream_mlx.loading import read_config, read_tokenizer
from specstream_mlx.loop import decode
from specstream_mlx.terminal.commands import program
from specstream_mlx.train.data import read_split
from specstream_mlx.train.items import Item

# The replay -----------------------------------------------------------------------------------

VOCABULARY = 24  # tokens of a model: few, so that its text repeats itself
PROMPTS = [random_prompt(length, seed=length, vocab_size=VOCABULARY) for length in (9, 20, 14)]


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": VOCABULARY}
    return replace(speculative_model(sizes=sizes), streams=None)


def decoded(model, settings):
    """What a model writes behind the prompts, to the last call's end, and each call's tokens."""
    items, lengths, answers = [], [], Answers()
    for prompt in PROMPTS:
        drafting = fixed_drafting(settings, model, prompt, answers=answers)
        steps = list(decode(model, request(prompt, drafting, max_tokens=60)))
        items.append(Item([*prompt, *(t for step in steps for t in step.tokens)], len(prompt)))
        lengths.append([len(step.tokens) for step in steps])
    return items, lengths


@pytest.fixture(scope="module")
def datastore(model, tmp_path_factory):
    """What the model writes, in part."""
    items, _ = decoded(model, DraftSettings(speculation=False))
    path = tmp_path_factory.mktemp("data") / "store"
    tokens = [token for item in items for token in item.tokens[10:45]]
    write_datastore(path, np.array(tokens), VOCABULARY)
    return path


@pytest.mark.parametrize("nodes", [3, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_replay_has_the_calls_of_decoding(name, nodes, model, datastore):
    """By default settings; of which there is one for each drafter."""
    [setting] = [each for each in settings_of([name]) if each.is_default]
    given = {"datastore": datastore} if name == "rest" else {}
    settings = DraftSettings(drafter=[name], num_streams=0, tree_size=nodes, **given)
    items, lengths = decoded(model, settings)
    assert setting.lengths(items, nodes, datastore) == lengths
    assert len({length for each in lengths for length in each}) > 2


COPY = Item([*range(40)] * 2, 40)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("lookup", {"longest": 2, "depth": 5}, [1, 6, 6, 6, 6, 6, 6, 3]),
        ("lookup", {"longest": 8, "depth": 20}, [1, 21, 18]),
        ("pld", {}, [1, 11, 11, 11, 6]),
        ("suffix", {"factor": 1}, [1, 2, 4, 8, 16, 9]),
        ("suffix", {"factor": 2}, [1, 3, 9, 27]),
        ("suffix", {"factor": 4}, [1, 5, 25, 9]),
    ],
)
def test_a_copy_is_drafted_as_far_as_the_setting_allows(name, values, expected):
    """What a call would write behind the end is not counted."""
    assert Setting(name, values).lengths([COPY], 32, None) == [expected]


def test_each_setting_knows_its_own_earlier_answers():
    texts = [Item([50, *range(40)], 1), Item([60, *range(40)], 1)]
    suffix = Setting("suffix", {"factor": 2})
    for _ in range(2):
        assert suffix.lengths(texts, 32, None) == [[1] * 40, [1, 3, 9, 27]]


def test_a_drafter_reads_what_each_call_writes_together():
    """As in decoding: ``rest`` judges itself by it."""
    told = []

    class Watched:
        def accept(self, tokens):
            told.append(list(tokens))

        def grow(self, root, guesses):
            told.append(root)
            return chain_of([root, 11, 12, 99])

        def finish(self):
            told.append("end")

    assert replay(Watched(), [10, 11, 12, 13, 14, 11]) == [1, 3, 1, 1]
    assert told == [[10], 10, [11, 12, 13], 13, [14], 14, [11], "end"]


def test_the_text_is_followed_down_the_tree():
    tokens, parents, depths = [9, 1, 2, 2, 3], [-1, 0, 0, 1, 2], [0, 1, 1, 2, 2]
    tree = DraftTree(*(np.array(each, np.int32) for each in (tokens, parents, depths)))
    texts = [[1, 2, 4], [1, 2], [2, 3], [1, 3], [2, 2], [3], []]
    assert [accepted(tree, text) for text in texts] == [2, 2, 2, 1, 1, 0, 0]


# The arguments of REST --------------------------------------------------------------------------


@pytest.fixture
def retrieval(tmp_path):
    """Makes a drafter that has read 5 4 3 2 1, of which the datastore has ends of each length."""
    ends = [[90 + length, *range(length, 0, -1), 100 + length] for length in range(1, 6)]
    write_datastore(tmp_path / "store", np.concatenate(ends), 200)

    def make(prompt, text, **arguments):
        options = Drafters(datastore=tmp_path / "store")
        drafter = Retrieval(Material(prompt, options, width=8), **arguments)
        drafter.accept(text)
        drafter.begin(NOTHING_VERIFIED, FREE)
        return {token for token, _ in drafter.children(())}

    return make


@pytest.mark.parametrize("read", [1, 5])
@pytest.mark.parametrize("longest", [1, 2, 4, 16])
def test_rest_looks_no_longer_end_up(longest, read, retrieval):
    text = [5, 4, 3, 2, 1]
    found = retrieval(text[:read], text[read:], longest=longest, shortest=1)
    assert found == {100 + length for length in range(min(longest, 5), 6)}


@pytest.mark.parametrize("shortest", [1, 2, 3, 4])
def test_rest_looks_no_shorter_end_up(shortest, retrieval):
    found = retrieval([7], [2, 1], longest=4, shortest=shortest)
    assert found == ({102, 103, 104, 105} if shortest <= 2 else set())


# The report -------------------------------------------------------------------------------------


def test_drafters_are_ranked_by_themselves_in_the_smallest_trees():
    def row(drafter, first, default=False):
        tokens = {nodes: first + place for place, nodes in enumerate(NODES)}
        names = {"drafter": drafter, "setting": "x 1", "default": default}
        return names | {"tokens": tokens}

    rows = [row("a", 1.25), row("a", 1.5, True), row("a", 1.25), row("b", 1.125)]
    found = ranked(rows)
    assert [each["place"] for each in found] == [2, 1, 2, 1]
    lines = table(COLUMNS, found)
    assert lines[2] == "| a | x 1 | - | 1.250 | 2.250 | 3.250 | 2 |"
    assert lines[3] == "| a | x 1 | yes | 1.500 | 2.500 | 3.500 | 1 |"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("base"))


@pytest.fixture
def valid(tmp_path):
    path, words = tmp_path / "valid.jsonl", ["report", "table", "numbers", "team", "noon"]
    lines = [
        {"prompt": f"{a} {b} the meeting", "completion": f"the meeting {b} {a} the meeting"}
        for a in words
        for b in words
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def texts(base, valid):
    config = read_config(base)
    return read_split(valid, read_tokenizer(base, config), 1000, config["vocab_size"]).items


def test_its_report(base, valid, texts, tmp_path):
    store = tmp_path / "store"
    write_datastore(store, np.array([t for text in texts for t in text.tokens]), 320)
    flags = ("--model", base, "--valid", valid, "--items", 3, "--output", tmp_path / "out")
    run_program(text_drafters.main, *flags, "--datastore", store)
    [file] = (tmp_path / "out").glob("text-drafters-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert Counter(row["drafter"] for row in rows) == {
        "lookup": 15,
        "pld": 1,
        "suffix": 3,
        "rest": 9,
    }
    page = file.with_suffix(".md").read_text()
    assert page.count("| yes |") == 4 and "| pld | as published | yes |" in page
    assert "| lookup | longest 4, depth 10 | yes |" in page
    assert "| suffix | factor 4 | yes |" in page
    assert "| rest | longest 4, shortest 1 | yes |" in page
    for row, setting in zip(rows, settings_of(DRAFTERS), strict=True):
        assert setting.values.items() <= row.items()
        for nodes in NODES:
            lengths = setting.lengths([texts[0], texts[8], texts[16]], nodes, store)
            expected = fmean(length for each in lengths for length in each[1:])
            assert row["tokens"][str(nodes)] == pytest.approx(expected)
            assert expected > 1 or setting.drafter == "pld"


def test_without_a_datastore_rest_is_left_out(base, valid, tmp_path):
    run_program(
        text_drafters.main, *("--model", base, "--valid", valid, "--items", 1, "--output", tmp_path)
    )
    [page] = tmp_path.glob("text-drafters-*.md")
    assert "rest was left out: no --datastore was given." in page.read_text()
    assert "| suffix |" in page.read_text() and "| rest |" not in page.read_text()


def test_mistakes_are_told_in_a_sentence(base, valid, tmp_path):
    def refused(*flags):
        given = ("--model", base, "--output", tmp_path, *flags)
        return refusal(CliRunner().invoke(program(text_drafters.main), [str(one) for one in given]))

    none = tmp_path / "none"
    assert f"{none}" in refused("--valid", none)
    sentence = refused("--valid", none, "--datastore", none)  # which comes last, is found first
    assert f"the datastore {none} cannot be read" in sentence
    assert "--items" in refused("--valid", valid, "--items", 0)
