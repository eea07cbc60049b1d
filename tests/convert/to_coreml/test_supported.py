"""What cannot be exported is refused with one sentence, from the configuration alone."""

import pytest
from specstream_mlx.convert.to_coreml.supported import Sizes, check_adapter, check_base, check_names

from specstream_mlx.errors import UserError
from specstream_mlx.stream_config import StreamConfig

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 512}
LLAMA |= {"rms_norm_eps": 1e-5}
MISTRAL = {**LLAMA, "model_type": "mistral"}
SIZES = Sizes(context=128)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({**LLAMA, "model_type": "gemma2"}, "model_type is 'gemma2', expected one of llama, "),
        ({**LLAMA, "max_position_embeddings": 100}, "context is 128, expected at most .* 100"),
        ({**LLAMA, "rope_traditional": True}, "rope_traditional is True, expected False"),
        (
            {**LLAMA, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
            "sliding_window is 9, expected at least the context of 128",
        ),
        ({**MISTRAL, "sliding_window": 64}, "sliding_window is 64, expected at least"),
        ({**LLAMA, "quantization": {"mode": "mxfp4"}}, "mode is 'mxfp4', expected 'affine'"),
        ({**LLAMA, "rms_norm_eps": 1e-8}, "rms_norm_eps is 1e-08, expected at least 6e-08"),
    ],
)
def test_refused_bases(config, sentence):
    with pytest.raises(UserError, match=sentence):
        check_base(config, SIZES)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        {**MISTRAL, "sliding_window": None},
        {**MISTRAL, "sliding_window": 128},
        {**MISTRAL, "model_type": "qwen2", "sliding_window": 9, "use_sliding_window": False},
    ],
)
def test_exported_bases(config):
    check_base(config, SIZES)


@pytest.mark.parametrize(
    ("streams", "fields", "sentence"),
    [
        ({"stream_keys": 4}, {}, "a: stream_keys is 4, expected 0"),
        ({"draft_vocabulary": 3}, {}, "a: draft_vocabulary is 3, expected at least the 4"),
        ({}, {"fine_tune_type": "dora"}, "a: fine_tune_type is 'dora', expected 'lora'"),
        ({}, {"lora_parameters": {"keys": ["model.embed_tokens"]}}, "a: LoRA on embed_tokens is"),
        (
            {"draft_vocabulary": 30},
            {"lora_parameters": {"keys": ["lm_head"]}},
            "a: LoRA on lm_head .* draft_vocabulary",
        ),
    ],
)
def test_refused_adapters(streams, fields, sentence):
    config = StreamConfig("shared", 1, 8, 2, **streams)
    with pytest.raises(UserError, match=sentence):
        check_adapter("a", config, fields, SIZES)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"nodes": (8, 65)}, "expected numbers from 1 to 64"),
        ({"nodes": (8, 8)}, "expected different numbers"),
        ({"chunk": 0}, "chunk is 0, expected at least 1"),
        ({"context": 40}, "context is 40, expected at least 64, the most rows of a call"),
    ],
)
def test_refused_sizes(sizes, sentence):
    with pytest.raises(UserError, match=sentence):
        Sizes(**{"context": 128, **sizes})


def test_refused_names():
    with pytest.raises(UserError, match="the adapter's name is 'my-sql', expected letters"):
        check_names(["sql", "my-sql"])
    with pytest.raises(UserError, match="two adapters are called sql, expected different names"):
        check_names(["sql", "sql"])
    check_names(["sql", "key_points"])
