"""From steps to text: one response a token, up to where the text ends."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting.draft_stats import DraftStats
from ..errors import UserError
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from ..thoughts import Part, ThoughtSplitter
from .batch import fill, steps_of
from .request import Request
from .sequence import Step, TokenSequence


@dataclass
class GenerationResponse(PlainResponse):
    """mlx_lm's response, with counts so far; ``drafted_tokens`` are those that were tested."""

    target_calls: int = 0
    accepted_length: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_stats: DraftStats | None = None  # by the rule, where it decided how much is drafted


def decoding_rate(last: PlainResponse) -> float:
    """Return the tokens per second after the first; mlx_lm's rate counts that but not its time."""
    return last.generation_tps * (last.generation_tokens - 1) / last.generation_tokens


class Text:
    """What a sequence writes: takes its steps, up to its end or a stop string.

    No stop string ends a thought, unless what is written is ``raw``, of which nothing is one;
    ``closed`` and ``first`` say where there are none, see ``ThoughtSplitter``.
    """

    def __init__(
        self,
        tokenizer: TokenizerWrapper,
        request: Request,
        stop: Sequence[str] = (),
        raw: bool = False,
        closed: tuple[str, str] | None = None,
        first: bool = False,
    ):
        self.stopped_by: str | None = None  # the stop string that was met
        self._tokenizer, self._request, self._stop = tokenizer, request, stop
        with _every_token(tokenizer):
            self._detokenizer = tokenizer.detokenizer
        prompt_tokens, nothing = len(request.prompt), mx.array([])
        self.last = GenerationResponse("", 0, nothing, False, prompt_tokens, 0.0, 0, 0.0, 0.0)
        self._held = ""  # text that may be the beginning of a stop string
        self._thoughts: ThoughtSplitter | None = None
        if stop and not raw and tokenizer.think_start is not None:
            self._thoughts = ThoughtSplitter(tokenizer, request.prompt, closed, first)
        self._start = time.perf_counter()

    def take(self, step: Step) -> list[GenerationResponse]:
        """Return a response for each token of a step; the last one says whether the text ends."""
        last = self.last
        if last.target_calls == 0:
            now, cache = time.perf_counter(), self._request.prompt_cache
            read = last.prompt_tokens - (0 if cache is None else cache.reused)
            last.prompt_tps, self._start = read / (now - self._start), now
        last.target_calls += 1
        last.drafted_tokens += step.tested_nodes - 1
        last.draft_stats = None if step.planner is None else step.planner.draft_stats
        with mx.stream(running.generation_stream):
            log_probs = step.log_probs()
        if log_probs is not None:
            mx.async_eval(log_probs)  # else a response that is stored would hold all rows' logits
        responses = []
        for index, token in enumerate(step.tokens[: step.kept]):
            last.generation_tokens += 1
            last.token = token
            if log_probs is not None:
                last.logprobs = log_probs[index]
            last.from_draft = index < len(step.tokens) - 1
            last.accepted_tokens += last.from_draft
            last.finish_reason = step.finish_reason if index == step.kept - 1 else None
            last.text = self._text(token)
            elapsed = time.perf_counter() - self._start
            last.generation_tps = last.generation_tokens / max(elapsed, 1e-9)
            last.accepted_length = last.generation_tokens / last.target_calls
            last.peak_memory = mx.get_peak_memory() / 1e9
            responses.append(replace(last))
            if last.finish_reason:
                break
        return responses

    def _text(self, token: int) -> str:
        """Return what can be shown after one more token; a stop string ends the text."""
        last, detokenizer = self.last, self._detokenizer
        if last.finish_reason != "stop":  # else it is an end token
            with _every_token(self._tokenizer):
                detokenizer.add_token(token)
        if last.finish_reason:
            detokenizer.finalize()
        text = ""
        for part, piece in self._parts(detokenizer.last_segment):
            if part != "content":
                text, self._held = text + self._held + piece, ""
                continue
            sure, self._held, self.stopped_by = _cut(self._held + piece, self._stop)
            text += sure
            if self.stopped_by is not None:
                break
        if self.stopped_by is not None:
            last.finish_reason = "stop"
        elif last.finish_reason:
            text += self._held
        return text

    def _parts(self, text: str) -> Iterator[tuple[Part, str]]:
        """Yield what is known of the text, split where its thoughts begin and end."""
        if self._thoughts is None:
            yield "content", text
            return
        yield from self._thoughts.add(text)
        if self.last.finish_reason:
            yield from self._thoughts.end()


def respond(
    sequence: TokenSequence, tokenizer: TokenizerWrapper, stop: Sequence[str] = ()
) -> Iterator[GenerationResponse]:
    """Decode a single sequence, one response per token."""
    text = Text(tokenizer, sequence.request, stop)
    for step in steps_of(sequence):
        yield from text.take(step)
        if text.last.finish_reason:
            return


def responses(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    request: Request,
    stop: Sequence[str],
    caches: list[Any] | None,
) -> Generator[GenerationResponse, None, None]:
    """Decode a request while the weights are wired; in the end ``caches`` get the rows."""
    tokens: list[int] = []
    with running.wired(model.model):
        written: Any = respond(TokenSequence(model, request), tokenizer, stop)
        try:
            for response in written:
                tokens.append(response.token)
                yield response
        finally:
            written.close()
            cache = request.prompt_cache
            if tokens and caches is not None and cache is not None:
                # The last token's row is missing; in shared mode all rows of the text are.
                rows = [*request.prompt, *tokens]
                fill(cache, model, rows, request.prefill_step_size, request.quantization)
                cache.into_list(caches)


@contextmanager
def _every_token(tokenizer: TokenizerWrapper) -> Iterator[None]:
    """Name the id without a token on which mlx_lm's detokenizer fails within the context."""
    try:
        yield
    except (AttributeError, IndexError, TypeError):
        known = set(tokenizer.get_vocab().values())
        hole = next(token for token in count() if token not in known)
        raise UserError(
            f"the tokenizer has no token {hole}, expected one for each id that the model writes"
        ) from None


def _cut(text: str, stop: Sequence[str]) -> tuple[str, str, str | None]:
    """What may be shown, what may begin a stop string, and the one that was met."""
    if met := [(text.find(word), word) for word in stop if word in text]:
        # The one that is complete first, as if the text came by single characters.
        place, first = min(met, key=lambda one: (one[0] + len(one[1]), one[0]))
        return text[:place], "", first
    for size in range(min(len(text), max((len(word) for word in stop), default=1) - 1), 0, -1):
        if any(word.startswith(text[-size:]) for word in stop):
            return text[:-size], text[-size:], None
    return text, "", None
