"""A head with the rows of some tokens scores them as the whole head does."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear

from specstream_mlx.models.streams import rows_of

TOKENS, HIDDEN = 40, 64
TUNED = {nn.Linear: (LoRALinear, DoRALinear), nn.Embedding: (LoRAEmbedding, DoRAEmbedding)}


def heads():
    for name, kind, sizes in (
        ("linear", nn.Linear, (HIDDEN, TOKENS)),
        ("embedding", nn.Embedding, (TOKENS, HIDDEN)),
    ):
        for bits in (None, 4):
            for tuned in (None, *TUNED[kind]):
                if tuned is DoRAEmbedding and bits:
                    continue  # mlx_lm has none
                words = (name, bits and f"{bits} bits", tuned and tuned.__name__)
                yield pytest.param(kind(*sizes), bits, tuned, id=", ".join(filter(None, words)))


@pytest.mark.parametrize(("head", "bits", "tuned"), list(heads()))
def test_some_rows_score_as_in_the_whole_head(head, bits, tuned):
    if bits:
        head = head.to_quantized(32, bits)
    if tuned is not None:
        head = tuned.from_base(head, r=4, scale=3.0)
        keys = iter(mx.random.split(mx.random.key(1), 8))
        for name in ("lora_a", "lora_b"):
            head[name] = mx.random.normal(head[name].shape, key=next(keys))
    before = tree_map(mx.array, head.parameters())
    hidden = mx.random.normal((3, HIDDEN), key=mx.random.key(2))
    ids = mx.array([7, 3, 39, 0, 12])

    def scores(part):
        return part.as_linear(hidden) if hasattr(part, "as_linear") else part(hidden)

    found = scores(rows_of(head, ids))
    assert found.shape == (3, 5)
    assert mx.allclose(found, scores(head)[:, ids], atol=1e-4, rtol=1e-4)
    same = tree_map(lambda a, b: bool(mx.array_equal(a, b)), before, head.parameters())
    assert all(value for _, value in tree_flatten(same))
