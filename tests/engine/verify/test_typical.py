"""The rule ``typical`` against a plain computation."""

import mlx.core as mx
import numpy as np
from random_models import random_tree

from specstream_mlx.engine.verify.typical import typical


def test_typical_accepts_the_longest_plausible_path():
    """p(x) > min(0.09, 0.3 exp(-H)): against a loop over all nodes, of equals the likeliest."""
    rng = np.random.default_rng(1)
    deep = 0
    for _ in range(60):
        tree = random_tree(rng, 1, depth=4, width=4, vocab_size=12)
        log_probs = rng.normal(0, 2, (len(tree), 12)).astype(np.float32)
        log_probs -= np.log(np.exp(log_probs).sum(-1, keepdims=True))
        best = (0, 0.0, 0)
        for node in range(1, len(tree)):
            likelihood = 0.0
            for step in tree.path(node)[1:]:
                values = log_probs[tree.parents[step]]
                entropy = -(np.exp(values) * values).sum()
                value = values[tree.tokens[step]]
                likelihood += value
                if np.exp(value) <= min(0.09, 0.3 * np.exp(-entropy)):
                    break
            else:
                best = max(best, (int(tree.depths[node]), likelihood, node))
        arrays = map(mx.array, (tree.tokens, tree.parents, tree.ancestors, log_probs))
        assert typical(*arrays).item() == best[2]
        deep = max(deep, best[0])
    assert deep >= 3
