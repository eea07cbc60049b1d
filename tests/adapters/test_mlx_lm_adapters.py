"""LoRA and DoRA as ``mlx_lm.lora`` writes them: as they are, without streams."""

import json

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import mixtral
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from tiny_models import VOCAB_SIZE, tiny_llama_config, tiny_llama_directory
from tiny_peft import mlx_logits

from specstream_mlx import PromptCache, UserError, generate, load
from specstream_mlx.adapters.files import mounted, read_adapter
from specstream_mlx.hardware import weights
from specstream_mlx.models.shared_copy import shared_copy


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(
        tmp_path_factory.mktemp("mlx-lm") / "base", tie_word_embeddings=False
    )


def mlx_lm_directory(base, directory, kind, keys, num_layers):
    model, _ = mlx_lm.load(str(base))
    return write_mlx_lm_adapter(model, directory, kind, keys, num_layers)


def write_mlx_lm_adapter(model, directory, kind, keys, num_layers):
    """An adapter as ``mlx_lm.lora`` leaves it: all its settings in the file, checkpoints beside."""
    model.freeze()
    parameters = {"rank": 3, "dropout": 0.1, "scale": 4.0} | ({"keys": keys} if keys else {})
    linear_to_lora_layers(model, num_layers, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    tensors = {
        name: mx.random.normal(tensor.shape) * (0.1 if ".lora" in name else 1.0)
        for name, tensor in tree_flatten(model.trainable_parameters())
    }
    directory.mkdir()
    mx.save_safetensors(str(directory / "adapters.safetensors"), tensors)
    mx.save_safetensors(str(directory / "0000100_adapters.safetensors"), tensors)
    config = {
        "model": "some/model",
        "train": True,
        "fine_tune_type": kind,
        "optimizer": "adam",
        "num_layers": num_layers,
        "adapter_path": str(directory),
        "lora_parameters": parameters,
        "lr_schedule": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("kind", "keys", "num_layers"),
    [
        ("lora", None, 2),
        ("lora", None, -1),
        ("lora", ["self_attn.q_proj", "lm_head"], 3),
        ("lora", ["self_attn.q_proj", "model.embed_tokens"], 0),
        ("dora", None, 2),
    ],
)
def test_an_adapter_of_mlx_lm_itself(kind, keys, num_layers, base, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "blocks_pay", lambda *_: False)  # which changes the last bit
    directory = mlx_lm_directory(base, tmp_path / "lora", kind, keys, num_layers)
    stock, _ = mlx_lm.load(str(base), adapter_path=str(directory))
    expected = mlx_logits(stock)
    ours, _ = load(base, adapter_path=directory)
    assert ours.streams is None
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    convert_adapter(directory, base, tmp_path / "out")
    again = read_adapter(tmp_path / "out", ours.base, ours.config)
    assert again.lora.keys() == ours.adapter.lora.keys()
    ours.swap_adapter(tmp_path / "out")
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    ours.swap_adapter(None)
    bare, _ = mlx_lm.load(str(base))
    np.testing.assert_array_equal(mlx_logits(ours.model), mlx_logits(bare))


def test_magnitudes_keep_their_precision(base, tmp_path):
    """In a 16-bit model DoRA's magnitudes stay float32, as mlx_lm holds them; the rest follows."""
    directory = mlx_lm_directory(base, tmp_path / "dora", "dora", None, 1)
    model, _ = mlx_lm.load(str(base))
    model.set_dtype(mx.bfloat16)
    adapter = read_adapter(directory, model, tiny_llama_config(tie_word_embeddings=False))
    layer = mounted(model, adapter)[0].layers[-1].mlp.down_proj
    assert (layer.m.dtype, layer.lora_a.dtype) == (mx.float32, mx.bfloat16)


def test_experts(tmp_path):
    """Without keys mlx_lm adapts the experts of a mixture too."""
    config = {
        "model_type": "mixtral",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 3,
    }
    models = [mixtral.Model(mixtral.ModelArgs.from_dict(config)) for _ in range(2)]
    models[1].update(models[0].parameters())
    directory = write_mlx_lm_adapter(shared_copy(models[0]), tmp_path / "lora", "lora", None, 1)
    adapter = read_adapter(directory, models[1], config)
    assert "model.layers.1.block_sparse_moe.switch_mlp.up_proj.lora_a" in adapter.lora
    tuned, _, _ = mounted(models[1], adapter)
    load_adapters(models[0], str(directory))
    np.testing.assert_array_equal(mlx_logits(models[0].eval()), mlx_logits(tuned))


@pytest.fixture
def tuned(base, tmp_path):
    """What ``mlx_lm.lora --fine-tune-type full`` leaves: weights of the layers that it tuned."""
    weights = dict(mx.load(str(base / "model.safetensors")))
    layers = {name: 1.1 * array for name, array in weights.items() if ".layers.3." in name}
    (tmp_path / "full").mkdir()
    mx.save_safetensors(str(tmp_path / "full" / "adapters.safetensors"), layers)
    config = {"fine_tune_type": "full", "num_layers": 1, "lora_parameters": {"rank": 8}}
    (tmp_path / "full" / "adapter_config.json").write_text(json.dumps(config))
    return tmp_path / "full"


def test_full_fine_tuning_runs_as_in_mlx_lm_and_swapping_restores_the_base(base, tuned, tmp_path):
    lora = mlx_lm_directory(base, tmp_path / "lora", "lora", None, 2)
    model, tokenizer = load(base)
    expected = {
        path: mlx_logits(mlx_lm.load(str(base), adapter_path=path and str(path))[0])
        for path in (None, tuned, lora)
    }
    assert not np.array_equal(expected[None], expected[tuned])
    own = dict(tree_flatten(model.model.parameters()))
    for path in (tuned, None, lora, tuned, tuned, lora, None):
        model.swap_adapter(path)
        np.testing.assert_allclose(mlx_logits(model.model), expected[path], atol=1e-5)
    after = dict(tree_flatten(model.model.parameters()))
    assert after.keys() == own.keys()
    assert all(mx.array_equal(after[name], array) for name, array in own.items())
    plain, _ = mlx_lm.load(str(base), adapter_path=str(tuned))
    model.swap_adapter(tuned)
    text = mlx_lm.generate(plain, tokenizer, [5, 6, 7, 5, 6], max_tokens=20)
    assert generate(model, tokenizer, [5, 6, 7, 5, 6], max_tokens=20) == text


def test_rows_of_the_base_are_not_those_of_tuned_weights(base, tuned):
    """A prompt cache that the base has filled is read anew."""
    model, tokenizer = load(base)
    cache, prompt = PromptCache(), [5, 6, 7, 8]
    generate(model, tokenizer, prompt, max_tokens=4, prompt_cache=cache)
    model.swap_adapter(tuned)
    expected = generate(model, tokenizer, prompt, max_tokens=12)
    assert generate(model, tokenizer, prompt, max_tokens=12, prompt_cache=cache) == expected
    assert cache.reused == 0


def test_weights_that_the_base_does_not_have_are_refused(base, tuned):
    path = tuned / "adapters.safetensors"
    tensors = dict(mx.load(str(path)))
    model, _ = load(base)
    before = mlx_logits(model.model)
    for change, sentence in (
        ({"model.layers.9.mlp.up_proj.weight": mx.zeros((2, 2))}, "has an unexpected tensor model"),
        ({"model.layers.3.mlp.up_proj.weight": mx.zeros((2, 2))}, "has shape (2, 2), expected (96"),
    ):
        mx.save_safetensors(str(path), tensors | change)
        with pytest.raises(UserError) as error:
            model.swap_adapter(tuned)
        assert sentence in str(error.value)
        np.testing.assert_array_equal(mlx_logits(model.model), before)
