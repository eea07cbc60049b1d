"""``generate --compare``: the same run through plain mlx_lm, in turn with ours.

Both compute with the same arrays in the same dtype. mlx_lm by itself may hold another one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import mlx.core as mx

from ..drafting.settings import DraftSettings
from ..engine.kv import window_left_out
from ..responses import decoding_rate
from ..terminal.progress import progress
from .run import Run

PAIRS = 5


@dataclass(frozen=True)
class Difference:
    """The first difference of two outputs.

    Attributes:
        position: the number of the first token that differs, from 1.
        gap: our logit of our token less that of the other one (for a package, MLX's logits, its
            token first), or, where tokens are drawn, of the scores that they are drawn by;
            ``None`` where one output only goes on behind the other.
    """

    position: int
    gap: float | None


@dataclass(frozen=True)
class Pair:
    """Tokens per second behind the first token, of us and of mlx_lm, one right after the other."""

    ours: float
    plain: float

    @property
    def speedup(self) -> float:
        """Ratio of our rate to mlx_lm's."""
        return self.ours / self.plain


@dataclass(frozen=True)
class Comparison:
    """Texts and speeds of both sides.

    Attributes:
        plain_text: mlx_lm's text.
        pairs: by rising speedup; none where a side generated a single token, here or in each pair,
            ``None`` where nothing is timed.
        dtype: dtype that both sides compute in.
        own_dtype: dtype of mlx_lm when it loads the model by itself; ``None`` if our output is not
            compared with mlx_lm's.
        reference: name of the output that ours was compared with.
        identical: whether every token was the same; ``None`` where the verify rule draws otherwise
            than plain decoding.
        first_difference: the first difference, if there is one.
        window_left_out: the model's sliding window where that explains a difference: the text goes
            past it, and mlx_lm does not apply it.
    """

    plain_text: str
    pairs: list[Pair] | None
    dtype: str | None
    own_dtype: str | None
    reference: str
    identical: bool | None
    first_difference: Difference | None
    window_left_out: int | None

    @property
    def shown(self) -> Pair | None:
        """The pair in the middle, whose rates and speedup are shown."""
        return self.pairs[(len(self.pairs) - 1) // 2] if self.pairs else None


def compare(run: Run, tokens: list[int]) -> Comparison:
    """Run both sides in turn."""
    shared = run.model.mode == "shared" and run.is_plain_text
    with progress("Comparing") as show:
        # The main stream of a shared adapter sees its streams: mlx_lm computes another function.
        total, done = 2 * PAIRS + (2 if shared else 1), 0
        show(done, total)
        plain_tokens, plain_text = [], ""
        for response in run.plain_responses():
            plain_tokens.append(response.token)
            plain_text += response.text
        show(done := done + 1, total)
        for word in run.stop:
            plain_text = plain_text.split(word)[0]
        reference, expected = "plain mlx_lm", plain_tokens
        if shared:
            one_token_a_step = replace(run, settings=DraftSettings(speculation=False))
            reference = "one token a step"
            expected = [response.token for response in one_token_a_step.responses()]
            show(done := done + 1, total)
        several = min(len(tokens), len(plain_tokens)) > 1
        pairs = _pairs(run, lambda runs: show(done + runs, total)) if several else []
    same = tokens == expected if run.is_plain_text else None
    window = window_left_out(run.model.model, run.model.config)
    past_window = window is not None and len(run.prompt) + len(tokens) > window
    held = run.model.held
    return Comparison(
        plain_text=plain_text,
        pairs=sorted(pairs, key=lambda pair: pair.speedup),
        dtype=held.dtype if held else None,
        own_dtype=held.stored_dtype if held and expected is plain_tokens else None,
        reference=reference,
        identical=same,
        first_difference=_difference(run, tokens, expected) if same is False else None,
        window_left_out=(
            window if past_window and same is False and expected is plain_tokens else None
        ),
    )


def compare_texts(reference: Run, tokens: list[int]) -> Comparison:
    """Compare an exported package's output, token for token, with MLX's in float32.

    Args:
        reference: the same text by MLX, in float32.
        tokens: the package's output.
    """
    expected, text = [], ""
    with progress("Comparing") as show:
        for response in reference.responses():
            expected.append(response.token)
            text += response.text
            show(len(expected), reference.max_tokens)
    same = tokens == expected if reference.is_plain_text else None
    return Comparison(
        plain_text=text,
        pairs=None,
        dtype="float32",
        own_dtype=None,
        reference="MLX",
        identical=same,
        first_difference=_difference(reference, expected, tokens) if same is False else None,
        window_left_out=None,
    )


def _pairs(run: Run, count: Callable[[int], None]) -> list[Pair]:
    """Both sides in pairs, taking turns at going first; ``count`` is told the runs so far.

    A pair with a side that ended at its first token, as one that draws may, has no rates.
    """
    sides = {"ours": run.responses, "plain": run.plain_responses}
    pairs = []
    for number in range(PAIRS):
        rates = {}
        for name in ("ours", "plain") if number % 2 == 0 else ("plain", "ours"):
            last = deque(sides[name](), maxlen=1).pop()
            rates[name] = decoding_rate(last)
            count(2 * number + len(rates))
        if all(rates.values()):
            pairs.append(Pair(**rates))
    return pairs


def _difference(run: Run, tokens: list[int], expected: list[int]) -> Difference:
    pairs = enumerate(zip(tokens, expected, strict=False))
    place = next((i for i, (ours, other) in pairs if ours != other), None)
    if place is None:  # one output ends where the other goes on
        return Difference(min(len(tokens), len(expected)) + 1, None)
    response = next(islice(run.responses(), place, None))
    scores, sampler = response.logprobs.astype(mx.float32), run.common["sampler"]
    if sampler is not None:
        scores = sampler.scores(scores[None], place)[0]
    gap: Any = (scores[tokens[place]] - scores[expected[place]]).item()
    return Difference(place + 1, gap)
