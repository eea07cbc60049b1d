"""Decoding for ``generate --compare``: by this project and by plain mlx_lm, in turn.

Both compute with the same arrays in the same dtype. If the files hold other weights, mlx_lm is also
timed on these, as a user runs it; on a CPU only if asked for.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx_lm

from ..drafting.settings import DraftSettings
from ..generation.stream_generate import stream_generate
from ..generation.text import decoding_rate
from ..hardware import device
from ..hardware.cpu import stock_modules
from ..terminal.notes import note
from ..terminal.progress import progress, track

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse as PlainResponse
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..generation.request import Progress
    from ..generation.text import GenerationResponse
    from ..loading.speculative_model import SpeculativeModel

PAIRS = 5


@dataclass(frozen=True)
class ComparedDecoding:
    """A prompt and arguments of ``stream_generate``: those of mlx_lm's, and ``extra`` ones."""

    model: "SpeculativeModel"
    tokenizer: "TokenizerWrapper"
    prompt: list[int]
    common: dict[str, Any]
    extra: dict[str, Any]

    def responses(self, progress: "Progress | None" = None) -> "Iterator[GenerationResponse]":
        """This project's responses; ``progress`` gets how far the prompt has been read."""
        more = {"prompt_progress_callback": progress, **self.common, **self.extra}
        return stream_generate(self.model, self.tokenizer, self.prompt, **more)

    def plain_responses(self) -> "Iterator[PlainResponse]":
        """mlx_lm's responses on the same model and its own modules, broken off at a stop string.

        Read these to the end before you use the model for anything else.
        """
        text, common, model = "", self.common, self.model.model
        if common["sampler"] is not None:  # a fresh one, since it counts mlx_lm's calls
            common = common | {"sampler": replace(common["sampler"])}
        with stock_modules(model):
            for response in mlx_lm.stream_generate(model, self.tokenizer, self.prompt, **common):
                text += response.text
                yield response
                if any(word in text for word in self.extra["stop"]):
                    return


@dataclass(frozen=True)
class Comparison:
    """The fields that ``--compare`` adds to a JSON object, and the name of the reference."""

    values: dict[str, Any]
    reference: str

    def show(self) -> None:
        """Print a pair of rates, the ratios of all pairs, and whether the outputs are the same."""
        values, dtype = self.values, self.values["dtype"]
        note("=" * 10)
        rates = values["pairs"]
        if rates:
            low, high = values["speedup_range"]
            note(f"mlx_lm: {values['plain']['generation_tps']:.3f} tokens-per-sec")
            note(f"specstream-mlx: {values['generation_tps']:.3f} tokens-per-sec")
            note(
                f"Speedup: {values['speedup']:.2f} (the median pair of {rates}, "
                f"{low:.2f} to {high:.2f}; first token left out)"
            )
        else:
            note("Rates: none, since a side generated a single token")
        if values["identical"] is None:
            note("Identical output: not compared: this verify rule samples differently from mlx_lm")
            return
        if by_itself := values["mlx_lm_by_itself"]:
            rate = by_itself["generation_tps"]
            faster = f", {values['generation_tps'] / rate:.1f} times slower" if rates else ""
            how = f"{by_itself['weights']} weights, {by_itself['dtype']}"
            note(f"mlx_lm as a user runs it, {how}: {rate:.3f} tokens-per-sec{faster}")
        answer = "yes"
        if difference := values["first_difference"]:
            words = "where one of the two ends"
            if difference["gap"] is not None:
                words = f"where the logits of the two tokens are {difference['gap']:.2g} apart"
            answer = f"no (from token {difference['position']} on, {words})"
        computed = f" in {dtype}" if dtype else ""
        note(f"Identical output: {answer}, compared with {self.reference}{computed}")
        if values["mlx_lm_dtype"] not in (None, dtype):
            usual = values["mlx_lm_dtype"]
            note(f"By itself mlx_lm computes in {usual}: near-ties may fall otherwise")


def compare(decoding: ComparedDecoding, as_stored: bool, tokens: list[int]) -> Comparison:
    """Run both sides in turn; ``tokens`` are ours.

    mlx_lm by itself is timed too, on a CPU only ``as_stored``: packed products are slow there.
    """
    from specstream_mlx.benchmarks.runner import mlx_lm_by_itself

    model, held = decoding.model, decoding.model.held
    as_plain = decoding.extra["verify"].name in ("greedy", "keyed")
    # The main stream of a shared adapter sees its streams: mlx_lm computes another function.
    shared = model.mode == "shared" and as_plain
    with progress("Comparing"):
        expected, plain_text = [], ""
        for response in decoding.plain_responses():
            expected.append(response.token)
            plain_text += response.text
        for word in decoding.extra["stop"]:
            plain_text = plain_text.split(word)[0]
        several = min(len(tokens), len(expected)) > 1
        if shared:
            plainly = decoding.extra | {"settings": DraftSettings(speculation=False)}
            expected = [each.token for each in replace(decoding, extra=plainly).responses()]
        rates = _rates(decoding) if several else []
        is_timed = as_stored or device.backend() != "cpu"
        by_itself = mlx_lm_by_itself(model, decoding.prompt) if is_timed else None
    same = tokens == expected if as_plain else None
    speedups, middle = [ours / plain for ours, plain in rates], (len(rates) - 1) // 2
    ours, plain = rates[middle] if rates else (None, None)
    values = {
        "generation_tps": ours,
        "plain": {"text": plain_text, "generation_tps": plain},
        "speedup": speedups[middle] if speedups else None,
        "speedup_range": [speedups[0], speedups[-1]] if speedups else None,
        "pairs": len(speedups),
        "mlx_lm_by_itself": by_itself,
        "dtype": held.dtype if held else None,
        "mlx_lm_dtype": held.stored_dtype if held and not shared else None,
        "identical": same,  # None: the verify rule draws otherwise
        "first_difference": _difference(decoding, tokens, expected) if same is False else None,
    }
    return Comparison(values, "one token a step" if shared else "plain mlx_lm")


def _rates(decoding: ComparedDecoding) -> list[tuple[float, float]]:
    """Rates of both sides, by rising speedup, run in pairs whose first side alternates."""
    sides: Any = (decoding.responses, decoding.plain_responses)
    pairs = []
    for number in track(range(PAIRS), "Timing both"):
        rates = [0.0, 0.0]
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            rates[side] = decoding_rate(deque(sides[side](), maxlen=1).pop())
        if all(rates):  # neither side ended at its first token, as one that draws may
            pairs.append((rates[0], rates[1]))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])


def _difference(
    decoding: ComparedDecoding, tokens: list[int], expected: list[int]
) -> dict[str, Any]:
    """The first token that differs, from 1, and by how much its logit (or score) is the larger."""
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
