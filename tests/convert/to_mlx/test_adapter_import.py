"""LoRA as PEFT writes it: the same logits here, in stock mlx_lm and in PyTorch."""

import json

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from command_line import run
from parity import BOUND, differences
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_peft import TOKENS, close, mlx_logits, peft_directory, torch_logits
from torch_tiny import LINEAR, tiny_model

from specstream_mlx import load

EVERY = {"target_modules": LINEAR}
VARIANTS = {
    "all linear layers": EVERY,
    "regular expression": {"target_modules": r".*\.[23]\.self_attn\.[qv]_proj"},
    "rslora, layers in between": {**EVERY, "use_rslora": True, "layers_to_transform": [0, 2]},
    "patterns that PEFT does not match, or matches later": {
        "target_modules": LINEAR,
        "alpha_pattern": {"roj": 70, "o_proj": 3, "layers.0.self_attn.o_proj": 50},
    },
    "patterns of single modules, rslora": {
        "target_modules": LINEAR,
        "use_rslora": True,
        "rank_pattern": {"layers.1.self_attn.q_proj": 6, r".*\.3\.mlp\.\w+_proj": 1},
        "alpha_pattern": {"^model.layers.0.mlp.up_proj": 5, "k_proj": 2},
    },
    "last layers": {"target_modules": LINEAR, "layers_to_transform": [2, 3]},
    "rank of the model's width, where shapes cannot tell": {
        **{"target_modules": ["q_proj", "o_proj"], "r": 32}
    },
    "head": {"target_modules": ["v_proj", "lm_head"]},
    "embedding": {"target_modules": ["v_proj", "embed_tokens"], "rank_pattern": {"v_proj": 2}},
    "dora": {"target_modules": LINEAR, "use_dora": True},
    "dora with patterns, layers in between": {
        "target_modules": LINEAR,
        "use_dora": True,
        "layers_to_transform": [1, 2],
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"v_proj": 3},
    },
}
SETTINGS = {
    "last layers": {"num_layers": 2, "rank": 4, "scale": 6 / 4},
    "patterns of single modules, rslora": {"num_layers": 4, "rank": 6, "scale": 6.0},
}


@pytest.fixture(scope="module")
def bare(hf):
    """The base's own logits."""
    return torch_logits(load_base(hf))


def same_tensors(first, second):
    """Whether two adapter directories hold the same LoRA tensors, bit for bit."""
    one, other = (mx.load(str(path / "adapters.safetensors")) for path in (first, second))
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and mx.array_equal(one[name], other[name])
        for name in one
    )


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`", "ignore:The following alpha")
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_peft(variant, hf, mlx, bare, tmp_path):
    reference = torch_logits(peft_directory(hf, tmp_path / "peft", **VARIANTS[variant]))
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(mlx, adapter_path=tmp_path / "out")
    stock, _ = mlx_lm.load(str(mlx), adapter_path=str(tmp_path / "out"))
    assert close(reference, mlx_logits(ours.model))
    assert close(reference, mlx_logits(stock))
    ours.swap_adapter(None)
    assert close(bare, mlx_logits(ours.model))
    assert np.abs(reference - bare).max() > 0.1
    if variant in SETTINGS:
        config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
        found = {"num_layers": config["num_layers"], **config["lora_parameters"]}
        keys = found.pop("keys")
        assert found == {**SETTINGS[variant], "dropout": 0.0}
        assert (config["fine_tune_type"], len(keys), keys[0]) == ("lora", 7, "mlp.down_proj")


def test_values_are_kept_bit_for_bit(hf, tmp_path):
    """With one rank and one scale nothing is computed: 16 bits stay, of torch's files too."""
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    written = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    file = tmp_path / "peft" / "adapter_model.safetensors"
    source = mx.load(str(file))
    assert len(written) == len(source)
    for name, tensor in source.items():
        name = name.removeprefix("base_model.model.").removesuffix(".weight")
        name = name.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
        assert written[name].dtype == mx.bfloat16
        assert mx.array_equal(written[name], tensor.T)
    tensors = load_file(file)
    file.unlink()
    for suffix in (".bin", ".pt"):
        torch.save(tensors, file.with_suffix(suffix))
        convert_adapter(tmp_path / "peft", hf, tmp_path / suffix)
        assert same_tensors(tmp_path / suffix, tmp_path / "out")
        file.with_suffix(suffix).unlink()


def test_a_quantized_base(hf, tmp_path):
    """The same tensors as for the base it was made from."""
    four = tmp_path / "4bit"
    convert_base(hf, four, Quantization(4, 32))
    for name in ("patterns of single modules, rslora", "dora"):
        peft, out, expected = (tmp_path / f"{name} {part}" for part in ("peft", "out", "expected"))
        peft_directory(hf, peft, **VARIANTS[name])
        convert_adapter(peft, four, out)
        convert_adapter(peft, hf, expected)
        assert same_tensors(out, expected)
        ours, _ = load(four, adapter_path=out)
        stock, _ = mlx_lm.load(str(four), adapter_path=str(out))
        assert close(mlx_logits(stock), mlx_logits(ours.model))


@pytest.mark.parametrize("variant", ["dora", "patterns of single modules, rslora"])
def test_streams_beside_any_lora(variant, hf, mlx, tmp_path):
    """Shared mode: streams pass through the same LoRA, layer by layer as in PyTorch."""
    lora = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, **VARIANTS[variant]}))
    write_adapter(tiny_model("shared", base=lora), tmp_path / "shared")
    convert_adapter(tmp_path / "shared", hf, tmp_path / "out")
    found = differences(hf, tmp_path / "shared", mlx, tmp_path / "out", TOKENS, 5)
    assert max(found.values()) <= BOUND


def test_several_adapters_in_one_run(hf, mlx, tmp_path):
    peft_directory(hf, tmp_path / "plain", target_modules=["q_proj", "v_proj"])
    peft_directory(hf, tmp_path / "run" / "adapter", target_modules=LINEAR, use_rslora=True)
    sources = tmp_path / "plain", tmp_path / "run" / "adapter"
    flags = [flag for source in sources for flag in ("--adapter-path", source)]
    result = run("convert", "--model", hf, *flags, "--mlx-path", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plain", "run"}
    for name in ("plain", "run"):
        load(mlx, adapter_path=tmp_path / "out" / name)
