"""One text: its prompt is read, then decoded step by step, in turns that others may lie between."""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting import Drafting
from ..drafting.pace import auto_drafting
from ..drafting.settings import DraftSettings
from ..engine.guesses import NO_GUESSES, StreamGuesses
from ..engine.kv_quantization import NEVER_QUANTIZED
from ..engine.plan import Plan
from ..engine.sampling import Sampling, keyed_sampler
from ..engine.step import Decoder
from ..generation import respond
from ..loading import SpeculativeModel
from ..loop import Request, decode, prefill
from ..prompt_cache import PromptCache
from .prefixes import Prefixes

CHUNK = 512
"""Prompt tokens that are read before others have a turn."""

GREEDY = Sampling()

_NO_DRAFTS = DraftSettings(speculation=False)


@dataclass(frozen=True)
class Token:
    """A token that was written.

    Attributes:
        text: what can be read now, which may lag behind the token.
        id: token id.
        logprob: its log-probability in nats, after processors and before the temperature; ``None``:
            nobody asked.
        top: the likeliest tokens with theirs, as many as were asked for.
        drafted_by: who guessed it; ``None``: it is the target's own.
    """

    text: str
    id: int
    logprob: float | None = None
    top: Sequence[tuple[int, float]] = ()
    drafted_by: str | None = None


@dataclass(frozen=True)
class Read:
    """So many tokens of a prompt have been read."""

    tokens: int
    total: int


@dataclass(frozen=True)
class Written:
    """The tokens of one step."""

    tokens: Sequence[Token]


@dataclass
class Ended:
    """A text is complete.

    Attributes:
        reason: ``stop`` or ``length``.
        prompt_tokens, cached_tokens: of the prompt, and how many of them had been read before.
        tokens: written, the end token included.
        target_calls, drafted_tokens, accepted_tokens: as ``GenerationResponse`` has them.
        drafted_by: accepted drafts by who guessed them: ``streams``, or else ``lookup``.
        stopped_by: the stop string that was met.
        seed: of what was drawn; ``None``: nothing was.
    """

    reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    target_calls: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by: Counter[str] = field(default_factory=Counter)
    stopped_by: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Asked:
    """What a client asks for, checked.

    Attributes:
        name: of the model, as the client knows it.
        model: base and adapter.
        prompt: token ids.
        max_tokens: the most tokens of the text.
        sampling: ``temp`` of 0 takes the likeliest token.
        seed: of what is drawn.
        stop: strings that end the text.
        draft: whether drafts are made, which changes no text.
        processors: makers of logits processors, one for each text.
        top_logprobs: the likeliest tokens to report for each; ``None``: no log-probabilities.
    """

    name: str
    model: SpeculativeModel
    prompt: list[int]
    max_tokens: int
    sampling: Sampling = GREEDY
    seed: int = 0
    stop: tuple[str, ...] = ()
    draft: bool = True
    processors: Sequence[Callable[[], LogitsProcessor]] = ()
    top_logprobs: int | None = None

    def request(self, end_tokens: Sequence[int] = ()) -> Request:
        """The request of ``decode``, which draws nothing yet; its ``check`` says what is wrong."""
        return Request(
            self.prompt,
            None if self.draft else _NO_DRAFTS,
            max_tokens=self.max_tokens,
            end_tokens=end_tokens,
            prefill_step_size=CHUNK,
            sampler=self.sampling,
        )


def decoded(
    asked: Asked,
    tokenizer: TokenizerWrapper,
    prefixes: Prefixes,
    is_alone: Callable[[], bool],
) -> Iterator[Read | Written | Ended]:
    """Write one text, a turn at a time.

    Args:
        asked: what to write.
        tokenizer: the model's.
        prefixes: rows of prompts that were read before; they get those of this one.
        is_alone: tells whether no other text was decoded since the last turn, so that a turn's
            time is this text's own.
    """
    model, prompt = asked.model, asked.prompt
    cache = prefixes.cache_for(model.model, prompt)
    for read in read_prompt(model, prompt, cache):
        yield Read(read, len(prompt))
    ended = Ended(prompt_tokens=len(prompt), cached_tokens=cache.reused)
    prefixes.keep(model.model, cache)
    request = asked.request(tokenizer.eos_token_ids)
    drafting, drafters = request.drafting, deque[str]()
    if drafting is None:
        drafting = Watched(auto_drafting(model, prompt), is_alone, drafters)
    sampler = None
    if asked.sampling.temp:
        sampler, ended.seed = keyed_sampler(asked.seed, sampler=asked.sampling), asked.seed
    processors = [make() for make in asked.processors]
    request = replace(
        request,
        drafting=drafting,
        prompt_cache=cache,
        sampler=sampler,
        logits_processors=processors,
    )
    tokens: list[Token] = []
    ids: list[int] = []
    for response in respond(tokenizer, request, decode(model, request), asked.stop):
        token = _token(response.text, response.token, response.logprobs, asked.top_logprobs)
        if response.from_draft:
            drafter = drafters.popleft()
            token = replace(token, drafted_by=drafter)
            ended.drafted_by[drafter] += 1
        tokens.append(token)
        ids.append(response.token)
        if response.finish_reason or not response.from_draft:
            yield Written(tokens)
            tokens = []
    ended.reason, ended.tokens = response.finish_reason or "", response.generation_tokens
    ended.target_calls = response.target_calls
    ended.drafted_tokens, ended.accepted_tokens = response.drafted_tokens, response.accepted_tokens
    if ended.reason == "stop" and response.token not in tokenizer.eos_token_ids:
        text = tokenizer.decode(ids)
        met = [word for word in asked.stop if word in text]
        ended.stopped_by = min(met, key=text.find, default=asked.stop[0])
    prefixes.keep(model.model, cache)
    yield ended


def read_prompt(
    model: SpeculativeModel, prompt: Sequence[int], cache: PromptCache
) -> Iterator[int]:
    """Read a prompt but for its last token into ``cache``, and yield how many tokens are read."""
    generation = cache.begin(model, prompt, NEVER_QUANTIZED)
    decoder = Decoder(model.model, model.streams, cache.caches)
    cache.caches = decoder.caches
    unread, reused = prompt[cache.reused : -1], cache.reused
    for read in prefill(decoder, unread, CHUNK):
        yield reused + read
    cache.extend(generation, unread)


def _token(text: str, token: int, log_probs: mx.array, top: int | None) -> Token:
    if top is None:
        return Token(text, token)
    best: Any = []
    if top:
        best = mx.argpartition(-log_probs, top - 1)[:top].tolist()
    scores: Any = log_probs[mx.array([token, *best])].tolist()
    pairs = sorted(zip(best, scores[1:], strict=True), key=lambda pair: -pair[1])
    return Token(text, token, scores[0], pairs)


class Watched:
    """A drafting that is told the time of its own steps alone, and notes whose drafts are accepted.

    Args:
        drafting: of this text.
        is_alone: see ``decoded``.
        drafters: gets, for each accepted draft, who guessed it: ``streams``, or else ``lookup``.
    """

    def __init__(self, drafting: Drafting, is_alone: Callable[[], bool], drafters: deque[str]):
        self._drafting, self._is_alone, self._drafters = drafting, is_alone, drafters
        self._guesses: StreamGuesses = NO_GUESSES

    def first(self, root: int) -> Plan:
        """Plan the first step."""
        return self._drafting.first(root)

    def accept(self, plan: Plan, tokens: Sequence[int], seconds: float | None) -> None:
        """Learn from a step."""
        for depth, token in enumerate(tokens[:-1]):
            guessed = dict(self._guesses.behind(tuple(tokens[:depth])))
            self._drafters.append("streams" if token in guessed else "lookup")
        self._drafting.accept(plan, tokens, seconds if self._is_alone() else None)

    def plan(self, root: int, guesses: StreamGuesses) -> Plan:
        """Plan the next step."""
        self._guesses = guesses
        return self._drafting.plan(root, guesses)

    def finish(self) -> None:
        """Keep what outlives the text."""
        self._drafting.finish()
