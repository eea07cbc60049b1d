"""The streams' likeliest tokens, and the guesses of conditioned streams after each path."""

import mlx.core as mx
import numpy as np
import pytest
from random_models import (
    PROMPT,
    VOCAB_SIZE,
    decoder_after,
    paired,
    speculative_model,
    step_by,
    watch_layers,
)
from trees import full_tree

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine import guess as guessing
from specstream_mlx.engine.guess import best_tokens, drawn_candidates


@pytest.mark.parametrize("vocab", [5, 300, 5001])
def test_the_best_tokens_are_those_of_a_full_sort(vocab):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 3, (3, vocab)).astype(np.float32)
    logits[0, -4:] += 20  # the best may all lie in one group
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for width in (1, 5, 64):
        tokens, log_probs = best_tokens(mx.array(logits), width)
        expected = np.argsort(-logits, axis=1)[:, :width]
        assert np.array_equal(np.array(tokens), expected)
        assert np.abs(np.array(log_probs) - np.take_along_axis(exact, expected, 1)).max() < 1e-4


@pytest.mark.parametrize("vocab", [300, 4098])
def test_ties_and_impossible_tokens(vocab):
    tokens, _ = best_tokens(mx.zeros((2, vocab)), 4)
    assert all(len(set(row)) == 4 for row in np.array(tokens).tolist())
    logits = np.full((1, vocab), -np.inf, np.float32)
    logits[0, [70, vocab - 9]] = 1.0, 2.0
    tokens, log_probs = best_tokens(mx.array(logits), 4)
    found = np.array(tokens)[0].tolist()
    assert found[:2] == [vocab - 9, 70] and len(set(found)) == 4
    assert np.isinf(np.array(log_probs)[0, 2:]).all()
    drawn = np.array(drawn_candidates(mx.array(logits), 5)[0])[0].tolist()
    assert set(drawn[:2]) == {70, vocab - 9} and len(set(drawn)) == 5 and max(drawn) < vocab


HEAD = {"stream_head": "conditioned", "stream_head_rank": 6}
TREE = full_tree(PROMPT[-1], np.array([[5, 6], [7, 8]]), 2)
SHAPES = {
    "chain": DraftSettings(tree_width=1, tree_size=None),
    "full": DraftSettings(tree_width=2, tree_size=None),
    "best-first": DraftSettings(tree_width=4, tree_size=8),
    "with lookup": DraftSettings(tree_width=3, lookup=True),
}


def step_of(model, settings, shortlists=None):
    """One step after ``PROMPT`` over ``TREE``, and the features of its streams."""
    seen = {}
    decoder = decoder_after(model, PROMPT, shortlists=shortlists)
    watch_layers(decoder.model, seen)
    result = step_by(decoder, TREE, settings)
    count = settings.streams_run(model.streams.config)
    _, rows = seen[model.streams.config.num_hidden_layers - 1]
    if settings.placement(model.streams.config) == "nodes":
        nodes = len(TREE) if result.kept is None else result.kept.size
        rows = rows[nodes:].reshape(nodes, count, -1)[result.last.item()]
    return decoder, result, rows


def alone(decoder, streams, features, path):
    def n(x):
        return x / mx.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)

    stream = len(path) - 1
    head = streams.head
    both = mx.concatenate([n(features[stream]), n(decoder.model.embed(mx.array(path[-1])))])
    inner = head.down.weight @ both + head.biases[stream]
    hidden = n(features[stream]) + head.up.weight @ (inner * mx.sigmoid(inner))
    logits = decoder.model.head(hidden[None, None])[0, 0]
    return logits - mx.logsumexp(logits)


def check_guesses(result, width, expected_after):
    """Each path's guesses are the best of ``expected_after(path)``; returns the expanded paths.

    ``expected_after`` gives token ids and their log-probabilities.
    """
    guesses, expanded, paths = result.guesses(), [], [()]
    for path in paths:
        found = guesses.after(path)
        if not found:
            continue
        expanded.append(path)
        ids, expected = expected_after(path)
        best = mx.argsort(-expected)[:width]
        assert [token for token, _ in found] == ids[best].tolist()
        assert [score for _, score in found] == pytest.approx(expected[best].tolist(), abs=1e-4)
        paths += [(*path, token) for token, _ in found]
    return expanded


@pytest.mark.parametrize(("shape", "mode"), paired(SHAPES, ["lossless", "shared"]))
def test_a_guess_is_scored_as_its_path_alone(shape, mode):
    model, settings = speculative_model(mode=mode, seed=2, **HEAD), SHAPES[shape]
    decoder, result, features = step_of(model, settings)
    own, ids, width = result.prediction(), mx.arange(VOCAB_SIZE), settings.tree_width
    expanded = check_guesses(
        result, width, lambda path: (ids, alone(decoder, model.streams, features, [own, *path]))
    )
    assert len(expanded) == {"full": 1 + 2 + 4}.get(shape, 1 + 2 * width)
    if shape in ("best-first", "with lookup"):  # a beam: the likeliest paths of each depth
        joint = {(): 0.0}
        for path in expanded:
            joint |= {(*path, n): joint[path] + score for n, score in result.guesses().after(path)}
        for depth in (1, 2):
            paths = sorted((path for path in joint if len(path) == depth), key=joint.get)
            assert set(paths[-width:]) == {path for path in expanded if len(path) == depth}
    first, second = (alone(decoder, model.streams, features, [token]) for token in (3, 4))
    assert mx.abs(first - second).max().item() > 0.5, "the token before matters"


@pytest.mark.parametrize("vocabulary", [0, 40])
def test_shortlists_are_what_a_stream_might_guess_without_a_token_before(vocabulary, monkeypatch):
    monkeypatch.setattr(guessing, "SHORTLIST", 5)
    model = speculative_model(seed=2, draft_vocabulary=vocabulary, **HEAD)
    decoder, result, features = step_of(model, DraftSettings(tree_width=3), shortlists=True)
    ids = model.streams.vocabulary if vocabulary else mx.arange(VOCAB_SIZE)
    plain = decoder.model.head(model.streams.head.normalized(features)[None])[0][:, ids]

    def expected_after(path):
        listed = ids[mx.argsort(-plain[len(path)])[:5]] if path else ids
        expected = alone(decoder, model.streams, features, [result.prediction(), *path])[listed]
        return listed, expected - mx.logsumexp(expected)

    assert len(check_guesses(result, 3, expected_after)) > 4


def test_a_draft_vocabulary_is_some_rows_of_the_head():
    model = speculative_model(seed=2, draft_vocabulary=40)
    decoder, result, features = step_of(model, DraftSettings(tree_width=3))
    ids = model.streams.vocabulary
    expected = decoder.model.head(features[None])[0][:, ids]
    assert mx.allclose(result.streams.logits, expected, atol=1e-5)
    best = mx.argsort(-expected, axis=-1)[:, :3]
    assert result.streams.candidates.tolist() == ids[best].tolist()
