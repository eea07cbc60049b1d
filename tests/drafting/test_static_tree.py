"""Calibrated trees against brute force, and their files."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from random_models import PROMPT, Oracle, assert_lossless, sequel, speculative_model, tokens_of
from trees import assert_well_formed, grow, random_candidates, ranks_of

from specstream_mlx.config import UserError
from specstream_mlx.drafting.settings import DraftSettings, draft_settings
from specstream_mlx.drafting.static_tree import StaticTree, StaticTreeDrafter


def random_table(depth, width, seed):
    """Rows that sum to less than 1, in no order: a measured table has noise."""
    rates = np.random.default_rng(seed).dirichlet(np.ones(width + 1), depth)[:, :width]
    return tuple(map(tuple, rates.tolist()))


def static(table, candidates, size=None, threshold=None):
    """The tree of a table over a step's candidates."""
    settings = DraftSettings(static_tree=table, tree_size=size, draft_threshold=threshold)
    return grow(settings, 7, candidates, np.zeros(candidates.shape))


def expected_length(paths, table):
    """1 + the probability of each node's path."""
    return 1 + sum(np.prod([table[depth][rank] for depth, rank in enumerate(p)]) for p in paths)


def best_by_brute_force(table, size):
    """The greatest expected length of all trees of ``size`` nodes below the root."""
    depth, width = len(table), len(table[0])
    every = [p for d in range(1, depth + 1) for p in itertools.product(range(width), repeat=d)]
    lengths = []
    for chosen in itertools.combinations(every, size):
        nodes = set(chosen)
        if all(len(path) == 1 or path[:-1] in nodes for path in nodes):
            lengths.append(expected_length(nodes, table))
    return max(lengths)


@pytest.mark.parametrize(("depth", "width"), [(1, 3), (3, 1), (2, 2), (3, 2), (2, 3)])
def test_no_tree_of_its_size_is_longer(depth, width):
    candidates, _ = random_candidates(depth, width, seed=0)
    for seed in range(4):
        table = random_table(depth, width, seed)
        nodes = sum(width**level for level in range(1, depth + 1))
        for size in range(1, min(nodes, 5) + 1):
            tree = static(StaticTree(table), candidates, size)
            assert_well_formed(tree)
            assert len(tree) == 1 + size
            paths = ranks_of(tree, candidates)[1:]
            assert expected_length(paths, table) == pytest.approx(best_by_brute_force(table, size))


def test_nodes_that_cannot_be_right_are_left_out():
    tree = StaticTree(((0.5, 0.0), (0.0, 0.5)), tree_size=9)
    candidates, _ = random_candidates(2, 2, seed=0)
    assert ranks_of(static(tree, candidates), candidates) == [(), (0,), (0, 1)]
    assert ranks_of(static(tree, candidates, threshold=0.4), candidates) == [(), (0,)]


def test_candidates_and_settings_limit_the_table():
    """Fewer streams, fewer ranks, another budget: from step to step, as the tuner wants."""
    tree = StaticTree(random_table(4, 4, seed=0), tree_size=20)
    candidates, log_probs = random_candidates(3, 5, seed=0)
    settings = draft_settings(static_tree=tree)
    assert settings.tree_size == 20
    assert settings.tree_width == 4
    assert settings.draft_threshold is None
    assert len(grow(settings, 7, candidates, log_probs)) == 21
    assert len(grow(replace(settings, tree_size=6), 7, candidates, log_probs)) == 7
    assert len(grow(replace(settings, tree_size=None), 7, candidates, log_probs)) == 21
    chain = grow(replace(settings, tree_width=1), 7, candidates, log_probs)
    assert chain.is_chain
    assert len(chain) == 4
    assert grow(replace(settings, num_streams=1), 7, candidates, log_probs).depths.max() == 1


def test_the_shape_does_not_depend_on_the_step():
    settings = draft_settings(static_tree=StaticTree(random_table(3, 3, seed=1), 7))
    trees = [grow(settings, 7, *random_candidates(3, 3, seed)) for seed in range(3)]
    for tree in trees[1:]:
        assert (tree.parents == trees[0].parents).all()
        assert (tree.tokens != trees[0].tokens).any()


def test_with_lookup_the_table_ranks_the_streams_nodes():
    """What the streams themselves say of their candidates has no say then."""
    table = StaticTree(((0.0, 0.9), (0.0, 0.8)), 4)
    settings = draft_settings(static_tree=table, lookup=True, tree_size=2)
    candidates, log_probs = random_candidates(3, 3, seed=0)
    tree = grow(settings, 7, candidates, log_probs)
    assert ranks_of(tree, candidates) == [(), (1,), (1, 1)]
    tree = grow(replace(settings, tree_size=3), 7, candidates, log_probs, [5, 6, 5])
    assert 6 in tree.tokens.tolist()


# Files --------------------------------------------------------------------------------


def test_a_saved_tree_is_the_same_when_loaded(tmp_path):
    tree = StaticTree(random_table(3, 2, seed=0), tree_size=5)
    tree.save(tmp_path / "tree.json")
    assert StaticTree.load(tmp_path / "tree.json") == tree
    values = StaticTree(tuple(map(tuple, np.array([[0.5, 0.25]]))))  # numpy's numbers are numbers
    values.save(tmp_path / "tree.json")
    assert StaticTree.load(tmp_path / "tree.json") == values
    (tmp_path / "short.json").write_text('{"acceptance": [[1, 0], [0.5, 0.25]]}')
    assert StaticTree.load(tmp_path / "short.json") == StaticTree(((1, 0), (0.5, 0.25)), 8)


BAD_FILES = {
    "no file": (None, "is missing"),
    "not JSON": ("acceptance", "is not valid JSON"),
    "not text": (b"\xff\xfe\xfd", "is not UTF-8 text"),
    "nested": ("[" * 100_000, "is nested too deeply"),
    "a list": ([[0.5]], "holds a list, expected a JSON object"),
    "nothing": ({}, "acceptance is not a list of lists"),
    "a flat list": ({"acceptance": [0.5]}, "acceptance is not a list of lists"),
    "empty": ({"acceptance": []}, "acceptance is empty"),
    "no rank": ({"acceptance": [[]]}, "acceptance is empty"),
    "unequal rows": ({"acceptance": [[0.5, 0.1], [0.5]]}, "depth 2 has 1 ranks, expected 2"),
    "above 1": ({"acceptance": [[1.5]]}, "depth 1, rank 0 is 1.5, expected a probability"),
    "below 0": ({"acceptance": [[0.5], [-0.1]]}, "depth 2, rank 0 is -0.1"),
    "a word": ({"acceptance": [["0.5"]]}, "depth 1, rank 0 is '0.5'"),
    "a truth": ({"acceptance": [[True]]}, "depth 1, rank 0 is True"),
    "no number": ('{"acceptance": [[NaN]]}', "has the number NaN"),
    "infinite": ('{"acceptance": [[1e999]]}', "has the number 1e999"),
    "too likely": ({"acceptance": [[0.7, 0.6]]}, "depth 1 sums to 1.3, expected at most 1"),
    "another field": ({"acceptance": [[0.5]], "size": 3}, "found 'size', expected acceptance"),
    "no nodes": ({"acceptance": [[0.5]], "tree_size": 0}, "tree_size is 0, expected an integer"),
    "half a node": ({"acceptance": [[0.5]], "tree_size": 2.5}, "tree_size is 2.5"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_end_in_one_sentence(case, tmp_path):
    content, sentence = BAD_FILES[case]
    path = tmp_path / "tree.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as refused:
        StaticTree.load(path)
    message = str(refused.value)
    assert message.startswith(str(path))
    assert sentence in message
    assert "\n" not in message


# The output ---------------------------------------------------------------------------

TABLE = StaticTree(((0.5, 0.2, 0.1), (0.4, 0.3, 0.1), (0.3, 0.3, 0.1)), 9)


def test_right_candidates_are_accepted_along_the_static_tree(monkeypatch):
    """Candidates that hold the true token at a random rank, in place of the random streams'."""
    model, count, expected = speculative_model(seed=1), 40, sequel("grouped heads, tied")
    oracle = Oracle(expected).install(monkeypatch, drafts=False)
    rng, right = np.random.default_rng(0), StaticTreeDrafter.grow

    def knowing(self, root, guesses):
        start = sum(map(len, oracle.paths))
        for row, token in zip(guesses.tokens, expected[start:], strict=False):
            row[row == token] = (token + 1) % 97 if (token + 1) % 97 not in row else root
            row[rng.integers(0, 2)] = token
            if len(set(row.tolist())) < len(row):  # siblings must differ
                others = (t for t in range(97) if t not in row)
                for rank, value in enumerate(row.tolist()):
                    if row.tolist().index(value) != rank:
                        row[rank] = next(others)
        return right(self, root, guesses)

    monkeypatch.setattr(StaticTreeDrafter, "grow", knowing)
    found = tokens_of(model, PROMPT, count, static_tree=TABLE, tree_size=14)
    assert_lossless(model.model, PROMPT, found, expected)
    assert oracle.longest == 4
    assert oracle.gathered >= 5
