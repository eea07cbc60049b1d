"""MLX computes what the PyTorch reference computes, layer by layer, through both file formats."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from specstream_mlx.convert.parity import BOUND, layer_differences
from specstream_mlx.convert.pytorch.formats import base_fingerprint, write_adapter
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import tiny_tokenizer
from torch_tiny import tiny_llama, tiny_model

from specstream_mlx import UserError

TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]

CASES = {
    "lossless, adapter": {},
    "lossless, base+adapter": {"stream_mlp": "base+adapter"},
    "lossless, linear": {"stream_init": "linear", "stream_init_rank": 4},
    "lossless, value rotation": {
        "stream_init": "value_rotation",
        "value_rotation_epsilon": 0.3,
    },
    "lossless, literal pruner": {"pruner_form": "literal"},
    "lossless, every layer": {"num_msa_layers": 3},
    "shared": {"mode": "shared"},
    "shared, linear": {"mode": "shared", "stream_init": "linear", "stream_init_rank": 4},
    "shared, value rotation": {
        "mode": "shared",
        "stream_init": "value_rotation",
        "value_rotation_epsilon": 0.3,
    },
}
BASES = {
    "grouped heads, tied": {},
    "one kv head, untied": {"kv_heads": 1, "tied": False},
    "full heads, untied": {"kv_heads": 4, "tied": False},
}


def directories(tmp_path, base=None, **overrides):
    """A random base and adapter: (torch base, torch adapter, mlx base, mlx adapter)."""
    torch.manual_seed(1)
    llama = tiny_llama(vocab=300, **(base or {}))
    hf = tmp_path / "hf"
    llama.save_pretrained(hf)
    tiny_tokenizer().save_pretrained(hf)
    model = tiny_model(base=llama, base_fingerprint=base_fingerprint(hf), **overrides)
    write_adapter(model, tmp_path / "torch-adapter")
    paths = hf, tmp_path / "torch-adapter", tmp_path / "mlx", tmp_path / "mlx-adapter"
    convert_base(hf, paths[2])
    convert_adapter(paths[1], hf, paths[3])
    return paths


def check(paths, prompt_length=5):
    differences = layer_differences(*paths, TOKENS, prompt_length)
    wrong = [d for d in differences if not d.relative <= BOUND]
    assert not wrong, wrong
    return {d.name for d in differences}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_streams(case, tmp_path):
    names = check(directories(tmp_path, **CASES[case]))
    assert {"layer 0 main", "layer 2 main", "layer 2 streams"} <= names
    assert {"logits", "stream logits", "early-exit logits"} <= names


@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize("base", BASES)
def test_every_kind_of_base(base, mode, tmp_path):
    check(directories(tmp_path, BASES[base], mode=mode))


@pytest.mark.parametrize("prompt_length", [1, 2, 11])
def test_prompt_lengths(prompt_length, tmp_path):
    check(directories(tmp_path, mode="shared"), prompt_length)


@pytest.mark.parametrize("name", ["self_attn.q_proj.lora_a", "self_attn.o_proj.lora_b"])
def test_a_forgotten_transpose_would_show(name, tmp_path):
    """q_proj and o_proj are square: shapes cannot tell, values must."""
    paths = directories(tmp_path, mode="shared")
    file = paths[3] / "adapters.safetensors"
    tensors = dict(mx.load(str(file)))
    key = f"model.layers.0.{name}"
    values = np.array(tensors[key])
    tensors[key] = mx.array(values.T.copy().reshape(values.shape))
    mx.save_safetensors(str(file), tensors)
    differences = layer_differences(*paths, TOKENS, 5)
    assert max(d.relative for d in differences) > 10 * BOUND


def test_adapter_of_another_base_is_refused(tmp_path):
    paths = directories(tmp_path)
    other = tmp_path / "other"
    tiny_llama(vocab=300, layers=2).save_pretrained(other)
    with pytest.raises(UserError, match=r"made for another base \(.*, fingerprint .*\), expected"):
        convert_adapter(paths[1], other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
