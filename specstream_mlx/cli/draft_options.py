"""``generate``'s options for drafts: who drafts, which tree, what is kept, how it is verified."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from . import numbers
from .sampling_options import VERIFY_HELP

_DRAFTS = "Drafts"

NumStreams = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(0),
        metavar="N",
        help="Tokens to draft ahead. Default: all that the adapter was trained for; 0: none.",
        rich_help_panel=_DRAFTS,
    ),
]
TreeWidth = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="Candidates per stream. Without --tree-size: children of every node in a full "
        "tree, 1 makes a chain.",
        rich_help_panel=_DRAFTS,
    ),
]
TreeSize = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="Nodes to draft, most probable first. Default: 8, without --tree-width.",
        rich_help_panel=_DRAFTS,
    ),
]
DraftThreshold = Annotated[
    float | None,
    Option(
        parser=numbers.probability,
        metavar="P",
        help="Draft no node whose joint probability, by the streams, is below this. "
        "Default: 0.2, none with --tree-width or --tree-size.",
        rich_help_panel=_DRAFTS,
    ),
]
Tree = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="A tree file (acceptance by depth and rank): draft the same tree of ranks in "
        "every step, the one with the greatest expected accepted length.",
        rich_help_panel=_DRAFTS,
    ),
]
Lookup = Annotated[
    bool,
    Option(
        "--lookup",
        help="Prompt lookup: draft also what followed the newest n-gram in the prompt and the "
        "text so far, in one tree with the streams' drafts. Works without streams.",
        rich_help_panel=_DRAFTS,
    ),
]
LookupSize = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="With --lookup: the most tokens to look up ahead; it may exceed --num-streams. "
        "Default: 10.",
        rich_help_panel=_DRAFTS,
    ),
]
LookupNgram = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="With --lookup: tokens of the longest n-gram to match. Default: 4.",
        rich_help_panel=_DRAFTS,
    ),
]
MaxNodes = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="Nodes to keep after early-exit pruning, the root included. Default: all.",
        rich_help_panel=_DRAFTS,
    ),
]
PruneThreshold = Annotated[
    float | None,
    Option(
        parser=numbers.probability,
        metavar="P",
        help="Prune transitions less probable than this, and all behind them.",
        rich_help_panel=_DRAFTS,
    ),
]
StreamNodes = Annotated[
    int | None,
    Option(
        parser=numbers.at_least(1),
        metavar="N",
        help="Lossless: run the streams in the same pass beside the N nodes that are most "
        "probably accepted last. Default: a second pass for the accepted node.",
        rich_help_panel=_DRAFTS,
    ),
]
NoSpeculation = Annotated[
    bool,
    Option("--no-speculation", help="One token a step.", rich_help_panel=_DRAFTS),
]
NoTune = Annotated[
    bool,
    Option(
        "--no-tune",
        help="Do not measure how to draft on this machine, nor use what was measured. Without "
        "other options about drafts that happens once; see tune.",
        rich_help_panel=_DRAFTS,
    ),
]
Verify = Annotated[
    Literal["greedy", "sample", "rejection", "typical"] | None,
    Option(help=VERIFY_HELP, rich_help_panel=_DRAFTS),
]
