"""Adapters that were trained in MLX, on the PyTorch side."""

import json

import mlx.core as mx
import numpy as np
import parity
import pytest
import torch
from architecture_models import random_model
from command_line import refusal, run
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from peft import PeftModel
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_pytorch import convert_to_pytorch
from tiny_models import tiny_streams, tiny_tokenizer

from specstream_mlx import load
from specstream_mlx.adapters.files import LoraPart, read_adapter, write_adapter
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.stream_config import StreamConfig

TOKENS = [5, 17, 40, 3, 61, 22, 8, 90, 33, 12, 71, 6]


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
        lora = {
            name: mx.array(rng.normal(0, 0.1, array.shape), mx.float32)
            for name, array in tree_flatten(model.trainable_parameters())
        }
    config = StreamConfig(
        mode=mode,
        num_msa_layers=2,
        hidden_size=read_config(base)["hidden_size"],
        num_hidden_layers=len(model.layers),
        stream_mlp="base+adapter",
        stream_adapter_rank=3,
        stream_head="conditioned",
        stream_head_rank=4,
    )
    directory.mkdir()
    write_adapter(directory, LoraPart(lora, parameters, layers), config, tiny_streams(config))
    return directory


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_pytorch_computes_what_mlx_does(mode, bases, tmp_path):
    hf, mlx = bases
    adapter = adapter_directory(mlx, tmp_path / "adapter", mode)
    convert_to_pytorch(adapter, mlx, tmp_path / "torch")
    found = parity.layer_differences(
        parity.Converted(hf, tmp_path / "torch", mlx, adapter), TOKENS, 5
    )
    assert max(difference.relative for difference in found) <= parity.BOUND
    assert load_adapter(hf, tmp_path / "torch").config.mode == mode
    if mode == "shared":  # PEFT's own loader reads it too
        model = PeftModel.from_pretrained(load_base(hf), tmp_path / "torch")
        with torch.no_grad():
            expected = model(torch.tensor([TOKENS])).logits[0].numpy()
        ours, _ = load(mlx, adapter_path=adapter)
        assert np.array(ours.model(mx.array([TOKENS]))[0]) == pytest.approx(expected, abs=1e-3)


def test_there_and_back_again(bases, tmp_path):
    hf, mlx = bases
    adapter = adapter_directory(mlx, tmp_path / "adapter", "shared")
    convert_to_pytorch(adapter, mlx, tmp_path / "torch")
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


def test_the_command(bases, tmp_path):
    _, mlx = bases
    adapter = adapter_directory(mlx, tmp_path / "adapter", "lossless")
    flags = ("--model", mlx, "--adapter-path", adapter)
    out = tmp_path / "out"
    assert run("convert", *flags, "--to-pytorch", out).exit_code == 0
    config = json.loads((out / "speculative_streaming.json").read_text())
    assert config["mode"] == "lossless"
    assert not (out / "adapter_config.json").exists()
    assert "exists already" in refusal(run("convert", *flags, "--to-pytorch", out))
