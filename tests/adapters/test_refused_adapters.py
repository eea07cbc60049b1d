"""Adapter directories that are damaged or do not fit their base: one sentence says why."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from tiny_models import stream_adapter_directory
from tiny_peft import edit

from specstream_mlx import UserError, load
from specstream_mlx.adapters.description import (
    ADAPTER_CONFIG,
    STREAM_FILE,
    STREAM_KEY,
    describe,
)
from specstream_mlx.errors import VOCABULARY
from specstream_mlx.models.fingerprint import fingerprint


@pytest.fixture(scope="module")
def model(base):
    return load(base)[0]


@pytest.fixture
def adapter(shared, tmp_path):
    """A copy of the shared adapter, to be spoilt."""
    return Path(shutil.copytree(shared, tmp_path / "adapter"))


def refusal(model, adapter):
    with pytest.raises(UserError) as error:
        model.swap_adapter(adapter)
    assert str(adapter) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("part", "field", "value", "sentence"),
    [
        (None, "fine_tune_type", "ia3", "fine_tune_type is 'ia3', expected 'lora' or 'dora'"),
        (None, "fine_tune_type", "full", "has an unexpected tensor "),
        (None, "lora_parameters", None, "has no lora_parameters and num_layers, expected mlx-lm"),
        (None, "peft_type", "LORA", "is a PEFT directory: convert it first with `specstream-mlx"),
        ("lora_parameters", "rank", 3, "down_proj.lora_a has shape (96, 4), expected (96, 3)"),
        (STREAM_KEY, "base_fingerprint", "0" * 16, "the adapter was made for another base"),
        (STREAM_KEY, "num_streams", 3, "streams.embeddings has shape (4, 64), expected (3, 64)"),
        (STREAM_KEY, "num_hidden_layers", 3, "num_hidden_layers is 3, expected the base's 4"),
    ],
)
def test_configuration(part, field, value, sentence, model, adapter):
    path = adapter / ADAPTER_CONFIG
    values = json.loads(path.read_text())
    (values if part is None else values[part])[field] = value
    path.write_text(json.dumps(values))
    assert sentence in refusal(model, adapter)


def test_what_is_no_adapter(model, adapter):
    file = adapter / ADAPTER_CONFIG
    file.write_text(file.read_text()[:-20])
    assert f"{file} is not valid JSON" in refusal(model, adapter)
    file.unlink()
    assert f"{adapter} has neither speculative_streaming.json nor" in refusal(model, adapter)
    (adapter / "speculative_streaming.json").write_text('{"mode": "fast"}')
    assert "speculative_streaming.json: " in refusal(model, adapter)
    assert "none does not exist" in refusal(model, adapter / "none")


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([3, 5, 3, 9], "holds ids from 3 to 9, expected different ones of the base's"),
        ([-1, 2, 3, 4], "holds ids from -1 to 4, expected different ones of the base's"),
        ([1, 2, 3, 10**6], "holds ids from 1 to 1000000, expected different ones"),
        ([1.0, 2.0, 3.0, 4.0], "streams.vocabulary has dtype F32, expected one of ('I32',)"),
        ([1, 2, 3], "streams.vocabulary has shape (3,), expected (4,)"),
    ],
)
def test_a_draft_vocabulary(ids, sentence, model, base, tmp_path):
    adapter = stream_adapter_directory(tmp_path / "adapter", base, draft_vocabulary=4)
    tensors = mx.load(str(adapter / STREAM_FILE))
    model.swap_adapter(adapter)
    tensors[VOCABULARY] = mx.array(ids)
    mx.save_safetensors(str(adapter / STREAM_FILE), tensors)
    assert sentence in refusal(model, adapter)
    model.swap_adapter(None)


def test_selected_keys_of_an_unknown_attention(base, tmp_path):
    """How a model that is in no table scores keys cannot be known."""
    config = json.loads((base / "config.json").read_text()) | {"model_type": "granite"}
    for keys in (0, 4):
        fields = {"stream_keys": keys, "base_fingerprint": fingerprint(config)}
        adapter = stream_adapter_directory(tmp_path / str(keys), base, **fields)
        found = describe(adapter)
        if not keys:
            found.check_base(config)
            continue
        sentence = "stream_keys is 4 with model_type 'granite', expected 0: how its attention"
        with pytest.raises(UserError, match=sentence):
            found.check_base(config)


def test_the_mounted_adapter_stays(model, shared, adapter):
    model.swap_adapter(shared)
    mounted = model.adapter
    edit(adapter / ADAPTER_CONFIG, num_layers=9)
    refusal(model, adapter)
    assert model.adapter is mounted
    model.swap_adapter(None)
