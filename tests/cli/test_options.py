"""The commands' options: kinds, groups, and what the groups turn into."""

import re
from argparse import ArgumentTypeError
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import pytest
from command_line import result_of

from specstream_mlx import DraftSettings, UserError
from specstream_mlx import options as kinds
from specstream_mlx.cli.options import SamplingOptions, draft_settings
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS, Proposers
from specstream_mlx.options import kinds_of, option
from specstream_mlx.terminal.commands import reader

BIAS = kinds_of(SamplingOptions)["logit_bias"]
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


@dataclass(frozen=True)
class Sides:
    PANEL: ClassVar[str] = "Shape"

    width: int = option(..., kinds.integer(1), "Of the shape.")
    height: int = option(2, kinds.integer(1), "Of the shape.", "--height", "-x")
    rounded: bool = option(False, kinds.FLAG, "With round corners.", hidden=True)
    filled: bool = option(True, kinds.FLAG, "Draw the outline alone.")
    dashed: bool = option(False, kinds.FLAG, "With gaps.", without=("filled",))
    gap: int = option(1, kinds.integer(1), "Of the dashes.", needs=("dashed", "dotted"))
    dotted: bool = option(False, kinds.FLAG, "With dots.", "--dotted", "-d")


def area(annotation=Sides, **how):
    def show(
        *,
        unit: str = option("m", kinds.TEXT, "Of a side."),
        sides: annotation,
        parts: list[float] | None = option(None, kinds.POSITIVE, "Of a part, given again."),
        rounds: bool = option(True, kinds.FLAG, "Show no fractions."),
    ) -> None:
        """Show the area."""
        print(unit, sides, *parts or (), "" if rounds else "exactly")

    return partial(result_of, show, **how)


def test_parameters_are_options_or_groups_of_them():
    given = area()("--width", "3", "-x", "4", "--no-filled")
    assert given.stdout == f"m {Sides(3, 4, filled=False)} \n"
    assert area(hidden=True)("--width", "3", "--rounded").stdout == f"m {Sides(3, 2, True)} \n"
    assert "arguments are required: --width" in area()().output
    assert "unrecognized arguments: --rounded" in area()("--width", "3", "--rounded").output
    assert "found '0', expected an integer of at least 1" in area()("--width", "0").output
    run = partial(area(), "--width", "3")
    given = run("--unit", "cm", "--parts", "1", "--parts", "2", "--no-rounds")
    assert given.stdout == f"cm {Sides(3)} 1.0 2.0 exactly\n"
    assert "found '0', expected a number above 0" in run("--parts", "0").output
    assert run("-d", "--gap", "2").stdout == f"m {Sides(3, gap=2, dotted=True)} \n"
    both = "--dashed and --no-filled were both given, expected at most one"
    assert both in run("--no-filled", "--dashed").stderr
    assert "--gap was given, expected with --dashed or --dotted" in run("--gap", "2").stderr
    only_given = area(Annotated[dict, Sides])
    assert only_given("-x", "2", "--no-filled").stdout == "m {'height': 2, 'filled': False} \n"
    assert "Of the shape. Default: 2." in only_given("--help").output


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
