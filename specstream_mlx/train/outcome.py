"""The gain of a finished adapter on held-out prompts, over plain decoding and over lookup alone."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..generation import stream_generate
from ..loading import SpeculativeModel
from ..responses import decoding_rate

_ROUNDS = 2  # each way decodes a prompt so often, in turn with the others
_PAYS, _DRAFTED = 1.05, 1.05
"""Less of a gain cannot be told from the machine's own scatter; with fewer tokens a call the rule
for how much to draft has hardly drafted."""


@dataclass(frozen=True)
class Outcome:
    """Tokens per second of the adapter, and of lookup alone, over plain mlx_lm's on these weights.

    Geometric means over prompts, after the first token; calls are the target's.
    """

    speedup: float
    lookup: float
    call_reduction: float
    prompts: int

    def sentence(self) -> str:
        """The gain in one sentence."""
        texts = f"{self.prompts} held-out text" + "s" * (self.prompts > 1)
        won = f"decoding is {self.speedup:.2f} times as fast as plain mlx_lm on {texts}"
        calls = f"a call of the model writes {self.call_reduction:.2f} tokens"
        if self.call_reduction < _DRAFTED:
            calls += ", as hardly a draft was expected to earn its time"
        lookup = f"prompt lookup, which needs no streams, alone {self.lookup:.2f} times"
        if self.speedup >= _PAYS * max(1.0, self.lookup):
            return f"It paid: {won}, {lookup}; {calls}."
        if self.speedup > self.lookup:
            return f"It did not pay on this machine: {won}, within its scatter; {calls}."
        return f"It did not pay on this machine: {won}, and {lookup}; {calls}."


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 96,
    show: Callable[[float, float], None] = lambda done, total: None,
) -> Outcome:
    """Decode prompts greedily in three ways, in turn; a first round on the first is not counted."""
    bare = replace(model, streams=None)  # with its LoRA
    speedups, lookups, tokens, calls = [], [], 0, 0
    done, total = 0, 3 * (_ROUNDS * len(prompts) + 1)
    show(done, total)
    for place, prompt in enumerate(prompts):
        rates: dict[str, list[float]] = {"plain": [], "lookup": [], "streams": []}
        for number in range(0 if place == 0 else 1, _ROUNDS + 1):
            ways: dict[str, Iterable[Any]] = {
                "plain": mlx_lm.stream_generate(
                    model.model, tokenizer, list(prompt), max_tokens=max_tokens
                ),
                "lookup": stream_generate(bare, tokenizer, prompt, max_tokens),
                "streams": stream_generate(model, tokenizer, prompt, max_tokens),
            }
            for name, responses in ways.items():
                last = deque(responses, maxlen=1).pop()
                show(done := done + 1, total)
                if number and last.generation_tokens > 1:
                    rates[name].append(decoding_rate(last))
                if number and name == "streams":
                    tokens, calls = tokens + last.generation_tokens, calls + last.target_calls
        if all(rates.values()):
            plain = median(rates["plain"])
            speedups.append(median(rates["streams"]) / plain)
            lookups.append(median(rates["lookup"]) / plain)
    reduction = tokens / max(calls, 1)
    return Outcome(_mean(speedups), _mean(lookups), reduction, len(prompts))


def _mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean; of nothing 1."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0
