"""Several processes that run one model write, each of them, what one process writes."""

import json

import mlx.core as mx
import numpy as np
import pytest
from processes import written
from rank_writer import texts_of
from tiny_models import stream_adapter_directory, tiny_llama_directory

ALL_LINEAR = tuple(f"self_attn.{name}_proj" for name in "qkvo") + tuple(
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
)


def llama(folder, **model):
    """A random Llama of which streams are right at times."""
    return tiny_llama_directory(folder / "base", residual_scale=0.3, **model)


def qwen(folder, model_type):
    """The same as a Qwen2, with biases, or as a Qwen3, with norms of queries and keys."""
    base = llama(folder, num_attention_heads=4, num_key_value_heads=2)
    config = json.loads((base / "config.json").read_text())
    weights = mx.load(str(base / "model.safetensors"))
    mx.eval(weights)
    drawn, size = np.random.default_rng(1), config["head_dim"]
    sizes = {"q_proj.bias": 4 * size, "k_proj.bias": 2 * size, "v_proj.bias": 2 * size}
    if model_type == "qwen3":
        sizes = {"q_norm.weight": size, "k_norm.weight": size}
    for number in range(config["num_hidden_layers"]):
        for name, count in sizes.items():
            values = mx.array(drawn.uniform(0.5, 1.5, count), mx.float32)
            weights[f"model.layers.{number}.self_attn.{name}"] = values
    mx.save_safetensors(str(base / "model.safetensors"), weights)
    (base / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    return base


def jobs_of(base):
    """Texts of a base, lossless and shared: plain, by the rule, in fixed trees, drawn, left."""
    folder = base.parent
    lossless = stream_adapter_directory(folder / "lossless", base, scale=0.3)
    shared = stream_adapter_directory(
        folder / "shared", base, mode="shared", scale=0.3, lora_rank=4, lora_keys=ALL_LINEAR
    )
    texts = [
        {"max_tokens": 6},
        {"max_tokens": 12, "adapter": str(lossless)},
        {"max_tokens": 30, "adapter": str(lossless), "leaves": 5},
        {"max_tokens": 12, "adapter": str(lossless), "tree_size": 6, "max_nodes": 4},
        {"max_tokens": 12, "adapter": str(lossless), "tree_size": 4, "seed": 3},
        {"max_tokens": 12, "adapter": str(shared), "tree_size": 6},
        {"max_tokens": 8, "adapter": str(shared), "seed": 5},
    ]
    return [{"model": str(base), "texts": texts}]


def test_two_processes_write_what_one_writes(tmp_path):
    jobs = jobs_of(llama(tmp_path, num_attention_heads=4, num_key_value_heads=2))
    alone = texts_of(jobs)
    assert written(tmp_path, 2, jobs) == [alone, alone]


@pytest.mark.slow
def test_three_processes_write_what_one_writes(tmp_path):
    jobs = jobs_of(llama(tmp_path, num_attention_heads=6, num_key_value_heads=3, hidden_size=96))
    alone = texts_of(jobs)
    assert written(tmp_path, 3, jobs) == [alone] * 3


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_other_families(tmp_path, model_type):
    jobs = jobs_of(qwen(tmp_path, model_type))
    alone = texts_of(jobs)
    assert written(tmp_path, 2, jobs) == [alone, alone]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["packed", "expanded"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_layers_are_divided_packed_and_expanded(tmp_path, bits, weights):
    jobs = jobs_of(llama(tmp_path, bits=bits, hidden_size=128, intermediate_size=192))
    jobs[0]["weights"] = weights
    alone = texts_of(jobs)
    assert written(tmp_path, 2, jobs) == [alone, alone]
