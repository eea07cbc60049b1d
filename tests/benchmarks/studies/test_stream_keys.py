"""The study of what selecting keys saves and costs."""

import json

import numpy as np
import pytest
from toy_model import TOY

from benchmarks.studies import stream_keys
from benchmarks.studies.drafting_rule import Recording
from benchmarks.studies.stream_keys import contexts_in, long_prompts, replayed
from benchmarks.texts import INSTRUCTIONS
from specstream_mlx import UserError, load
from specstream_mlx.engine.guesses import StreamGuesses


@pytest.fixture(scope="module")
def tokenizer():
    return load(TOY / "base")[1]


def test_chains_are_replayed_on_the_text():
    """Two streams: after 0 one is right, after 2 and 4 none, after 3 both would be."""
    drafts = [[1, 9], [2, 9], [9, 4], [4, 5], [9, 9], [6, 7], [7, 8], [8, 9]]
    guesses = [StreamGuesses(np.array(d)[:, None], np.zeros((2, 1))) for d in drafts]
    text = Recording([], list(range(9)), guesses)
    tokens, calls, right, asked = replayed(text, 2)
    # Calls behind 0 (one right), 2 (none), 3 (two): then at 6, where no two tokens follow.
    assert (tokens, calls) == (6, 3)
    assert asked == [8, 6 - 1]
    assert right == [6, 3]


def test_prompts_fill_their_length_with_other_texts(tokenizer):
    task = next(iter(INSTRUCTIONS))
    short, long = (long_prompts(tokenizer, "dev", task, length, 3) for length in (200, 900))
    for prompts, length in ((short, 200), (long, 900)):
        assert [len(prompt) for prompt in prompts] == [length] * 3
    assert [prompt[-200:] for prompt in long] == short
    assert long_prompts(tokenizer, "dev", task, 5, 3) == []


def test_the_table(toy, tmp_path, monkeypatch, capsys):
    """Quality as far as the model's context reaches, times everywhere, or nowhere."""
    monkeypatch.setattr(stream_keys, "INSTRUCTIONS", {"sql": INSTRUCTIONS["sql"]})
    monkeypatch.setattr(stream_keys, "LAYERS", 6)
    monkeypatch.setattr(stream_keys, "HIDDEN", 128)
    options = {"model_path": None, "streams": None, "items": 1, "max_tokens": 12, "runs": 1}
    common = options | {"keys": 8, "texts": "dev", "output": tmp_path}
    stream_keys.main(contexts="120,2100", timing=True, **common)
    (path,) = tmp_path.glob("*.json")
    near, far = json.loads(path.read_text())["rows"]
    assert near["quality"]["all"]["tokens"] > 0
    assert near["quality"]["few"]["accepted"] >= 1
    assert not far["quality"]
    assert all(min(far["times"][layers].values()) > 0 for layers in "26")
    assert "| 2100 |" in capsys.readouterr().out
    stream_keys.main(contexts="120", timing=False, **common)
    assert not json.loads(path.read_text())["rows"][0]["times"]


@pytest.mark.parametrize("text", ["", "x", "64", "100,8"])
def test_contexts_that_leave_nothing_to_select(text):
    with pytest.raises(UserError, match="expected numbers above --keys 64"):
        contexts_in(text, 64)
