"""Guesses of streams that know the token before, against each path alone."""

from weakref import ref

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.tuner.lora import LoRALinear
from random_models import PROMPT, VOCAB_SIZE, speculative_model, step_by
from trees import full_tree

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine import guess as guessing
from specstream_mlx.engine import step
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.guess import StreamGuesses, guess
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.plan import LIKELIEST
from specstream_mlx.engine.step import Decoder

HEAD = {"stream_head": "conditioned", "stream_head_rank": 6}
TREE = full_tree(PROMPT[-1], np.array([[5, 6], [7, 8]]), 2)
SHAPES = {
    "chain": DraftSettings(tree_width=1, tree_size=None),
    "full": DraftSettings(tree_width=2, tree_size=None),
    "best-first": DraftSettings(tree_width=4, tree_size=8),
    "with lookup": DraftSettings(tree_width=3, lookup=True),
}


def step_of(model, settings, **options):
    """One step behind ``PROMPT`` over ``TREE``, and the features of its streams."""
    seen = {}

    def observe(number, hidden, output):
        seen[number] = output[0]

    decoder = Decoder(
        model.model, model.streams, make_caches(model.model, model.config), observe=observe,
        **options,
    )  # fmt: skip
    decoder.prefill(mx.array(PROMPT[:-1]))
    result = step_by(decoder, TREE, settings)
    count = settings.streams_run(model.streams.config)
    rows = seen[model.streams.config.num_hidden_layers - 1]
    if settings.placement(model.streams.config) == "beside":
        nodes = len(TREE) if result.kept is None else result.kept.size
        rows = rows[nodes:].reshape(nodes, count, -1)[result.last.item()]
    return decoder, result, rows


def alone(decoder, streams, features, path):
    """Log-probabilities behind a path of tokens, computed for it alone, by the formula."""

    def n(x):
        return x / mx.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)

    stream = len(path) - 1
    head = streams.head
    both = mx.concatenate([n(features[stream]), n(decoder.model.embed(mx.array(path[-1])))])
    inner = head.down.weight @ both + head.biases[stream]
    hidden = n(features[stream]) + head.up.weight @ (inner * mx.sigmoid(inner))
    logits = decoder.model.head(hidden[None, None])[0, 0]
    return logits - mx.logsumexp(logits)


@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_guess_is_scored_as_its_path_alone(shape, mode):
    model, settings = speculative_model(mode=mode, seed=2, **HEAD), SHAPES[shape]
    decoder, result, features = step_of(model, settings)
    own = result.prediction()
    guesses = result.guesses()
    asked, paths = 0, [()]
    while paths:
        path = paths.pop()
        found = guesses.behind(path)
        if not found:
            continue
        asked += 1
        expected = alone(decoder, model.streams, features, [own, *path])
        best = np.argsort(-np.array(expected))[: settings.tree_width].tolist()
        assert [token for token, _ in found] == best
        for token, score in found:
            assert score == pytest.approx(expected[token].item(), abs=1e-4)
            paths.append((*path, token))
    width = settings.tree_width
    assert asked == {"full": 1 + 2 + 4}.get(shape, 1 + 2 * width)


def test_the_token_before_matters():
    """Else nothing above would show that it is the right one."""
    decoder, _, features = step_of(model := speculative_model(seed=2, **HEAD), SHAPES["chain"])
    first, second = (alone(decoder, model.streams, features, [t]) for t in (3, 4))
    assert mx.abs(first - second).max().item() > 0.5


@pytest.mark.parametrize("bits", [None, 8])
@pytest.mark.parametrize("tied", ["grouped heads, tied", "one kv head, untied"])
def test_shortlists_that_hold_all_tokens_score_as_the_whole_head(tied, bits, monkeypatch):
    monkeypatch.setattr(guessing, "SHORTLIST", VOCAB_SIZE)
    model, settings = speculative_model(tied, seed=2, **HEAD), DraftSettings(tree_width=3)
    if bits:
        nn.quantize(
            model.model,
            32,
            bits,
            class_predicate=lambda path, module: (
                isinstance(module, nn.Embedding) or path == "lm_head"
            ),
        )
    expected, found = (
        step_of(model, settings, shortlists=short)[1].guesses() for short in (False, True)
    )
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.parents.tolist() == expected.parents.tolist()
    assert np.allclose(found.log_probs, expected.log_probs, atol=1e-4)


@pytest.mark.parametrize("vocabulary", [0, 40])
def test_shortlists_are_what_a_stream_might_guess_without_a_token_before(vocabulary, monkeypatch):
    monkeypatch.setattr(guessing, "SHORTLIST", 5)
    model = speculative_model(seed=2, draft_vocabulary=vocabulary, **HEAD)
    settings = DraftSettings(tree_width=3)
    decoder, result, features = step_of(model, settings, shortlists=True)
    ids = model.streams.vocabulary if vocabulary else mx.arange(VOCAB_SIZE)
    guesses, own = result.guesses(), result.prediction()
    plain = decoder.model.head(model.streams.head.normalized(features)[None])[0][:, ids]
    checked, paths = 0, [()]
    for path in paths:
        listed = ids if not path else ids[mx.argsort(-plain[len(path)])[:5]]
        expected = alone(decoder, model.streams, features, [own, *path])[listed]
        expected = expected - mx.logsumexp(expected)
        best = mx.argsort(-expected)[:3]
        found = guesses.behind(path)
        assert [token for token, _ in found] == listed[best].tolist()
        assert [score for _, score in found] == pytest.approx(expected[best].tolist(), abs=1e-4)
        paths += [(*path, t) for t, _ in found if guesses.behind((*path, t))]
        checked += bool(path)
    assert checked > 3


@pytest.mark.parametrize("shortlists", [False, True])
@pytest.mark.parametrize("mode", ["shared", "lossless"])
def test_streams_deeper_than_the_tree_are_asked_about_nothing(mode, shortlists):
    """In shared mode they run all the same; a full tree of width 16 has 4,096 paths of depth 3."""
    mlp = {} if mode == "shared" else {"stream_mlp": "adapter", "stream_adapter_rank": 3}
    model = speculative_model(seed=2, mode=mode, **mlp, **HEAD)
    every = DraftSettings(tree_width=16, tree_size=8)
    few = DraftSettings(tree_width=16, tree_size=None, num_streams=1)
    _, result, _ = step_of(model, few, shortlists=shortlists)
    assert result.streams.candidates.shape == (1, 1, 16)
    expected = step_of(model, every, shortlists=shortlists)[1].guesses().behind(())
    for (token, score), (wanted, other) in zip(result.guesses().behind(()), expected, strict=True):
        assert token == wanted
        assert score == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize(
    ("vocabulary", "most", "whole"),
    [
        (40, 40, True),
        (40, 39, False),
        (0, VOCAB_SIZE, True),
        (0, VOCAB_SIZE - 1, False),
    ],
)
def test_shortlists_begin_at_the_tokens_that_may_be_drafted(vocabulary, most, whole, monkeypatch):
    """Those alone are what the head reads."""
    monkeypatch.setattr(step, "WHOLE_HEAD", most)
    model = speculative_model(seed=2, draft_vocabulary=vocabulary, **HEAD)
    _, result, _ = step_of(model, DraftSettings(tree_width=3))
    assert (result.streams.logits is not None) == whole


@pytest.mark.parametrize(
    ("tied", "tuned"),
    [("grouped heads, tied", False), ("one kv head, untied", False), ("one kv head, untied", True)],
)
def test_a_draft_vocabulary_is_some_rows_of_the_head(tied, tuned):
    fields = {"stream_mlp": "adapter", "stream_adapter_rank": 4}
    every = speculative_model(tied, seed=2, **fields)
    some = speculative_model(tied, seed=2, draft_vocabulary=40, **fields)
    if tuned:
        head = LoRALinear.from_base(every.model.lm_head, r=4, scale=2.0)
        head.lora_b = mx.random.normal(head.lora_b.shape, key=mx.random.key(3))
        every.model.lm_head = some.model.lm_head = head
    ids = some.streams.vocabulary
    for name in ("embeddings", "adapters"):
        some.streams.streams[name] = every.streams.streams[name]
    settings = DraftSettings(tree_width=3)
    (_, expected, _), (_, found, _) = (step_of(model, settings) for model in (every, some))
    assert mx.allclose(found.streams.logits, expected.streams.logits[:, ids], atol=1e-5)
    scores = found.streams.logits - mx.logsumexp(found.streams.logits, axis=-1, keepdims=True)
    best = mx.argsort(-scores, axis=-1)[:, :3]
    assert found.streams.candidates.tolist() == ids[best].tolist()
    assert mx.allclose(
        found.streams.log_probs, mx.take_along_axis(scores, best, axis=-1), atol=1e-5
    )
    assert mx.allclose(found.logits, expected.logits)  # all tokens are verified


def test_rows_of_a_draft_vocabulary_are_copied_once_for_those_who_hold_them():
    model = speculative_model("one kv head, untied", seed=2, draft_vocabulary=40)
    streams, hidden = model.streams, mx.ones((1, 1, model.config["hidden_size"]))

    def rows():
        return streams.head_rows(model.model.lm_head)

    borrowed = BorrowedModel(model.model, streams)
    before = borrowed.stream_head(hidden)
    first = rows()
    assert rows() is first and first.weight.shape[0] == 40
    held, first = ref(first), None
    assert held() is rows()  # borrowed has them
    borrowed.release_vocabulary()
    assert held() is None
    assert mx.array_equal(borrowed.stream_head(hidden), before)
    held = rows()
    model.model.lm_head.weight = 2 * model.model.lm_head.weight
    assert rows() is not held
    after = BorrowedModel(model.model, streams).stream_head(hidden)
    assert mx.allclose(after, 2 * before, atol=1e-5)
    streams.streams["vocabulary"] = mx.arange(30, dtype=mx.int32)
    assert rows().weight.shape[0] == 30


def table(seed, gamma=4):
    """A function of stream, token before and row before that guesses by random tables."""
    tables = mx.array(np.random.default_rng(seed).normal(0, 2, (gamma, 12, 12)))
    return lambda stream, before, rows=None: ranked(tables[stream][before])


def ranked(logits, width=3):
    logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    tokens = mx.argsort(-logits, axis=-1)[..., :width].astype(mx.int32)
    return tokens, mx.take_along_axis(logits, tokens, axis=-1)


@pytest.mark.parametrize("seed", range(5))
def test_the_likeliest_paths_are_followed(seed):
    """A beam: of each depth the paths of the highest joint probability, by force."""
    of_stream = table(seed)
    guesses = StreamGuesses(*map(np.array, guess(of_stream, mx.array(5), [LIKELIEST] * 3, 3)))

    def scores(stream, token):
        tokens, found = of_stream(stream, mx.array([token]))
        return list(zip(tokens[0].tolist(), found[0].tolist(), strict=True))

    level = {(): 0.0}
    for depth in range(4):
        below = {}
        for path, score in level.items():
            expected = scores(depth, path[-1] if path else 5)
            assert [token for token, _ in guesses.behind(path)] == [token for token, _ in expected]
            assert [s for _, s in guesses.behind(path)] == pytest.approx([s for _, s in expected])
            below |= {(*path, token): score + more for token, more in expected}
        others = set(below) - set(sorted(below, key=below.get)[-3:])
        assert not any(guesses.behind(path) for path in others) or depth == 3
        level = {path: below[path] for path in set(below) - others}


def test_fixed_shapes_are_asked_for_whatever_the_probabilities():
    assert [a.tolist() for a in SHAPES["full"].expansion(3)] == [[0, 1], [0, 1, 2, 3]]
    assert SHAPES["best-first"].expansion(3) == (LIKELIEST,) * 2
