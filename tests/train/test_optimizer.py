"""Learning rates: mlx_lm's schedules, a rate for each group, every optimizer."""

import mlx.core as mx
import pytest
from mlx_lm.tuner.utils import build_schedule

from specstream_mlx import UserError
from specstream_mlx.train.optimizer import (
    KINDS,
    GroupedOptimizer,
    optimizer_options,
    schedule_of,
    warm_up_and_fall,
)

NAMES = ["streams.embeddings", "streams.head.up.weight", "model.layers.0.q.lora_a", "pruner.w"]
FACTORS = {"lora": 1.0, "streams": 2.0, "embeddings": 5.0}
SCHEDULES = {
    "linear": {"name": "linear_schedule", "arguments": [0, 1e-4, 100]},
    "cosine": {"name": "cosine_decay", "arguments": [1e-4, 100], "warmup": 10},
}


def step(kind, schedule, times=1):
    """How far each parameter moves, with a gradient of ones."""
    first = {name: mx.ones((4, 4)) for name in NAMES}
    optimizer = GroupedOptimizer(kind, optimizer_options(kind, {}), schedule, FACTORS, 1e9, first)
    parameters = first
    for _ in range(times):
        gradients = {name: mx.ones((4, 4)) for name in NAMES}
        parameters, norms = optimizer.apply(gradients, parameters)
    assert norms.item() == pytest.approx(4 + 4 * 3**0.5, rel=1e-5)
    moved = {name: mx.abs(parameters[name] - first[name]).max().item() for name in NAMES}
    return optimizer.learning_rates, moved


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_takes_the_learning_rate(kind):
    _, little = step(kind, lambda count: mx.array(1e-4))
    _, much = step(kind, lambda count: mx.array(1e-2))
    for name in NAMES:
        assert 0 < 20 * little[name] < much[name]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_mlx_lms_learning_rate(name):
    theirs = build_schedule(SCHEDULES[name])
    for times in (1, 5, 30):
        rates, _ = step("sgd", schedule_of(SCHEDULES[name], 30), times)
        expected = theirs(mx.array(times - 1)).item()
        assert rates == pytest.approx({group: f * expected for group, f in FACTORS.items()})


def test_warm_up_and_fall():
    rate = warm_up_and_fall(2.0, 100)
    assert [rate(mx.array(n)).item() for n in (0, 2, 50, 100)] == pytest.approx(
        [2 / 3, 1.96, 1.0, 0.0]
    )


NAN = {"name": "cosine_decay", "arguments": [float("nan"), 3]}
GROWING = {"name": "exponential_decay", "arguments": [1.0, 10.0]}
RISING = {"name": "linear_schedule", "arguments": [0.1, -0.1, 100]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "none"}, r"lr_schedule is \{'name': 'none'\}: "),
        (NAN, "whose rate at update 0 is nan, expected a number of at least 0"),
        (GROWING, "whose rate at update 50 is inf"),
        (RISING, "whose rate at update 99 is -0.09"),
    ],
)
def test_wrong_schedules(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        schedule_of(fields, 100)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("nosuch", {}, "optimizer_config has 'nosuch', expected some of adam, "),
        ("sgd", {"beta": 1}, r"optimizer_config's sgd is \{'beta': 1\}: "),
        ("adamw", {"weight_decay": "x"}, "adamw is {'weight_decay': 'x'}: "),
        ("adamw", {"weight_decay": float("nan")}, ": an update with it is no number"),
        ("adam", {"betas": [0.9]}, r"adam is \{'betas': \[0.9\]\}: "),
    ],
)
def test_wrong_options(kind, options, sentence):
    with pytest.raises(UserError, match=sentence):
        optimizer_options(kind, options)
