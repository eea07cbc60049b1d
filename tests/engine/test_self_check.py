"""Models of unknown architectures: what their trees say decides whether they are loaded."""

import mlx.core as mx
import pytest
import torch
from architecture_models import unlisted_model

from specstream_mlx import UserError
from specstream_mlx.engine import step
from specstream_mlx.engine.rows import TreeShapes
from specstream_mlx.loading import read_model


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("Olmo2", "float32"),
        ("Granite", "bfloat16"),
        ("Cohere2", "float16"),
        ("Mixtral", "float32"),  # MLX's CPU backend gathers experts in no other dtype
    ],
)
def test_another_architecture_has_to_pass_the_self_check(family, dtype, tmp_path, monkeypatch):
    """Within the tolerance of its dtype, which still tells a wrong mask from rounding."""
    directory = unlisted_model(tmp_path, family, dtype=getattr(torch, dtype))
    model, _ = read_model(directory)
    assert model(mx.array([[1]])).dtype == getattr(mx, dtype)

    def sees_everything_before(trees):
        shapes = TreeShapes([tree.parents.tolist() for tree in trees])
        shapes.ancestors = mx.tri(len(shapes)).astype(mx.bool_)[None]
        return shapes

    monkeypatch.setattr(step, "shapes_of", sees_everything_before)
    with pytest.raises(UserError, match="its logits over a tree as a whole differ"):
        read_model(directory)
