"""Weights and their products: measured once, overridden, and the same values in every form."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from random_models import plain_tokens, random_prompt, relative_error, tokens_of
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.hardware import cpu, device, weights
from specstream_mlx.hardware.weights import Probe, cached_probe, hold_weights
from specstream_mlx.loading.load import read_model

PROMPT = random_prompt(12, vocab_size=300)

# Packed or expanded -----------------------------------------------------------------------------

FASTER = {
    "packed": Probe((4, 4), (1.0, 1.0), (1.0, 0.9)),
    "expanded": Probe((4, 4), (1.0, 2.0), (1.0, 1.0)),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    return {bits: tiny_llama_directory(root / str(bits), bits=bits) for bits in (None, 4, 8)}


def read(base):
    return read_model(base)[0]


def largest(base):
    layers = [m for m in read(base).modules() if isinstance(m, nn.QuantizedLinear)]
    return max(layers, key=lambda layer: layer.weight.size)


def test_a_probe_of_each_product_is_run_once(bases, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer, file = largest(bases[8]), tmp_path / "specstream-mlx" / "weight-policy.json"
    first = cached_probe(layer)
    assert first.shape == (96, 64)
    assert all(time > 0 for time in (*first.packed_ms, *first.expanded_ms))
    (key,) = json.loads(file.read_text())
    cached_probe(largest(bases[4]))
    assert len(json.loads(file.read_text())) == 2
    monkeypatch.setattr(weights, "run_probe", lambda layer: FASTER["packed"])
    assert cached_probe(layer) == first
    assert cached_probe(layer, measure_again=True) == cached_probe(layer) == FASTER["packed"]
    monkeypatch.setattr(weights, "run_probe", lambda layer: FASTER["expanded"])
    for damage in ("[1]", "{", json.dumps({key: {"shape": 3}}), json.dumps({key: 1})):
        file.write_text(damage)
        assert cached_probe(layer) == FASTER["expanded"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # no place for it
    assert cached_probe(layer) == FASTER["expanded"]


@pytest.mark.parametrize(("form", "bits"), [("packed", 8), ("expanded", 4)])
def test_the_faster_form_is_taken_if_it_fits(bases, monkeypatch, form, bits):
    """Half of the memory is for weights; the forecast of their size is right to the byte."""
    monkeypatch.setattr(weights, "cached_probe", lambda *_: FASTER[form])
    model, held = hold_weights(read(bases[bits]))
    assert (held.form, held.held_bytes) == (form, weights.parameter_bytes(model))
    packed = any(isinstance(module, nn.QuantizedLinear) for module in model.modules())
    assert packed == (form == "packed")
    assert "1 row 1.00 ms packed, 1.00 ms expanded, for 9 rows" in held.reason
    _, expanded = hold_weights(read(bases[bits]), "expanded")
    assert expanded.reason == "as asked"
    memory = 2 * expanded.held_bytes
    monkeypatch.setattr(device, "memory_bytes", lambda: memory)
    assert hold_weights(read(bases[bits]))[1].form == form
    monkeypatch.setattr(device, "memory_bytes", lambda: memory - 1)
    assert hold_weights(read(bases[bits]))[1].reason == "expanded they would take 0.0 GB"


def test_unquantized_weights_have_one_form(bases):
    _, held = hold_weights(read(bases[None]))
    assert (held.form, held.reason) == ("expanded", "the model is not quantized")
    with pytest.raises(UserError, match="the model is not quantized"):
        hold_weights(read(bases[None]), "packed")
    with pytest.raises(UserError, match="'dense', expected 'auto', 'packed' or 'expanded'"):
        hold_weights(read(bases[8]), "dense")


@pytest.mark.parametrize(("dtype", "bits"), [(mx.float16, 8), (mx.bfloat16, 4)])
def test_both_forms_have_the_same_logits(bases, bits, dtype):
    """Whatever the dtype of the scales: expanding must not round to it where computing does not."""
    logits = []
    for form in ("packed", "expanded"):
        model = read(bases[bits])
        model.set_dtype(dtype)
        model, _ = hold_weights(model, form)
        logits.append(np.array(model(mx.array(PROMPT)[None])[0]))
    assert relative_error(*logits) < 1e-4


# The CPU's products -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4,), mx.float16), ((16,), mx.float32), ((1, 19), mx.float32)]
)
def test_linear_layers_and_heads_change_and_no_tensor(shape, dtype):
    """Nor what they compute; and on stock modules the model is mlx's and mlx_lm's again."""
    mx.random.seed(0)
    lora = LoRALinear.from_base(nn.Linear(32, 32, bias=False))
    lora.lora_b = mx.random.normal(lora.lora_b.shape)
    layers = [nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 32).to_quantized(32, 8), lora]
    model = nn.Sequential(*layers)
    model.set_dtype(dtype)
    x = mx.random.normal((*shape, 32)).astype(dtype)

    def kinds():
        return [type(module) for module in model.modules() if not isinstance(module, nn.Dropout)]

    def computed():
        embedding, *others = model.layers
        return [embedding.as_linear(x), *(layer(x) for layer in others)]

    before, expected, stock = dict(tree_flatten(model.parameters())), computed(), kinds()
    cpu.exchange(model, cpu.BLOCKED)
    cpu.exchange(model, cpu.ADDED)
    ours = kinds()
    made = {cpu.BlockedEmbedding, cpu.BlockedLinear, cpu.AddedLoRALinear, nn.QuantizedLinear}
    assert made <= set(ours)
    assert type(model.layers[3].linear) is cpu.BlockedLinear
    for found, value in zip(computed(), expected, strict=True):
        assert found.shape == value.shape and found.dtype == dtype
        as_float = found.astype(mx.float32), value.astype(mx.float32)
        assert relative_error(*as_float) < (1e-6 if dtype == mx.float32 else 2e-3)
    with pytest.raises(KeyError), cpu.stock_modules(model):
        assert kinds() == stock
        assert all(mx.array_equal(*pair) for pair in zip(computed(), expected, strict=True))
        raise KeyError
    assert kinds() == ours
    after = dict(tree_flatten(model.parameters()))
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_blocks_are_measured_once_on_a_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layer = nn.Linear(24, 40)
    mx.random.seed(3)
    expected = mx.random.uniform().item()
    mx.random.seed(3)
    assert min(cpu.probe(layer.weight)) > 0
    assert mx.random.uniform().item() == expected, "a seed must mean the same before and after"
    monkeypatch.setattr(cpu, "probe", lambda weight: (2.0, 1.0))
    assert cpu.blocks_pay(layer)
    monkeypatch.setattr(cpu, "probe", lambda weight: (1.0, 1.1))
    assert cpu.blocks_pay(layer)
    assert not cpu.blocks_pay(layer, measure_again=True)
    monkeypatch.setattr(cpu, "probe", lambda weight: (2.0, 1.0))
    assert not cpu.blocks_pay(layer)
    monkeypatch.setattr(device, "backend", lambda: "metal")
    assert not cpu.blocks_pay(layer, measure_again=True)


@pytest.mark.parametrize(("mode", "bits"), [("lossless", None), ("shared", 8)])
def test_the_text_is_the_same(tmp_path, monkeypatch, mode, bits):
    base = tiny_llama_directory(tmp_path / "base", bits=bits)
    rank = 4 if mode == "shared" else 0
    adapter = stream_adapter_directory(tmp_path / "streams", base, mode=mode, lora_rank=rank)
    texts = []
    for pays in (True, False):
        monkeypatch.setattr(weights, "blocks_pay", lambda *_, pays=pays: pays)
        model, _ = load(base, adapter_path=adapter, weights="expanded")
        assert model.held.row_blocks is pays
        texts.append(tokens_of(model, PROMPT, 24, tree_width=3, tree_size=8)[:24])
        if mode == "lossless":
            assert texts[-1] == plain_tokens(model.model, PROMPT, 24)
    assert texts[0] == texts[1]
