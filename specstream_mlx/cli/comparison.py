"""``generate --compare``: the same run through plain mlx_lm, in turn with ours."""

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import mlx.core as mx
from mlx_lm.generate import GenerationResponse as PlainResponse
from rich.console import Console
from rich.progress import track

from ..drafting.settings import DraftSettings
from ..engine.kv import window_left_out
from .run import Run

PAIRS = 5


@dataclass(frozen=True)
class Difference:
    """Where two outputs part: the token's number, from 1, and the gap of the two best there.

    The gap is one of log-probabilities, or, where tokens are drawn, of the scores drawn by.
    """

    position: int
    gap: float


@dataclass(frozen=True)
class Comparison:
    """What both sides wrote and how fast.

    Attributes:
        plain_text: what mlx_lm wrote.
        plain_tps: mlx_lm's tokens per second without the first token, the median over the pairs;
            ``None`` where a side generated a single token, here or in every pair.
        generation_tps: ours.
        speedup: the median of the ratios within a pair.
        pairs: how many pairs the rates are of.
        reference: what our output was compared with, for people.
        identical: whether every token was the same; ``None`` where the verify rule draws otherwise
            than plain decoding.
        first_difference: where not.
        window_left_out: the model's sliding window where that explains a difference: the text goes
            past it, and mlx_lm does not apply it.
    """

    plain_text: str
    plain_tps: float | None
    generation_tps: float | None
    speedup: float | None
    pairs: int
    reference: str
    identical: bool | None
    first_difference: Difference | None
    window_left_out: int | None


def compare(run: Run, tokens: list[int]) -> Comparison:
    """Run both sides in turn.

    Args:
        run: what to generate from.
        tokens: our output; producing it has warmed our side up.
    """
    plain_tokens, plain_text = [], ""
    for response in run.plain_responses():
        plain_tokens.append(response.token)
        plain_text += response.text
    for word in run.stop:
        plain_text = plain_text.split(word)[0]
    reference, expected = "plain mlx_lm", plain_tokens
    if run.model.mode == "shared" and run.is_plain_text:
        # The main stream sees its streams, so mlx_lm computes another function.
        one_token_a_step = replace(run, settings=DraftSettings(speculation=False))
        reference = "the same model decoding one token a step"
        expected = [response.token for response in one_token_a_step.responses()]
    several = min(len(tokens), len(plain_tokens)) > 1
    ours, plain = _rates(run) if several else ([], [])
    same = tokens == expected if run.is_plain_text else None
    window = window_left_out(run.model.model, run.model.config)
    past_window = window is not None and len(run.prompt) + len(tokens) > window
    return Comparison(
        plain_text=plain_text,
        plain_tps=_median(plain),
        generation_tps=_median(ours),
        speedup=_median([a / b for a, b in zip(ours, plain, strict=True)]),
        pairs=len(ours),
        reference=reference,
        identical=same,
        first_difference=_difference(run, tokens, expected) if same is False else None,
        window_left_out=(
            window if past_window and same is False and expected is plain_tokens else None
        ),
    )


def _rates(run: Run) -> tuple[list[float], list[float]]:
    """Our rates and mlx_lm's, pair by pair; the sides take turns at going first.

    A pair with a side that ended at its first token, as one that draws may, has no rates.
    """
    console = Console(stderr=True)
    sides: list[Callable[[], Iterator[PlainResponse]]]
    sides = [run.responses, run.plain_responses]
    rates: list[list[float]] = [[], []]
    for pair in track(
        range(PAIRS), "Comparing", console=console, transient=True, disable=not console.is_terminal
    ):
        found = {side: _rate(sides[side]()) for side in ((0, 1), (1, 0))[pair % 2]}
        if all(found.values()):
            for side, rate in found.items():
                rates[side].append(rate)
    return rates[0], rates[1]


def _rate(responses: Iterable[PlainResponse]) -> float:
    """Tokens per second after the first token of a generation that is run to its end."""
    last = deque(responses, maxlen=1).pop()
    # mlx_lm's rate counts the first token but not its time.
    return last.generation_tps * (last.generation_tokens - 1) / last.generation_tokens


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _difference(run: Run, tokens: list[int], expected: list[int]) -> Difference:
    pairs = enumerate(zip(tokens, expected, strict=False))
    ended = min(len(tokens), len(expected)) - 1  # where one output ends and the other goes on
    place = next((i for i, (ours, other) in pairs if ours != other), ended)
    response = next(islice(run.responses(), place, None))
    scores, sampler = response.logprobs.astype(mx.float32), run.common["sampler"]
    if sampler is not None:
        scores = sampler.scores(scores[None], place)[0]
    best = mx.sort(scores)[-2:]
    return Difference(place + 1, (best[1] - best[0]).item())
