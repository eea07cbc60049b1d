"""Races of the kernel for few rows, with stubs for it: whatever goes wrong, MLX's own remain."""

import json
import sys
import time

import mlx.core as mx
import mlx.nn as nn
import pytest
from command_line import run, succeeded
from tiny_models import tiny_llama_directory

from specstream_mlx import load
from specstream_mlx.hardware import cpu, device, few_rows, race
from specstream_mlx.hardware.few_rows import ROWS, FewRowsEmbedding, FewRowsLinear, Product
from specstream_mlx.loading.load import read_model
from specstream_mlx.models.shared_copy import shared_copy

PRODUCT = Product(40, 64, 4, 32, "bfloat16")
BEGIN = """\
import os, signal, sys, time
import mlx.core as mx
from specstream_mlx.hardware import few_rows, race

def stock(x, layer, outputs=None):
    return mx.quantized_matmul(
        x, layer.weight, layer.scales, layer.biases, group_size=layer.group_size, bits=layer.bits
    )

def slow(x, layer):
    y = stock(x, layer)
    for _ in range(300):
        y = abs(y) * mx.sign(y)
    return y

race._MOST_COPIES = 2
"""
SOUND = "few_rows.multiply, race._stock = stock, slow; race.main()"


def stub(body):
    return f"few_rows.multiply = lambda x, layer, outputs: {body}; race.main()"


FAILURES = {
    "killed": (stub("os.kill(os.getpid(), signal.SIGKILL)"), "SIGKILL"),
    "crash": (stub("os.kill(os.getpid(), signal.SIGSEGV)"), "SIGSEGV"),
    "refused": (stub("mx.array([1]).reshape(7)"), "Cannot reshape"),
    "hanging": (stub("time.sleep(600)"), "it had not ended after 8 s"),
    "wrong": (stub("1.1 * stock(x, layer)"), "wrong values: 40 x 64, 4 bits"),
    "not a number": (stub("stock(x, layer) * float('nan')"), "wrong values"),
    "one output": (stub("stock(x, layer).at[:, -1].add(1)"), "wrong values"),
    "other sums for other rows": (
        stub("stock(x, layer) + 2**-9 * abs(stock(x, layer)).max() * (len(x) > 9)"),
        "wrong values: 40 x 64, 4 bits, groups of 32, bfloat16, 10 rows",
    ),
    "words": ("print('fine')", "its result cannot be read"),
    "nothing": ("print('{}')", "it has left out products"),
}


@pytest.fixture
def on_metal(monkeypatch, tmp_path):
    """A machine that is said to have Metal, with an empty cache; sets the code of the race."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(device, "backend", lambda: "metal")
    few_rows.verdict.cache_clear()
    yield lambda code: monkeypatch.setattr(race, "COMMAND", (sys.executable, "-c", BEGIN + code))
    few_rows.verdict.cache_clear()


@pytest.fixture
def won(on_metal):
    on_metal(SOUND)
    assert "won 15 of 15 races" in race.race([PRODUCT])
    return on_metal


def layer_of(kind=nn.QuantizedLinear, bias=False, dtype=mx.bfloat16):
    mx.random.seed(0)
    made = nn.Embedding(40, 64) if kind is nn.QuantizedEmbedding else nn.Linear(64, 40, bias)
    made = made.to_quantized(32, 4)
    made.set_dtype(dtype)
    model = nn.Sequential(made)
    cpu.exchange(model, few_rows.KINDS)
    return model.layers[0]


def rows_by_the_kernel(layer, monkeypatch):
    """The numbers of rows of 1 to 20 that a layer lets the kernel multiply."""
    seen = []

    def multiply(x, layer, outputs):
        seen.append(len(x))
        return race._stock(x, layer)

    monkeypatch.setattr(few_rows, "multiply", multiply)
    compute = layer.as_linear if isinstance(layer, FewRowsEmbedding) else layer
    plain = nn.QuantizedEmbedding.as_linear if compute != layer else nn.QuantizedLinear.__call__
    for rows in range(1, 21):
        x = mx.random.normal((1, rows, 64)).astype(mx.bfloat16)
        found = compute(x)
        assert found.shape == (1, rows, 40) and mx.array_equal(found, plain(layer, x))
    return seen


@pytest.mark.parametrize("failure", FAILURES)
def test_a_race_that_fails_leaves_mlx_s_kernels(won, monkeypatch, failure):
    """Also what had been won before."""
    assert few_rows.has_won()
    code, words = FAILURES[failure]
    won(code)
    start = time.monotonic()
    said = race.race([PRODUCT], 8 if failure == "hanging" else None)
    assert words in said and said.endswith("so MLX's own kernels compute all products")
    assert "\n" not in said and time.monotonic() - start < 120
    few_rows.verdict.cache_clear()  # as another process reads it
    assert not few_rows.has_won() and few_rows.verdict() == ({}, said)
    assert rows_by_the_kernel(layer_of(), monkeypatch) == []


def test_where_the_kernel_has_won_it_is_used(won, monkeypatch):
    assert rows_by_the_kernel(layer_of(), monkeypatch) == list(ROWS)
    assert rows_by_the_kernel(layer_of(bias=True), monkeypatch) == list(ROWS)
    assert rows_by_the_kernel(layer_of(nn.QuantizedEmbedding), monkeypatch) == list(ROWS)
    times, said = few_rows.verdict()
    few_rows.store({str(PRODUCT): {3: times[str(PRODUCT)][3], 4: (0, 1.0, 2.0)}}, said)
    assert rows_by_the_kernel(layer_of(), monkeypatch) == [3]
    other = layer_of(dtype=mx.float16)  # which did not race
    assert few_rows._multiplied(other, mx.zeros((3, 64), mx.float16)) is None
    assert few_rows._multiplied(layer_of(), mx.zeros((3, 64), mx.float32)) is None


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[1]",
        "{KEY: 3}",
        '{KEY: {"said": "won", "times": {NAME: {"3": [9, 1.0, 0.5]}}}}',
        '{KEY: {"said": "won", "times": {NAME: {"17": [2, 1.0, 0.5]}}}}',
        '{KEY: {"said": "won", "times": {NAME: {"3": 2}}}}',
        '{KEY: {"said": "won", "times": {NAME: []}}}',
        '{"another chip": {"said": "won", "times": {NAME: {"3": [2, 1.0, 0.5]}}}}',
    ],
)
def test_a_damaged_verdict_is_none(won, monkeypatch, damage):
    (key,) = json.loads(few_rows.path().read_text())
    text = damage.replace("KEY", json.dumps(key)).replace("NAME", json.dumps(str(PRODUCT)))
    few_rows.path().write_text(text)
    few_rows.verdict.cache_clear()
    assert not few_rows.has_won()
    assert rows_by_the_kernel(layer_of(), monkeypatch) == []


def test_a_loaded_model_takes_the_kernel_where_that_has_won(won, tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    products = race.products_of(read_model(base, to_run=False)[0])
    assert len(products) > 3 and all(product.bits == 4 for product in products)

    def kinds(model):
        return {type(module) for module in model.modules()} & {FewRowsLinear, FewRowsEmbedding}

    model, _ = load(base, weights="packed")
    assert model.held.few_rows and kinds(model.model)
    with cpu.stock_modules(model.model):
        assert not kinds(model.model)
    assert kinds(model.model)
    trained = shared_copy(model.base)
    cpu.exchange(trained, few_rows.STOCK)
    assert kinds(model.model) and not kinds(trained)
    model, _ = load(base, reproducible=True)  # a verdict is of times
    assert not model.held.few_rows and not kinds(model.model)
    won("sys.exit(1)")
    race.race([PRODUCT])
    assert not load(base, weights="packed")[0].held.few_rows


@pytest.mark.skipif(device.backend() == "metal", reason="there is Metal here")
def test_doctor_says_that_there_is_no_metal(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert succeeded(run("doctor", "--race")).stdout == (
        f"there is no Metal here: MLX runs on {device.backend()}, with its own kernels alone\n"
    )
    assert not few_rows.path().exists()


def test_doctor_shows_the_times_of_a_race(won, monkeypatch):
    monkeypatch.setattr(race, "USUAL", [PRODUCT])
    lines = succeeded(run("doctor", "--race")).stdout.splitlines()
    assert lines[0] == "40 x 64, 4 bits, groups of 32, bfloat16" and lines[1].endswith("ms, used")
    assert "won 15 of 15 races" in lines[-1]
