"""A model that is borrowed stays as it was; what cannot be driven is refused."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from architecture_models import unlisted_model
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from random_models import (
    BASES,
    PROMPT,
    speculative_model,
    take,
)
from trees import full_tree

from specstream_mlx import UserError
from specstream_mlx.engine import step
from specstream_mlx.engine.rows import TreeShapes
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading import read_model
from specstream_mlx.models.streams import Streams

TREE = full_tree(PROMPT[-1], np.array([[1, 2], [3, 4]]), 2)


def modules_of(model):
    modules = {name: id(module) for name, module in model.named_modules()}
    return modules, {name: id(value) for name, value in tree_flatten(model.parameters())}


def decoder_of(model):
    decoder = Decoder(model.model, model.streams, make_prompt_cache(model.model))
    decoder.prefill(mx.array(PROMPT[:-1]))
    return decoder


def test_the_model_is_as_before_within_a_step_and_after_an_exception(monkeypatch):
    """The step can then be taken again."""
    model = speculative_model(stream_mlp="adapter", stream_adapter_rank=4)
    before, decoder = modules_of(model.model), decoder_of(model)

    def fail(*_):
        assert modules_of(model.model) == before
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Streams, "seed", fail)
        with pytest.raises(ZeroDivisionError):
            take(decoder, TREE, "beside", max_nodes=4)
    assert modules_of(model.model) == before
    assert [cache.offset for cache in decoder.caches] == [len(PROMPT) - 1] * 4
    expected = take(decoder_of(model), TREE, "beside", max_nodes=4)
    found = take(decoder, TREE, "beside", max_nodes=4)
    assert mx.array_equal(found.logits, expected.logits)


def test_what_it_cannot_drive_is_refused(monkeypatch):
    dynamic = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    monkeypatch.setitem(BASES, "other", dynamic)
    model = speculative_model("other")
    with pytest.raises(UserError, match="layer 0 scales its rope"):
        Decoder(model.model, model.streams, make_prompt_cache(model.model))


# Models of unknown architectures: their trees decide whether they are loaded ------------------


@pytest.mark.parametrize(
    ("family", "dtype"),
    # MLX's CPU backend gathers experts in float32 alone
    [("Granite", "bfloat16"), ("Cohere2", "float16"), ("Mixtral", "float32")],
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
