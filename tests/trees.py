"""Draft trees to test with, and what every tree must be."""

import random
from functools import partial

import numpy as np

from specstream_mlx.drafting import Planner
from specstream_mlx.drafting.best_first import all_nodes, tree_of
from specstream_mlx.drafting.fixed import FixedPlanner, fixed_planner
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.guess import StreamGuesses
from specstream_mlx.engine.plan import Plan, root_only

KINDS = [
    DraftSettings(speculation=False),
    DraftSettings(num_streams=0, lookup=True),
    DraftSettings(tree_width=2, tree_size=None),
    DraftSettings(tree_width=3, tree_size=6),
    DraftSettings(tree_width=3, tree_size=9, max_nodes=4),
    DraftSettings(lookup=True, tree_size=6),
]


def random_candidates(gamma, k, seed, exact_ties=False):
    """(gamma, k) tokens and descending log-probabilities; ties are ties also when summed."""
    rng = np.random.default_rng(seed)
    tokens = np.array([rng.choice(100, k, replace=False) for _ in range(gamma)], np.int32)
    log_probs = (
        -rng.integers(1, 4, (gamma, k)) / 4 if exact_ties else -rng.exponential(1, tokens.shape)
    )
    return tokens, np.sort(log_probs.astype(np.float32))[:, ::-1]


def assert_well_formed(tree):
    """Root first, parents before children, by depth, siblings different."""
    assert tree.parents[0] == -1
    assert tree.depths[0] == 0
    assert (np.diff(tree.depths) >= 0).all()
    for node in range(1, len(tree)):
        assert 0 <= tree.parents[node] < node
        assert tree.depths[node] == tree.depths[tree.parents[node]] + 1
    edges = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(edges)) == len(edges)
    assert {array.dtype for array in arrays(tree)} == {np.dtype("int32")}


def arrays(tree):
    return tree.tokens, tree.parents, tree.depths


def fixed_trees(settings, proposers=(), streams=True):
    """A planner of trees of fixed settings, whose streams run nowhere."""
    return FixedPlanner(settings, partial(Plan, place="none"), streams, proposers)


class Planned(Planner):
    def __init__(self, grower, plan_of):
        self._grower, self._plan_of = grower, plan_of

    def first(self, root):
        return self._plan_of(root_only(root))

    def accept(self, plan, tokens, seconds):
        self._grower.accept(tokens)

    def plan(self, root, guesses, verified=None):
        return self._plan_of(self._grower.grow(root, guesses, verified))


class AnyDrafting(Planner):
    """Another of ``KINDS`` after every one to three steps."""

    def __init__(self, model, prompt, seed, kinds=KINDS):
        self._rng, self._left = random.Random(seed), 0
        self._kinds = [fixed_planner(kind, model, prompt) for kind in kinds]
        self._now = self._kinds[0]

    def first(self, root):
        return self._now.first(root)

    def accept(self, plan, tokens, seconds):
        assert seconds is None or seconds > 0
        for kind in self._kinds:
            kind.accept(plan, tokens, seconds)

    def plan(self, root, guesses, verified):
        if not self._left:
            self._left = self._rng.randint(1, 3)
            self._now = self._rng.choice(self._kinds)
        self._left -= 1
        return self._now.plan(root, guesses, verified)


def full_tree(root, candidates, width):
    guesses = StreamGuesses(candidates, np.zeros(candidates.shape))
    return tree_of(root, list(all_nodes(lambda path: guesses.after(path)[:width])))
