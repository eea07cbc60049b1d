"""The commands' options: kinds, groups, and what the groups turn into."""

import math
import re
from argparse import ArgumentTypeError
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar

import pytest
from command_line import refusal, result_of, run

from specstream_mlx import DraftSettings, Sampling, UserError
from specstream_mlx import options as kinds
from specstream_mlx.cli.options import (
    ModelOptions,
    OutputOptions,
    PromptOptions,
    RuleOptions,
    SamplingOptions,
)
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS, Proposers
from specstream_mlx.options import (
    DraftOptions,
    KVCacheOptions,
    LengthOptions,
    kinds_of,
    option,
    options_of,
)
from specstream_mlx.terminal.commands import reader

KINDS = {
    "at least 1": kinds.integer(1),
    "seed": kinds.integer(0, 2**64 - 1),
    "4 or 8": kinds.one_of(4, 8),
    "positive": kinds.POSITIVE,
    "share": kinds.number(0, 0.5),
    "probability": kinds.PROBABILITY,
    "bias": kinds_of(SamplingOptions)["logit_bias"],
    "part": kinds.PART_OF_NAME,
}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("at least 1", "1", 1),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("4 or 8", "8", 8),
        ("positive", "1.5", 1.5),
        ("share", "0.5", 0.5),
        ("probability", "0", 0.0),
        ("bias", '{"5": -2}', {5: -2.0}),
        ("part", "reference-blas", "reference-blas"),
    ],
)
def test_values(kind, text, value):
    assert reader(KINDS[kind])(text) == value


@pytest.mark.parametrize(
    ("kind", "expected", "texts"),
    [
        ("at least 1", "an integer of at least 1", ["0", "-1", "many", "1.5"]),
        ("at least 1", "an integer of at most 2147483647", [str(2**31)]),
        ("seed", "an integer of at least 0", ["-1", "many"]),
        ("seed", "an integer of at most 18446744073709551615", [str(2**64)]),
        ("4 or 8", "4 or 8", ["3", "-1", "many"]),
        ("positive", "a number above 0", ["0", "-1", "many", "inf", "nan"]),
        ("share", "a number from 0 to 0.5", ["-1", "0.6", "many", "nan"]),
        ("part", "a part of a file's name", ["../../x/y", "/", "x/", "a\0"]),
        ("probability", "a probability of at least 0 and below 1", ["-1", "1", "many", "nan"]),
        (
            "bias",
            "a JSON object from token ids to numbers",
            ["five", "[1]", '{"a": 1}', "{", '{"1": NaN}', "[" * 9999],
        ),
    ],
)
def test_wrong_values(kind, expected, texts):
    """What is said on the command line, and in Python by the same kind."""
    for text in texts:
        with pytest.raises(ArgumentTypeError) as error:
            reader(KINDS[kind])(text)
        assert str(error.value).startswith(f"found {repr(text)[:80]}")
        assert f", expected {expected}" in str(error.value)
        with pytest.raises(UserError, match=f"x is {re.escape(repr(text)[:80])}.*, expected "):
            KINDS[kind].check("x", text)


NUMBERS = ("N", "P", "X", "T", "K")


@pytest.mark.parametrize("value", ["-1", "many"])
def test_every_number_of_generate_has_its_bounds(value):
    """Nothing is run for it."""
    groups = DraftOptions, SamplingOptions, LengthOptions, KVCacheOptions, PromptOptions
    options = [one for group in groups for one in options_of(group) if not one[1].hidden]
    names = {field.name for field, spec in options if spec.metavar in NUMBERS}
    assert {"max_tokens", "kv_bits", "draft_threshold", "repetition_penalty"} <= names
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        assert f"found '{value}', expected" in refusal(run("generate", flag, value))


@dataclass(frozen=True)
class Sides:
    """A group."""

    PANEL: ClassVar[str] = "Shape"

    width: int = option(..., kinds.integer(1), "Of the shape.")
    height: int = option(2, kinds.integer(1), "Of the shape.", "--height", "-x")
    rounded: bool = option(False, kinds.FLAG, "With round corners.", hidden=True)
    filled: bool = option(True, kinds.FLAG, "Draw the outline alone.")


@dataclass(frozen=True)
class Box(Sides):
    """A group that has more."""

    PANEL: ClassVar[str] = "Box"

    depth: int = option(1, kinds.integer(1), "Of the box.")


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


def test_a_group_is_filled_from_options_of_its_fields():
    given = area()("--width", "3", "-x", "4", "--no-filled")
    assert given.stdout == f"m {Sides(3, 4, filled=False)} \n"
    assert area()("--width", "3").stdout == f"m {Sides(3)} \n"
    assert area(hidden=True)("--width", "3", "--rounded").stdout == f"m {Sides(3, 2, True)} \n"
    assert "arguments are required: --width" in area()().output
    assert "unrecognized arguments: --rounded" in area()("--width", "3", "--rounded").output
    assert "found '0', expected an integer of at least 1" in area()("--width", "0").output


def test_single_options_stand_as_defaults_of_parameters():
    run = partial(area(), "--width", "3")
    given = run("--unit", "cm", "--parts", "1", "--parts", "2", "--no-rounds")
    assert given.stdout == f"cm {Sides(3)} 1.0 2.0 exactly\n"
    assert "found '0', expected a number above 0" in run("--parts", "0").output


def test_a_group_of_which_what_was_given_matters():
    command = area(Annotated[dict, Sides])
    assert command().stdout == "m {} \n"
    assert command("-x", "2", "--no-filled").stdout == "m {'height': 2, 'filled': False} \n"
    assert "Of the shape. Default: 2." in command("--help").output


@pytest.mark.parametrize(
    ("group", "given", "sentence"),
    [
        (ModelOptions, {"adapter": "sql", "adapter_path": "a"}, "--adapter and --adapter-path"),
        (OutputOptions, {"as_json": True, "show_drafts": True}, "--json and --show-drafts"),
        (OutputOptions, {"profile": True, "compare": True}, "--profile, which .* --compare"),
        (OutputOptions, {"verbose": True, "quiet": True}, "--verbose and --quiet were both given"),
    ],
)
def test_options_that_exclude_or_need_each_other(group, given, sentence):
    with pytest.raises(UserError, match=sentence):
        group(**given)


@pytest.mark.parametrize(
    ("verify", "given", "settings"),
    [
        (None, {}, None),
        ("typical", {}, LIKELY_DRAFTS),
        ("rejection", {}, DRAWN_DRAFTS),
        (None, {"tree_size": 5}, DraftSettings(tree_size=5)),
        (None, {"tree_width": 3}, DraftSettings(tree_width=3, tree_size=None)),
        (None, {"tree_width": 3, "tree_size": 5}, DraftSettings(tree_width=3, tree_size=5)),
        (None, {"draft_threshold": 0.0}, DraftSettings(draft_threshold=0.0)),
        (None, {"num_streams": 0}, DraftSettings(num_streams=0, draft_threshold=0.2)),
        (None, {"lookup": True}, Proposers(lookup=True)),
        ("typical", {"lookup": True}, replace(LIKELY_DRAFTS, lookup=True)),
        (None, {"speculation": False}, DraftSettings(speculation=False, draft_threshold=0.2)),
    ],
)
def test_drafts(verify, given, settings):
    assert RuleOptions(verify=verify).settings(given) == settings


def test_sampling():
    assert SamplingOptions().sampler(tokenizer=None) is None
    options = SamplingOptions(temp=0.5, top_p=0.9, top_k=3)
    sampler = options.sampler(tokenizer=None)
    assert sampler.sampler == Sampling(temp=0.5, top_p=0.9, top_k=3)
    assert sampler.seed != options.sampler(tokenizer=None).seed, "a random one per run"
    assert SamplingOptions(temp=0.5, seed=7).sampler(tokenizer=None).seed == 7
    with pytest.raises(UserError, match="temp is nan"):
        SamplingOptions(temp=math.nan).sampler(tokenizer=None)
    for token in (10, -1):
        with pytest.raises(UserError, match=f"token {token}, expected one of 0 to 9"):
            SamplingOptions(logit_bias={token: 1.0}).logits_processors(vocab_size=10)
    options = SamplingOptions(logit_bias={9: 1.0}, repetition_penalty=1.1)
    assert len(options.logits_processors(vocab_size=10)) == 2
