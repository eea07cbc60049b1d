"""What is found in directories: counts and quantization from headers, and refusals."""

import json
from dataclasses import replace

import pytest
from mlx_lm.utils import get_total_parameters, load_model
from parity import edit
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import tiny_llama_directory
from torch_tiny import saved, tiny_model
from torch_tiny import tiny_llama as torch_llama

from specstream_mlx import UserError
from specstream_mlx.loading.inspection import describe_base, inspect_directory


def refused(path):
    with pytest.raises(UserError) as error:
        inspect_directory(path)
    return str(error.value)


@pytest.mark.parametrize(("bits", "tied"), [(None, True), (6, False)])
def test_parameters_are_those_that_mlx_lm_counts(bits, tied, tmp_path):
    fields = {"tie_word_embeddings": tied, "intermediate_size": 128}
    base = tiny_llama_directory(tmp_path / "base", bits=bits, **fields)
    found = describe_base(base)
    model, _ = load_model(base, lazy=True)
    assert found["parameters"] == get_total_parameters(model)
    assert found["bytes"] == (base / "model.safetensors").stat().st_size
    assert found["tied_head"] is tied
    norms = found["parameters"] if bits is None else 9 * 64
    parts = {"6 bits, group 32": found["parameters"] - norms, "F32": norms}
    assert found["stored_as"] == {kind: count for kind, count in parts.items() if count}


def test_mixed_quantization(tmp_path):
    """Layers of other bits are told apart, whether the configuration lists them or not."""
    base = tiny_llama_directory(tmp_path / "base", hidden_size=128, intermediate_size=128)
    convert_base(base, tmp_path / "mixed", Quantization(recipe="mixed_3_6"))
    model, _ = load_model(base, lazy=True)
    for _ in ("listed", "not listed"):
        found = describe_base(tmp_path / "mixed")
        assert found["stored_as"].keys() == {"3 bits, group 64", "6 bits, group 64", "F32"}
        assert sum(found["stored_as"].values()) == found["parameters"]
        assert found["parameters"] == get_total_parameters(model)
        edit(tmp_path / "mixed" / "config.json", quantization={"group_size": 64, "bits": 3})


def test_pytorch_side_adapter_is_the_converted_one(tmp_path):
    hf, llama = tmp_path / "hf", torch_llama()
    count = sum(part.numel() for part in llama.parameters())
    saved(llama, hf, max_shard_size="20KB")
    model = tiny_model("shared", base=llama, base_fingerprint=base_fingerprint(hf))
    model.config = replace(model.config, base_model=str(hf))
    write_adapter(model, tmp_path / "torch")
    convert_adapter(tmp_path / "torch", hf, tmp_path / "mlx")
    before, after = (inspect_directory(tmp_path / name) for name in ("torch", "mlx"))
    assert [one["adapter"]["format"] for one in (before, after)] == ["pytorch", "mlx"]
    for name in ("parameters", "lora_modules", "lora_rank", "lora_scale", "streams"):
        assert before["adapter"][name] == after["adapter"][name]
    assert before["base"] == after["base"]
    assert before["base"]["files"] > 1
    assert before["base"]["parameters"] == count
    next(hf.glob("model-00002*")).unlink()
    assert "model-00002" in refused(hf)


def test_pickled_tensors_are_not_opened(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    assert "adapter_model.bin has no header to read" in refused(tmp_path)
    (tmp_path / "adapter_model.bin").unlink()
    assert "adapter_model.safetensors is missing" in refused(tmp_path)
