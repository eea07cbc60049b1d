"""Base models that are damaged or cannot be run: one sentence says what is wrong."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tiny_models import tiny_llama_config

from specstream_mlx import UserError, load, loading
from specstream_mlx.inspection import describe_base
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.models.architectures import explicit_fields, model_classes
from specstream_mlx.models.fingerprint import fingerprint


def refusal(model):
    with pytest.raises(UserError) as error:
        load(model)
    return str(error.value)


def test_what_is_no_directory(base, tmp_path):
    assert f"{tmp_path / 'none'} does not exist" in refusal(tmp_path / "none")
    file = base / "model.safetensors"
    assert f"{file} is a file, expected a directory" in refusal(file)
    for name in ("", "\n"):
        assert f"the model is {name!r}, expected a directory or a repository" in refusal(name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"adapter_path": "none"}, "the adapter directory none does not exist"),
        ({"draft_head": "none"}, "the draft head none is not a directory"),
    ],
)
def test_what_is_missing_is_told_before_weights_are_read(given, sentence, base, monkeypatch):
    monkeypatch.setattr(loading, "load_model", None)
    with pytest.raises(UserError, match=sentence):
        load(base, **given)


def test_an_end_token_is_one_of_the_tokenizers(base):
    """transformers adds one that it does not know, whose id the model never writes."""
    _, tokenizer = load(base, {"eos_token": "the"})
    assert tokenizer.eos_token_id == tokenizer.get_vocab()["the"] in tokenizer.eos_token_ids
    for name in ("nosuch", ""):
        with pytest.raises(UserError, match=f"eos_token is '{name}', expected one of the tokeni"):
            load(base, {"eos_token": name})


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "phi3"])
def test_a_head_that_is_neither_there_nor_spoken_of_is_the_embedding(model_type, tmp_path):
    """As mlx_lm's Llama has it; transformers would make up a head of random numbers."""
    config = {**tiny_llama_config(vocab_size=40), "model_type": model_type, "rope_theta": 1e4}
    config |= {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    config |= {"tie_word_embeddings": True}
    model_class, arguments = model_classes(config)
    model = model_class(arguments.from_dict({**config, **explicit_fields(config)}))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, {"format": "pt"})
    tokens, path = mx.array([[3, 1, 4, 1, 5]]), tmp_path / "config.json"
    del config["tie_word_embeddings"]
    path.write_text(json.dumps(config))
    found, _ = read_model(tmp_path)
    assert mx.array_equal(found(tokens), model(tokens)).item()
    tied = {**config, "tie_word_embeddings": True}
    assert fingerprint(read_config(tmp_path)) == fingerprint(tied)
    report = describe_base(tmp_path)
    assert report["refusal"] is None
    assert report["tied_head"]
    assert report["fingerprint"] == fingerprint(tied)
    path.write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(UserError, match="Missing 1 parameters"):
        read_model(tmp_path)
