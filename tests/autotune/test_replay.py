"""A replay takes the steps that real decoding takes."""

from functools import cache

import numpy as np
import pytest
from random_models import random_prompt, request, speculative_model

from specstream_mlx import DraftSettings, UserError, bundled, load
from specstream_mlx.autotune.replay import Recording, acceptance, record, replay
from specstream_mlx.loop import decode
from specstream_mlx.prompts import chat_prompt

SETTINGS = {
    "plain": DraftSettings(speculation=False),
    "chain": DraftSettings(tree_width=1, tree_size=None),
    "full": DraftSettings(tree_width=2, tree_size=None),
    "best-first": DraftSettings(tree_width=4, tree_size=12),
    "likely": DraftSettings(tree_width=3, tree_size=9, draft_threshold=0.02),
    "shallow, beside": DraftSettings(num_streams=1, tree_width=6, tree_size=6, deferred=False),
    "lookup": DraftSettings(num_streams=0, lookup=True, lookup_size=6, tree_size=6),
    "hybrid": DraftSettings(lookup=True, tree_size=8, draft_threshold=0.01),
    "beside one node": DraftSettings(tree_width=3, tree_size=8, stream_nodes=1),
    "hybrid, beside two": DraftSettings(lookup=True, tree_size=8, stream_nodes=2),
}
COUNT = 60


def real_steps(model, prompt, settings, count):
    """(tokens, nodes) of the steps behind the first, to the ``count``-th token."""
    accepted, nodes, total = [], [], 0
    for step in decode(model, request(prompt, settings)):
        if total:
            accepted.append(min(len(step.tokens), count - total))
            nodes.append(len(step.tree))
        total += len(step.tokens)
        if total >= count:
            return accepted, nodes


@cache
def recorded(mode):
    model = speculative_model(mode="shared" if mode == "shared" else "lossless")
    if mode == "no streams":
        model.streams = None
    return model, [record(model, random_prompt(9, seed=seed), COUNT, 6) for seed in range(2)]


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        *(("lossless", name) for name in SETTINGS),
        *(("shared", name) for name in ("plain", "likely", "hybrid")),
        *(("no streams", name) for name in ("plain", "lookup")),
    ],
)
def test_replay_is_what_decoding_does(mode, name):
    model, texts = recorded(mode)
    expected = [real_steps(model, text.prompt, SETTINGS[name], COUNT) for text in texts]
    found = replay(texts, SETTINGS[name])
    assert found.accepted == expected[0][0] + expected[1][0]
    assert found.nodes == expected[0][1] + expected[1][1]
    assert found.tokens == 2 * (COUNT - 1)
    if name not in ("plain", "shallow, beside") and model.streams is not None:
        assert found.call_reduction > 1.02, "some drafts are right"


@pytest.mark.parametrize("adapter", [None, "sql"])
def test_replay_is_what_the_bundled_model_does(adapter):
    try:
        path = bundled.adapter_path(adapter) if adapter else bundled.streams_path()
        model, tokenizer = load(bundled.base_path(), adapter_path=path)
    except UserError as error:
        pytest.skip(str(error))
    text = "table teams(name, city): for teams with city Paris, what are the name and city?"
    prompt = chat_prompt(tokenizer, text, model.prompt_template)
    recording = record(model, prompt, 24, 6, end_tokens=tokenizer.eos_token_ids)
    for settings in (SETTINGS["likely"], SETTINGS["hybrid"]):
        count = len(recording.tokens)
        expected = real_steps(model, prompt, settings, count)
        found = replay([recording], settings)
        assert (found.accepted, found.nodes) == expected
    assert acceptance([recording]).rates()[0][0] > 0.2


def test_recording_ends_where_it_must():
    model, prompt = speculative_model(), random_prompt(9)
    tokens = record(model, prompt, 30, 2).tokens
    end = next(token for place, token in enumerate(tokens) if tokens.index(token) == place > 4)
    assert record(model, prompt, 30, 2, end_tokens=[end]).tokens == tokens[: tokens.index(end) + 1]
    assert record(model, prompt, 30, 2, least_tokens=5, seconds=0.0).tokens == tokens[:5]


def test_acceptance_counts_every_token():
    candidates = np.array([[[2, 9], [3, 9]], [[9, 3], [4, 9]], [[8, 7], [5, 6]]], np.int32)
    text = Recording([0], [1, 2, 3], candidates, np.zeros((3, 2, 2), np.float32))
    counts = acceptance([text])
    assert counts.reached.tolist() == [2, 1]
    assert counts.hits.tolist() == [[1, 1], [1, 0]]
    empty = np.zeros((3, 0, 0), np.float32)
    assert acceptance([Recording([0], [1, 2, 3], empty, empty)]) is None
