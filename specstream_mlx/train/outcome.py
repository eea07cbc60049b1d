"""The speed of a finished adapter on held-out prompts, over lookup alone and plain decoding."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, geometric_mean, median, stdev
from typing import Any

import mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..generation.stream_generate import stream_generate
from ..generation.text import decoding_rate
from ..loading.speculative_model import SpeculativeModel
from .batches import Item

MOST_TOKENS = 96
_TEXTS = 6  # that are compared at most
_ROUNDS = 2  # each way decodes a prompt so often, in turn with the others
_LEAST_TEXTS = 5
_STUDENT = (2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % of t, for 5 texts and more
_DRAFTED = 1.05  # with fewer tokens a call the rule has hardly drafted


def texts_of(valid: Sequence[Item]) -> list[Sequence[int]]:
    """Return the prompts to compare on."""
    return [item.tokens[: item.stream_from] for item in valid[:_TEXTS]]


def rounds(texts: int) -> int:
    """Return how often ``measure`` decodes a prompt in three ways, of so many prompts."""
    return _ROUNDS * texts + 1


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    show: Callable[[float, float], None] = lambda done, total: None,
) -> str:
    """Say whether streams paid, by decoding prompts greedily in three ways, in turn."""
    bare = replace(model, streams=None)  # with its LoRA
    over_lookup, over_plain, tokens, calls = [], [], 0, 0  # of the streams
    done, total = 0, 3 * rounds(len(prompts))
    show(done, total)
    for place, prompt in enumerate(prompts):
        rates: dict[str, list[float]] = {"plain": [], "lookup": [], "streams": []}
        for number in range(0 if place == 0 else 1, _ROUNDS + 1):  # round 0 does not count
            ways: dict[str, Iterable[Any]] = {
                "plain": mlx_lm.stream_generate(
                    model.model, tokenizer, list(prompt), max_tokens=MOST_TOKENS
                ),
                "lookup": stream_generate(bare, tokenizer, prompt, MOST_TOKENS),
                "streams": stream_generate(model, tokenizer, prompt, MOST_TOKENS),
            }
            for name, responses in ways.items():
                last = deque(responses, maxlen=1).pop()
                show(done := done + 1, total)
                if number and last.generation_tokens > 1:
                    rates[name].append(decoding_rate(last))
                if number and name == "streams":
                    tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
        if all(rates.values()):
            streams = median(rates["streams"])
            over_lookup.append(streams / median(rates["lookup"]))
            over_plain.append(streams / median(rates["plain"]))
    return verdict(over_lookup, over_plain, tokens / max(calls, 1))


def verdict(over_lookup: Sequence[float], over_plain: Sequence[float], reduction: float) -> str:
    """Judge streams by each text's speed over that of lookup and of plain decoding.

    They paid where the interval of the first, in which its mean lies 19 times of 20, is above 1.
    """
    count = len(over_lookup)
    texts = f"{count} held-out text" + "s" * (count != 1)
    if not count:
        return "Whether it paid cannot be told: no held-out text has more than a token"
    speed, plain = geometric_mean(over_lookup), geometric_mean(over_plain)
    paid, interval = f"Whether it paid cannot be told from {texts}, expected {_LEAST_TEXTS}", ""
    if count >= _LEAST_TEXTS:
        low, high = _interval(over_lookup)
        interval = f" (95 % interval {low:.2f} to {high:.2f})"
        paid = "It paid" if low > 1 and plain > 1 else "It did not pay on this machine"
    rarely = ", as hardly a draft was expected to earn its time" * (reduction < _DRAFTED)
    return (
        f"{paid}: on {texts} the streams are {speed:.2f} times as fast as prompt lookup{interval}, "
        f"which needs no streams, and {plain:.2f} times as plain mlx_lm; a call of the model "
        f"writes {reduction:.2f} tokens{rarely}."
    )


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of ratios' geometric mean, by Student's t of their logarithms."""
    logarithms, count = [math.log(ratio) for ratio in ratios], len(ratios)
    t = _STUDENT[min(count - _LEAST_TEXTS, len(_STUDENT) - 1)]
    middle, half = fmean(logarithms), t * stdev(logarithms) / math.sqrt(count)
    return math.exp(middle - half), math.exp(middle + half)
