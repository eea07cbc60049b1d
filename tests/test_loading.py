"""Base models that are damaged or cannot be run: one sentence says what is wrong."""

import json
from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, SPMStreamingDetokenizer
from tiny_models import tiny_llama_config, tiny_tokenizer

from specstream_mlx import DraftSettings, UserError, load, loading
from specstream_mlx.engine.plan import Plan, root_only
from specstream_mlx.inspection import describe_base
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.models.architectures import explicit_fields, model_classes
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.request import Request
from specstream_mlx.responses import respond
from specstream_mlx.scheduler import Step


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
    with pytest.raises(UserError, match="Missing 1 parameters"):
        read_model(tmp_path)


@pytest.mark.parametrize("detokenizer", [BPEStreamingDetokenizer, SPMStreamingDetokenizer])
def test_a_tokenizer_without_a_token_for_an_id(detokenizer, monkeypatch):
    """One sentence, however mlx_lm's detokenizers fail."""
    hole, tokenizer = 30, tiny_tokenizer()
    texts = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    texts[hole] = None
    vocabulary = {text: token for token, text in enumerate(texts) if text is not None}
    monkeypatch.setattr(tokenizer, "get_vocab", lambda: vocabulary)
    monkeypatch.setattr(tokenizer, "convert_ids_to_tokens", lambda ids: [texts[id] for id in ids])

    class Wrapper(SimpleNamespace):
        eos_token_ids = ()

        @property
        def detokenizer(self):
            return detokenizer(tokenizer)

    plan, result = Plan(root_only(1), "plain"), SimpleNamespace(logits=None)
    steps = [Step([token], plan, 1, 0.1, result, [0]) for token in (20, hole)]
    with pytest.raises(UserError, match=f"the tokenizer has no token {hole}, expected one for"):
        list(
            respond(
                Wrapper(get_vocab=tokenizer.get_vocab),
                Request([1], DraftSettings(), max_tokens=3),
                iter(steps),
            )
        )
