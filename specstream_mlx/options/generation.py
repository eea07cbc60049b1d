"""The options of a generation, under mlx_lm's names where it has them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..config import MAX_TREE_SIZE, MOST_STREAMS, is_number
from .fields import option
from .kinds import (
    FLAG,
    POSITIVE,
    PROBABILITY,
    SHARE,
    TEXTS,
    each,
    integer,
    number,
    one_of,
    optional,
    what,
)

MOST_NGRAM = 64
"""The longest n-gram: each token costs as many entries, and longer repeats are hardly chance."""


def _biases(text: str) -> dict[int, float]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"no object: {text}")
    return {int(token): value for token, value in values.items()}


_TOKEN_BIAS = what(
    'a JSON object from token ids to numbers, such as {"5": -2}',
    lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
    _biases,
    "JSON",
)


@dataclass(frozen=True)
class ProposerOptions:
    """What proposes tokens beside the streams."""

    PANEL: ClassVar[str] = "Drafts"

    lookup: bool | None = option(
        None,
        FLAG,
        "Draft what followed the newest n-gram in the prompt and the text so far too; works "
        "without streams. Default: on, but in trees whose shape is given off.",
        "--lookup/--no-lookup",
    )
    lookup_size: int = option(
        10,
        integer(1, MAX_TREE_SIZE),
        "With lookup: the most tokens to look up ahead; it may exceed --num-streams.",
    )
    lookup_ngram: int = option(
        4, integer(1, MOST_NGRAM), "With lookup: tokens of the longest n-gram to match."
    )

    draft_model: Any = option(
        None,
        what(
            "a model, or its directory or repository",
            lambda value: isinstance(value, str | Path) or hasattr(value, "layers"),
            str,
        ),
        "A smaller model with the same vocabulary, which drafts too: a directory or a Hugging Face "
        "repository.",
        metavar="DIR|REPO",
    )
    num_draft_tokens: int = option(
        8,
        integer(1, MAX_TREE_SIZE),
        "With --draft-model: the most tokens that it drafts ahead.",
    )

    proposers: Sequence[Callable[[Any], Any]] = option(
        tuple, each("functions that make proposers", callable), hidden=True
    )
    """Others, in Python alone: functions of ``drafting.proposer.Material``, one for each text."""


@dataclass(frozen=True)
class DraftOptions(ProposerOptions):
    """The shape of the tree, pruning, and where the streams run."""

    PANEL: ClassVar[str] = "Drafts"

    num_streams: int | None = option(
        None,
        integer(0, MOST_STREAMS),
        "Tokens to draft ahead. Default: all that the adapter was trained for; 0: none.",
    )
    tree_width: int = option(
        4,
        integer(1, MAX_TREE_SIZE),
        "Candidates per stream. Without --tree-size: children of every node in a full tree, 1 "
        "makes a chain.",
    )
    tree_size: int | None = option(
        8,
        optional(integer(1, MAX_TREE_SIZE)),
        "Nodes to draft, most probable first. Default: 8, without --tree-width.",
    )
    draft_threshold: float | None = option(
        None,
        PROBABILITY,
        "Draft no node whose joint probability, by the streams, is below this. Default: 0.2, none "
        "with --tree-width or --tree-size.",
    )
    max_nodes: int | None = option(
        None,
        integer(1, MAX_TREE_SIZE),
        "Nodes to keep after early-exit pruning, the root included. Default: all.",
    )
    prune_threshold: float | None = option(
        None, PROBABILITY, "Prune transitions less probable than this, and all behind them."
    )
    stream_nodes: int | None = option(
        None,
        integer(1, MAX_TREE_SIZE),
        "Lossless: run the streams beside the N nodes alone that are most probably accepted last. "
        "Default: all.",
    )
    speculation: bool = option(True, FLAG, "One token a step.")


def most_tokens(
    default: int | None, help: str = "Tokens of a text at most.", least: int = 1
) -> Any:
    """Make the option ``--max-tokens``; what comes behind the first token is timed from 2 on."""
    return option(default, integer(least), help, "--max-tokens", "-m")


@dataclass(frozen=True)
class LengthOptions:
    """The end of the generated text."""

    PANEL: ClassVar[str] = "Text"

    max_tokens: int = most_tokens(256, "Maximum number of tokens to generate.")
    stop: list[str] | None = option(
        None, TEXTS, "End before this text; may be given several times.", metavar="TEXT"
    )


@dataclass(frozen=True)
class SamplingOptions:
    """The sampler."""

    PANEL: ClassVar[str] = "Sampling"

    temp: float = option(
        0.0, number(0), "Sampling temperature; 0 takes the likeliest token.", metavar="T"
    )
    top_p: float = option(1.0, SHARE, "Sampling top-p; 0 or 1: all.")
    min_p: float = option(0.0, SHARE, "Sampling min-p; 0: all.")
    min_tokens_to_keep: int = option(1, integer(1), "Minimum tokens to keep for min-p.")
    top_k: int = option(0, integer(0), "Sampling top-k; 0: all.", metavar="K")
    xtc_probability: float = option(
        0.0, SHARE, "Probability that XTC leaves out the likeliest tokens, tossed for each token."
    )
    xtc_threshold: float = option(
        0.1,
        number(0, 0.5),
        "Probability above which XTC leaves out all tokens but the least likely.",
        metavar="P",
    )
    repetition_penalty: float | None = option(
        None,
        POSITIVE,
        "Divides the logits of the last 20 tokens by this; above 1 repeats less.",
    )
    logit_bias: dict | None = option(
        None, _TOKEN_BIAS, 'What to add to tokens\' logits, such as {"5": -2}.'
    )
    seed: int | None = option(
        None,
        integer(0, 2**64 - 1),
        "Draws the same text again, with any drafts or none. Default: another one each time, which "
        "the statistics name.",
    )


@dataclass(frozen=True)
class KVCacheOptions:
    """The KV cache's quantization.

    ``stream_generate``, ours and mlx_lm's, takes ``asdict`` of it as keyword arguments.
    """

    PANEL: ClassVar[str] = "KV cache"

    kv_bits: int | None = option(
        None, one_of(4, 8), "Quantize the KV cache to 4 or 8 bits. Default: not at all."
    )
    kv_group_size: int = option(
        64,
        one_of(32, 64, 128),
        "With --kv-bits: elements that share a scale; 32, 64 or 128.",
    )
    quantized_kv_start: int = option(
        5000,
        integer(0),
        "With --kv-bits: tokens from which on the cache is quantized; 0: all of them.",
    )


@dataclass(frozen=True)
class PrefillOptions:
    """The reading of a prompt."""

    PANEL: ClassVar[str] = "Text"

    prefill_step_size: int = option(
        2048, integer(1), "Number of prompt tokens to process at a time."
    )
