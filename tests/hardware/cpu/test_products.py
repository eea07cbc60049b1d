"""Products with rows filled up to blocks: the same values, only where that is faster."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear
from random_models import plain_tokens, random_prompt, relative_error, tokens_of
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import load
from specstream_mlx.hardware import device, weights
from specstream_mlx.hardware.cpu import products
from specstream_mlx.hardware.cpu.products import (
    BlockedLinear,
    blocks_pay,
    in_blocks,
    stock_modules,
    use_blocks,
)

PROMPT = random_prompt(12, vocab_size=300)
SOME_SLOWER, BLOCK_SLOWER = (2.0, 1.0), (1.0, 1.1)


@pytest.fixture
def layer():
    mx.random.seed(0)
    return nn.Linear(24, 40)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return products.cache_file()


@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (16,), (1, 5), (1, 19), (1, 33), (3, 7)])
def test_a_product_in_blocks_has_the_same_values(layer, shape):
    x = mx.random.normal((*shape, 24))
    expected = layer(x)
    use_blocks(layer)
    found = layer(x)
    assert found.shape == expected.shape
    assert relative_error(found, expected) < 1e-6
    layer.set_dtype(mx.float16)
    assert layer(x.astype(mx.float16)).dtype == mx.float16


@pytest.mark.parametrize(
    "rows, multiplied", [(1, 1), (3, 3), (4, 16), (15, 16), (16, 16), (19, 19), (20, 32), (45, 48)]
)
def test_a_few_rows_are_left_and_more_are_filled_up(rows, multiplied):
    seen = []
    in_blocks(lambda x: seen.append(x.shape) or x, mx.ones((1, rows, 8)))
    assert seen[0][-2:] == (multiplied, 8)


def test_linear_layers_and_heads_change_and_no_tensor():
    embedding, quantized = nn.Embedding(40, 32), nn.Linear(32, 32).to_quantized(32, 8)
    lora = LoRALinear.from_base(nn.Linear(32, 32, bias=False))
    model = nn.Sequential(embedding, quantized, lora)
    before = dict(tree_flatten(model.parameters()))
    rows = mx.random.normal((1, 6, 32))
    expected = embedding.as_linear(rows)
    use_blocks(model)
    assert type(lora.linear) is BlockedLinear and type(quantized) is nn.QuantizedLinear
    assert type(lora) is LoRALinear
    assert relative_error(embedding.as_linear(rows), expected) < 1e-6
    after = dict(tree_flatten(model.parameters()))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_blocks_are_measured_once_and_kept(layer, own_cache, monkeypatch):
    monkeypatch.setattr(products, "probe", lambda weight: SOME_SLOWER)
    assert blocks_pay(layer)
    monkeypatch.setattr(products, "probe", lambda weight: BLOCK_SLOWER)
    assert blocks_pay(layer)
    assert not blocks_pay(layer, measure_again=True)
    assert not blocks_pay(layer)


@pytest.mark.parametrize("damage", ["[]", '["a", "b"]', "[1.0]", "null"])
def test_a_damaged_measurement_is_made_again(layer, own_cache, monkeypatch, damage):
    monkeypatch.setattr(products, "probe", lambda weight: SOME_SLOWER)
    blocks_pay(layer)
    ((key, _),) = json.loads(own_cache.read_text()).items()
    own_cache.write_text(f'{{"{key}": {damage}}}')
    monkeypatch.setattr(products, "probe", lambda weight: BLOCK_SLOWER)
    assert not blocks_pay(layer)


def test_a_real_measurement_takes_time(layer):
    mx.random.seed(3)
    expected = mx.random.uniform().item()
    mx.random.seed(3)
    some, block = products.probe(layer.weight)
    assert some > 0 and block > 0
    assert mx.random.uniform().item() == expected, "a seed must mean the same before and after"


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_a_gpu_is_left_alone(layer, monkeypatch, backend):
    monkeypatch.setattr(device, "backend", lambda: backend)
    monkeypatch.setattr(products, "probe", lambda weight: pytest.fail("measured"))
    assert not blocks_pay(layer)


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


def test_packed_weights_are_left_alone(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=8)
    model, _ = load(base, weights="packed")
    assert not model.held.row_blocks
    assert not any(isinstance(module, BlockedLinear) for module in model.model.modules())


def test_the_baseline_runs_on_stock_modules():
    model = nn.Sequential(nn.Linear(8, 8), nn.Embedding(4, 8))
    use_blocks(model)
    ours = [type(layer) for layer in model.layers]
    with pytest.raises(KeyError), stock_modules(model):
        assert [type(layer) for layer in model.layers] == [nn.Linear, nn.Embedding]
        raise KeyError
    assert [type(layer) for layer in model.layers] == ours
