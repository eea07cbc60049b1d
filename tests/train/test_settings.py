"""What both trainers take where nothing is asked for."""

import pytest

from specstream_mlx.errors import UserError
from specstream_mlx.train.settings import LearningRates, StreamSettings, TrainSettings


def config(hidden_size=512, **values):
    return StreamSettings(**values).stream_config(
        hidden_size=hidden_size, num_hidden_layers=8, base_model="", base_fingerprint=""
    )


def test_lossless_streams_are_wide_and_know_the_token_before():
    found = config()
    assert (found.stream_init, found.stream_init_rank) == ("linear", 128)
    assert (found.stream_mlp, found.stream_adapter_rank) == ("adapter", 8)
    assert (found.stream_head, found.stream_head_rank) == ("conditioned", 128)


def test_what_is_asked_for_is_taken():
    found = config(
        stream_init="identity", stream_mlp="adapter", stream_adapter_rank=5, stream_head="plain"
    )
    assert (found.stream_init, found.stream_init_rank) == ("identity", 0)
    assert (found.stream_mlp, found.stream_adapter_rank) == ("adapter", 5)
    assert (found.stream_head, found.stream_head_rank) == ("plain", 0)
    assert config(hidden_size=48).stream_init_rank == 48


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, (5e-4, 1.5 / 2048, 1.5 / 2048)),
        ({"learning_rate": 1e-3}, (1e-3, 1e-3, 1e-3)),
        ({"learning_rate": 1e-3, "stream_learning_rate": 2e-3}, (1e-3, 2e-3, 2e-3)),
        ({"embedding_learning_rate": 0.1}, (5e-4, 1.5 / 2048, 0.1)),
    ],
)
def test_learning_rates(values, rates):
    assert StreamSettings(**values).learning_rates(2048) == LearningRates(*rates)


def test_a_schedule_needs_the_rate_that_others_are_relative_to():
    schedule = {"name": "cosine_decay", "arguments": [1e-3, 100]}
    TrainSettings(model="x", lr_schedule=schedule).check()
    with pytest.raises(UserError, match="stream_learning_rate is given with lr_schedule and witho"):
        TrainSettings(model="x", lr_schedule=schedule, stream_learning_rate=1e-3).check()
