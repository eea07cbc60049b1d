"""Several processes that run one model write, each of them, what one process writes."""

import pytest
from processes import written
from rank_writer import texts_of
from tiny_models import stream_adapter_directory, tiny_llama_directory

ALL_LINEAR = tuple(f"self_attn.{name}_proj" for name in "qkvo") + tuple(
    f"mlp.{name}_proj" for name in ("gate", "up", "down")
)


def jobs_of(folder, heads, kv_heads, **model):
    """A model with lossless and with shared streams: plain, by the rule, fixed trees, drawn."""
    base = tiny_llama_directory(
        folder / "base",
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        residual_scale=0.3,  # streams are right at times
        **model,
    )
    lossless = stream_adapter_directory(folder / "lossless", base, scale=0.3)
    shared = stream_adapter_directory(
        folder / "shared", base, mode="shared", scale=0.3, lora_rank=4, lora_keys=ALL_LINEAR
    )
    texts = [
        {"max_tokens": 6},
        {"max_tokens": 12, "adapter": str(lossless)},
        {"max_tokens": 12, "adapter": str(lossless), "tree_size": 6, "max_nodes": 4},
        {"max_tokens": 12, "adapter": str(lossless), "tree_size": 4, "seed": 3},
        {"max_tokens": 12, "adapter": str(shared), "tree_size": 6},
        {"max_tokens": 8, "adapter": str(shared), "seed": 5},
    ]
    return [{"model": str(base), "texts": texts}]


def test_two_processes_write_what_one_writes(tmp_path):
    jobs = jobs_of(tmp_path, heads=4, kv_heads=2)
    alone = texts_of(jobs)
    assert written(tmp_path, 2, jobs) == [alone, alone]


@pytest.mark.slow
def test_three_processes_write_what_one_writes(tmp_path):
    jobs = jobs_of(tmp_path, heads=6, kv_heads=3, hidden_size=96)
    alone = texts_of(jobs)
    assert written(tmp_path, 3, jobs) == [alone] * 3


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["packed", "expanded"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_layers_are_divided_packed_and_expanded(tmp_path, bits, weights):
    jobs = jobs_of(tmp_path, heads=4, kv_heads=2, bits=bits, hidden_size=128, intermediate_size=192)
    jobs[0]["weights"] = weights
    alone = texts_of(jobs)
    assert written(tmp_path, 2, jobs) == [alone, alone]
