"""Models that cannot be driven are refused when loaded, before a weight is read where possible."""

import json
from itertools import product

import mlx.core as mx
import pytest
import torch
import transformers
from architecture_models import VOCAB_SIZE, fill, rope

from specstream_mlx import UserError
from specstream_mlx.engine import step
from specstream_mlx.engine.rows import TreeShape
from specstream_mlx.loading import read_model
from specstream_mlx.models.architectures import REFUSED


def write_config(directory, **fields):
    """A ``config.json`` without any weights beside it."""
    directory.mkdir(exist_ok=True)
    config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": VOCAB_SIZE, **fields}
    config = {"num_attention_heads": 2, "max_position_embeddings": 512, **config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


REFUSALS = {
    "unknown": ({"model_type": "nonsense"}, "model_type is 'nonsense', expected one that mlx-lm"),
    "no type": ({"model_type": None}, "model_type is None"),
    "a path": ({"model_type": "../llama"}, "model_type is '../llama'"),
    "type that is a list": ({"model_type": []}, r"model_type is \[\], expected one"),
    "type that is an object": ({"model_type": {}}, r"model_type is \{\}, expected one"),
    "module of mlx-lm's that is no model": (
        {"model_type": "base"},
        "model_type is 'base', expected one that mlx-lm has a model for",
    ),
    "mlx-lm's caches": ({"model_type": "cache"}, "model_type is 'cache', expected one"),
    "mlx-lm's ropes": ({"model_type": "rope_utils"}, "model_type is 'rope_utils', expected one"),
    "Gemma 3 with pictures": (
        {"model_type": "gemma3", "hidden_size": None, "text_config": {"hidden_size": 64}},
        "'gemma3', which is refused: its checkpoints .* text-only .* 'gemma3_text', are supported",
    ),
    "another model with pictures": (
        {"model_type": "mistral3", "hidden_size": None, "text_config": {"hidden_size": 64}},
        "text_config is given, which is refused: its checkpoints hold the text model inside one",
    ),
    "activation": ({"model_type": "llama", "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "norms of Phi's heads": ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm is True"),
    "dynamic rope": (
        {"model_type": "qwen2", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_type is 'dynamic', whose angles depend on the length of the text",
    ),
    "scaled rope that mlx-lm's Gemma 2 has not": (
        {"model_type": "gemma2", **rope(1e4, "linear", factor=2.0)},
        r"rope_type is 'linear', expected one of \('default',\)",
    ),
    "rope without its factor": (
        {"model_type": "llama", **rope(1e4, "linear")},
        "rope_type is 'linear' without factor",
    ),
    "attention factor": (
        {"model_type": "llama", **rope(1e4, "yarn", factor=4.0, attention_factor=2.0)},
        "attention_factor is 2.0, expected mlx-lm's own",
    ),
    "rope factor": (
        {"model_type": "llama", **rope(1e4, "linear", factor="2")},
        "factor is '2', expected a number above 0",
    ),
    "rope type": (
        {"model_type": "llama", "rope_scaling": {"type": ["linear"]}},
        r"rope_type is \['linear'\], expected a text",
    ),
    "a share of odd size of a head": (
        {
            "model_type": "llama",
            "head_dim": 100,
            **rope(1e4, "proportional"),
            "partial_rotary_factor": 0.25,
        },
        "partial_rotary_factor is 0.25, expected at most 1 and an even number of the 100",
    ),
    "yarn's mscale": (
        {
            "model_type": "llama",
            **rope(1e4, "yarn", factor=4.0, mscale="x", attention_factor=1.0),
        },
        "rope's mscale is 'x', expected a number of at least 0",
    ),
    "one layer type's rope": (
        {"model_type": "gemma3_text", "rope_parameters": {"full_attention": "x"}},
        "full_attention of rope_parameters is 'x', expected an object",
    ),
    "one layer type's rope beside a right one": (
        {
            "model_type": "gemma3_text",
            "rope_parameters": {"full_attention": "x", "sliding_attention": {"rope_theta": 1e4}},
        },
        "full_attention of rope_parameters is 'x', expected an object",
    ),
    "rope of the sliding layers": (
        {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": "x"}},
        "sliding_attention of rope_parameters is 'x', expected an object",
    ),
    "Gemma 3's period": (
        {"model_type": "gemma3_text", "sliding_window_pattern": "x"},
        "sliding_window_pattern is 'x', expected an integer of at least 1",
    ),
    "Qwen's layers without a window": (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "x"},
        "max_window_layers is 'x', expected an integer of at least 0",
    ),
    "size of a head": (
        {"model_type": "llama", "head_dim": "x", **rope(1e4, "proportional")},
        "head_dim is 'x', expected an integer of at least 1",
    ),
    "context": (
        {"model_type": "llama", "max_position_embeddings": "x"},
        "max_position_embeddings is 'x', expected an integer of at least 1",
    ),
    "window": ({"model_type": "mistral", "sliding_window": "no"}, "sliding_window is 'no'"),
    "layer types": (
        {"model_type": "gemma2", "layer_types": ["full_attention"]},
        r"layer_types is \['full_attention'\], expected a list of num_hidden_layers = 4",
    ),
    "rope that is no object": ({"model_type": "llama", "rope_scaling": "linear"}, "rope_scaling"),
    "Gemma 3 without a period": (
        {
            "model_type": "gemma3_text",
            "layer_types": ["sliding_attention", "full_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
        },
        "layer_types is not periodic",
    ),
    "Gemma 3 without a full layer": (
        {"model_type": "gemma3_text"},
        "num_hidden_layers is 4, expected at least 6",
    ),
    "OPT 350m": (
        {"model_type": "opt", "word_embed_proj_dim": 32},
        "word_embed_proj_dim is 32, expected hidden_size = 64: project_in and project_out",
    ),
    "OPT without biases": ({"model_type": "opt", "enable_bias": False}, "enable_bias is False"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_work_is_refused_by_its_config(case, tmp_path):
    """One sentence that names the file and the field; there are no weights to be read."""
    fields, message = REFUSALS[case]
    directory = write_config(tmp_path, **fields)
    with pytest.raises(UserError, match=message) as error:
        read_model(directory)
    assert str(error.value).startswith(f"{directory / 'config.json'}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", REFUSED)
def test_every_refused_type_is_refused(model_type, tmp_path):
    with pytest.raises(UserError, match=f"model_type is '{model_type}', which is refused: "):
        read_model(write_config(tmp_path, model_type=model_type))


def test_a_recurrent_model_is_known_by_its_caches(tmp_path, monkeypatch):
    """What the list of refused types forgets; the model is made without weights."""
    monkeypatch.delitem(REFUSED, "mamba")
    fields = {"intermediate_size": 96, "state_size": 4, "conv_kernel": 4, "time_step_rank": 4}
    fields |= {"use_bias": False, "use_conv_bias": True}
    directory = write_config(tmp_path, model_type="mamba", **fields)
    with pytest.raises(UserError, match=r"'mamba', whose layer 0 has a \w+, expected a KVCache"):
        read_model(directory)


def saved(directory, family, seed=0, dtype=torch.float32, **fields):
    """A random model of a family that has no entry in the table."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        **fields,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    fill(model)
    model.to(dtype)
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *product(["Olmo2", "Granite", "Cohere2"], ["float32", "bfloat16", "float16"]),
        ("Mixtral", "float32"),  # MLX's CPU backend gathers experts in no other dtype
    ],
)
def test_another_architecture_has_to_pass_the_self_check(family, dtype, tmp_path, monkeypatch):
    """Within the tolerance of its dtype, which still tells a wrong mask from rounding."""
    directory = saved(tmp_path, family, dtype=getattr(torch, dtype))
    model, _ = read_model(directory)
    assert model(mx.array([[1]])).dtype == getattr(mx, dtype)

    def sees_everything_before(tree):
        shape = TreeShape(tree)
        shape.ancestors = mx.tri(len(shape)).astype(mx.bool_)
        return shape

    monkeypatch.setattr(step, "shape_of", sees_everything_before)
    with pytest.raises(UserError, match="its logits over a tree as a whole differ"):
        read_model(directory)
