"""LoRA as PEFT writes it: the same logits here, in stock mlx_lm and in PyTorch."""

import json
import math

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from mlx_lm.models import phi3
from mlx_lm.tuner.utils import linear_to_lora_layers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from specstream_mlx.convert.parity import BOUND, layer_differences
from specstream_mlx.convert.pytorch.formats import load_base, write_adapter
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.peft import read_peft_lora
from tiny_models import stream_adapter_directory
from tiny_peft import TOKENS, close, mlx_logits, peft_directory, torch_logits, untied_llama
from torch_tiny import LINEAR, tiny_model
from transformers import Phi3Config, Phi3ForCausalLM
from typer.testing import CliRunner

from specstream_mlx import load
from specstream_mlx.cli import app

VARIANTS = {
    "all linear layers": {"target_modules": LINEAR},
    "all-linear": {"target_modules": "all-linear"},
    "two modules": {"target_modules": ["q_proj", "down_proj"]},
    "regular expression": {"target_modules": r".*\.[23]\.self_attn\.[qv]_proj"},
    "rslora": {"target_modules": LINEAR, "use_rslora": True},
    "rank_pattern": {"target_modules": LINEAR, "rank_pattern": {"q_proj": 2, "down_proj": 7}},
    "alpha_pattern": {"target_modules": LINEAR, "alpha_pattern": {"o_proj": 3, "up_proj": 11}},
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
    "layers in between": {"target_modules": LINEAR, "layers_to_transform": [0, 2]},
    "last layers": {"target_modules": LINEAR, "layers_to_transform": [2, 3]},
    "rank of the model's width, where shapes cannot tell": {
        "target_modules": ["q_proj", "o_proj"],
        "r": 32,
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


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    return untied_llama(tmp_path_factory.mktemp("import") / "hf")


@pytest.fixture(scope="module")
def base(hf):
    convert_base(hf, hf.parent / "mlx")
    return hf.parent / "mlx"


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`", "ignore:The following alpha")
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_peft(variant, hf, base, tmp_path):
    reference = torch_logits(peft_directory(hf, tmp_path / "peft", **VARIANTS[variant]))
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(base, adapter_path=tmp_path / "out")
    stock, _ = mlx_lm.load(str(base), adapter_path=str(tmp_path / "out"))
    assert close(reference, mlx_logits(ours.model))
    assert close(reference, mlx_logits(stock))
    ours.swap_adapter(None)
    bare = mlx_logits(ours.model)
    assert close(torch_logits(load_base(hf)), bare)
    assert np.abs(reference - bare).max() > 0.1


def test_rank_scale_and_keys_as_mlx_lm_has_them(hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", **VARIANTS["patterns of single modules, rslora"])
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["fine_tune_type"], config["num_layers"]) == ("lora", 4)
    assert len(config["lora_parameters"]["keys"]) == 7
    assert config["lora_parameters"]["rank"] == 6
    assert config["lora_parameters"]["scale"] == pytest.approx(6 / math.sqrt(1))
    tensors = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    assert not tensors["model.layers.3.mlp.up_proj.lora_a"][:, 1:].any()
    assert not tensors["model.layers.3.mlp.up_proj.lora_b"][1:].any()


def test_only_the_last_layers_of_two(hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", **VARIANTS["last layers"])
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["num_layers"] == 2
    assert config["lora_parameters"]["keys"][0] == "mlp.down_proj"


def test_values_are_kept_bit_for_bit(hf, tmp_path):
    """One rank and one scale: nothing is computed, so a 16-bit adapter stays what it is."""
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    written = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    source = mx.load(str(tmp_path / "peft" / "adapter_model.safetensors"))
    assert len(written) == len(source)
    for name, tensor in source.items():
        name = name.removeprefix("base_model.model.").removesuffix(".weight")
        name = name.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
        assert written[name].dtype == mx.bfloat16
        assert mx.array_equal(written[name], tensor.T)


def test_a_quantized_base(hf, tmp_path):
    """The same tensors as for the base it was made from."""
    four = tmp_path / "4bit"
    convert_base(hf, four, bits=4, group_size=32)
    for name, variant in (("lora", VARIANTS["rank_pattern"]), ("dora", VARIANTS["dora"])):
        peft_directory(hf, tmp_path / f"peft-{name}", **variant)
        convert_adapter(tmp_path / f"peft-{name}", four, tmp_path / name)
        convert_adapter(tmp_path / f"peft-{name}", hf, tmp_path / f"{name}-expected")
        found, expected = (
            mx.load(str(tmp_path / directory / "adapters.safetensors"))
            for directory in (name, f"{name}-expected")
        )
        assert found.keys() == expected.keys()
        assert all(mx.array_equal(found[key], expected[key]) for key in found)
        ours, _ = load(four, adapter_path=tmp_path / name)
        stock, _ = mlx_lm.load(str(four), adapter_path=str(tmp_path / name))
        assert close(mlx_logits(stock), mlx_logits(ours.model))


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_torch_files_without_code(suffix, hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "expected")
    file = tmp_path / "peft" / "adapter_model.safetensors"
    torch.save(load_file(file), file.with_suffix(suffix))
    file.unlink()
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    expected, found = (
        mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("expected", "out")
    )
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert mx.array_equal(found[name], tensor)


def test_bin_as_peft_writes_it(hf, base, tmp_path):
    model = peft_directory(hf, tmp_path / "peft", target_modules=LINEAR, safe_serialization=False)
    assert (tmp_path / "peft" / "adapter_model.bin").exists()
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(base, adapter_path=tmp_path / "out")
    assert close(torch_logits(model), mlx_logits(ours.model))


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_streams_from_torch_files(suffix, hf, base, tmp_path):
    """Embeddings, rank-eta initialisation, stream adapters and pruner."""
    torch.manual_seed(2)
    streams = {"stream_init": "linear", "stream_init_rank": 4}
    write_adapter(tiny_model(base=load_base(hf), **streams), tmp_path / "streams")
    file = tmp_path / "streams" / "speculative_streaming.safetensors"
    torch.save(load_file(file), file.with_suffix(suffix))
    file.unlink()
    convert_adapter(tmp_path / "streams", hf, tmp_path / "out")
    differences = layer_differences(hf, tmp_path / "streams", base, tmp_path / "out", TOKENS, 5)
    assert max(d.relative for d in differences) <= BOUND


@pytest.mark.parametrize("variant", ["dora", "patterns of single modules, rslora"])
def test_streams_beside_any_lora(variant, hf, base, tmp_path):
    """Shared mode: streams pass through the same LoRA, layer by layer as in PyTorch."""
    lora = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, **VARIANTS[variant]}))
    write_adapter(tiny_model("shared", base=lora, lora=False), tmp_path / "shared")
    convert_adapter(tmp_path / "shared", hf, tmp_path / "out")
    differences = layer_differences(hf, tmp_path / "shared", base, tmp_path / "out", TOKENS, 5)
    assert max(d.relative for d in differences) <= BOUND


def test_swapping_between_kinds(hf, base, tmp_path):
    """LoRA, DoRA and streams one after the other: each as if it were the first."""
    peft_directory(hf, tmp_path / "peft", target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "lora")
    peft_directory(hf, tmp_path / "peft-dora", target_modules=LINEAR, use_dora=True)
    convert_adapter(tmp_path / "peft-dora", hf, tmp_path / "dora")
    streams = stream_adapter_directory(tmp_path / "streams", base)
    model, _ = load(base)
    for name in ("lora", "dora", "streams", "dora", "lora"):
        model.swap_adapter(tmp_path / name if name != "streams" else streams)
        fresh, _ = load(base, adapter_path=model.adapter.path)
        np.testing.assert_array_equal(mlx_logits(model.model), mlx_logits(fresh.model))


def test_fused_projections(tmp_path):
    """phi3's qkv_proj and gate_up_proj: HF and mlx-lm fuse them in the same order."""
    torch.manual_seed(4)
    config = Phi3Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        pad_token_id=0,
        initializer_range=0.3,
    )
    hf = tmp_path / "phi3"
    Phi3ForCausalLM(config).save_pretrained(hf)
    targets = ["qkv_proj", "gate_up_proj", "o_proj", "down_proj"]
    pattern = {"rank_pattern": {"qkv_proj": 2}, "alpha_pattern": {"gate_up_proj": 3}}
    reference = peft_directory(hf, tmp_path / "peft", target_modules=targets, **pattern)
    values = json.loads((hf / "config.json").read_text())
    rope = values.get("rope_parameters") or {}
    values |= {"rope_theta": rope.get("rope_theta", 10000.0), "rope_scaling": None}
    model = phi3.Model(phi3.ModelArgs.from_dict(values))
    model.load_weights(str(hf / "model.safetensors"))
    assert close(torch_logits(load_base(hf)), mlx_logits(model))
    lora = read_peft_lora(tmp_path / "peft", model)
    assert lora.parameters["keys"] == [f"mlp.{t}" for t in ("down_proj", "gate_up_proj")] + [
        f"self_attn.{t}" for t in ("o_proj", "qkv_proj")
    ]
    linear_to_lora_layers(model, lora.num_layers, lora.parameters)
    model.load_weights(list(lora.tensors.items()), strict=False)
    assert close(torch_logits(reference), mlx_logits(model))


def test_several_adapters_in_one_run(hf, base, tmp_path):
    peft_directory(hf, tmp_path / "plain", target_modules=["q_proj", "v_proj"])
    peft_directory(hf, tmp_path / "run" / "adapter", target_modules=LINEAR, use_rslora=True)
    sources = tmp_path / "plain", tmp_path / "run" / "adapter"
    flags = [flag for source in sources for flag in ("--adapter-path", source)]
    result = run("convert", "--model", hf, *flags, "--mlx-path", tmp_path / "out", "--verify")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plain", "run"}
    for name in ("plain", "run"):
        load(base, adapter_path=tmp_path / "out" / name)
