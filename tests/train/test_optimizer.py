"""The optimizer: a learning rate for each group, every kind, and what a run sets."""

import math

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from specstream_mlx import UserError
from specstream_mlx.train.optimizer import KINDS, check_optimizer, clipped, optimizer_of
from specstream_mlx.train.settings import StreamSettings, TrainSettings

NAMES = {
    "streams.streams.head.up.weight": 2.0,
    "streams.pruner.up.weight": 2.0,
    "streams.streams.embeddings": 5.0,
    "model.layers.0.q.lora_a": 1.0,
}
"""Parameters, and their learning rates over LoRA's."""


def tree():
    return tree_unflatten([(name, mx.ones((4, 4))) for name in NAMES])


def after(kind, rate):
    """The optimizer after an update with gradients of ones, and how far each parameter moved."""
    rates = {"stream_learning_rate": 2 * rate, "embedding_learning_rate": 5 * rate}
    settings = TrainSettings(model="x", optimizer=kind, learning_rate=rate, iters=100, **rates)
    optimizer = optimizer_of(settings, 8)
    optimizer.init(tree())
    moved = tree_flatten(optimizer.apply_gradients(tree(), tree()))
    return optimizer, {name: mx.abs(array - 1).max().item() for name, array in moved}


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_takes_the_learning_rate_and_keeps_its_state(kind, tmp_path):
    _, little = after(kind, 1e-4)
    optimizer, much = after(kind, 1e-2)
    for name, factor in NAMES.items():
        assert 0 < 20 * little[name] < much[name]
        if kind == "sgd":  # in the first of three updates whose rates rise
            assert much[name] == pytest.approx(factor * 1e-2 / 3, rel=1e-4)
    file = str(tmp_path / "state.safetensors")
    mx.save_safetensors(file, dict(tree_flatten(optimizer.state)))
    other, _ = after(kind, 1e-2)
    other.state = tree_unflatten(list(mx.load(file).items()))
    expected, found = (
        dict(tree_flatten(one.apply_gradients(tree(), tree()))) for one in (optimizer, other)
    )
    assert all(mx.array_equal(found[name], value) for name, value in expected.items())


def test_the_pruner_is_clipped_apart():
    gradients, norm = clipped(tree(), 1.0)
    norms = {n: a.square().sum().item() for n, a in tree_flatten(gradients)}
    assert norms.pop("streams.pruner.up.weight") == pytest.approx(1, rel=1e-4)
    assert sum(norms.values()) == pytest.approx(1, rel=1e-4)
    assert norm.item() == pytest.approx(4 + 4 * 3**0.5, rel=1e-5)


def test_wrong_options():
    for fields, sentence in (
        ({"nosuch": {}}, "optimizer_config has 'nosuch', expected some of "),
        ({"sgd": {"beta": 1}}, r"optimizer_config's sgd is \{'beta': 1\}: "),
        ({"adamw": {"weight_decay": math.nan}}, ": an update with it is no"),
    ):
        with pytest.raises(UserError, match=sentence):
            check_optimizer(TrainSettings(model="x", optimizer_config=fields))


def test_ranks_and_learning_rates_follow_from_the_width():
    for width, rank in ((2048, 128), (48, 48)):
        config = StreamSettings().stream_config(
            hidden_size=width, num_hidden_layers=8, base_model="", base_fingerprint=""
        )
        assert (config.stream_init_rank, config.stream_adapter_rank) == (rank, 8)
        assert config.stream_head_rank == rank
    for values, rates in (
        ({}, (5e-4, 1.5 / 2048, 1.5 / 2048)),
        ({"learning_rate": 1e-3, "stream_learning_rate": 2e-3}, (1e-3, 2e-3, 2e-3)),
        ({"embedding_learning_rate": 0.1}, (5e-4, 1.5 / 2048, 0.1)),
    ):
        assert StreamSettings(**values).learning_rates(2048) == rates
