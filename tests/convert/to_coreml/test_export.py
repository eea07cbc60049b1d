"""``export-coreml`` writes a whole package, whose texts are MLX's, or one sentence and nothing."""

import json
import shutil
import sys

import mlx.core as mx
import numpy as np
import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, run, succeeded
from demonstration_weights import needs_weights
from specstream_mlx.convert.to_coreml import export as exporting
from specstream_mlx.convert.to_coreml import weights
from specstream_mlx.convert.to_coreml.contents import METADATA, Contents
from specstream_mlx.convert.to_coreml.decoder import PackageDecoder
from specstream_mlx.convert.to_coreml.evaluate import Package
from specstream_mlx.convert.to_coreml.supported import Sizes, check_adapter, check_base, check_names
from tiny_models import CHAT_TEMPLATE, tiny_llama_directory

from specstream_mlx.errors import UserError
from specstream_mlx.generation.request import Request
from specstream_mlx.prompts import chat_prompt
from specstream_mlx.stream_config import StreamConfig

SIZES = ("--context", 64, "--nodes", "4,6", "--chunk", 8, "--candidates", 2)


def export(base, output, *flags):
    return run("export-coreml", "--model", base, "--output", output, *SIZES, *flags)


def test_package_holds_all_functions_and_says_what_they_are(files, exported):
    assert "model.embed_tokens\tint4\t320x64\t" in (files / "stdout").read_text()
    package = Package(exported)
    each = ("prefill8", "step4", "step6", "logits4", "logits6", "draft")
    expected = {f"{name}_{function}" for name in ("key_points", "streams") for function in each}
    assert set(package.functions) == expected
    said = json.loads(package.metadata[METADATA])
    assert (said["sizes"]["context"], said["sizes"]["nodes"]) == (64, [4, 6])
    assert said["adapters"]["key_points"]["prompt_template"] == "Points of: {text}"
    assert said["adapters"]["streams"]["mode"] == "lossless"
    assert (said["base"]["vocab_size"], said["chat_template"]) == (320, CHAT_TEMPLATE)


def test_refused_before_a_weight_is_read(base, files, tmp_path, monkeypatch):
    monkeypatch.delattr(exporting, "read_model")
    other = tiny_llama_directory(tmp_path / "other", hidden_size=32)
    (tmp_path / "there.mlpackage").mkdir()
    (tmp_path / "x.tokenizer").mkdir()
    for model, output, flags, sentence in (
        (base, "y.mlpackage", ("--context", 4096), "context is 4096, expected at most the model's"),
        (base, "package", (), "package, expected a name that ends in .mlpackage"),
        (base, "there.mlpackage", (), "there.mlpackage exists already"),
        (base, "x.mlpackage", (), "x.tokenizer exists already"),
        (other, "y.mlpackage", ("--adapter", files / "streams"), "made for another base"),
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
    assert 'export-coreml needs coremltools: .venv/bin/pip install -e ".[coreml]"' in sentence


# What can be exported, from the configuration alone ----------------------------------------------

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 512}
LLAMA |= {"rms_norm_eps": 1e-5, "vocab_size": 64}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
HEAD_LORA = {"lora_parameters": {"keys": ["lm_head"]}}
EXPORTED = Sizes(context=128)


def config(**fields):
    return lambda: check_base(LLAMA | fields, EXPORTED)


def adapter(fields=None, **streams):
    own = StreamConfig("shared", 1, 8, 2, **streams)
    return lambda: check_adapter("a", own, fields or {}, EXPORTED)


def sizes(**fields):
    return lambda: Sizes(**{"context": 128, **fields})


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (config(model_type="gemma2"), "model_type is 'gemma2', expected one of llama, "),
        (config(**WINDOWS), "sliding_window is 9, expected at least the context of 128"),
        (config(quantization={"mode": "mxfp4"}), "mode is 'mxfp4', expected 'affine'"),
        (config(rms_norm_eps=1e-8), "rms_norm_eps is 1e-08, expected at least 6e-08"),
        (adapter(stream_keys=4), "a: stream_keys is 4, expected 0"),
        (adapter(draft_vocabulary=3), "a: draft_vocabulary is 3, expected at least the 4"),
        (adapter({"fine_tune_type": "dora"}), "a: fine_tune_type is 'dora', expected 'lora'"),
        (adapter(HEAD_LORA, draft_vocabulary=30), "a: LoRA is on lm_head .* draft_vocab"),
        (sizes(nodes=(8, 65)), "expected different numbers from 1 to 64"),
        (sizes(context=40), "context is 40, expected at least 64, the most rows of a call"),
        (lambda: check_names(["my-sql"]), "the adapter's name is 'my-sql', expected letters"),
        (lambda: check_names(["sql", "sql"]), "two adapters are called sql, expected different"),
    ],
)
def test_what_is_not_supported(check, sentence):
    with pytest.raises(UserError, match=sentence):
        check()


def test_what_is_supported():
    config()()
    config(model_type="mistral", sliding_window=128)()
    config(model_type="qwen2", sliding_window=9, use_sliding_window=False)()
    adapter(draft_vocabulary=30)()
    check_names(["sql", "key_points"])


@needs_weights
def test_a_question_is_answered_as_by_mlx_in_half_precision(tmp_path):
    sql = tmp_path / "x.mlpackage"
    sizes = ("--context", 128, "--nodes", 8)
    succeeded(run("export-coreml", "--output", sql, "--adapter", "sql", *sizes))
    contents = Contents.read(sql)
    decoder, tokenizer = PackageDecoder(contents, Package(sql, "fp16")), contents.read_tokenizer()
    question = "table trips(city, days, price): which city has days above 4?"
    prompt = chat_prompt(tokenizer, question, decoder.adapter.prompt_template)
    request = Request(prompt, max_tokens=32, end_tokens=tokenizer.eos_token_ids)
    text = "".join(response.text for response in decoder.responses(tokenizer, request))
    assert text == "SELECT city FROM trips WHERE days > 4"
