"""A drafting whose settings change from step to step."""

import random

from random_models import request

from specstream_mlx.drafting import Planner
from specstream_mlx.drafting.fixed import fixed_planner
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.scheduler import decode

KINDS = [
    DraftSettings(speculation=False),
    DraftSettings(num_streams=0, lookup=True),
    DraftSettings(tree_width=2, tree_size=None),
    DraftSettings(tree_width=3, tree_size=6),
    DraftSettings(tree_width=3, tree_size=9, max_nodes=4),
    DraftSettings(lookup=True, tree_size=6),
]


class AnyDrafting(Planner):
    """Another of ``KINDS`` after every one to three steps.

    Attributes:
        seen: the kinds of the steps that were taken.
    """

    def __init__(self, model, prompt, seed, kinds):
        self._rng, self._left, self.seen = random.Random(seed), 0, []
        self._kinds = [fixed_planner(kind, model, prompt) for kind in kinds]
        self._now, self._current = self._kinds[0], 0

    def first(self, root):
        return self._now.first(root)

    def accept(self, plan, tokens, seconds):
        self.seen.append(0 if plan.pipelined else self._current)  # a plain call may be ahead
        assert seconds is None or seconds > 0
        for kind in self._kinds:
            kind.accept(plan, tokens, seconds)

    def plan(self, root, guesses, verified):
        if not self._left:
            self._left = self._rng.randint(1, 3)
            self._current = self._rng.randrange(len(self._kinds))
            self._now = self._kinds[self._current]
        self._left -= 1
        return self._now.plan(root, guesses, verified)


def switching(model, prompt, count, seed, kinds=KINDS, **options):
    drafting, tokens = AnyDrafting(model, prompt, seed, kinds), []
    for step in decode(model, request(prompt, drafting, **options)):
        tokens += step.tokens
        assert step.seconds > 0
        if len(tokens) >= count:
            return tokens[:count], drafting.seen
