"""A drafting whose settings change from step to step."""

import random

from specstream_mlx.drafting import Planner
from specstream_mlx.drafting.fixed import fixed_planner
from specstream_mlx.drafting.settings import DraftSettings

KINDS = [
    DraftSettings(speculation=False),
    DraftSettings(num_streams=0, lookup=True),
    DraftSettings(tree_width=2, tree_size=None),
    DraftSettings(tree_width=3, tree_size=6),
    DraftSettings(tree_width=3, tree_size=9, max_nodes=4),
    DraftSettings(lookup=True, tree_size=6),
]


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
