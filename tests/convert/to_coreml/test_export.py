"""``export-coreml`` writes a whole package and its tokenizer, or one sentence and nothing."""

import json
import shutil
import sys

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, run
from specstream_mlx.convert.to_coreml import export as exporting
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.contents import METADATA
from specstream_mlx.convert.to_coreml.evaluate import Package
from tiny_models import CHAT_TEMPLATE, tiny_llama_directory
from transformers import AutoTokenizer

SIZES = ("--context", 64, "--nodes", "4,6", "--chunk", 8, "--candidates", 2)


def export(base, output, *flags):
    return run("export-coreml", "--model", base, "--output", output, *SIZES, *flags)


def test_package_holds_all_functions_and_says_what_they_are(exported):
    stdout, stderr = ((exported.parent / name).read_text() for name in ("stdout", "stderr"))
    assert f"wrote {exported}" in stderr
    assert "model.embed_tokens\tint4\t320x64\t" in stdout
    package = Package(exported)
    each = ("prefill8", "step4", "step6", "logits4", "logits6", "draft")
    expected = {f"{name}_{function}" for name in ("key_points", "streams") for function in each}
    assert set(package.functions) == expected
    said = json.loads(package.metadata[METADATA])
    assert said["sizes"]["context"] == 64
    assert said["sizes"]["nodes"] == [4, 6]
    assert said["adapters"]["key_points"]["prompt_template"] == "Points of: {text}"
    assert said["adapters"]["streams"]["mode"] == "lossless"
    assert said["base"]["vocab_size"] == 320
    assert said["chat_template"] == CHAT_TEMPLATE
    tokenizer = AutoTokenizer.from_pretrained(exported.parent / said["tokenizer"])
    assert tokenizer.decode(tokenizer.encode("the meeting")) == "the meeting"


def test_refused_before_a_weight_is_read(base, adapters, tmp_path, monkeypatch):
    monkeypatch.delattr(exporting, "read_model")
    other = tiny_llama_directory(tmp_path / "other", hidden_size=32)
    (tmp_path / "there.mlpackage").mkdir()
    (tmp_path / "x.tokenizer").mkdir()
    for model, output, flags, sentence in (
        (base, "y.mlpackage", ("--context", 4096), "context is 4096, expected at most the model's"),
        (base, "package", (), "package, expected a name that ends in .mlpackage"),
        (base, "there.mlpackage", (), "there.mlpackage exists already"),
        (base, "x.mlpackage", (), "x.tokenizer exists already"),
        (other, "y.mlpackage", ("--adapter", adapters[0]), "adapter was made for another base"),
    ):
        assert sentence in refusal(export(model, tmp_path / output, *flags))
    assert not list(tmp_path.glob("y.*"))


def test_rounded_offsets_are_refused(base, tmp_path, monkeypatch):
    """A base whose groups begin anywhere, as GGUF's, and the encoding that once shifted them."""
    shifted, output = tmp_path / "shifted", tmp_path / "out" / "x.mlpackage"
    shutil.copytree(base, shifted)
    tensors, rng = mx.load(str(base / "model.safetensors")), np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith("biases")]:
        steps = tensors[name.replace("biases", "scales")]
        tensors[name] += steps * mx.array(rng.uniform(0.2, 0.5, steps.shape)).astype(steps.dtype)
    mx.save_safetensors(str(shifted / "model.safetensors"), tensors, {"format": "mlx"})
    assert export(shifted, output).exit_code == 0
    assert set(Package(output).functions) == {"base_prefill8", "base_step4", "base_step6"}
    shutil.rmtree(output.parent)
    monkeypatch.setattr(weights, "_WHOLE", 0.5)
    monkeypatch.setattr(weights, "_WORST", 0.5)
    sentence = refusal(export(shifted, output))
    assert "base: in half precision the package prefers another token" in sentence
    assert not list(output.parent.iterdir())
    assert export(shifted, output, "--no-check").exit_code == 0


def test_without_coremltools(base, tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.startswith("specstream_mlx.convert.to_coreml"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coremltools", None)
    sentence = refusal(export(base, tmp_path / "x.mlpackage"))
    assert "export-coreml needs coremltools: pip install 'specstream-mlx[coreml]'" in sentence
