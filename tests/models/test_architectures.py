"""What a ``config.json`` says of a model: its explicit fields, and why it is refused."""

import json

import pytest
from architecture_models import VOCAB_SIZE, rope

from specstream_mlx import UserError
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.models.architectures import ARCHITECTURES, REFUSED, explicit_fields
from specstream_mlx.models.fingerprint import fingerprint


def write_config(directory, **fields):
    directory.mkdir(exist_ok=True)
    config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": VOCAB_SIZE, **fields}
    config = {"num_attention_heads": 2, "max_position_embeddings": 512, **config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


PICTURES = {"hidden_size": None, "text_config": {"hidden_size": 64}}
YARN = {"kind": "yarn", "factor": 4.0}
BROKEN = {"full_attention": "x", "sliding_attention": {"rope_theta": 1e4}}
NO_PERIOD = ["sliding_attention", "full_attention", "full_attention"] * 2
ODD = {"head_dim": 100, **rope(1e4, "proportional"), "partial_rotary_factor": 0.25}
UPPER = {"use_sliding_window": True, "max_window_layers": 2}
LINEAR = {"num_hidden_layers": 6, **rope(1e4, "linear", factor=2.0)}
ORIGINAL = "original_max_position_embeddings"
REFUSALS = [
    ("nonsense", {}, "model_type is 'nonsense', expected one that mlx-lm"),
    ("gemma3", PICTURES, "'gemma3', which is refused: its checkpoints .* 'gemma3_text', are"),
    ("mistral3", PICTURES, "text_config is given, which is refused: its checkpoints hold the text"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm is True"),
    ("qwen2", {"rope_scaling": {"type": "dynamic"}}, "rope_type is 'dynamic', whose angles depend"),
    ("gemma2", rope(1e4, "linear", factor=2.0), r"'linear', expected one of \('default',\)"),
    ("llama", rope(1e4, "linear"), "rope_type is 'linear' without factor"),
    ("llama", rope(1e4, **YARN, attention_factor=2.0), "attention_factor is 2.0, expected mlx-lm"),
    ("llama", rope(1e4, "linear", factor="2"), "factor is '2', expected a number above 0"),
    (
        "llama",
        ODD,
        "partial_rotary_factor is 0.25, expected at most 1 and an even number of",
    ),
    ("llama", rope(1e4, **YARN, mscale="x", attention_factor=1.0), "rope's mscale is 'x', expecte"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling"),
    ("gemma3_text", {"rope_parameters": BROKEN}, "full_attention of rope_parameters is 'x', expec"),
    ("qwen2", UPPER | {"max_window_layers": "x"}, "max_window_layers is 'x', expected an integer"),
    ("gemma2", {"attn_logit_softcapping": None}, "is None, expected a number above 0: mlx-lm's"),
    ("gemma3_text", {"sliding_window_pattern": 2, "sliding_window": 0}, "sliding_window is 0, exp"),
    ("gemma2", {"layer_types": ["full_attention"]}, "expected a list of num_hidden_layers = 4"),
    ("gemma3_text", {"layer_types": NO_PERIOD, "num_hidden_layers": 6}, "types is not periodic"),
    ("gemma3_text", {}, "all 4 layers .num_hidden_layers. attend in a sliding window"),
    ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim is 32, expected hidden_size = 64"),
    ("opt", {"enable_bias": False}, "enable_bias is False"),
    # what a fuzz over all families' fields has found
    ("qwen2", {"num_attention_heads": 128}, "128, expected a divisor of hidden_size, 64, where"),
    ("opt", {"num_attention_heads": 3}, "num_attention_heads is 3, expected a divisor"),
    ("opt", {"ffn_dim": -1}, "ffn_dim is -1, expected an integer"),
    ("opt", {"rope_theta": "x"}, "rope_theta is 'x', expected a number above 0"),
    ("opt", {"rope_scaling": [1]}, r"rope_scaling is \[1\], expected an object"),
    ("gemma3_text", {"rope_scaling": False}, "rope_scaling is False, expected an object"),
    ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar is -1, expected a number abo"),
    ("phi", {"partial_rotary_factor": 3}, "partial_rotary_factor is 3, expected at most 1 and"),
    ("phi3", {"partial_rotary_factor": 1e-300}, "partial_rotary_factor is 1e-300, expected at mos"),
    ("gemma3_text", LINEAR | {ORIGINAL: "x"}, f"{ORIGINAL} is 'x', expected an integer"),
    ("qwen2", rope(1e4, **YARN, **{ORIGINAL: 0}), f"{ORIGINAL} is 0, expected an integer"),
]


@pytest.mark.parametrize(("model_type", "fields", "message"), REFUSALS)
def test_what_cannot_work_is_refused_by_its_config(model_type, fields, message, tmp_path):
    """One sentence that names the file and the field; there are no weights to be read."""
    directory = write_config(tmp_path, model_type=model_type, **fields)
    with pytest.raises(UserError, match=message) as error:
        read_model(directory)
    assert str(error.value).startswith(f"{directory / 'config.json'}: ")
    assert "\n" not in str(error.value)


def test_every_refused_type_is_refused(tmp_path):
    for model_type in REFUSED:
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


def test_the_fingerprint_is_that_of_the_explicit_fields():
    sizes = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 2, "vocab_size": 7}
    for model_type in ARCHITECTURES:
        for extra in ({}, rope(5e5), {"rope_theta": 5e5}, {"rope_theta": None}):
            config = {"model_type": model_type, **sizes, **extra}
            assert fingerprint({**config, **explicit_fields(config)}) == fingerprint(config), extra


def test_a_window_that_no_layer_has_may_be_0(tmp_path):
    window = {"sliding_window": 0, "use_sliding_window": False}
    read_config(write_config(tmp_path, model_type="qwen2", **window))
    sizes = {"intermediate_size": 64, "rms_norm_eps": 1e-6}
    read_config(write_config(tmp_path, model_type="olmo2", **sizes, **window))
