"""Real steps of some ways to draft, against what tables expect of them."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from ..loading import SpeculativeModel
from ..loop import Request, decode
from .adaptive import Arm
from .drift import without_drift
from .replay import Recording

_TOKENS = 32
_LEAST_STEPS = 4
_ROUNDS = 12
_DOUBT = 12  # trials' worth of belief that no group is off more than another
_PROMISING = 0.85  # of the best arm's rate


def corrected(
    model: SpeculativeModel,
    arms: Sequence[Arm],
    recordings: Sequence[Recording],
    seconds: float,
    quantization: KVQuantization = NEVER_QUANTIZED,
) -> list[Arm]:
    """The arms with the time that their steps really take.

    The table of ``step_costs`` knows one shape for each number of nodes, and none of what happens
    between steps. What is off is off for all arms of a group alike: the same drafters, streams in
    the same place, chains or trees. So each group's best arm decodes the beginnings of the texts,
    all in turn, if it has a chance at all.

    Args:
        model: base and adapter.
        arms: as expected, the best first; their tokens per step are exact already.
        recordings: texts of which some are generated again.
        seconds: after which no further round begins; there is one in any case.
        quantization: of the KV cache.

    Returns:
        The arms, the best first.
    """
    end = time.perf_counter() + seconds
    tried: dict[Hashable, Arm] = {}
    for arm in arms:
        if arm.kind == "plain" or arm.rate > _PROMISING * arms[0].rate:
            tried.setdefault(_group(arm), arm)
    found: list[tuple[Hashable, float]] = []
    texts = [text for text in recordings if len(text.tokens) > _LEAST_STEPS]
    orders = random.Random(0)
    for number in range(_ROUNDS if texts else 0):
        if number and time.perf_counter() > end:
            break
        text = texts[number % len(texts)]
        for group in orders.sample(list(tried), len(tried)):
            found.append((group, _ratio(model, tried[group], text, quantization)))
    usual, ratios = relative(found)
    result = [scaled(arm, ratios.get(_group(arm), usual)) for arm in arms]
    return sorted(result, key=lambda arm: -arm.rate)


def relative(found: Sequence[tuple[Hashable, float]]) -> tuple[float, dict[Hashable, float]]:
    """What all groups are off by, and each, the machine's drift taken out.

    Args:
        found: groups and seconds over what they should be, in the order of the trials.

    Returns:
        1 and nothing where there was no trial.
    """
    if not found:
        return 1.0, {}
    steady, rounds = without_drift(found), Counter(group for group, _ in found)
    usual = statistics.geometric_mean(steady.values())
    return usual, {
        group: usual * (off / usual) ** (rounds[group] / (rounds[group] + _DOUBT))
        for group, off in steady.items()
    }


def _group(arm: Arm) -> Hashable:
    settings = arm.settings
    return arm.kind, settings.deferred, settings.stream_nodes, settings.tree_width == 1


def _ratio(
    model: SpeculativeModel, arm: Arm, text: Recording, quantization: KVQuantization
) -> float:
    """Seconds of the steps behind the first over what they should take."""
    count, expected, start = 0, 0.0, 0.0
    for step in decode(model, Request(text.prompt, arm.settings, quantization=quantization)):
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
