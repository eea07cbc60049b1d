"""Streams beside the nodes that are most probably accepted last, and the others' without."""

import json
import math

import numpy as np
import pytest
from command_line import generate, refusal
from random_models import (
    BASES,
    PROMPT,
    STREAMS,
    assert_close,
    assert_lossless,
    decoder_after,
    plain_tokens,
    random_prompt,
    random_tree,
    request,
    speculative_model,
    take,
    true_tree,
)
from trees import grow

from specstream_mlx.config import UserError
from specstream_mlx.drafting.hybrid import pooled
from specstream_mlx.drafting.lookup import Lookup
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.drafting.static_tree import StaticTree
from specstream_mlx.drafting.tree import DraftTree, root_only
from specstream_mlx.engine.borrowed import BorrowedModel
from specstream_mlx.loop import decode

TABLE = StaticTree(((0.5, 0.2), (0.4, 0.1), (0.3, 0.2)), 6)
GROWN = {
    "chain": DraftSettings(tree_width=1, tree_size=None),
    "full": DraftSettings(tree_width=2, tree_size=None),
    "best-first": DraftSettings(tree_size=8),
    "static": DraftSettings(static_tree=TABLE, tree_size=6),
    "lookup": DraftSettings(tree_size=8, lookup=True),
}


def guesses(seed=0, gamma=3, width=4, vocab_size=20):
    """Candidates and log-probabilities of random streams."""
    logits = np.random.default_rng(seed).normal(0, 2, (gamma, vocab_size))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    best = np.argsort(-log_probs, axis=1)[:, :width].astype(np.int32)
    return best, np.take_along_axis(log_probs, best, axis=1)


@pytest.mark.parametrize("name", GROWN)
def test_every_grower_hands_out_joint_log_probabilities(name):
    settings = GROWN[name]
    for seed in range(5):
        candidates, log_probs = guesses(seed)
        tree = grow(settings, 3, candidates, log_probs, [3, 4, 5, 3, 4, 6, 3])
        assert len(tree) > 2
        ngrams = Lookup([3, 4, 5, 3, 4, 6, 3], settings.lookup_ngram)
        for node in range(len(tree)):
            assert tree.log_probs[node] == pytest.approx(joint(tree, node, name, seed, ngrams))
        shallow = tree.to_depth(1)
        assert len(shallow.log_probs) == len(shallow)


def joint(tree, node, name, seed, ngrams):
    """The sum over the edges of a path of what its drafter said to each token."""
    candidates, log_probs = guesses(seed)
    tokens, total = tree.tokens[tree.path(node)].tolist(), 0.0
    for depth, token in enumerate(tokens[1:]):
        scores = {}
        if depth < len(candidates):
            rates = TABLE.acceptance[depth] if name == "static" else np.exp(log_probs[depth])
            scores = dict(zip(candidates[depth].tolist(), np.log(rates).tolist(), strict=False))
        if name == "lookup":
            found = ngrams.children(tokens[1 : depth + 1])
            scores = dict(pooled(list(scores.items()), found) if scores else found)
        total += scores[token]
    return total


def test_the_ranking_equals_an_enumeration_of_all_outcomes():
    """Walk every accepted path; a walk stays at a node with what its children leave over."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        tree = random_tree(rng, 7, depth=4, width=3)
        last = np.zeros(len(tree))

        def walk(node, probability, tree=tree, last=last):
            children = [n for n in range(1, len(tree)) if tree.parents[n] == node]
            edges = [math.exp(tree.log_probs[n] - tree.log_probs[node]) for n in children]
            last[node] = probability * (1 - sum(edges))
            for child, edge in zip(children, edges, strict=True):
                walk(child, probability * edge)

        walk(0, 1.0)
        assert last.sum() == pytest.approx(1)
        for count in range(1, len(tree) + 1):
            expected = sorted(np.argsort(-last)[:count].tolist())
            assert tree.likeliest_last(count).tolist() == expected


def test_of_equal_nodes_the_first_come_first():
    parents, depths = np.array([-1, 0, 0, 0], np.int32), np.array([0, 1, 1, 1], np.int32)
    tree = DraftTree(np.arange(4, dtype=np.int32), parents, depths, np.log([1, 0.25, 0.25, 0.25]))
    assert tree.likeliest_last(2).tolist() == [0, 1]
    assert root_only(5).likeliest_last(1).tolist() == [0]


def step_with(model, tree, chosen, monkeypatch):
    """A step over ``tree`` with streams beside the nodes ``chosen``."""
    monkeypatch.setattr(DraftTree, "likeliest_last", lambda _, count: np.array(chosen))
    decoder = decoder_after(model, PROMPT)
    return take(decoder, tree, "beside", tree_width=4, stream_nodes=len(chosen))


@pytest.mark.parametrize("base_name", ["grouped heads, tied", "sliding windows"])
@pytest.mark.parametrize("kind", STREAMS)
def test_they_equal_the_streams_beside_every_node(kind, base_name, monkeypatch):
    """At an accepted node that has them, in any company; main logits in any case."""
    model = speculative_model(base_name, **STREAMS[kind])
    tree = true_tree(model)
    every = take(decoder_after(model, PROMPT), tree, "beside", tree_width=4)
    last = every.last.item()
    assert 0 < last < len(tree) - 1
    for chosen in ([last], [0, last], [last, len(tree) - 1], [0, 1, last, len(tree) - 1]):
        found = step_with(model, tree, sorted(set(chosen)), monkeypatch)
        assert found.has_streams.item()
        assert_close(found.stream_logits, every.stream_logits)
        assert_close(found.logits, every.logits)
        assert (np.array(found.candidates) == np.array(every.candidates)).all()
        assert_close(found.guesses()[1], every.guesses()[1])
    missed = step_with(model, tree, [0, len(tree) - 1], monkeypatch)
    assert not missed.has_streams.item()
    assert_close(missed.logits, every.logits)
    assert [guess.shape for guess in missed.guesses()] == [(0, 0), (0, 0)]


def test_only_their_rows_run(monkeypatch):
    """n + s * gamma rows in the MSA layers."""
    model, rows = speculative_model(), []
    right = BorrowedModel.layer

    def watched(self, number, hidden, *args, **kwargs):
        rows.append(hidden.shape[1])
        return right(self, number, hidden, *args, **kwargs)

    monkeypatch.setattr(BorrowedModel, "layer", watched)
    tree = random_tree(np.random.default_rng(1), PROMPT[-1], depth=3, width=3)
    take(decoder_after(model, PROMPT), tree, "beside", stream_nodes=2)
    assert rows == [len(tree) + 2 * 3] * 2


@pytest.mark.parametrize("base_name", BASES)
def test_after_a_miss_the_next_tree_is_the_root(base_name, monkeypatch):
    """The nodes that are least probably last have the streams, so misses are many."""
    model, prompt = speculative_model(base_name, seed=1), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 40)
    right = DraftTree.likeliest_last
    monkeypatch.setattr(
        DraftTree,
        "likeliest_last",
        lambda tree, count: np.setdiff1d(np.arange(len(tree)), right(tree, len(tree) - count)),
    )
    tokens, after_miss, after_hit = [], [], []
    sizes = after_hit
    for step in decode(model, request(prompt, DraftSettings(stream_nodes=2))):
        sizes.append(len(step.tree))
        tokens += step.tokens
        has = step.result.has_streams
        sizes = after_miss if has is not None and not has.item() else after_hit
        if len(tokens) >= 40:
            break
    assert_lossless(model.model, prompt, tokens, expected)
    assert len(after_miss) >= 5
    assert set(after_miss) == {1}
    assert set(after_hit[1:]) == {9}


@pytest.mark.parametrize("field", [{"max_nodes": 5}, {"prune_threshold": 0.1}])
def test_pruning_is_refused(field):
    name = next(iter(field))
    with pytest.raises(UserError, match=f"stream_nodes and {name} were both given"):
        DraftSettings(stream_nodes=2, **field)


def test_shared_mode_is_refused():
    model = speculative_model(mode="shared")
    with pytest.raises(UserError, match="stream_nodes needs an adapter in lossless mode"):
        DraftSettings(stream_nodes=2).check(97, model.streams.config)


def test_none_at_all_is_refused():
    with pytest.raises(UserError, match="stream_nodes is 0, expected an integer of at least 1"):
        DraftSettings(stream_nodes=0)


def test_on_the_command_line(base, streams, shared):
    flags = ("--stream-nodes", 2)
    result = generate(base, "--adapter-path", streams, *flags, "--json", "--compare")
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["identical"] is True
    assert values["tree"].endswith("streams beside 2")
    assert "lossless mode" in refusal(generate(base, "--adapter-path", shared, *flags))
    sentence = refusal(generate(base, "--adapter-path", streams, *flags, "--max-nodes", 4))
    assert "stream_nodes and max_nodes were both given" in sentence
    assert "at least 1" in refusal(generate(base, "--stream-nodes", 0))


def test_a_lookup_tree_has_them_too():
    model, prompt = speculative_model(seed=1), random_prompt(9) * 3
    expected = plain_tokens(model.model, prompt, 30)
    tokens = []
    for step in decode(model, request(prompt, DraftSettings(lookup=True, stream_nodes=2))):
        tokens += step.tokens
        if len(tokens) >= 30:
            break
    assert_lossless(model.model, prompt, tokens, expected)
