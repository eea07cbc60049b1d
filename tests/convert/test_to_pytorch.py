"""Adapters that were trained in MLX, on the PyTorch side."""

import json

import mlx.core as mx
import numpy as np
import pytest
from architecture_models import random_model
from command_line import refusal, run
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from parity import BOUND, differences
from peft import PeftModel
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_pytorch import convert_to_pytorch
from tiny_models import tiny_streams, tiny_tokenizer
from tiny_peft import TOKENS, close, mlx_logits, torch_logits

from specstream_mlx import load
from specstream_mlx.adapters.files import LoraPart, read_adapter, write_adapter
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.stream_config import StreamConfig


@pytest.fixture(scope="module", params=["Llama 3.2, tied", "OPT", "Phi-3 mini 4k, window"])
def bases(request, tmp_path_factory):
    """Hugging Face's directory and MLX's."""
    directory = tmp_path_factory.mktemp("base")
    random_model(request.param).save_pretrained(directory / "hf")
    tiny_tokenizer().save_pretrained(directory / "hf")
    convert_base(directory / "hf", directory / "mlx")
    return directory / "hf", directory / "mlx"


def adapter_directory(base, directory, mode):
    """An adapter with random streams and, in shared mode, LoRA on every linear layer."""
    model, _ = read_model(base)
    model.freeze()
    parameters, layers, lora = {"rank": 1, "scale": 1.0, "dropout": 0.0, "keys": []}, 0, {}
    if mode == "shared":
        parameters, layers = {"rank": 3, "scale": 1.5, "dropout": 0.0}, len(model.layers)
        linear_to_lora_layers(model, layers, parameters)
        rng = np.random.default_rng(0)
        for name, array in tree_flatten(model.trainable_parameters()):
            lora[name] = mx.array(rng.normal(0, 0.1, array.shape), mx.float32)
    sizes = {"hidden_size": read_config(base)["hidden_size"], "num_msa_layers": 2}
    ranks = {"stream_adapter_rank": 3, "stream_head_rank": 4}
    kinds = {"stream_mlp": "base+adapter", "stream_head": "conditioned"}
    config = StreamConfig(mode=mode, num_hidden_layers=len(model.layers), **sizes, **ranks, **kinds)
    directory.mkdir()
    write_adapter(directory, LoraPart(lora, parameters, layers), config, tiny_streams(config))
    return directory


def test_shared_streams_compute_the_same_and_come_back(bases, tmp_path):
    """PEFT's own loader reads the LoRA too."""
    hf, mlx = bases
    adapter = adapter_directory(mlx, tmp_path / "adapter", "shared")
    convert_to_pytorch(adapter, mlx, tmp_path / "torch")
    found = differences(hf, tmp_path / "torch", mlx, adapter, TOKENS, 5)
    assert max(found.values()) <= BOUND
    ours = mlx_logits(load(mlx, adapter_path=adapter)[0].model)
    assert close(torch_logits(PeftModel.from_pretrained(load_base(hf), tmp_path / "torch")), ours)
    convert_adapter(tmp_path / "torch", hf, tmp_path / "again")
    first, second = (
        read_adapter(path, read_model(mlx)[0], read_config(mlx))
        for path in (adapter, tmp_path / "again")
    )
    assert first.stream_config == second.stream_config
    for tensors in ("lora", "stream_tensors"):
        old, new = getattr(first, tensors), getattr(second, tensors)
        assert old.keys() == new.keys()
        assert all(mx.array_equal(old[name], new[name]) for name in old)
    assert first.config["lora_parameters"]["scale"] == second.config["lora_parameters"]["scale"]


def test_the_command_converts_lossless_streams(bases, tmp_path):
    hf, mlx = bases
    adapter, out = adapter_directory(mlx, tmp_path / "adapter", "lossless"), tmp_path / "out"
    flags = ("--model", mlx, "--adapter-path", adapter, "--to-pytorch", out)
    assert run("convert", *flags).exit_code == 0
    found = differences(hf, out, mlx, adapter, TOKENS, 5)
    assert max(found.values()) <= BOUND
    assert json.loads((out / "speculative_streaming.json").read_text())["mode"] == "lossless"
    assert not (out / "adapter_config.json").exists()
    assert "exists already" in refusal(run("convert", *flags))
