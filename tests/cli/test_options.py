"""The commands' options: kinds of values, and what those of drafts turn into."""

import re
from argparse import ArgumentTypeError

import pytest

from specstream_mlx import DraftSettings, UserError
from specstream_mlx import options as kinds
from specstream_mlx.cli.options import CliSamplingOptions, draft_settings
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS, Proposers
from specstream_mlx.options import kinds_of
from specstream_mlx.terminal.commands import reader

BIAS = kinds_of(CliSamplingOptions)["logit_bias"]
BIASES = ["[1]", '{"a": 1}', "{", '{"1": NaN}', "[" * 9999]


@pytest.mark.parametrize(
    ("kind", "text", "value", "expected", "wrong"),
    [
        (kinds.integer(1), "1", 1, "an integer of at least 1", ["0", "many", "1.5"]),
        (kinds.number(0, 0.5), "0.5", 0.5, "a number from 0 to 0.5", ["-1", "0.6", "nan"]),
        (kinds.PROBABILITY, "0", 0.0, "a probability of at least 0 and below 1", ["-1", "1"]),
        (BIAS, '{"5": -2}', {5: -2.0}, "a JSON object from token ids to numbers", BIASES),
    ],
)
def test_kinds(kind, text, value, expected, wrong):
    """Values on the command line; what is said of wrong ones there, and in Python."""
    assert reader(kind)(text) == value
    for text in wrong:
        with pytest.raises(ArgumentTypeError) as error:
            reader(kind)(text)
        assert str(error.value).startswith(f"found {repr(text)[:80]}")
        assert f", expected {expected}" in str(error.value)
        with pytest.raises(UserError, match=f"x is {re.escape(repr(text)[:80])}.*, expected "):
            kind.check("x", text)


@pytest.mark.parametrize(
    ("verify", "given", "settings"),
    [
        (None, {}, None),
        ("typical", {}, LIKELY_DRAFTS),
        ("rejection", {}, DRAWN_DRAFTS),
        (None, {"tree_width": 3}, DraftSettings(tree_width=3, tree_size=None)),
        (None, {"num_streams": 0}, DraftSettings(num_streams=0, draft_threshold=0.2)),
        (None, {"lookup": True}, Proposers(lookup=True)),
    ],
)
def test_drafts(verify, given, settings):
    assert draft_settings(verify, given) == settings
