"""The gain of a finished adapter on held-out prompts, over plain decoding and over lookup alone."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import geometric_mean, median
from typing import Any

import mlx_lm
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..generation import stream_generate
from ..loading import SpeculativeModel
from ..responses import decoding_rate

_ROUNDS = 2  # each way decodes a prompt so often, in turn with the others
_PAYS = 1.05  # less of a gain cannot be told from the machine's own scatter
_DRAFTED = 1.05  # with fewer tokens a call the rule has hardly drafted


def measure(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 96,
    show: Callable[[float, float], None] = lambda done, total: None,
) -> str:
    """Say what streams bring, by decoding prompts greedily in three ways, in turn.

    Rates are tokens per second after the first token, over plain mlx_lm's on these weights, and
    their geometric means over prompts count. The first prompt has a round more, uncounted.
    """
    bare = replace(model, streams=None)  # with its LoRA
    speedups, lookups, tokens, calls = [], [], 0, 0  # of the streams
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
    speedup, lookup = geometric_mean(speedups or [1.0]), geometric_mean(lookups or [1.0])
    texts = f"{len(prompts)} held-out text" + "s" * (len(prompts) > 1)
    paid = "It paid" if speedup >= _PAYS * max(1.0, lookup) else "It did not pay on this machine"
    rarely = ", as hardly a draft was expected to earn its time" * (reduction < _DRAFTED)
    return (
        f"{paid}: decoding is {speedup:.2f} times as fast as plain mlx_lm on {texts}, prompt "
        f"lookup, which needs no streams, alone {lookup:.2f} times; a call of the model writes "
        f"{reduction:.2f} tokens{rarely}."
    )
