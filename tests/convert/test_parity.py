"""MLX computes what the PyTorch reference computes, layer by layer, through both file formats.

Here are kinds of streams on one small Llama; others, on every architecture, are in
``pytorch/test_architecture_adapters.py``.
"""

import shutil

import mlx.core as mx
import numpy as np
import pytest
import torch
from specstream_mlx.convert.parity import BOUND, layer_differences
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from torch_tiny import tiny_llama, tiny_model

from specstream_mlx import UserError

TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]

LINEAR = {"stream_init": "linear", "stream_init_rank": 4}
ROTATION = {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3}
KINDS = {
    "lossless, adapter, every layer": {"num_msa_layers": 3},
    "lossless, value rotation, literal pruner": {"pruner_form": "literal", **ROTATION},
    "shared, linear": {"mode": "shared", **LINEAR},
    "shared, value rotation": {"mode": "shared", **ROTATION},
    "lossless, near keys": {"stream_window": 3},
    "shared, near keys": {"mode": "shared", "stream_window": 3},
}


@pytest.fixture(scope="module")
def directories(tied, tied_mlx, tmp_path_factory):
    """A function of a kind: the paths of (torch base, torch adapter, mlx base, mlx adapter)."""

    def make(**kind):
        torch.manual_seed(1)
        scratch = tmp_path_factory.mktemp("parity")
        model = tiny_model(base=load_base(tied), base_fingerprint=base_fingerprint(tied), **kind)
        write_adapter(model, scratch / "torch")
        convert_adapter(scratch / "torch", tied, scratch / "mlx")
        return tied, scratch / "torch", tied_mlx, scratch / "mlx"

    return make


@pytest.fixture(scope="module")
def shared(directories):
    return directories(mode="shared")


def check(paths, prompt_length=5):
    differences = layer_differences(*paths, TOKENS, prompt_length)
    wrong = [d for d in differences if not d.relative <= BOUND]
    assert not wrong, wrong
    return {d.name for d in differences}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_streams(kind, directories):
    names = check(directories(**KINDS[kind]))
    assert {"layer 0 main", "layer 2 main", "layer 2 streams"} <= names
    assert {"logits", "stream logits", "early-exit logits"} <= names


@pytest.mark.parametrize("prompt_length", [1, 2, 11])
def test_prompt_lengths(prompt_length, shared):
    check(shared, prompt_length)


@pytest.mark.parametrize("name", ["self_attn.q_proj.lora_a", "self_attn.o_proj.lora_b"])
def test_a_forgotten_transpose_would_show(name, shared, tmp_path):
    """q_proj and o_proj are square: shapes cannot tell, values must."""
    adapter = shutil.copytree(shared[3], tmp_path / "mlx")
    file = adapter / "adapters.safetensors"
    tensors = dict(mx.load(str(file)))
    key = f"model.layers.0.{name}"
    values = np.array(tensors[key])
    tensors[key] = mx.array(values.T.copy().reshape(values.shape))
    mx.save_safetensors(str(file), tensors)
    differences = layer_differences(*shared[:3], adapter, TOKENS, 5)
    assert max(d.relative for d in differences) > 10 * BOUND


def test_adapter_of_another_base_is_refused(directories, tmp_path):
    other = tmp_path / "other"
    tiny_llama(vocab=300, layers=2).save_pretrained(other)
    with pytest.raises(UserError, match=r"made for another base \(.*, fingerprint .*\), expected"):
        convert_adapter(directories()[1], other, tmp_path / "out")
    assert not (tmp_path / "out").exists()
