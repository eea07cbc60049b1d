"""What ``load`` refuses, and what it reads out of a base that leaves something unsaid."""

import json

import mlx.core as mx
import pytest
import torch
from mlx.utils import tree_flatten
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.load import load_base
from tiny_models import tiny_llama_config, tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.loading import load as loading
from specstream_mlx.loading.inspection import describe_base
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import own_sampling, read_config
from specstream_mlx.models.architectures import explicit_fields, model_classes
from specstream_mlx.models.fingerprint import fingerprint


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"adapter_path": "none"}, "the adapter directory none does not exist"),
        ({"adapter_path": 5}, "adapter_path is 5, expected a directory, a bundled adapter's name"),
        ({"draft_head": "none"}, "the draft head none is not a directory"),
        ({"path_or_hf_repo": "./none"}, "none does not exist"),
        ({"path_or_hf_repo": __file__}, "test_loading.py is a file, expected a directory"),
        ({"path_or_hf_repo": ""}, "the model is '', expected a directory or a repository"),
        ({"path_or_hf_repo": None}, "expected a directory or a Hugging Face repository"),
        ({"model_config": [1]}, "model_config is .1., expected a dictionary or None"),
        ({"trust_remote_code": True}, "no code that comes with a model is run here"),
    ],
)
def test_what_is_wrong_is_said_before_weights_are_read(given, sentence, base, monkeypatch):
    monkeypatch.setattr(loading, "load_model", None)
    with pytest.raises(UserError, match=sentence):
        load(**{"path_or_hf_repo": base, **given})


def test_an_end_token_is_one_of_the_tokenizers(base):
    """transformers adds one that it does not know, whose id the model never writes."""
    _, tokenizer = load(base, {"eos_token": "the"})
    assert tokenizer.eos_token_id == tokenizer.get_vocab()["the"] in tokenizer.eos_token_ids
    for name in ("nosuch", ""):
        with pytest.raises(UserError, match=f"eos_token is '{name}', expected one of the tokeni"):
            load(base, {"eos_token": name})


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "phi3"])
def test_a_head_that_is_neither_there_nor_spoken_of_is_the_embedding(model_type, tmp_path):
    """As mlx_lm's Llama has it; transformers would make up a head of random numbers."""
    config = {**tiny_llama_config(vocab_size=40), "model_type": model_type, "rope_theta": 1e4}
    config |= {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    tied, tokens = config | {"tie_word_embeddings": True}, mx.array([[3, 1, 4, 1, 5]])
    model_class, arguments = model_classes(tied)
    model = model_class(arguments.from_dict({**tied, **explicit_fields(tied)}))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, {"format": "pt"})
    path = tmp_path / "config.json"
    config.pop("tie_word_embeddings", None)
    path.write_text(json.dumps(config))
    found, _ = read_model(tmp_path)
    assert mx.array_equal(found(tokens), model(tokens)).item()
    report = describe_base(tmp_path)
    assert (report["refusal"], report["tied_head"]) == (None, True)
    assert report["fingerprint"] == fingerprint(read_config(tmp_path)) == fingerprint(tied)
    path.write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(UserError, match="tie_word_embeddings is False, with True they do"):
        read_model(tmp_path)


FP8 = {
    "in blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "by tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized"},
    "ModelOpt's": {"quant_method": "modelopt", "quant_algo": "FP8"},
    "without a word of it": None,
}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("case", FP8)
def test_weights_in_fp8_are_named_as_such(case, dtype, tmp_path):
    """Whatever the configuration says of them, and by whoever reads it."""
    tiny_llama_directory(tmp_path)
    file, path = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors = load_file(file)
    packed = {n: t.to(dtype) if "proj" in n else t for n, t in tensors.items()}
    save_file(packed, file, {"format": "pt"})
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": FP8[case]}))
    for read in (load, load_base):
        with pytest.raises(UserError, match=r"the weights are FP8 \(model.layers.0.* is F8_E.M"):
            read(tmp_path)
    assert "the weights are FP8" in describe_base(tmp_path)["refusal"]


@pytest.mark.parametrize("head", [3, 2.5, True, [], object(), b"head"])
def test_what_is_no_head_is_not_mounted(head, base):
    model, _ = load(base)
    with pytest.raises(UserError, match=r"the draft head is .*, expected a directory"):
        model.mount_head(head)
    assert model.head is None
    model.mount_head(None)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"do_sample": True, "top_k": -1}, {"temp": 1.0}),
        ({"temperature": 0.6, "top_k": -1, "top_p": 0.9}, {"temp": 0.6, "top_p": 0.9}),
        ({"do_sample": True, "top_k": 0}, {"temp": 1.0, "top_k": 0}),
        ({"do_sample": True, "top_k": 20}, {"temp": 1.0, "top_k": 20}),
        ({"top_k": -1}, None),
    ],
)
def test_how_a_models_makers_draw(said, expected, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    assert own_sampling(tmp_path) == expected
    for wrong in (-2, "x", 2.5):
        (tmp_path / "generation_config.json").write_text(json.dumps(said | {"top_k": wrong}))
        with pytest.raises(UserError, match=f"top_k is {wrong!r}, expected an integer of at least"):
            own_sampling(tmp_path)


@pytest.mark.parametrize(
    ("count", "given", "why"),
    [
        (
            5,
            {},
            "all 5 layers .* expected one that does not, as every 6th does without layer_types",
        ),
        (
            5,
            {"layer_types": ["sliding_attention"] * 5},
            "all 5 layers .* expected one that does no",
        ),
        (1, {"sliding_window_pattern": 2}, "all 1 layers .* as every 2th does"),
    ],
)
def test_a_gemma_whose_layers_all_slide(count, given, why):
    config = {"model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"head_dim": 16, "vocab_size": 40, "intermediate_size": 48, "sliding_window": 8}
    with pytest.raises(UserError, match=why):
        explicit_fields(config | {"num_hidden_layers": count} | given)
