"""What is found in directories: counts, shapes and quantization from headers, and refusals."""

import json
import shutil
from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
import pytest
import torch
from architecture_models import pair
from mlx.utils import tree_flatten
from mlx_lm.utils import (
    compute_bits_per_weight,
    get_total_parameters,
    load_model,
    save_config,
)
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from tiny_models import (
    stream_adapter_directory,
    tiny_llama,
    tiny_llama_config,
    tiny_llama_directory,
    tiny_tokenizer,
)
from tiny_peft import peft_directory, untied_llama
from torch_tiny import tiny_llama as torch_llama
from torch_tiny import tiny_model

from specstream_mlx import UserError
from specstream_mlx.inspection.base import inspect_base
from specstream_mlx.inspection.directory import inspect_directory, medusa_cost
from specstream_mlx.loading import read_model


def refused(path):
    with pytest.raises(UserError) as error:
        inspect_directory(path)
    return str(error.value)


def edit(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("bits", "group_size", "tied"),
    [
        (None, 64, True),
        (None, 64, False),
        (4, 32, True),
        (8, 64, False),
        (3, 32, True),
        (6, 64, False),
    ],
)
def test_parameters_are_those_that_mlx_lm_counts(bits, group_size, tied, tmp_path):
    base = tiny_llama_directory(
        tmp_path / "base", bits=bits, group_size=group_size, tie_word_embeddings=tied,
        intermediate_size=128,
    )  # fmt: skip
    report = inspect_base(base)
    model, _ = load_model(base, lazy=True)
    assert report.parameters == get_total_parameters(model)
    assert sum(report.dtypes.values()) == report.parameters
    assert report.bytes == (base / "model.safetensors").stat().st_size
    assert report.tied_head is tied
    if bits is None:
        assert report.quantization is None
    else:
        linear = 4 * 7 + (1 if tied else 2)
        assert report.quantization.layers == {f"{bits} bits, group {group_size}": linear}
        assert report.quantization.unquantized_parameters == 9 * 64
        assert not report.quantization.mixed
        assert report.quantization.bits_per_weight == compute_bits_per_weight(model)
    shapes = {group.name: (group.shape, group.count) for group in report.tensors}
    assert shapes["model.layers.*.mlp.down_proj.weight"] == ((64, 128), 4)
    assert shapes["model.embed_tokens.weight"] == ((320, 64), 1)


@pytest.mark.parametrize("listed", [True, False])
def test_mixed_quantization(listed, tmp_path):
    """Layers of other bits are told apart, whether the configuration lists them or not."""
    config = tiny_llama_config(tie_word_embeddings=False)
    model = tiny_llama(config)
    config["quantization"] = {"group_size": 32, "bits": 4, "mode": "affine"}

    def recipe(path, module):
        if not hasattr(module, "to_quantized"):
            return False
        if "lm_head" not in path:
            return True
        settings = {"group_size": 32, "bits": 8}
        if listed:
            config["quantization"][path] = settings
        return settings

    nn.quantize(model, 32, 4, class_predicate=recipe)
    base = tmp_path / "base"
    base.mkdir()
    mx.save_safetensors(str(base / "model.safetensors"), dict(tree_flatten(model.parameters())))
    save_config(config, base / "config.json")
    report = inspect_base(base)
    assert report.quantization.layers == {"4 bits, group 32": 29, "8 bits, group 32": 1}
    assert report.quantization.mixed
    assert report.parameters == get_total_parameters(model)


def test_a_hugging_face_directory_of_several_files(tmp_path):
    model = torch_llama(tied=False)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    report = inspect_base(tmp_path / "hf")
    assert report.files > 1
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert (report.num_attention_heads, report.num_key_value_heads, report.head_dim) == (4, 2, 8)
    assert (report.context, report.rope_type, report.rope_theta) == (256, "default", 10000.0)
    assert report.fingerprint == base_fingerprint(tmp_path / "hf")
    next((tmp_path / "hf").glob("model-00002*")).unlink()
    assert "model-00002" in refused(tmp_path / "hf")


def test_scaled_rotary_embedding(base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "base")
    scaling = {"rope_type": "llama3", "factor": 8.0}
    edit(copy / "config.json", lambda c: c.update(rope_scaling=scaling))
    report = inspect_base(copy)
    assert (report.rope_type, report.rope_theta, report.rope_factor) == ("llama3", 10000.0, 8.0)


def test_gemma_3_shows_the_rope_of_its_full_layers():
    report = inspect_base(pair("Gemma 3").model.path)
    assert (report.rope_type, report.rope_theta, report.rope_factor) == ("linear", 1e6, 8.0)


def test_learned_positions_are_no_rope():
    assert inspect_base(pair("OPT").model.path).rope_type is None


@pytest.mark.parametrize("case", ["Gemma 2", "Gemma 3", "OPT"])
def test_a_head_that_is_tied_by_default(case, tmp_path):
    """The configuration does not say so; it is loaded so, too."""
    found = pair(case).model
    copy = shutil.copytree(found.path, tmp_path / "base")
    edit(copy / "config.json", lambda c: c.pop("tie_word_embeddings", None))
    report = inspect_base(copy)
    assert report.tied_head
    assert report.fingerprint == inspect_base(found.path).fingerprint
    model, _ = read_model(copy)
    assert report.parameters == get_total_parameters(model)
    tokens = mx.array([[1, 2, 3]])
    assert mx.array_equal(model(tokens), found.model(tokens))


def test_the_magnitudes_of_dora_belong_to_lora(tmp_path):
    """In PEFT's directory and in the converted one."""
    hf = untied_llama(tmp_path / "hf")
    peft_directory(hf, tmp_path / "peft", target_modules=["q_proj", "down_proj"], use_dora=True)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "mlx")
    before, after = (inspect_directory(tmp_path / name, hf).adapter for name in ("peft", "mlx"))
    assert before.parameters == after.parameters
    assert before.parameters["other"] == 0
    assert before.lora_modules == after.lora_modules == ["mlp.down_proj", "self_attn.q_proj"]
    assert any(group.name.endswith(".m") for group in after.tensors)


def test_adapter_counts_and_medusa(base, shared):
    report = inspect_directory(shared, base)
    assert report.adapter.format == "mlx"
    assert report.adapter.parameters["streams"] == 4 * 64
    assert report.adapter.parameters["pruner"] == 16 * 64
    assert report.adapter.parameters["lora"] == 4 * 4 * ((64 + 64) + (64 + 32) + (96 + 64))
    assert report.adapter.parameters["other"] == 0
    keys = ["mlp.down_proj", "self_attn.q_proj", "self_attn.v_proj"]
    assert report.adapter.lora_modules == keys
    assert (report.adapter.lora_rank, report.adapter.lora_scale) == (4, 0.5)
    assert report.medusa.parameters == 4 * (64 * 64 + 64 + 320 * 64)
    assert report.notes == []


def test_a_conditioned_head_is_counted_apart(base, tmp_path):
    fields = {"stream_head": "conditioned", "stream_head_rank": 8, "pruner_rank": 0}
    report = inspect_directory(stream_adapter_directory(tmp_path / "streams", base, **fields), base)
    parts = {name: count for name, count in report.adapter.parameters.items() if count}
    assert parts == {"streams": 4 * 64, "head": 8 * 2 * 64 + 4 * 8 + 8 * 64}


def test_medusa_heads_of_a_7b_model():
    """The published vicuna-7b heads have h = 4096 and V = 32000."""
    assert medusa_cost(4096, 32000, 1).per_head == 4096**2 + 4096 + 32000 * 4096


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_pytorch_side_adapter_is_the_converted_one(mode, tmp_path):
    hf = tmp_path / "hf"
    torch.manual_seed(0)
    llama = torch_llama()
    llama.save_pretrained(hf)
    tiny_tokenizer().save_pretrained(hf)
    model = tiny_model(mode, base=llama, base_fingerprint=base_fingerprint(hf))
    model.config = replace(model.config, base_model=str(hf))
    write_adapter(model, tmp_path / "torch")
    convert_adapter(tmp_path / "torch", hf, tmp_path / "mlx")
    before, after = (inspect_directory(tmp_path / name) for name in ("torch", "mlx"))
    assert (before.adapter.format, after.adapter.format) == ("pytorch", "mlx")
    for name in ("parameters", "lora_modules", "lora_rank", "lora_scale", "streams"):
        assert getattr(before.adapter, name) == getattr(after.adapter, name)
    assert before.base == after.base is not None
    assert before.medusa.heads == 3


def test_lora_of_mlx_lm_beside_streams_of_the_pytorch_side(shared, tmp_path):
    """Both are read, as the conversion does."""
    adapter = shutil.copytree(shared, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    streams = config.pop("speculative_streaming")
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "speculative_streaming.json").write_text(json.dumps(streams))
    found, whole = (inspect_directory(path).adapter for path in (adapter, shared))
    assert (found.format, whole.format) == ("pytorch", "mlx")
    for name in ("parameters", "lora_modules", "lora_rank", "lora_scale", "streams"):
        assert getattr(found, name) == getattr(whole, name)


def test_refusals(base, shared, tmp_path):
    assert "none does not exist" in refused(tmp_path / "none")
    assert "is a file" in refused(base / "config.json")
    (tmp_path / "empty").mkdir()
    assert "has neither config.json nor adapter_config.json" in refused(tmp_path / "empty")

    spoilt = shutil.copytree(base, tmp_path / "spoilt")
    edit(spoilt / "config.json", lambda c: c.update(vocab_size="many"))
    assert "vocab_size is 'many', expected an integer of at least 1" in refused(spoilt)
    (spoilt / "config.json").write_text("{")
    assert "config.json is not valid JSON" in refused(spoilt)
    shutil.copy(base / "config.json", spoilt)
    edit(spoilt / "config.json", lambda c: c.update(quantization_config={"quant_method": "gptq"}))
    assert "quantized by 'gptq', expected MLX's own quantization" in refused(spoilt)
    shutil.copy(base / "config.json", spoilt)
    weights = spoilt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "not a complete safetensors file" in refused(spoilt)
    weights.unlink()
    assert "has no model*.safetensors" in refused(spoilt)

    adapter = shutil.copytree(shared, tmp_path / "adapter")
    edit(
        adapter / "adapter_config.json", lambda c: c["speculative_streaming"].update(num_streams=3)
    )
    assert "streams.embeddings has shape (4, 64), expected (3, 64)" in refused(adapter)
    edit(adapter / "adapter_config.json", lambda c: c.update(speculative_streaming=[]))
    assert "expected an object" in refused(adapter)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text_config", [1]),
        ("rope_scaling", "linear"),
        ("rope_parameters", {"full_attention": "x"}),
        ("rope_theta", "much"),
        ("quantization", 4),
        ("quantization", {"bits": 4, "group_size": 0}),
        ("num_hidden_layers", None),
        ("head_dim", -1),
        ("max_position_embeddings", 2.5),
    ],
)
def test_spoilt_fields_of_a_base(field, value, base, tmp_path):
    copy = shutil.copytree(base, tmp_path / "base")
    edit(copy / "config.json", lambda c: c.update({field: value}))
    sentence = refused(copy)
    assert "config.json: " in sentence
    assert ", expected " in sentence


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ([], "has no lora_parameters, expected mlx-lm's"),
        ({"rank": "four", "scale": 1.0}, "the LoRA rank is 'four', expected an integer"),
        ({"rank": 4}, "the LoRA scale is None, expected a number"),
    ],
)
def test_spoilt_lora_parameters(parameters, sentence, shared, tmp_path):
    adapter = shutil.copytree(shared, tmp_path / "adapter")
    edit(adapter / "adapter_config.json", lambda c: c.update(lora_parameters=parameters))
    assert sentence in refused(adapter)


def test_pickled_tensors_are_not_opened(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    assert "adapter_model.bin has no header to read" in refused(tmp_path)
    (tmp_path / "adapter_model.bin").unlink()
    assert "adapter_model.safetensors is missing" in refused(tmp_path)


def test_group_size_that_does_not_fit(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4, group_size=32)
    edit(base / "config.json", lambda c: c["quantization"].update(group_size=48))
    assert "no number of bits with the group size 48" in refused(base)
