"""What an adapter's streams may be: one rule for trainers, converter and runtime."""

import math

import pytest

from specstream_mlx import UserError
from specstream_mlx.stream_config import StreamConfig

SIZES = {"mode": "lossless", "hidden_size": 8, "num_hidden_layers": 4, "num_msa_layers": 2}
SIZES["num_streams"] = 3
ROTATION = {"stream_init": "value_rotation"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({**ROTATION, "value_rotation_epsilon": 0}, "value_rotation_epsilon is 0 with stream_init"),
        ({**ROTATION, "value_rotation_epsilon": 2 * math.pi / 3}, "expected more than 0 and less"),
        ({**ROTATION, "value_rotation_epsilon": None}, "is None, expected a number"),
        ({"value_rotation_epsilon": 0.3}, "expected 0: only 'value_rotation' turns"),
        ({"stream_window": 3}, "stream_window is 3, expected 0: no other streams are run"),
        ({"stream_window": False}, "stream_window is False, expected 0"),
        ({"pruner_form": "literal"}, "pruner_form is 'literal', expected 'residual'"),
    ],
)
def test_what_streams_cannot_be(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        StreamConfig.from_dict({**SIZES, **fields})


def test_fields_of_earlier_releases_may_stay_at_their_defaults():
    dropped = {"stream_window": 0, "stream_prefix": 0, "stream_prefix_size": 0}
    dropped["pruner_form"] = "residual"
    assert StreamConfig.from_dict(SIZES | dropped) == StreamConfig(**SIZES)
