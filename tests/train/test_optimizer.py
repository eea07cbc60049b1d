"""Learning rates: mlx_lm's schedules, a rate for each group, every optimizer."""

import math

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.utils import build_schedule

from specstream_mlx import UserError
from specstream_mlx.train.optimizer import (
    KINDS,
    check_optimizer,
    clipped,
    optimizer_of,
    warm_up_and_fall,
)
from specstream_mlx.train.settings import LearningRates, StreamSettings, TrainSettings

NAMES = {
    "streams.streams.head.up.weight": 2.0,
    "streams.pruner.up.weight": 2.0,
    "streams.streams.embeddings": 5.0,
    "model.layers.0.q.lora_a": 1.0,
}
"""Parameters, and their learning rates over LoRA's."""


def tree():
    return tree_unflatten([(name, mx.ones((4, 4))) for name in NAMES])


def after(kind, rate, times=1, **settings):
    """The optimizer, and how far each parameter moves, with gradients of ones."""
    rates = {"stream_learning_rate": 2 * rate, "embedding_learning_rate": 5 * rate}
    settings = TrainSettings(model="x", optimizer=kind, learning_rate=rate, **rates, **settings)
    optimizer, parameters = optimizer_of(settings, 8), tree()
    optimizer.init(parameters)
    for _ in range(times):
        gradients, norm = clipped(tree(), 1e9)
        parameters = optimizer.apply_gradients(gradients, parameters)
    assert norm.item() == pytest.approx(4 + 4 * 3**0.5, rel=1e-5)
    moved = {n: mx.abs(a - 1).max().item() for n, a in tree_flatten(parameters)}
    return optimizer, moved


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_takes_the_learning_rate_and_keeps_its_state(kind, tmp_path):
    _, little = after(kind, 1e-4)
    optimizer, much = after(kind, 1e-2)
    for name in NAMES:
        assert 0 < 20 * little[name] < much[name]
    file = str(tmp_path / "state.safetensors")
    mx.save_safetensors(file, dict(tree_flatten(optimizer.state)))
    other, _ = after(kind, 1e-2)
    other.state = tree_unflatten(list(mx.load(file).items()))
    expected, found = (
        tree_flatten(one.apply_gradients(tree(), tree())) for one in (optimizer, other)
    )
    assert all(
        mx.array_equal(own, value) for (_, own), (_, value) in zip(found, expected, strict=True)
    )


def test_the_pruner_is_clipped_apart():
    gradients, norm = clipped(tree(), 1.0)
    norms = {n: a.square().sum().item() for n, a in tree_flatten(gradients)}
    assert norms.pop("streams.pruner.up.weight") == pytest.approx(1, rel=1e-4)
    assert sum(norms.values()) == pytest.approx(1, rel=1e-4)
    assert norm.item() == pytest.approx(4 + 4 * 3**0.5, rel=1e-5)


def test_warm_up_and_fall():
    rates = [warm_up_and_fall(2.0, 100)(mx.array(n)).item() for n in (0, 2, 50, 100)]
    assert rates == pytest.approx([2 / 3, 1.96, 1.0, 0.0])


COSINE = {"name": "cosine_decay", "arguments": [1e-4, 100], "warmup": 10}


def test_a_schedule_is_mlx_lms_learning_rate():
    theirs = build_schedule(COSINE)
    optimizer, moved = after("sgd", 0.1, 30, lr_schedule=COSINE)
    rates = [one.learning_rate.item() for one in optimizer.optimizers]
    expected = theirs(mx.array(29)).item()
    assert rates == pytest.approx([2 * expected, 5 * expected, expected])
    so_far = sum(theirs(mx.array(n)).item() for n in range(30))
    assert moved == pytest.approx({n: f * so_far for n, f in NAMES.items()}, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"lr_schedule": {"name": "none"}}, r"lr_schedule is \{'name': 'none'\}: "),
        (
            {"lr_schedule": {"name": "linear_schedule", "arguments": [0.1, -0.1, 100]}},
            "whose rate at update 99 is -0.09",
        ),
        ({"lr_schedule": COSINE, "stream_learning_rate": 0.1}, "and without learning_rate, exp"),
        ({"optimizer_config": {"nosuch": {}}}, "optimizer_config has 'nosuch', expected some of "),
        ({"optimizer_config": {"sgd": {"beta": 1}}}, r"optimizer_config's sgd is \{'beta': 1\}: "),
        ({"optimizer_config": {"adamw": {"weight_decay": math.nan}}}, ": an update with it is no"),
    ],
)
def test_wrong_schedules_and_options(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        check_optimizer(TrainSettings(model="x", iters=100, **fields))


def test_lossless_streams_are_wide_and_know_the_token_before():
    sizes = {"num_hidden_layers": 8, "base_model": "", "base_fingerprint": ""}
    plain = {"stream_init": "identity", "stream_adapter_rank": 5, "stream_head": "plain"}
    for values, size, expected in (
        ({}, 512, ("linear", 128, "adapter", 8, "conditioned", 128)),
        ({}, 48, ("linear", 48, "adapter", 8, "conditioned", 48)),
        (plain, 512, ("identity", 0, "adapter", 5, "plain", 0)),
    ):
        c = StreamSettings(**values).stream_config(hidden_size=size, **sizes)
        streams = (c.stream_init, c.stream_init_rank, c.stream_mlp, c.stream_adapter_rank)
        assert (*streams, c.stream_head, c.stream_head_rank) == expected


def test_learning_rates():
    for values, rates in (
        ({}, (5e-4, 1.5 / 2048, 1.5 / 2048)),
        ({"learning_rate": 1e-3, "stream_learning_rate": 2e-3}, (1e-3, 2e-3, 2e-3)),
        ({"embedding_learning_rate": 0.1}, (5e-4, 1.5 / 2048, 0.1)),
    ):
        assert StreamSettings(**values).learning_rates(2048) == LearningRates(*rates)
