"""The suites of ``benchmarks.speedup``: which ways to draft are compared, and what is shown."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, mean
from typing import Any

from specstream_mlx import DraftSettings
from specstream_mlx.drafting.settings import LIKELY_DRAFTS

from .runner import CHAIN, ONE_TOKEN, PRUNED, TREE, Drafts

Rows = Sequence[Mapping[str, Any]]

MODES = ("lossless", "shared")

COLUMNS = {
    "task": "{task}",
    "writer": "{writer}",
    "adapter": "{adapter}",
    "method": "{method}",
    "speedup": "{speedup:.2f}x",
    "CR": "{call_reduction:.2f}",
    "speedup / CR": "{speedup_over_cr:.2f}",
    "tokens/s": "{decode_tps:.0f}",
    "quality": "{metric} {quality:.2f}",
    "extra parameters": "{extra_parameters:,}",
    "nodes a call": "{nodes:.1f}",
    "rows: below / MSA / second pass": "{rows_below:.1f} / {rows_msa:.1f} / {rows_deferred:.1f}",
    "missed": "{missed:.2f}",
    "ms per call": "{ms_per_call:.1f}",
}
"""Every column that a suite may show."""


@dataclass(frozen=True)
class Suite:
    """One comparison.

    Attributes:
        question: what it answers.
        ways: ways to draft by name, for each mode of the streams.
        columns: of the table, of ``COLUMNS``.
        items: texts of a task.
        rounds: how often each is decoded.
        max_tokens: of a text.
        all_tasks: whether a line is of the texts of all tasks together.
        summary: sentences below the table.
    """

    question: str
    ways: Mapping[str, Mapping[str, Drafts]]
    columns: Sequence[str]
    items: int
    rounds: int = 1
    max_tokens: int = 160
    all_tasks: bool = False
    summary: Callable[[Rows], list[str]] = lambda rows: []


# speedup: the paper's fixed trees -----------------------------------------------------------

LIKELY_CHAIN = replace(CHAIN, draft_threshold=LIKELY_DRAFTS.draft_threshold)

SPEEDUP = Suite(
    "How much faster are the paper's trees than plain decoding?",
    {
        "lossless": {
            "empty tree": ONE_TOKEN,
            "SS lossless, chain": replace(CHAIN, deferred=False),
            "SS lossless, tree": replace(TREE, deferred=False),
            "SS lossless, tree, pruned": replace(PRUNED, deferred=False),
            "SS lossless, chain, deferred": CHAIN,
            "SS lossless, tree, deferred": TREE,
            "SS lossless, likely drafts, deferred": LIKELY_DRAFTS,
        },
        "shared": {
            "empty tree": ONE_TOKEN,
            "SS shared, chain": CHAIN,
            "SS shared, tree": TREE,
            "SS shared, tree, pruned": PRUNED,
            "SS shared, chain, likely drafts": LIKELY_CHAIN,
            "SS shared, tree, likely drafts": LIKELY_DRAFTS,
        },
    },
    (
        *("task", "adapter", "method", "speedup", "CR", "speedup / CR", "tokens/s", "quality"),
        "extra parameters",
    ),
    items=20,
)

# hybrid: streams and lookup in one tree, against either alone -------------------------------

_BUDGETS = {"8 nodes": DraftSettings(), "likely": LIKELY_DRAFTS}
_DRAFTERS: dict[str, dict[str, Any]] = {
    "streams": {},
    "lookup": {"drafter": ["lookup"], "num_streams": 0},
    "hybrid": {"drafter": ["lookup"]},
}
_EQUAL = 0.99  # of the better one's call reduction; less is worse


def hybrid_over_better(rows: Rows) -> list[float]:
    """The hybrid's call reduction over that of the better drafter alone, with the same budget."""
    lines: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        budget, _, drafter = row["method"].partition(": ")
        if drafter:
            lines[row["task"], row["writer"], budget][drafter] = row["call_reduction"]
    return [line["hybrid"] / max(line["streams"], line["lookup"]) for line in lines.values()]


def _hybrid_summary(rows: Rows) -> list[str]:
    shares = hybrid_over_better(rows)
    return [
        f"Hybrid against the better of the two alone, in CR: best or equal (at least {_EQUAL}) in "
        f"{sum(share >= _EQUAL for share in shares)} of {len(shares)} cases, "
        f"{min(shares):.3f} to {max(shares):.3f}, mean {mean(shares):.3f}."
    ]


HYBRID = Suite(
    "Do streams and prompt lookup in one tree draft better than either alone?",
    {
        mode: {
            f"{budget}: {drafter}": replace(settings, **fields)
            for budget, settings in _BUDGETS.items()
            for drafter, fields in _DRAFTERS.items()
        }
        for mode in MODES
    },
    ("task", "writer", "method", "CR", "nodes a call", "speedup"),
    items=10,
    summary=_hybrid_summary,
)

# placement: where lossless streams run ------------------------------------------------------

PLACEMENT = Suite(
    "Where should lossless streams run, for the same drafts?",
    {
        "lossless": {
            "beside every node": replace(LIKELY_DRAFTS, deferred=False),
            "beside the likeliest": replace(LIKELY_DRAFTS, stream_nodes=1),
            "beside the 2 likeliest": replace(LIKELY_DRAFTS, stream_nodes=2),
            "beside the 3 likeliest": replace(LIKELY_DRAFTS, stream_nodes=3),
            "deferred": LIKELY_DRAFTS,
            "lookup, no streams": replace(LIKELY_DRAFTS, num_streams=0, drafter=["lookup"]),
        }
    },
    ("method", "CR", "rows: below / MSA / second pass", "missed", "ms per call", "speedup"),
    items=6,
    all_tasks=True,
)

# rule: what generate does without options, against fixed trees ------------------------------

RULE_WAY = "the rule"


def _rule_summary(rows: Rows) -> list[str]:
    """The rule's speed of each writer, over plain decoding and over the best fixed tree."""
    lines: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        lines[row["writer"]][row["task"]][row["method"]] = row["speedup"]
    text = []
    for writer, by_task in lines.items():
        speeds = [one.pop(RULE_WAY) for one in by_task.values()]
        shares = [
            own / max(fixed.values()) for own, fixed in zip(speeds, by_task.values(), strict=True)
        ]
        text.append(
            f"Geometric means, {writer}: {geometric_mean(speeds):.2f}x (least {min(speeds):.2f}x), "
            f"over the best fixed way of each task {geometric_mean(shares):.2f} "
            f"(least {min(shares):.2f})."
        )
    return text


_FIXED = {
    "chain": CHAIN,
    "tree": TREE,
    "likely tree": LIKELY_DRAFTS,
    "likely tree, lookup": replace(LIKELY_DRAFTS, drafter=["lookup"]),
}

RULE = Suite(
    "Is what is worth most, step by step, faster than any fixed tree?",
    {mode: {RULE_WAY: None, **_FIXED} for mode in MODES},
    ("task", "writer", "method", "speedup", "CR", "nodes a call", "tokens/s"),
    items=12,
    rounds=4,
    max_tokens=96,
    summary=_rule_summary,
)

SUITES = {"speedup": SPEEDUP, "hybrid": HYBRID, "placement": PLACEMENT, "rule": RULE}
