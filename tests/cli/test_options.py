"""The commands' options: parsers, groups, and what the groups turn into."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from specstream_mlx import DraftSettings, Sampling, UserError
from specstream_mlx.cli import app
from specstream_mlx.cli.groups import grouped
from specstream_mlx.cli.options import DraftOptions, ModelOptions, OutputOptions, SamplingOptions
from specstream_mlx.drafting.settings import DRAWN_DRAFTS, LIKELY_DRAFTS
from specstream_mlx.terminal import parsing

PARSERS = {
    "at least 1": parsing.at_least(1),
    "seed": parsing.between(0, 2**64 - 1),
    "4 or 8": parsing.one_of(4, 8),
    "positive": parsing.positive,
    "probability": parsing.probability,
    "bias": parsing.token_bias,
    "part": parsing.part_of_name,
    "text": parsing.utf8,
}


@pytest.mark.parametrize(
    ("parser", "text", "value"),
    [
        ("at least 1", "1", 1),
        ("seed", "18446744073709551615", 2**64 - 1),
        ("4 or 8", "8", 8),
        ("4 or 8", 8, 8),  # click hands in a default as it is
        ("positive", "1.5", 1.5),
        ("probability", "0", 0.0),
        ("bias", '{"5": -2}', {5: -2.0}),
        ("bias", {5: -2.0}, {5: -2.0}),
        ("part", "", ""),
        ("text", "caf\u00e9", "caf\u00e9"),
        ("part", "reference-blas", "reference-blas"),
    ],
)
def test_values(parser, text, value):
    assert PARSERS[parser](text) == value


@pytest.mark.parametrize(
    ("parser", "expected", "texts"),
    [
        ("at least 1", "an integer of at least 1", ["0", "-1", "many", "1.5"]),
        ("seed", "an integer from 0 to 18446744073709551615", ["-1", "many", str(2**64)]),
        ("4 or 8", "4 or 8", ["3", "-1", "many"]),
        ("positive", "a number above 0", ["0", "-1", "many", "inf", "nan"]),
        ("probability", "a probability of at least 0 and below 1", ["-1", "1", "many", "nan"]),
        ("bias", "a JSON object from token ids to numbers", ["five", "[1]", '{"a": 1}', "{"]),
        ("part", "a part of a file's name", ["../../x/y", "/", "x/", "a\0"]),
    ],
)
def test_wrong_values(parser, expected, texts):
    for text in texts:
        with pytest.raises(typer.BadParameter) as error:
            PARSERS[parser](text)
        assert error.value.message.startswith(f"found {text}, expected {expected}")


def test_a_text_that_is_none():
    with pytest.raises(typer.BadParameter, match=r"found '\\udcff', expected UTF-8 text"):
        parsing.utf8("\udcff")


@pytest.mark.parametrize("value", ["-1", "many"])
def test_every_number_of_generate_has_its_bounds(value):
    """All but those of sampling, which ``Sampling`` checks; nothing is run for it."""
    command = get_command(app).commands["generate"]
    flags = {option.opts[0] for option in command.params if option.metavar in ("N", "P", "X")}
    flags -= {"--top-p", "--min-p", "--min-tokens-to-keep", "--xtc-probability", "--xtc-threshold"}
    assert {"--max-tokens", "--kv-bits", "--draft-threshold", "--repetition-penalty"} <= flags
    for flag in flags:
        with pytest.raises(typer.BadParameter, match=f"found {value}, expected"):
            command.make_context("generate", [flag, value])


@dataclass(frozen=True)
class Sides:
    """A group."""

    PANEL: ClassVar[str] = "Shape"

    width: Annotated[int, typer.Option(help="Of the shape.")]
    height: Annotated[int, typer.Option("--height", "-h", help="Of the shape.")] = 2


def area(panels):
    small = typer.Typer(add_completion=False)

    @small.command()
    @grouped(panels)
    def show(*, unit: Annotated[str, typer.Option()] = "m", sides: Sides) -> None:
        """Show the area."""
        print(f"{sides.width * sides.height} {unit}2")

    return lambda *args: CliRunner().invoke(small, args)


def test_a_group_is_filled_from_options_of_its_fields():
    assert area(False)("--width", "3", "-h", "4", "--unit", "cm").stdout == "12 cm2\n"
    assert area(False)("--width", "3").stdout == "6 m2\n"
    assert "Missing option '--width'" in area(False)().output


def test_a_group_has_its_panel_where_panels_are_shown():
    for panels in (True, False):
        shown = area(panels)("--help").output
        assert "Show the area." in shown and "Of the shape." in shown
        assert ("─ Shape ─" in shown) == panels


@pytest.mark.parametrize(
    ("group", "given", "sentence"),
    [
        (ModelOptions, {"adapter": "sql", "adapter_path": "a"}, "--adapter and --adapter-path"),
        (DraftOptions, {"lookup_size": 4}, "expected with --lookup"),
        (DraftOptions, {"lookup_ngram": 4}, "expected with --lookup"),
        (OutputOptions, {"as_json": True, "show_drafts": True}, "--json and --show-drafts"),
        (OutputOptions, {"profile": True, "compare": True}, "--profile, which .* --compare"),
    ],
)
def test_options_that_exclude_or_need_each_other(group, given, sentence):
    with pytest.raises(UserError, match=sentence):
        group(**given)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, None),
        ({"verify": "typical"}, LIKELY_DRAFTS),
        ({"verify": "rejection"}, DRAWN_DRAFTS),
        ({"tree_size": 5}, DraftSettings(tree_size=5)),
        ({"tree_width": 3}, DraftSettings(tree_width=3, tree_size=None)),
        ({"tree_width": 3, "tree_size": 5}, DraftSettings(tree_width=3, tree_size=5)),
        ({"draft_threshold": 0.0}, DraftSettings(draft_threshold=0.0)),
        ({"num_streams": 0}, DraftSettings(num_streams=0, draft_threshold=0.2)),
        ({"lookup": True}, DraftSettings(lookup=True, draft_threshold=0.2)),
        ({"no_speculation": True}, DraftSettings(speculation=False, draft_threshold=0.2)),
    ],
)
def test_drafts(given, settings):
    options = DraftOptions(**given)
    assert options.settings() == settings


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
