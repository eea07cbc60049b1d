"""Adapter directories: of mlx_lm as they are, without streams; damaged ones by one sentence."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from parity import edit, mlx_logits
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from tiny_models import (
    stream_adapter_directory,
    tiny_llama,
    tiny_llama_config,
    tiny_llama_directory,
)

from specstream_mlx import PromptCache, UserError, generate, load
from specstream_mlx.adapters.description import ADAPTER_CONFIG, STREAM_FILE, STREAM_KEY, describe
from specstream_mlx.adapters.files import mounted, read_adapter
from specstream_mlx.errors import VOCABULARY
from specstream_mlx.hardware import weights
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.models.shared_copy import shared_copy


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    root = tmp_path_factory.mktemp("mlx-lm")
    return tiny_llama_directory(root / "base", tie_word_embeddings=False)


def write_lora(model, directory, kind="lora", keys=None, num_layers=2):
    """An adapter as ``mlx_lm.lora`` leaves it: all its settings in the file, and checkpoints."""
    if isinstance(model, Path):
        model, _ = mlx_lm.load(str(model))
    model.freeze()
    parameters = {"rank": 3, "dropout": 0.1, "scale": 4.0} | ({"keys": keys} if keys else {})
    linear_to_lora_layers(model, num_layers, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    tensors = {
        name: mx.random.normal(tensor.shape) * (0.1 if ".lora" in name else 1.0)
        for name, tensor in tree_flatten(model.trainable_parameters())
    }
    directory.mkdir()
    for name in ("adapters.safetensors", "0000100_adapters.safetensors"):
        mx.save_safetensors(str(directory / name), tensors)
    config = {"fine_tune_type": kind, "num_layers": num_layers, "lora_parameters": parameters}
    config |= {"model": "some/model", "train": True, "optimizer": "adam", "lr_schedule": None}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("kind", "keys", "num_layers"),
    [
        ("lora", None, -1),
        ("lora", ["self_attn.q_proj", "lm_head"], 3),
        ("lora", ["self_attn.q_proj", "model.embed_tokens"], 0),
        ("dora", None, 2),
    ],
)
def test_an_adapter_of_mlx_lm_itself(kind, keys, num_layers, untied, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "blocks_pay", lambda *_: False)  # which changes the last bit
    directory = write_lora(untied, tmp_path / "lora", kind, keys, num_layers)
    stock, _ = mlx_lm.load(str(untied), adapter_path=str(directory))
    expected = mlx_logits(stock)
    ours, _ = load(untied, adapter_path=directory)
    assert ours.streams is None
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    convert_adapter(directory, untied, tmp_path / "out")
    again = read_adapter(tmp_path / "out", ours.base, ours.config)
    assert again.lora.keys() == ours.adapter.lora.keys()
    ours.swap_adapter(tmp_path / "out")
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    ours.swap_adapter(None)
    # In a 16-bit model DoRA's magnitudes stay float32, as mlx_lm holds them; the rest follows.
    ours.base.set_dtype(mx.bfloat16)
    tuned = dict(tree_flatten(mounted(ours.base, again)[0].parameters()))
    for name in again.lora:
        assert tuned[name].dtype == (mx.float32 if name.endswith(".m") else mx.bfloat16)


def test_experts(tmp_path):
    """Without keys mlx_lm adapts the experts of a mixture too."""
    config = tiny_llama_config(model_type="mixtral", num_local_experts=3, num_hidden_layers=2)
    models = [tiny_llama(config) for _ in range(2)]
    directory = write_lora(shared_copy(models[0]), tmp_path / "lora", num_layers=1)
    adapter = read_adapter(directory, models[1], config)
    assert "model.layers.1.block_sparse_moe.switch_mlp.up_proj.lora_a" in adapter.lora
    tuned, _, _ = mounted(models[1], adapter)
    load_adapters(models[0], str(directory))
    np.testing.assert_array_equal(mlx_logits(models[0].eval()), mlx_logits(tuned))


@pytest.fixture
def tuned(untied, tmp_path):
    """What ``mlx_lm.lora --fine-tune-type full`` leaves: weights of the layers that it tuned."""
    own = mx.load(str(untied / "model.safetensors"))
    layers = {name: 1.1 * array for name, array in own.items() if ".layers.3." in name}
    (tmp_path / "full").mkdir()
    mx.save_safetensors(str(tmp_path / "full" / "adapters.safetensors"), layers)
    config = {"fine_tune_type": "full", "num_layers": 1, "lora_parameters": {"rank": 8}}
    (tmp_path / "full" / "adapter_config.json").write_text(json.dumps(config))
    return tmp_path / "full"


def test_full_fine_tuning_runs_as_in_mlx_lm_and_swapping_restores_the_base(untied, tuned, tmp_path):
    lora = write_lora(untied, tmp_path / "lora")
    model, tokenizer = load(untied)
    expected = {
        path: mlx_logits(mlx_lm.load(str(untied), adapter_path=path and str(path))[0])
        for path in (None, tuned, lora)
    }
    assert not np.array_equal(expected[None], expected[tuned])
    cache, prompt = PromptCache(), [5, 6, 7, 5, 6]
    generate(model, tokenizer, prompt, max_tokens=4, prompt_cache=cache)
    for path in (tuned, None, lora, tuned, tuned, lora, None, tuned):
        model.swap_adapter(path)
        np.testing.assert_allclose(mlx_logits(model.model), expected[path], atol=1e-5)
    plain, _ = mlx_lm.load(str(untied), adapter_path=str(tuned))
    text = mlx_lm.generate(plain, tokenizer, prompt, max_tokens=20)
    assert generate(model, tokenizer, prompt, max_tokens=20) == text
    # The rows that the base has left are not those of tuned weights.
    assert generate(model, tokenizer, prompt, max_tokens=20, prompt_cache=cache) == text
    assert cache.reused == 0
    path = tuned / "adapters.safetensors"
    tensors = dict(mx.load(str(path))) | {"model.layers.9.mlp.up_proj.weight": mx.zeros((2, 2))}
    mx.save_safetensors(str(path), tensors)
    assert "has an unexpected tensor model" in refusal(model, tuned)
    np.testing.assert_array_equal(mlx_logits(model.model), mlx_logits(plain))


# Refused ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(base):
    return load(base)[0]


@pytest.fixture
def adapter(shared, tmp_path):
    """A copy of the shared adapter, to be spoilt."""
    return Path(shutil.copytree(shared, tmp_path / "adapter"))


def refusal(model, adapter):
    before = model.adapter
    with pytest.raises(UserError) as error:
        model.swap_adapter(adapter)
    assert str(adapter) in str(error.value)
    assert model.adapter is before
    return str(error.value)


@pytest.mark.parametrize(
    ("part", "field", "value", "sentence"),
    [
        (None, "fine_tune_type", "ia3", "fine_tune_type is 'ia3', expected 'lora' or 'dora'"),
        (None, "fine_tune_type", "full", "has an unexpected tensor "),
        (None, "peft_type", "LORA", "is a PEFT directory: convert it first with `specstream-mlx"),
        ("lora_parameters", "rank", 3, "down_proj.lora_a has shape (96, 4), expected (96, 3)"),
        (STREAM_KEY, "base_fingerprint", "0" * 16, "the adapter was made for another base"),
        (STREAM_KEY, "num_streams", 3, "streams.embeddings has shape (4, 64), expected (3, 64)"),
        (STREAM_KEY, "num_hidden_layers", 3, "num_hidden_layers is 3, expected the base's 4"),
    ],
)
def test_configuration(part, field, value, sentence, model, adapter):
    path = adapter / ADAPTER_CONFIG
    edit(path, part, **{field: value})
    assert sentence in refusal(model, adapter)
    path.unlink()
    assert f"{adapter} has neither speculative_streaming.json nor" in refusal(model, adapter)


def test_a_draft_vocabulary(model, base, tmp_path):
    adapter = stream_adapter_directory(tmp_path / "adapter", base, draft_vocabulary=4)
    tensors = dict(mx.load(str(adapter / STREAM_FILE)))
    model.swap_adapter(adapter)
    for ids, sentence in (
        ([3, 5, 3, 9], "holds ids from 3 to 9, expected different ones of the base's"),
        ([-1, 2, 3, 4], "holds ids from -1 to 4, expected different ones of the base's"),
        ([1, 2, 3, 10**6], "holds ids from 1 to 1000000, expected different ones"),
        ([1.0, 2.0, 3.0, 4.0], "streams.vocabulary has dtype F32, expected one of ('I32',)"),
    ):
        changed = tensors | {VOCABULARY: mx.array(ids)}
        mx.save_safetensors(str(adapter / STREAM_FILE), changed)
        assert sentence in refusal(model, adapter)
    model.swap_adapter(None)


def test_selected_keys_of_an_unknown_attention(base, tmp_path):
    """How a model that is in no table scores keys cannot be known."""
    config = json.loads((base / "config.json").read_text()) | {"model_type": "granite"}
    fields = {"base_fingerprint": fingerprint(config)}
    adapter = describe(stream_adapter_directory(tmp_path / "4", base, stream_keys=4, **fields))
    with pytest.raises(UserError, match="stream_keys is 4 with model_type 'granite', expected 0"):
        adapter.check_base(config)
