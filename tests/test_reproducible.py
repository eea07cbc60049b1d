"""``reproducible``: the same text and plans in bfloat16, beside a load, however often."""

import os
import shutil
import subprocess
import sys
import threading

import mlx.core as mx
import pytest
from command_line import run, succeeded
from mlx.utils import tree_map
from random_models import request, speculative_model
from tiny_models import tiny_llama_directory

from specstream_mlx import load
from specstream_mlx.generation.batch import Batch, decode
from specstream_mlx.generation.sequence import TokenSequence
from specstream_mlx.hardware import cpu, device, weights

PROMPT = [5, 9, 11, 5, 9, 3, 7, 11, 5, 9]
TIMES = 20


def in_16_bit(**fields):
    model = speculative_model(seed=1)
    for part in (model.model, model.streams):
        part.update(tree_map(lambda array: array.astype(mx.bfloat16), part.parameters()))
    for name, value in fields.items():
        setattr(model, name, value)
    return model


@pytest.fixture(scope="module")
def loaded():
    """Threads that burn CPU, on and off, so that steps take now this long and now that."""
    over = threading.Event()

    def burn():
        while not over.wait(0.02):
            sum(number * number for number in range(200_000))

    threads = [threading.Thread(target=burn) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    over.set()
    for thread in threads:
        thread.join()


def plan_of(step):
    plan = step.plan
    return plan.place, plan.width, plan.tree.tokens.tolist(), plan.tree.parents.tolist()


def texts_and_plans(model, times=TIMES, count=60):
    """All different texts, and all different lists of plans, of as many generations."""
    texts, plans = set(), set()
    for _ in range(times):
        steps = list(decode(model, request(PROMPT, max_tokens=count, drafting=None)))
        texts.add(str([token for step in steps for token in step.tokens]))
        plans.add(str([plan_of(step) for step in steps]))
    return texts, plans


def test_twenty_texts_beside_a_load_are_one(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts, plans = texts_and_plans(in_16_bit(reproducible=True))
    assert (len(texts), len(plans)) == (1, 1)
    assert "'none'" in plans.pop()  # something is drafted
    assert texts_and_plans(in_16_bit(reproducible=True), 1)[0] == texts
    assert not list(tmp_path.rglob("*.json"))  # nothing timed is stored, or read
    _, others = texts_and_plans(in_16_bit())
    assert len(others) > 1  # without it costs are timed, and texts before count


def test_a_batch_is_the_same_batch(loaded):
    seen = set()
    for _ in range(5):
        model, batch, steps = in_16_bit(reproducible=True), Batch(), []
        for number in range(3):
            prompt = [*PROMPT, 3 + number]
            batch.add(TokenSequence(model, request(prompt, max_tokens=30, drafting=None)))
        while batch:
            steps += [(plan_of(step), step.tokens) for _, step in batch.step()]
        seen.add(str(steps))
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="mx.compile needs a C++ compiler here")
def test_every_step_of_a_shape_is_compiled(loaded):
    model = in_16_bit(reproducible=True, compiles=True)
    texts, plans = texts_and_plans(model, 3, 30)
    assert (len(texts), len(plans)) == (1, 1)
    assert set(model.compiled.counts) == {"compiled"}
    usual = in_16_bit(compiles=True)
    texts_and_plans(usual, 1, 30)
    assert len(usual.compiled.counts) > 1


def test_loading_goes_by_no_clock(tmp_path, monkeypatch):
    def timed(*_):
        raise AssertionError("something was timed")

    base = tiny_llama_directory(tmp_path / "base", bits=4)
    monkeypatch.setattr(device, "backend", lambda: "cpu")
    monkeypatch.setattr(cpu, "least_seconds", timed)
    monkeypatch.setattr(weights, "least_seconds", timed)
    model, _ = load(base, reproducible=True)
    assert (model.held.form, model.held.row_blocks) == ("expanded", False)
    assert model.reproducible
    assert load(base, reproducible=True, weights="packed")[0].held.form == "packed"
    monkeypatch.setattr(device, "backend", lambda: "metal")
    assert load(base, reproducible=True)[0].held.form == "packed"
    with pytest.raises(AssertionError, match="timed"):
        load(base)


def test_the_flag_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = tmp_path / "specstream-mlx" / "step-costs"
    base = tiny_llama_directory(tmp_path / "base")
    words = ("generate", "--model", base, "--ignore-chat-template", "-p", "abc abc", "-m", 12)
    text = succeeded(run(*words, "--reproducible")).stdout
    assert not costs.exists()
    assert succeeded(run(*words)).stdout == text and costs.exists()


@pytest.mark.parametrize("said", [None, "1"])
def test_products_of_float32_are_not_of_tf32_unless_somebody_wants_them(said):
    """On M5 and NVIDIA; set before MLX is imported, where it is read."""
    environment = {name: value for name, value in os.environ.items() if name != "MLX_ENABLE_TF32"}
    if said is not None:
        environment["MLX_ENABLE_TF32"] = said
    code = (
        "import os, sys, specstream_mlx; from specstream_mlx.hardware import blas;"
        "print(os.environ['MLX_ENABLE_TF32'], 'mlx.core' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [said or "0", "False"]
