"""A head with the rows of some tokens scores them as the whole head does."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear

from specstream_mlx.models.streams import rows_of

TOKENS, HIDDEN = 40, 64


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("tuned", [LoRALinear, DoRALinear, LoRAEmbedding, DoRAEmbedding, None])
def test_some_rows_score_as_in_the_whole_head(bits, tuned):
    embedding = tuned in (LoRAEmbedding, DoRAEmbedding)
    head = nn.Embedding(TOKENS, HIDDEN) if embedding else nn.Linear(HIDDEN, TOKENS)
    if bits and tuned is not DoRAEmbedding:  # mlx_lm has none
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
