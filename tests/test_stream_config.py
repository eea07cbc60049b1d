"""What an adapter's streams may be: one rule for trainers, converter and runtime."""

import math

import pytest

from specstream_mlx import UserError
from specstream_mlx.stream_config import StreamConfig

ROTATION = {"stream_init": "value_rotation"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({**ROTATION, "value_rotation_epsilon": 0}, "value_rotation_epsilon is 0 with stream_init"),
        ({**ROTATION, "value_rotation_epsilon": -0.3}, "value_rotation_epsilon is -0.3 with"),
        ({**ROTATION, "value_rotation_epsilon": 2 * math.pi / 3}, "expected more than 0 and less"),
        ({**ROTATION, "value_rotation_epsilon": None}, "is None, expected a number"),
        ({"value_rotation_epsilon": 0.3}, "expected 0: only 'value_rotation' turns"),
    ],
)
def test_what_streams_cannot_be(fields, sentence):
    sizes = {"hidden_size": 8, "num_hidden_layers": 4, "num_msa_layers": 2, "num_streams": 3}
    with pytest.raises(UserError, match=sentence):
        StreamConfig(mode="lossless", **sizes, **fields)


SIZES = {"mode": "lossless", "hidden_size": 8, "num_hidden_layers": 4, "num_msa_layers": 2}


def test_dropped_fields_may_stay_at_their_defaults():
    dropped = {"stream_window": 0, "stream_prefix": 0, "stream_prefix_size": 0}
    dropped["pruner_form"] = "residual"
    assert StreamConfig.from_dict(SIZES | dropped) == StreamConfig(**SIZES)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("stream_window", 3, "stream_window is 3, expected 0: no other streams are run"),
        ("stream_prefix", 2, "stream_prefix is 2, expected 0"),
        ("stream_window", False, "stream_window is False, expected 0"),
        ("pruner_form", "literal", "pruner_form is 'literal', expected 'residual'"),
    ],
)
def test_other_values_of_dropped_fields_are_refused(name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        StreamConfig.from_dict({**SIZES, name: value})
