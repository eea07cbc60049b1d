"""Help for MLX's CPU backend: the same values, only where that is faster."""

import json

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE
from mlx_lm.tuner.lora import LoRALinear
from random_models import plain_tokens, random_prompt, relative_error, tokens_of
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import load
from specstream_mlx.engine.borrowed_model import rope_at
from specstream_mlx.hardware import cpu, device, weights

PROMPT = random_prompt(12, vocab_size=300)
SOME_SLOWER, BLOCK_SLOWER = (2.0, 1.0), (1.0, 1.1)


@pytest.fixture
def layer():
    mx.random.seed(0)
    return nn.Linear(24, 40)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cpu.cache_file()


@pytest.mark.parametrize("shape", [(1,), (4,), (16,), (1, 5), (1, 19), (3, 7)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_linear_layers_and_heads_change_and_no_tensor(shape, dtype):
    """Nor what they compute; and on stock modules the model is mlx's and mlx_lm's again."""
    mx.random.seed(0)
    lora = LoRALinear.from_base(nn.Linear(32, 32, bias=False))
    lora.lora_b = mx.random.normal(lora.lora_b.shape)
    layers = [nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 32).to_quantized(32, 8), lora]
    model = nn.Sequential(*layers)
    model.set_dtype(dtype)

    def kinds():
        return [type(module) for module in model.modules() if not isinstance(module, nn.Dropout)]

    def computed():
        embedding, *others = model.layers
        return [embedding.as_linear(x), *(layer(x) for layer in others)]

    x = mx.random.normal((*shape, 32)).astype(dtype)
    before, expected, stock = dict(tree_flatten(model.parameters())), computed(), kinds()
    cpu.use_blocks(model)
    cpu.use_fewer_operations(model)
    ours = kinds()
    assert {
        cpu.BlockedEmbedding,
        cpu.BlockedLinear,
        cpu.AddedLoRALinear,
        nn.QuantizedLinear,
    } <= set(ours)
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


def test_blocks_are_measured_once_and_kept(layer, own_cache, monkeypatch):
    monkeypatch.setattr(cpu, "probe", lambda weight: SOME_SLOWER)
    assert cpu.blocks_pay(layer)
    monkeypatch.setattr(cpu, "probe", lambda weight: BLOCK_SLOWER)
    assert cpu.blocks_pay(layer)
    assert not cpu.blocks_pay(layer, measure_again=True)
    assert not cpu.blocks_pay(layer)


@pytest.mark.parametrize("damage", ["[]", '["a", "b"]', "[1.0]", "null"])
def test_a_damaged_measurement_is_made_again(layer, own_cache, monkeypatch, damage):
    monkeypatch.setattr(cpu, "probe", lambda weight: SOME_SLOWER)
    cpu.blocks_pay(layer)
    ((key, _),) = json.loads(own_cache.read_text()).items()
    own_cache.write_text(f'{{"{key}": {damage}}}')
    monkeypatch.setattr(cpu, "probe", lambda weight: BLOCK_SLOWER)
    assert not cpu.blocks_pay(layer)


def test_a_real_measurement_takes_time(layer):
    mx.random.seed(3)
    expected = mx.random.uniform().item()
    mx.random.seed(3)
    some, block = cpu.probe(layer.weight)
    assert some > 0 and block > 0
    assert mx.random.uniform().item() == expected, "a seed must mean the same before and after"


@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_a_gpu_is_left_alone(layer, monkeypatch, backend):
    monkeypatch.setattr(device, "backend", lambda: backend)
    monkeypatch.setattr(cpu, "probe", lambda weight: pytest.fail("measured"))
    assert not cpu.blocks_pay(layer)


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


DIMS = 16
LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ROPES = {
    "plain": lambda: nn.RoPE(DIMS, base=10000),
    "traditional": lambda: nn.RoPE(DIMS, traditional=True, base=1000),
    "linear": lambda: nn.RoPE(DIMS, base=10000, scale=0.5),
    "llama3": lambda: Llama3RoPE(DIMS, scaling_config=LLAMA3),
}


# Rotations of the CPU alone ------------------------------------------------------------------


@pytest.mark.skipif(device.backend() != "cpu", reason="for the CPU alone")
@pytest.mark.parametrize("name", ROPES)
def test_rotations_are_the_ropes(name):
    rope = ROPES[name]()
    (rotations,) = cpu.shared_rotations([rope], rope_at)
    scattered = mx.array([70, 71, 71, 72, 9])
    for offset in (70, scattered, scattered + 1, 70, 71):
        rotations.begin()
        for heads in (4, 2):
            x = mx.random.normal((1, 5, heads, DIMS)).swapaxes(1, 2)
            assert mx.array_equal(rotations.rotate(x, offset), rope_at(rope, x, offset))
    rotations.begin()
    row = mx.random.normal((1, 2, 1, DIMS))
    assert mx.array_equal(rotations.rotate(row, 71), rope_at(rope, row, 71))


@pytest.mark.skipif(device.backend() != "cpu", reason="for the CPU alone")
def test_equal_settings_share_and_others_do_not():
    ropes = [make() for make in ROPES.values()] + [make() for make in ROPES.values()]
    found = cpu.shared_rotations([*ropes, YarnRoPE(DIMS)], rope_at)
    assert found[-1] is None
    assert found[:4] == found[4:8]
    assert len(set(found[:4])) == 4
