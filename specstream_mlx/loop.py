"""The decoding loop: one ``Step`` per target call."""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.sample_utils import LogitsProcessor, Sampler

from .config import UserError
from .drafting.lookup import Lookup
from .drafting.settings import DraftSettings
from .drafting.tree import DraftTree, root_only
from .engine.decoder import Decoder
from .engine.kv_quantization import KVQuantization
from .engine.profile import NO_PROFILE, Profile
from .engine.sampling import normalized
from .engine.step_result import StepResult
from .engine.verify_rules import VerifyName, VerifyRule, check_rule, make_rule, rule_name
from .hardware import device
from .loading import SpeculativeModel
from .prompt_cache import PromptCache


@dataclass
class Step:
    """What one target call committed.

    Attributes:
        tokens: the accepted drafts, then the correction or bonus token.
        tree: what was drafted.
        tested_nodes: tree nodes that the target tested, root included; pruned ones are not.
        seconds: from when the call was enqueued until its tokens were read.
        result: the device arrays of the call.
        rows: for each token, the row of ``result.logits`` that predicts it.
    """

    tokens: list[int]
    tree: DraftTree
    tested_nodes: int
    seconds: float
    result: StepResult
    rows: list[int]

    def log_probs(self) -> mx.array:
        """(tokens, vocab) log-probabilities of the target before each token."""
        logits = self.result.logits
        return normalized(logits if logits.shape[0] == 1 else logits[mx.array(self.rows)])


@runtime_checkable
class Drafting(Protocol):
    """What says how to draft, before every step anew."""

    def settings(self) -> DraftSettings:
        """How to draft in the next step."""

    def observe(self, step: Step) -> None:
        """Note what a step came to."""


@dataclass(frozen=True)
class FixedDrafting:
    """The same settings in every step."""

    fixed: DraftSettings

    def settings(self) -> DraftSettings:
        """The same ones."""
        return self.fixed

    def observe(self, step: Step) -> None:
        """Nothing follows from it."""


def decode(
    model: SpeculativeModel,
    prompt: Sequence[int],
    drafting: DraftSettings | Drafting,
    prefill_step_size: int = 2048,
    *,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    verify: VerifyName | None = None,
    prompt_cache: PromptCache | None = None,
    profile: Profile = NO_PROFILE,
    max_tokens: int | None = None,
    end_tokens: Collection[int] = (),
) -> Iterator[Step]:
    """Decoding, one ``Step`` per target call.

    The next call is under way on the device when a ``Step`` is handed out, but for the first.

    Args:
        model: base and adapter.
        prompt: token ids, at least one.
        drafting: how to draft.
        prefill_step_size: prompt tokens per pass.
        kv_bits: 4 or 8 for a quantized KV cache, ``None`` for none.
        kv_group_size: elements that share a scale there.
        quantized_kv_start: rows from which on the cache is quantized.
        sampler, logits_processors, verify, prompt_cache, profile: see
            ``generation.stream_generate``.
        max_tokens, end_tokens: the step with so many tokens, or with one of these, is the last one,
            and no call is enqueued behind it; without them decoding has no end.

    Raises:
        UserError: the KV cache cannot be quantized so, the verify rule does not go with the
            sampler or the tree, another generation has taken ``prompt_cache``, or the adapter was
            swapped.
    """
    quantization = KVQuantization(kv_bits, kv_group_size, quantized_kv_start)
    quantization.check(model.model, model.config)
    if isinstance(drafting, DraftSettings):
        drafting = FixedDrafting(drafting)
    verify = rule_name(verify, sampler)
    check_rule(verify, drafting.settings())
    rule = make_rule(verify, sampler, logits_processors, prompt)
    profile.start()
    prompt_cache = prompt_cache or PromptCache()
    generation = prompt_cache.begin(model, prompt, quantization)
    decoder = Decoder(model.model, model.streams, prompt_cache.caches, profile)
    prompt_cache.caches = decoder.caches
    unread = prompt[prompt_cache.reused : -1]
    _prefill(decoder, unread, prefill_step_size, quantization)
    prompt_cache.extend(generation, unread)
    profile.border("prefill")
    reusable, newest = model.mode == "lossless", prompt[-1]  # else streams are beside the rows
    adapter, streams = model.adapter, model.streams
    loop = _Loop(model, decoder, rule, quantization, drafting, prompt, max_tokens, end_tokens)
    for step in loop.steps():
        if reusable:
            prompt_cache.extend(generation, [newest, *step.tokens[:-1]])
            newest = step.tokens[-1]
        yield step
        prompt_cache.check_current(generation)  # before the next step writes
        if model.adapter is not adapter or model.streams is not streams:
            raise UserError("the adapter was swapped during a generation, expected after its end")


def fill(
    prompt_cache: PromptCache,
    model: SpeculativeModel,
    prompt: Sequence[int],
    prefill_step_size: int = 2048,
    *,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
) -> None:
    """Make ``prompt_cache`` hold the rows of all of a prompt's tokens, as mlx_lm makes them.

    Args:
        prompt_cache: reads only what it does not hold.
        model, prompt, prefill_step_size: see ``decode``.
        kv_bits, kv_group_size, quantized_kv_start: see ``decode``.

    Raises:
        UserError: the KV cache cannot be quantized so.
    """
    quantization = KVQuantization(kv_bits, kv_group_size, quantized_kv_start)
    quantization.check(model.model, model.config)
    generation = prompt_cache.begin(model, prompt, quantization)
    decoder = Decoder(model.model, model.streams, prompt_cache.caches)
    prompt_cache.caches = decoder.caches
    for part in (prompt[prompt_cache.reused : -1], prompt[-1:]):
        _prefill(decoder, part, prefill_step_size, quantization)
        prompt_cache.extend(generation, part)


def _prefill(
    decoder: Decoder, tokens: Sequence[int], step_size: int, quantization: KVQuantization
) -> None:
    with mx.stream(device.generation_stream):
        for start in range(0, len(tokens), step_size):
            decoder.prefill(mx.array(tokens[start : start + step_size]))
            quantization.apply(decoder.caches)
            mx.eval([cache.state for cache in decoder.caches])
            mx.clear_cache()


class _Loop:
    """One generation after its prompt; each of the two kinds of steps ends where the other begins.

    Args:
        model: base and adapter.
        decoder: its caches hold the prompt but for the last token.
        rule: accepts drafts.
        quantization: of the caches.
        drafting: asked before every step.
        prompt: token ids.
        max_tokens, end_tokens: see ``decode``.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        decoder: Decoder,
        rule: VerifyRule,
        quantization: KVQuantization,
        drafting: Drafting,
        prompt: Sequence[int],
        max_tokens: int | None,
        end_tokens: Collection[int],
    ):
        self._streams, self._decoder, self._rule = model.streams, decoder, rule
        self._vocab_size = model.config["vocab_size"]
        self._quantization, self._drafting = quantization, drafting
        self._settings = drafting.settings()
        self._text, self._root = list(prompt), prompt[-1]
        self._lookup: Lookup | None = None
        self._left, self._end_tokens, self._ended = max_tokens, end_tokens, False
        self._count = 0

    def steps(self) -> Iterator[Step]:
        """All steps, of either kind."""
        while not self._ended:
            yield from self.plain_steps() if self.is_plain() else self.tree_steps()

    def is_plain(self) -> bool:
        """Whether nothing is drafted and no stream runs, so that no step's length is in doubt."""
        config = self._streams and self._streams.config
        drafts = self._settings.drafts_with(self._streams)
        return not drafts and self._settings.placement(config) == "none"

    def plain_steps(self) -> Iterator[Step]:
        """One token a step; the next call is enqueued before the last one is read."""
        start = time.perf_counter()
        result = self._enqueue_plain(mx.array([self._root]))
        while True:
            self._rule.commit(result.predictions)
            last = self._left == 1
            self._quantize()
            following = None if last else self._enqueue_plain(result.predictions)
            token = result.predictions.item()
            now = time.perf_counter()
            step = Step([token], root_only(self._root), 1, now - start, result, [0])
            start = now
            self._note(step)
            yield step
            if following is None:
                return
            if self._ended or not self.is_plain():
                self._decoder.uncommit(1)  # the call ahead
                return
            result = following

    def _enqueue_plain(self, token: mx.array) -> StepResult:
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):
            result = self._decoder.next_token(token, self._rule)
        mx.async_eval(result.predictions)
        return result

    def _quantize(self) -> None:
        """As mlx_lm does, behind a call, where the cache is long enough by now."""
        with mx.stream(device.generation_stream):
            self._quantization.apply(self._decoder.caches)

    def tree_steps(self) -> Iterator[Step]:
        """Trees of drafts; a step is handed out when the next one has been enqueued.

        But the text's first: on a CPU enqueueing waits for most of the work, and who asks for a
        text should not wait for a second step before its first token.
        """
        tree = root_only(self._root)
        pending = None
        while True:
            start = time.perf_counter()
            result = self._enqueue_tree(tree)
            if pending is not None:
                yield pending
            step = self._read(tree, result, start)
            self._note(step)
            if self._ended or self.is_plain():
                yield step
                return
            tree = self._grow(result)
            if self._count == 1:
                yield step
            else:
                pending = step

    def _enqueue_tree(self, tree: DraftTree) -> StepResult:
        settings = self._settings
        placement = settings.placement(self._streams and self._streams.config)
        width = settings.tree_width if settings.drafts_with(self._streams) else 0
        self._decoder.profile.border("host")
        with mx.stream(device.generation_stream):
            result = self._decoder.step(
                tree,
                placement,
                width,
                settings.max_nodes,
                settings.prune_threshold,
                self._rule,
                settings.stream_nodes,
            )
        mx.async_eval(*result.arrays())
        return result

    def _read(self, tree: DraftTree, result: StepResult, start: float) -> Step:
        """Wait for the call and commit the accepted rows."""
        mx.eval(*result.arrays())
        tested, path, kept_path = result.accepted(tree)
        profile = self._decoder.profile
        profile.border("host")
        with mx.stream(device.generation_stream):
            tokens = [*tree.tokens[path[1:]].tolist(), result.prediction()]
            self._decoder.commit(path, kept_path)
            self._rule.commit(tokens)
            self._quantize()
            profile.border("compaction", [(c.keys, c.values) for c in self._decoder.caches])
        return Step(tokens, tree, tested, time.perf_counter() - start, result, kept_path)

    def _grow(self, result: StepResult) -> DraftTree:
        if not self._settings.drafts_with(self._streams):
            return root_only(self._root)
        if self._settings.lookup and self._lookup is None:
            self._lookup = self._settings.new_lookup(self._text)
        lookup = self._lookup if self._settings.lookup else None
        tree = self._settings.grow(self._root, *result.guesses(), lookup)
        return self._quantization.fitting(tree, self._decoder.caches[0])

    def _note(self, step: Step) -> None:
        """Make the step's last token the root, and ask how to draft behind it."""
        self._root = step.tokens[-1]
        self._text += step.tokens
        if self._left is not None:
            self._left -= len(step.tokens)
        over = self._left is not None and self._left <= 0
        self._ended = over or any(token in self._end_tokens for token in step.tokens)
        if self._lookup is not None:
            self._lookup.accept(step.tokens)
        self._drafting.observe(step)
        settings = self._drafting.settings()
        if settings is not self._settings:
            settings.check(self._vocab_size, self._streams and self._streams.config)
            self._settings = settings
        self._count += 1
        if self._count % 64 == 0:
            mx.clear_cache()
