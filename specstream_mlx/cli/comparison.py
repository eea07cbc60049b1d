"""``generate --compare``: the same text by plain mlx_lm, in turn with ours.

Both compute with the same arrays in the same dtype. mlx_lm by itself may hold another one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import mlx.core as mx

from ..drafting.settings import DraftSettings
from ..engine.kv import window_left_out
from ..responses import decoding_rate
from ..terminal.notes import note
from ..terminal.progress import progress
from .run import Decoding

PAIRS = 5


@dataclass(frozen=True)
class Comparison:
    """Texts and speeds of both sides.

    Attributes:
        plain_text: the other side's text.
        reference: name of the output that ours was compared with.
        identical: whether every token was the same; ``None``: the verify rule draws otherwise.
        first_difference: ``position`` of the first token that differs, from 1, and ``gap``: the
            logit of ours (of MLX's token, for a package) less that of the other one, or of what
            tokens are drawn by; ``None`` where one of the two ends there.
        rates: pairs of our tokens per second after the first token and mlx_lm's, by rising
            speedup; ``None`` where nothing is timed.
        dtype: dtype that both sides compute in.
        own_dtype: dtype of mlx_lm when it loads the model by itself, if it is the reference.
        window_left_out: the model's sliding window if mlx_lm differs as it does not apply it.
    """

    plain_text: str
    reference: str
    identical: bool | None
    first_difference: dict[str, Any] | None
    rates: list[tuple[float, float]] | None = None
    dtype: str | None = None
    own_dtype: str | None = None
    window_left_out: int | None = None

    @property
    def speedups(self) -> list[float]:
        """Our rate over mlx_lm's, of each pair."""
        return [ours / plain for ours, plain in self.rates or ()]

    def values(self) -> dict[str, Any]:
        """The fields that it adds to the JSON object of a generation."""
        speedups, middle = self.speedups, (len(self.speedups) - 1) // 2
        ours, plain = self.rates[middle] if self.rates else (None, None)
        values = {} if self.rates is None else {"generation_tps": ours}
        return values | {
            "plain": {"text": self.plain_text, "generation_tps": plain},
            "speedup": speedups[middle] if speedups else None,
            "speedup_range": [speedups[0], speedups[-1]] if speedups else None,
            "pairs": len(speedups),
            "dtype": self.dtype,
            "mlx_lm_dtype": self.own_dtype,
            "identical": self.identical,
            "first_difference": self.first_difference,
        }

    def show(self) -> None:
        """Print a pair of rates, the ratios of all pairs, and whether the outputs are the same."""
        note("=" * 10)
        if self.rates:
            speedups, middle = self.speedups, (len(self.rates) - 1) // 2
            ours, plain = self.rates[middle]
            note(f"mlx_lm: {plain:.3f} tokens-per-sec")
            note(f"specstream-mlx: {ours:.3f} tokens-per-sec")
            note(
                f"Speedup: {speedups[middle]:.2f} (the median pair of {len(speedups)}, "
                f"{speedups[0]:.2f} to {speedups[-1]:.2f}; first token left out)"
            )
        elif self.rates is not None:
            note("Rates: none, since a side generated a single token")
        if self.identical is None:
            note("Identical output: not asked, since this verify rule draws otherwise than mlx_lm")
            return
        answer = "yes" if self.identical else "no"
        if self.first_difference is not None:
            gap = self.first_difference["gap"]
            words = "where one of the two ends"
            if gap is not None:
                words = f"where the logits of the two tokens are {gap:.2g} apart"
            answer += f" (from token {self.first_difference['position']} on, {words})"
        dtype = f" in {self.dtype}" if self.dtype else ""
        note(f"Identical output: {answer}, compared with {self.reference}{dtype}")
        if self.own_dtype not in (None, self.dtype):
            note(f"By itself mlx_lm computes in {self.own_dtype}: near-ties may fall otherwise")
        if self.window_left_out is not None:
            note(f"mlx_lm leaves out this model's sliding window of {self.window_left_out} tokens")


def compare(decoding: Decoding, tokens: list[int]) -> Comparison:
    """Run both sides in turn; ``tokens`` are ours."""
    model = decoding.model
    # The main stream of a shared adapter sees its streams: mlx_lm computes another function.
    shared = model.mode == "shared" and decoding.is_plain_text
    with progress("Comparing") as show:
        total, done = 2 * PAIRS + (2 if shared else 1), 1
        show(0, total)
        plain_tokens, plain_text = [], ""
        for response in decoding.plain_responses():
            plain_tokens.append(response.token)
            plain_text += response.text
        for word in decoding.own["stop"]:
            plain_text = plain_text.split(word)[0]
        show(done, total)
        expected = plain_tokens
        if shared:
            own = decoding.own | {"settings": DraftSettings(speculation=False)}
            expected = [one.token for one in replace(decoding, own=own).responses()]
            show(done := done + 1, total)
        several = min(len(tokens), len(plain_tokens)) > 1
        rates = _rates(decoding, lambda runs: show(done + runs, total)) if several else []
    same = tokens == expected if decoding.is_plain_text else None
    held, differs = model.held, same is False and not shared
    window = window_left_out(model.model, model.config) if differs else None
    if window is not None and len(decoding.prompt) + len(tokens) <= window:
        window = None
    return Comparison(
        plain_text=plain_text,
        reference="one token a step" if shared else "plain mlx_lm",
        identical=same,
        first_difference=_difference(decoding, tokens, expected) if same is False else None,
        rates=rates,
        dtype=held.dtype if held else None,
        own_dtype=held.stored_dtype if held and not shared else None,
        window_left_out=window,
    )


def compare_package(reference: Decoding, tokens: list[int]) -> Comparison:
    """Compare an exported package's ``tokens`` with MLX's in float32."""
    expected, text = [], ""
    with progress("Comparing") as show:
        for response in reference.responses():
            expected.append(response.token)
            text += response.text
            show(len(expected), reference.common["max_tokens"])
    same = tokens == expected if reference.is_plain_text else None
    difference = _difference(reference, expected, tokens) if same is False else None
    return Comparison(text, "MLX", same, difference, dtype="float32")


def _rates(decoding: Decoding, count: Callable[[int], None]) -> list[tuple[float, float]]:
    """Run both sides in pairs, taking turns at going first; ``count`` gets the runs so far.

    A pair with a side that ended at its first token, as one that draws may, has no rates.
    """
    sides: list[Callable[[], Iterator[Any]]] = [decoding.responses, decoding.plain_responses]
    pairs = []
    for number in range(PAIRS):
        rates = [0.0, 0.0]
        for run, side in enumerate((0, 1) if number % 2 == 0 else (1, 0), start=1):
            rates[side] = decoding_rate(deque(sides[side](), maxlen=1).pop())
            count(2 * number + run)
        if all(rates):
            pairs.append((rates[0], rates[1]))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])


def _difference(decoding: Decoding, tokens: list[int], expected: list[int]) -> dict[str, Any]:
    """Find the first difference, see ``Comparison``."""
    pairs = enumerate(zip(tokens, expected, strict=False))
    place = next((i for i, (ours, other) in pairs if ours != other), None)
    if place is None:  # one output ends where the other goes on
        return {"position": min(len(tokens), len(expected)) + 1, "gap": None}
    response = next(islice(decoding.responses(), place, None))
    scores, sampler = response.logprobs.astype(mx.float32), decoding.common["sampler"]
    if sampler is not None:
        scores = sampler.scores(scores[None], place)[0]
    gap = (scores[tokens[place]] - scores[expected[place]]).item()
    return {"position": place + 1, "gap": gap}
