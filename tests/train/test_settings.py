"""What both trainers take where nothing is asked for."""

import pytest

from specstream_mlx.train.settings import LearningRates, StreamSettings


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ("linear", 128, "adapter", 8, "conditioned", 128)),
        ({"hidden_size": 48}, ("linear", 48, "adapter", 8, "conditioned", 48)),
        (
            {"stream_init": "identity", "stream_adapter_rank": 5, "stream_head": "plain"},
            ("identity", 0, "adapter", 5, "plain", 0),
        ),
    ],
)
def test_lossless_streams_are_wide_and_know_the_token_before(values, expected):
    sizes = {"hidden_size": values.pop("hidden_size", 512), "num_hidden_layers": 8}
    c = StreamSettings(**values).stream_config(**sizes, base_model="", base_fingerprint="")
    streams = (c.stream_init, c.stream_init_rank, c.stream_mlp, c.stream_adapter_rank)
    assert (*streams, c.stream_head, c.stream_head_rank) == expected


@pytest.mark.parametrize(
    ("values", "rates"),
    [
        ({}, (5e-4, 1.5 / 2048, 1.5 / 2048)),
        ({"learning_rate": 1e-3, "stream_learning_rate": 2e-3}, (1e-3, 2e-3, 2e-3)),
        ({"embedding_learning_rate": 0.1}, (5e-4, 1.5 / 2048, 0.1)),
    ],
)
def test_learning_rates(values, rates):
    assert StreamSettings(**values).learning_rates(2048) == LearningRates(*rates)
