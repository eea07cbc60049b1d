"""What ``load`` refuses, and what it reads out of a base that leaves something unsaid."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from tiny_models import tiny_llama_config

from specstream_mlx import UserError, load
from specstream_mlx.loading import load as loading
from specstream_mlx.loading.inspection import describe_base
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
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
