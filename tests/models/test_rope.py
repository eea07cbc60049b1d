"""Positions in both forms, beside each other and as an argument, as mlx_lm reads them."""

import mlx.core as mx
import pytest
from architecture_models import VOCAB_SIZE, rope
from mlx_lm.utils import _get_classes
from random_models import LLAMA3

from specstream_mlx import UserError
from specstream_mlx.models.architectures import context_length, explicit_fields, model_classes
from specstream_mlx.models.rope import with_changes

SIZES = {"hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
SIZES |= {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 512, "tie_word_embeddings": True}
SIZES |= {"original_max_position_embeddings": 64}  # where Phi-3 has it

FAMILIES = {"llama": {}, "qwen3": {}, "phi3": {"tie_word_embeddings": False}}
FAMILIES |= {"gemma3_text": {"sliding_window_pattern": 2, "sliding_window": 8}}
LENGTH = {"original_max_position_embeddings": 64}
LONG = [1.0 + 0.2 * i for i in range(16)]
SCALINGS = {
    "none": None,
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn's betas": {"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, **LENGTH},
    "llama3": {**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 64},
    "longrope": {"type": "longrope", "long_factor": LONG, "short_factor": LONG, **LENGTH},
}
OF_PHI3 = ("none", "longrope")  # mlx_lm's reads no other without a long_factor
BESIDE = {
    "alone": {},
    "beside the default": rope(5e5),
    "beside another scaling": rope(5e5, "linear", factor=2.0),
}


def turned(classes, config):
    model_class, arguments = classes
    model = model_class(arguments.from_dict(config))
    rows = mx.random.normal((1, 1, 40, 32), key=mx.random.key(1))
    return mx.stack([layer.self_attn.rope(rows, offset=30) for layer in model.layers])


def theirs(config):
    return turned(_get_classes(config), config)


def ours(config):
    return turned(model_classes(config), {**config, **explicit_fields(config)})


CASES = [
    (family, scaling, beside)
    for family in FAMILIES
    for scaling in (OF_PHI3 if family == "phi3" else SCALINGS)
    for beside in BESIDE
    # Without a scaling beside them, mlx_lm leaves rope_parameters unread, but for Qwen 3.
    if SCALINGS[scaling] or beside != "beside another scaling" or family == "qwen3"
]


@pytest.mark.parametrize(("family", "scaling", "beside"), CASES)
def test_every_way_to_scale_turns_as_mlx_lm_does(family, scaling, beside):
    config = {"model_type": family, **SIZES, **FAMILIES[family], **BESIDE[beside]}
    config |= {"rope_theta": 5e5, "rope_scaling": SCALINGS[scaling]}
    assert mx.allclose(ours(config), theirs(config), atol=1e-5).item()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("scaling", [{}, {"rope_scaling": {"type": "linear", "factor": 4.0}}])
def test_an_argument_holds_whichever_form_the_file_has(family, scaling):
    base = {"model_type": family, **SIZES, **FAMILIES[family]}
    changes = {"rope_theta": 2e4, **scaling}
    file = {**base, "rope_theta": 5e5, **rope(5e5)}
    expected = theirs({**base, **changes})
    assert mx.allclose(ours(with_changes(file, changes)), expected, atol=1e-5).item()
    if family == "llama" and scaling:
        file = {**base, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
        found = ours(with_changes(file, rope(2e4, "linear", factor=4.0)))
        assert mx.allclose(found, expected, atol=1e-5).item()


OTHER = {"type": "linear", "factor": 2.0, "rope_theta": 1e4}
TWO_NAMES = {"type": "linear", "rope_type": "default", "factor": 2.0}
LOCAL = {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}, "rope_local_base_freq": 2e4}
LOCAL |= {"model_type": "gemma3_text", "sliding_window_pattern": 2}


@pytest.mark.parametrize(
    ("fields", "one", "other"),
    [
        ({"rope_theta": 1e4, **rope(5e5)}, "rope_theta is 10000.0", "rope_theta is 500000.0"),
        ({**rope(5e5), "rope_scaling": OTHER}, "rope_theta is 500000.0", "rope_theta is 10000.0"),
        ({"rope_scaling": TWO_NAMES}, "rope's type is 'linear'", "rope's rope_type is 'default'"),
        (LOCAL, "rope_local_base_freq is 20000.0", "rope_theta of sliding_attention"),
    ],
)
def test_two_values_of_which_each_library_reads_one_are_refused(fields, one, other):
    with pytest.raises(UserError, match=f"{one} and .*{other}"):
        explicit_fields({"model_type": "llama", **SIZES, **fields})


@pytest.mark.parametrize(
    ("scaling", "length"),
    [
        ({"type": "yarn", "factor": 4.0, **LENGTH}, 512),  # the field has the longer one already
        ({"type": "yarn", "factor": 16.0, **LENGTH}, 1024),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
    ],
)
def test_scaling_makes_the_context_longer(scaling, length):
    assert context_length({"model_type": "qwen2", **SIZES, "rope_scaling": scaling}) == length
    unknown = {**SIZES, "max_position_embeddings": None}
    assert context_length({"model_type": "qwen2", **unknown, "rope_scaling": scaling}) is None
