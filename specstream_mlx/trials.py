"""Real steps of the best few ways to draft, against what tables expect of them."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .adaptive import Arm
from .decoding import decode
from .replay import Recording
from .speculative_model import SpeculativeModel

_TOKENS = 32
_LEAST_STEPS = 4
_ROUNDS = 6


def corrected(
    model: SpeculativeModel,
    arms: Sequence[Arm],
    recordings: Sequence[Recording],
    seconds: float,
    kv_cache: Mapping[str, Any] | None = None,
) -> list[Arm]:
    """The arms with the time that their steps really take.

    The table of ``step_costs`` knows one shape for each number of nodes, and none of what happens
    between steps. Each arm decodes the beginnings of the texts, all arms in turn.

    Args:
        model: base and adapter.
        arms: as expected; their tokens per step are exact already.
        recordings: texts of which some are generated again.
        seconds: after which no further round begins; there is one in any case.
        kv_cache: arguments of ``decode`` for a quantized one.

    Returns:
        The arms in the same order.
    """
    end = time.perf_counter() + seconds
    ratios: list[list[float]] = [[] for _ in arms]
    texts = [text for text in recordings if len(text.tokens) > _LEAST_STEPS]
    for number in range(_ROUNDS if texts else 0):
        if number and time.perf_counter() > end:
            break
        text = texts[number % len(texts)]
        for arm, found in zip(arms, ratios, strict=True):
            found.append(_ratio(model, arm, text, kv_cache or {}))
    return [
        scaled(arm, statistics.median(found)) if found else arm
        for arm, found in zip(arms, ratios, strict=True)
    ]


def _ratio(
    model: SpeculativeModel, arm: Arm, text: Recording, kv_cache: Mapping[str, Any]
) -> float:
    """Seconds of the steps behind the first over what they should take."""
    count, expected, start = 0, 0.0, 0.0
    for step in decode(model, text.prompt, arm.settings, **kv_cache):
        if not count:
            start = time.perf_counter()
        else:
            expected += arm.cost(step.tested_nodes)
        count += len(step.tokens)
        if expected and count >= min(_TOKENS, len(text.tokens)):
            break
    return (time.perf_counter() - start) / expected


def scaled(arm: Arm, ratio: float) -> Arm:
    """``arm`` with steps that take ``ratio`` times as long."""
    return replace(
        arm,
        seconds=arm.seconds * ratio,
        host=arm.host * ratio,
        costs=tuple(cost * ratio for cost in arm.costs),
    )
