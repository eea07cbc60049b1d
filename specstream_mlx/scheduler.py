"""The scheduler: texts read their prompts in chunks, join, take steps and leave.

Whoever writes texts calls it: one or several, here and on other ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .broadcast import Broadcast
from .drafting import Drafting
from .drafting.fixed import fixed_drafting
from .drafting.rule import auto_drafting
from .drafting.settings import USUAL, DraftSettings, Proposers
from .engine.kv import NEVER_QUANTIZED, KVQuantization
from .engine.step import Decoder
from .engine.verify.rule import VerifyRule
from .errors import UserError
from .loading import SpeculativeModel
from .loop import Loop, Steps, Text, prefill
from .models.architectures import architecture_of, layer_windows
from .prompt_cache import PromptCache
from .request import Progress, Request, Step


def decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    """Generate from a request, one ``Step`` per target call.

    From the second ``Step`` on, a step is yielded when the call after it already runs.

    Args:
        model: base and adapter.
        request: the prompt and how to go on from it.

    Raises:
        UserError: the model cannot do what is asked; while decoding, another generation has taken
            the prompt cache, or the adapter was swapped.
    """
    request.check(model)
    return _decode(model, request)


def _decode(model: SpeculativeModel, request: Request) -> Iterator[Step]:
    scheduler = Scheduler(model)
    scheduler.join(request)
    for [(_, step)] in scheduler.steps():
        yield step


class Scheduler:
    """Texts that are decoded side by side: they join and leave between steps.

    Each is token for token what it would be alone.

    Args:
        model: base and adapter.
    """

    def __init__(self, model: SpeculativeModel):
        self._model = model
        self._loop: Loop | None = None
        self._rows: dict[Text, Prefill] = {}
        self._broadcast = Broadcast(model.ranks)

    def __len__(self) -> int:
        """Count the texts that go on."""
        return len(self._rows)

    def join(self, request: Request, model: SpeculativeModel | None = None) -> Text:
        """Read a prompt; its text goes on beside the others from the next call on.

        Args:
            request: a request that has been checked.
            model: the base with another adapter, see ``share_a_pass``; ``None``: the same one.

        Raises:
            UserError: the prompt cache cannot be used; or there are other texts, beside which the
                model or its KV cache cannot be run.
        """
        return self.take(Prefill(model or self._model, request))

    def take(self, prefill: "Prefill") -> Text:
        """Let a text go on as ``join`` does, whose prompt is read already, or is read here."""
        model, request = prefill.model, prefill.request
        if self._rows:
            check_side_by_side(model)
            for one in (request, *(text.request for text in self._rows)):
                one.check_side_by_side()
        for _ in prefill:
            pass
        request.profile.border("prefill")
        rule = request.new_rule()
        drafting = _drafting(model, request, rule) if model.decides else None
        text = Text(request, drafting, rule, model.head_watch, self._broadcast)
        if self._loop is None:
            self._loop = Loop(prefill.decoder, text)
        else:
            self._loop.join(text, prefill.decoder)
        self._rows[text] = prefill
        return text

    def leave(self, text: Text) -> None:
        """Stop a text early; the call under way is the last one that it is part of."""
        text.ended = True
        self._let_go(text)

    def steps(self) -> Iterator[Steps]:
        """Decode until all texts have ended; texts may join or leave after each yield.

        Raises:
            UserError: see ``decode``.
        """
        loop = self._loop
        if loop is None:
            return
        try:
            for steps in loop.steps():
                tokens = [token for _, step in steps for token in step.tokens]
                steps = [(text, step) for text, step in steps if text in self._rows]
                for text, step in steps:
                    self._rows[text].note(step)
                    if text.ended:
                        self._let_go(text)
                    else:
                        self._rows[text].record(loop.caches)
                yield steps
                self._check_current()  # before the next step writes
                if not self._broadcast.goes_on(tokens):
                    return
        finally:
            self._broadcast.over()
            for text in list(self._rows):
                self._let_go(text)

    def _let_go(self, text: Text) -> None:
        rows, loop = self._rows.pop(text), self._loop
        if loop is not None:
            rows.keep(lambda: loop.caches_of(text))
        text.finish()

    def _check_current(self) -> None:
        for rows in self._rows.values():
            rows.check_current()


class Prefill:
    """A prompt that is read in chunks, but for its last token; then the KV rows of its text.

    An iterator: each ``next`` reads a chunk, and returns how many of the prompt's tokens are there.

    Attributes:
        model, request: of the text; the request has been checked.
        decoder: reads the prompt.
    """

    def __init__(self, model: SpeculativeModel, request: Request):
        request.profile.start()
        self.model, self.request, given = model, request, request.prompt_cache
        self._adapter, self._streams, self._head = model.adapter, model.streams, model.head
        self._cache = PromptCache() if given is None else given
        self._generation = self._cache.begin(model, request.prompt, request.quantization)
        self._newest, self._progress = request.prompt[-1], request.progress
        self._behind: list[int] = []  # tokens of rows that the prompt cache does not know of yet
        ranks = model.ranks
        self.decoder = Decoder(
            model.model,
            model.streams,
            self._cache.caches,
            request.profile,
            share=None if ranks is None else ranks.share,
            head=model.head,
        )
        self._cache.caches = self.decoder.caches
        self._chunks = self._read()

    def __iter__(self) -> Iterator[int]:
        return self._chunks

    def _read(self) -> Iterator[int]:
        request, reused = self.request, self._cache.reused
        progress, total = request.progress or _nobody, len(request.prompt)
        unread = request.prompt[reused:-1]
        progress(reused, total)
        for read in prefill(self.decoder, unread, request.prefill_step_size, request.quantization):
            progress(reused + read, total)
            yield reused + read
        self._cache.extend(self._generation, unread)

    def note(self, step: Step) -> None:
        """Take in a step of the text."""
        if self._progress is not None:
            total = len(self.request.prompt)
            self._progress(total, total)  # the first token is there
            self._progress = None
        if self.model.mode == "lossless":  # no later prompt can use rows that have seen streams
            self._behind += [self._newest, *step.tokens[:-1]]
        self._newest = step.tokens[-1]

    def record(self, caches: list[Any]) -> None:
        """Tell the prompt cache of the rows so far, if they are written into its own caches.

        Rows of several texts lie in common caches, and are copied to it in the end.

        Args:
            caches: the caches that are written to.
        """
        if caches is self._cache.caches:
            self._cache.extend(self._generation, self._behind)
            self._behind = []
        elif self.request.prompt_cache is None:
            self._cache.caches = []  # nobody will ask for them

    def keep(self, caches_of: Callable[[], list[Any]]) -> None:
        """Hand the rows to the prompt cache at the end.

        Args:
            caches_of: function that returns the text's KV caches, one per layer.
        """
        if self._behind and self.request.prompt_cache is not None:
            self._cache.caches = caches_of()
            self.record(self._cache.caches)

    def check_current(self) -> None:
        """Check that nobody else has taken the prompt cache over, or swapped the adapter."""
        self._cache.check_current(self._generation)
        model = self.model
        mounted = model.adapter, model.streams, model.head
        before = self._adapter, self._streams, self._head
        if any(now is not then for now, then in zip(mounted, before, strict=True)):
            raise UserError("the adapter was swapped during a generation, expected after its end")


def check_side_by_side(model: SpeculativeModel) -> None:
    """Check that several texts may go through a model at once.

    Raises:
        UserError: it has sliding windows, learned positions, or an attention that takes no mask per
            sequence.
    """
    name = model.config["model_type"]
    architecture = architecture_of(name)
    reason = None
    if architecture.positions != "rope":
        reason = "its positions are learned"
    elif architecture.array_masks:
        reason = "its attention is not known to take a mask per sequence"
    elif any(window is not None for window in layer_windows(model.config, model.model)):
        reason = "it has sliding windows"
    if reason:
        raise UserError(
            f"model_type is {name!r}, which cannot decode in batches: {reason}; "
            "expected one prompt at a time"
        )


def share_a_pass(first: SpeculativeModel, second: SpeculativeModel) -> bool:
    """Whether texts of two models can be decoded side by side: one base, adapters that fit."""
    same_head = first.head is second.head
    return first is second or (same_head and first.layout.fits(second.layout))


def _drafting(model: SpeculativeModel, request: Request, rule: VerifyRule) -> Drafting:
    """Make the object that plans the steps of one text."""
    settings = request.drafting
    if settings is None or isinstance(settings, Proposers):
        proposers = settings or USUAL
        return auto_drafting(model, request.prompt, request.quantization, proposers, rule)
    if isinstance(settings, DraftSettings):
        return fixed_drafting(settings, model, request.prompt, rule)
    return settings


def fill(
    prompt_cache: PromptCache,
    model: SpeculativeModel,
    prompt: Sequence[int],
    prefill_step_size: int = 2048,
    quantization: KVQuantization = NEVER_QUANTIZED,
    progress: Progress | None = None,
) -> None:
    """Read a prompt into ``prompt_cache``, so that it holds a KV row for each of its tokens.

    Args:
        prompt_cache: the cache to fill; tokens whose rows it already holds are not read again.
        model: base and adapter.
        prompt, prefill_step_size, quantization: see ``Request``.
        progress: called before the prompt is read and after each pass.

    Raises:
        UserError: the KV cache cannot be quantized so.
    """
    quantization.check(model.model, model.config)
    request = Request(
        prompt,
        prefill_step_size=prefill_step_size,
        quantization=quantization,
        prompt_cache=prompt_cache,
    )
    progress, total = progress or _nobody, len(prompt)
    reading = Prefill(model, request)
    progress(prompt_cache.reused, total)
    for read in reading:
        progress(read, total)
    for _ in Prefill(model, replace(request, prompt=[*prompt, prompt[-1]])):  # the last token
        progress(total, total)


def _nobody(read: int, total: int) -> None:
    """Show no progress; a ``Progress``."""
