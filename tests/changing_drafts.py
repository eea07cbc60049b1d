"""A drafting whose settings change from step to step."""

import random

from random_models import request

from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.loop import decode

KINDS = [
    DraftSettings(speculation=False),
    DraftSettings(num_streams=0, lookup=True),
    DraftSettings(tree_width=2, tree_size=None),
    DraftSettings(tree_width=3, tree_size=6, deferred=False),
    DraftSettings(tree_width=3, tree_size=9, max_nodes=4),
    DraftSettings(lookup=True, tree_size=6),
]


FEW = DraftSettings(tree_width=3, tree_size=6, stream_nodes=1)


class AnyDrafting:
    """Another of ``KINDS`` after every one to three steps."""

    def __init__(self, seed, kinds):
        self._rng, self._kinds = random.Random(seed), kinds
        self._left, self._now, self.seen = 0, kinds[0], []

    def settings(self):
        return self._now

    def observe(self, step):
        self.seen.append(self._kinds.index(self._now))
        if not self._left:
            self._left, self._now = self._rng.randint(1, 3), self._rng.choice(self._kinds)
        self._left -= 1


def switching(model, prompt, count, seed, kinds=KINDS, **options):
    drafting, tokens = AnyDrafting(seed, kinds), []
    for step in decode(model, request(prompt, drafting, **options)):
        tokens += step.tokens
        assert step.seconds > 0
        if len(tokens) >= count:
            return tokens[:count], drafting.seen
