"""Texts: each prompt is read in turns, then texts of one model are decoded in one pass."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import LogitsProcessor
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting import Planner
from ..drafting.cost import BatchCosts
from ..drafting.rule import rule_planner
from ..drafting.settings import DraftSettings
from ..engine.guess import NO_GUESSES, StreamGuesses
from ..engine.plan import NOTHING_VERIFIED, Plan, Verified
from ..engine.sampling import Sampling, keyed_sampler
from ..errors import UserError
from ..kv_store import PromptCache
from ..loading import SpeculativeModel
from ..request import Request
from ..responses import GenerationResponse, respond
from ..scheduler import Scheduler, Step, TokenSequence, check_side_by_side, share_a_pass
from .prefixes import Prefixes

CHUNK = 512
"""Prompt tokens that are read before others have a turn."""

GREEDY = Sampling()

_NO_DRAFTS = DraftSettings(speculation=False)

_NUMBERS = count()
"""Numbers by which other ranks know texts and batches."""


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
        """The request for the loop, which draws nothing yet; its ``check`` says what is wrong."""
        return Request(
            self.prompt,
            None if self.draft else _NO_DRAFTS,
            max_tokens=self.max_tokens,
            end_tokens=end_tokens,
            prefill_step_size=CHUNK,
            sampler=self.sampling,
        )


def tell(model: SpeculativeModel, verb: str, *arguments: Any) -> None:
    """Tell other ranks, if there are any, of an act that they must do too; see ``Follower``."""
    if model.ranks is not None and model.decides:
        model.ranks.tell("work", [verb, *arguments])


class Writing:
    """One text: its prompt is read in turns, then it takes the steps of a ``Batch``.

    Attributes:
        asked: what to write.
        start: when it began, in seconds of ``time.monotonic``.
        ended: what there is to say when the text is complete; ``None``: it is not.
        prefill: the prompt, once it is being read.
        number: by which other ranks know it.
    """

    prefill: TokenSequence

    def __init__(
        self,
        asked: Asked,
        tokenizer: TokenizerWrapper,
        prefixes: Prefixes,
        is_alone: Callable[[], bool],  # whether a turn's time is this text's own
    ):
        self.asked, self.start, self.number = asked, time.monotonic(), next(_NUMBERS)
        self.ended: Ended | None = None
        self._tokenizer, self._prefixes, self._is_alone = tokenizer, prefixes, is_alone
        self._cache = PromptCache()
        self._found, self._ids = Ended(prompt_tokens=len(asked.prompt)), list[int]()
        self._drafters, self._steps = deque[str](), deque[Step]()
        self._processors = [_Caught(make()) for make in asked.processors]
        self._responses: Iterator[GenerationResponse] = iter(())

    def read(self) -> Iterator[Read]:
        """Read the prompt but for its last token, a chunk a turn."""
        asked = self.asked
        self._cache = self._prefixes.cache_for(asked.model.model, asked.prompt)
        request = self._request()
        self.prefill = TokenSequence(asked.model, request)
        self._found.cached_tokens = self._cache.reused
        for read in self.prefill:
            yield Read(read, len(asked.prompt))
        self.keep()
        steps = iter(self._steps.popleft, None)
        self._responses = respond(self._tokenizer, request, steps, asked.stop)

    def _request(self) -> Request:
        asked = self.asked
        request = asked.request(self._tokenizer.eos_token_ids)
        drafting, sampler = request.drafting, None
        if drafting is None and asked.model.decides:
            auto = rule_planner(asked.model, asked.prompt)
            drafting = Watched(auto, self._is_alone, self._drafters)
        if asked.sampling.temp:
            sampler = keyed_sampler(asked.seed, sampler=asked.sampling)
            self._found.seed = asked.seed
        request = replace(
            request,
            drafting=drafting,
            prompt_cache=self._cache,
            sampler=sampler,
            logits_processors=self._processors,
        )
        request.check(asked.model)
        return request

    def take(self, step: Step) -> Written:
        """Turn a step into tokens, up to where the text ends."""
        for processor in self._processors:
            if processor.error is not None:
                raise processor.error
        self._steps.append(step)
        tokens, top = [], self.asked.top_logprobs
        for response in self._responses:
            token = _token(response.text, response.token, response.logprobs, top)
            if response.from_draft:
                drafter = self._drafters.popleft()
                token = replace(token, drafted_by=drafter)
                self._found.drafted_by[drafter] += 1
            tokens.append(token)
            self._ids.append(response.token)
            if response.finish_reason:
                self._end(response)
            if response.finish_reason or not response.from_draft:
                break  # whoever asks for more asks for the next step
        return Written(tokens)

    def keep(self) -> None:
        """Let later prompts have the rows."""
        self._prefixes.keep(self.asked.model.model, self._cache)

    def _end(self, last: GenerationResponse) -> None:
        self.ended = ended = self._found
        ended.reason, ended.tokens = last.finish_reason or "", last.generation_tokens
        ended.target_calls = last.target_calls
        ended.drafted_tokens, ended.accepted_tokens = last.drafted_tokens, last.accepted_tokens
        if ended.reason == "stop" and last.token not in self._tokenizer.eos_token_ids:
            text, stop = self._tokenizer.decode(self._ids), self.asked.stop
            met = [word for word in stop if word in text]
            ended.stopped_by = min(met, key=text.find, default=stop[0])


class Batch:
    """Texts that are decoded in one pass, here and on other ranks; they come and go between steps.

    Attributes:
        number: by which other ranks know it.
        steps: what each target call brings each text.
    """

    def __init__(self, model: SpeculativeModel):
        self._model, self._scheduler = model, Scheduler()
        self.steps, self.number = self._scheduler.steps(), next(_NUMBERS)
        self._texts: dict[TokenSequence, Writing] = {}

    @property
    def texts(self) -> list[Writing]:
        """Those that go on."""
        return list(self._texts.values())

    def takes(self, model: SpeculativeModel) -> bool:
        """Whether a text of this model may join the others."""
        try:
            check_side_by_side(model)
        except UserError:
            return False
        return all(share_a_pass(model, writing.asked.model) for writing in self.texts)

    def join(self, writing: Writing) -> None:
        """Let a text whose prompt has been read go on from the next step on."""
        tell(self._model, "join", writing.number, self.number)
        self._texts[self._scheduler.add(writing.prefill)] = writing

    def leave(self, writing: Writing) -> None:
        """Let a text go on no further."""
        text = next(text for text, one in self._texts.items() if one is writing)
        del self._texts[text]
        tell(self._model, "leave", writing.number)
        if not text.ended:
            self._scheduler.remove(text)

    def step(self) -> list[tuple[Writing, Written | Exception]]:
        """Decode one step, and return what it brought each text.

        Texts that are complete with it, or fail by themselves, have left; an error of the pass
        itself is raised.
        """
        tell(self._model, "step", self.number)
        return [(self._texts[text], self._taken(text, step)) for text, step in next(self.steps)]

    def close(self) -> None:
        """Let all texts go."""
        self._texts = {}
        tell(self._model, "close", self.number)
        self.steps.close()  # type: ignore[attr-defined]

    def _taken(self, text: TokenSequence, step: Step) -> Written | Exception:
        writing = self._texts[text]
        try:
            event: Written | Exception = writing.take(step)
        except Exception as error:
            event = error
        if writing.ended or isinstance(event, Exception):
            self.leave(writing)
        if writing.ended:
            tell(self._model, "keep", writing.number)
            writing.keep()
        return event


class _Caught:
    """A logits processor that does not raise, because other texts are part of the same pass.

    Attributes:
        error: what it would have raised, or ``None``. From then on it changes no logits.
    """

    def __init__(self, processor: LogitsProcessor):
        self._processor = processor
        self.error: Exception | None = None

    def __call__(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Process logits, see ``Request.logits_processors``."""
        if self.error is None:
            try:
                return self._processor(tokens, logits)
            except Exception as error:
                self.error = error
        return logits


def _token(text: str, token: int, log_probs: mx.array, top: int | None) -> Token:
    if top is None:
        return Token(text, token)
    best: Any = []
    if top:
        best = mx.argpartition(-log_probs, top - 1)[:top].tolist()
    scores: Any = log_probs[mx.array([token, *best])].tolist()
    pairs = sorted(zip(best, scores[1:], strict=True), key=lambda pair: -pair[1])
    return Token(text, token, scores[0], pairs)


class Watched(Planner):
    """A drafting that learns its own steps' time alone, and notes whose drafts are accepted."""

    def __init__(self, drafting: Planner, is_alone: Callable[[], bool], drafters: deque[str]):
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

    def plan(
        self, root: int, guesses: StreamGuesses, verified: Verified = NOTHING_VERIFIED
    ) -> Plan:
        """Plan the next step."""
        self._guesses = guesses
        return self._drafting.plan(root, guesses, verified)

    def share_pass(self, count: int) -> BatchCosts | None:
        """Weigh what a pass of so many sequences costs."""
        return self._drafting.share_pass(count)

    def finish(self) -> None:
        """Keep what outlives the text."""
        self._drafting.finish()
