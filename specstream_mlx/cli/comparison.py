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
from ..responses import decoding_rate
from ..terminal.notes import note
from ..terminal.progress import progress
from .run import Decoding

PAIRS = 5


@dataclass(frozen=True)
class Comparison:
    """Texts and speeds of both sides.

    Attributes:
        reference: name of the output that ours was compared with.
        identical: whether every token was the same; ``None``: the verify rule draws otherwise.
        first_difference: ``position`` of the first token that differs, from 1, and ``gap``: the
            logit of ours less that of the other one, or of what tokens are drawn by; ``None`` where
            one of the two ends there.
        rates: pairs of our tokens per second after the first token and mlx_lm's, by rising speedup.
        dtype: dtype that both sides compute in.
        own_dtype: dtype of mlx_lm when it loads the model by itself, if it is the reference.
    """

    plain_text: str
    reference: str
    identical: bool | None
    first_difference: dict[str, Any] | None
    rates: list[tuple[float, float]]
    dtype: str | None
    own_dtype: str | None

    def values(self) -> dict[str, Any]:
        """The fields that it adds to the JSON object of a generation."""
        speedups, middle = [ours / plain for ours, plain in self.rates], (len(self.rates) - 1) // 2
        ours, plain = self.rates[middle] if self.rates else (None, None)
        return {
            "generation_tps": ours,
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
        values = self.values()
        note("=" * 10)
        if self.rates:
            low, high = values["speedup_range"]
            note(f"mlx_lm: {values['plain']['generation_tps']:.3f} tokens-per-sec")
            note(f"specstream-mlx: {values['generation_tps']:.3f} tokens-per-sec")
            note(
                f"Speedup: {values['speedup']:.2f} (the median pair of {len(self.rates)}, "
                f"{low:.2f} to {high:.2f}; first token left out)"
            )
        else:
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


def compare(decoding: Decoding, tokens: list[int]) -> Comparison:
    """Run both sides in turn; ``tokens`` are ours."""
    model, held = decoding.model, decoding.model.held
    as_plain = decoding.own["verify"].name in ("greedy", "keyed")
    # The main stream of a shared adapter sees its streams: mlx_lm computes another function.
    shared = model.mode == "shared" and as_plain
    with progress("Comparing") as show:
        total, done = 2 * PAIRS + 1 + shared, 1
        show(0, total)
        expected, plain_text = [], ""
        for response in decoding.plain_responses():
            expected.append(response.token)
            plain_text += response.text
        for word in decoding.own["stop"]:
            plain_text = plain_text.split(word)[0]
        show(done, total)
        several = min(len(tokens), len(expected)) > 1
        if shared:
            own = decoding.own | {"settings": DraftSettings(speculation=False)}
            expected = [one.token for one in replace(decoding, own=own).responses()]
            show(done := done + 1, total)
        rates = _rates(decoding, lambda runs: show(done + runs, total)) if several else []
    same = tokens == expected if as_plain else None
    return Comparison(
        plain_text,
        "one token a step" if shared else "plain mlx_lm",
        same,
        _difference(decoding, tokens, expected) if same is False else None,
        rates,
        held.dtype if held else None,
        held.stored_dtype if held and not shared else None,
    )


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
