"""From the steps of a request to text: one response a token, up to where the text ends."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .drafting.rule_report import Seen
from .errors import UserError
from .hardware import running
from .loading import SpeculativeModel
from .request import Request
from .scheduler import Step, fill


@dataclass
class GenerationResponse(PlainResponse):
    """mlx_lm's response, with counts so far; ``drafted_tokens`` are those that were tested."""

    target_calls: int = 0
    accepted_length: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    seen: Seen | None = None  # by the rule, where it decided how much is drafted


def decoding_rate(last: PlainResponse) -> float:
    """Return the tokens per second after the first; mlx_lm's rate counts that but not its time."""
    return last.generation_tps * (last.generation_tokens - 1) / last.generation_tokens


def responses(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    request: Request,
    steps: Iterator[Step],
    stop: tuple[str, ...],
    caches: list[Any] | None,
) -> Generator[GenerationResponse, None, None]:
    """Yield responses while the weights are wired; in the end ``caches`` get the rows."""
    text: list[int] = []
    written: Any = respond(tokenizer, request, steps, stop)
    with running.wired(model.model):
        try:
            for response in written:
                text.append(response.token)
                yield response
        finally:
            written.close()
            cache = request.prompt_cache
            if text and caches is not None and cache is not None:
                # The last token's row is missing; in shared mode all rows of the text are.
                rows = [*request.prompt, *text]
                fill(cache, model, rows, request.prefill_step_size, request.quantization)
                cache.into_list(caches)


def respond(
    tokenizer: TokenizerWrapper, request: Request, steps: Iterator[Step], stop: tuple[str, ...] = ()
) -> Iterator[GenerationResponse]:
    """Turn the steps of a request into text, up to its length, an end token or a stop string."""
    prompt_tokens, prompt_cache = len(request.prompt), request.prompt_cache
    with _every_token(tokenizer):
        detokenizer = tokenizer.detokenizer
    response = GenerationResponse("", 0, mx.array([]), False, prompt_tokens, 0.0, 0, 0.0, 0.0)
    held = ""  # text that may be the beginning of a stop string
    start = time.perf_counter()
    for step in steps:
        if response.generation_tokens == 0:
            now = time.perf_counter()
            reused = 0 if prompt_cache is None else prompt_cache.reused
            response.prompt_tps = (prompt_tokens - reused) / (now - start)
            start = now
        response.target_calls += 1
        response.drafted_tokens += step.tested_nodes - 1
        response.seen = None if step.planner is None else step.planner.seen
        with mx.stream(running.generation_stream):
            log_probs = step.log_probs()
        if log_probs is not None:
            mx.async_eval(log_probs)  # else a response that is stored would hold all rows' logits
        for index, token in enumerate(step.tokens):
            response.generation_tokens += 1
            response.token = token
            if log_probs is not None:
                response.logprobs = log_probs[index]
            response.from_draft = index < len(step.tokens) - 1
            response.accepted_tokens += response.from_draft
            ended = token in tokenizer.eos_token_ids
            if not ended:
                with _every_token(tokenizer):
                    detokenizer.add_token(token)
            if ended:
                response.finish_reason = "stop"
            elif response.generation_tokens == request.max_tokens:
                response.finish_reason = "length"
            if response.finish_reason:
                detokenizer.finalize()
            text, held, stopped = _cut(held + detokenizer.last_segment, stop)
            if stopped:
                response.finish_reason = "stop"
            elif response.finish_reason:
                text, held = text + held, ""
            elapsed = time.perf_counter() - start
            response.generation_tps = response.generation_tokens / max(elapsed, 1e-9)
            response.accepted_length = response.generation_tokens / response.target_calls
            response.peak_memory = mx.get_peak_memory() / 1e9
            yield replace(response, text=text)
            if response.finish_reason:
                return


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


def _cut(text: str, stop: tuple[str, ...]) -> tuple[str, str, bool]:
    """What may be shown, what may begin a stop string, and whether one was met."""
    starts = [text.find(word) for word in stop if word in text]
    if starts:
        return text[: min(starts)], "", True
    for size in range(min(len(text), max((len(word) for word in stop), default=1) - 1), 0, -1):
        if any(word.startswith(text[-size:]) for word in stop):
            return text[:-size], text[-size:], False
    return text, "", False
