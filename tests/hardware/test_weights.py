"""How weights are held: measured once, kept, overridden, and the same text in every form."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from random_models import paired, random_prompt, relative_error
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError
from specstream_mlx.hardware import device, weights
from specstream_mlx.hardware.weights import Probe, cached_probe, hold_weights
from specstream_mlx.loading import read_model

PROMPT = random_prompt(12, vocab_size=300)
FASTER = {
    "packed": Probe((4, 4), (1.0, 1.0), (1.0, 0.9)),
    "expanded": Probe((4, 4), (1.0, 2.0), (1.0, 1.0)),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    return {
        "plain": tiny_llama_directory(root / "plain"),
        "8 bits": tiny_llama_directory(root / "eight", bits=8),
        "4 bits": tiny_llama_directory(root / "four", bits=4),
    }


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return weights.cache_file()


def read(base):
    return read_model(base)[0]


def largest(base):
    layers = [m for m in read(base).modules() if isinstance(m, nn.QuantizedLinear)]
    return max(layers, key=lambda layer: layer.weight.size)


def total(model):
    return sum(tensor.nbytes for _, tensor in tree_flatten(model.parameters()))


def test_a_probe_of_each_product_is_run_once_and_kept(bases, own_cache, monkeypatch):
    first = cached_probe(largest(bases["8 bits"]))
    assert first.shape == (96, 64)
    assert all(time > 0 for time in (*first.packed_ms, *first.expanded_ms))
    cached_probe(largest(bases["4 bits"]))
    assert len(json.loads(own_cache.read_text())) == 2
    assert [path.name for path in own_cache.parent.iterdir()] == [own_cache.name]
    monkeypatch.setattr(weights, "run_probe", lambda layer: FASTER["packed"])
    assert cached_probe(largest(bases["8 bits"])) == first
    assert cached_probe(largest(bases["8 bits"]), measure_again=True) == FASTER["packed"]
    assert cached_probe(largest(bases["8 bits"])) == FASTER["packed"]


@pytest.mark.parametrize("damage", ["[1]", "{", '{"KEY": {"shape": 3}}', '{"KEY": 1}'])
def test_a_damaged_cache_is_measured_again(bases, own_cache, damage):
    found = cached_probe(largest(bases["8 bits"]))
    (key,) = json.loads(own_cache.read_text())
    own_cache.write_text(damage.replace('"KEY"', json.dumps(key)))
    again = cached_probe(largest(bases["8 bits"]))
    assert again.shape == found.shape
    assert key in json.loads(own_cache.read_text())


def test_without_a_place_for_the_cache_it_is_measured(bases, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_probe(largest(bases["8 bits"])).shape == (96, 64)


@pytest.mark.parametrize(("form", "bits"), [("packed", "8 bits"), ("expanded", "4 bits")])
def test_the_faster_form_is_taken_and_weighed(bases, monkeypatch, form, bits):
    monkeypatch.setattr(weights, "cached_probe", lambda *_: FASTER[form])
    stored = total(read(bases[bits]))
    model, held = hold_weights(read(bases[bits]))
    assert (held.form, held.stored_bytes, held.held_bytes) == (form, stored, total(model))
    packed = any(isinstance(module, nn.QuantizedLinear) for module in model.modules())
    assert packed == (form == "packed")
    assert "1 row 1.00 ms packed, 1.00 ms expanded, for 9 rows" in held.reason


@pytest.mark.parametrize("bits", ["8 bits", "4 bits"])
def test_what_would_not_fit_stays_packed(bases, bits, monkeypatch):
    """Half of the memory is for weights; the forecast of their size is right to the byte."""
    monkeypatch.setattr(weights, "cached_probe", lambda *_: FASTER["expanded"])
    model, held = hold_weights(read(bases[bits]), "expanded")
    assert held.held_bytes == total(model) and held.reason == "as asked"
    for more, form in ((0, "expanded"), (-1, "packed")):
        memory = 2 * held.held_bytes + more
        monkeypatch.setattr(device, "memory_bytes", lambda memory=memory: memory)
        assert hold_weights(read(bases[bits]))[1].form == form
    assert hold_weights(read(bases[bits]))[1].reason == "expanded they would take 0.0 GB"


def test_unquantized_weights_have_one_form(bases):
    _, held = hold_weights(read(bases["plain"]))
    assert (held.form, held.reason) == ("expanded", "the model is not quantized")
    with pytest.raises(UserError, match="the model is not quantized"):
        hold_weights(read(bases["plain"]), "packed")
    with pytest.raises(UserError, match="weights is 'dense', expected one of auto, packed"):
        hold_weights(read(bases["8 bits"]), "dense")


@pytest.mark.parametrize(
    ("dtype", "bits"), paired([mx.float32, mx.float16, mx.bfloat16], ["8 bits", "4 bits"])
)
def test_both_forms_have_the_same_logits(bases, bits, dtype):
    """Whatever the dtype of the scales: expanding must not round to it where computing does not."""
    logits = []
    for form in ("packed", "expanded"):
        model = read(bases[bits])
        model.set_dtype(dtype)
        model, _ = hold_weights(model, form)
        logits.append(np.array(model(mx.array(PROMPT)[None])[0]))
    assert relative_error(*logits) < 1e-4
