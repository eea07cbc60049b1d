"""``batch_generate``: several prompts at once, each with drafts of its own.

In a batch a row is no longer cheap, so by default each sequence drafts one chain, the likeliest
token of every stream (arXiv 2402.11131, App. L).
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import BatchResponse as PlainResponse
from mlx_lm.generate import BatchStats as PlainStats
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .drafting.settings import DraftSettings, Proposers
from .engine.sampling import KeyedSampler
from .errors import UserError, shown
from .generation import check_kv_size, drafting_of, refuse_stream, room
from .hardware import running
from .kv_store import PromptCache
from .loading import SpeculativeModel
from .options import COUNT, checked
from .prompts import Prompt, encode_prompt
from .request import Progress, Request
from .responses import GenerationResponse, respond
from .scheduler import Scheduler, Step, TokenSequence, fill, share_a_pass, stays_alone

CHAINS = DraftSettings(tree_width=1, tree_size=None)


@dataclass(kw_only=True)
class BatchStats(PlainStats):
    """mlx_lm's statistics, with tokens per sequence and target call as ``accepted_length``."""

    accepted_length: float = 0.0


@dataclass
class BatchResponse(PlainResponse):
    """mlx_lm's response, with ``BatchStats`` and the reason of each end, ``stop`` or ``length``."""

    finish_reasons: Sequence[str] = ()


@checked("max_tokens")
def batch_generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[Prompt],
    prompt_caches: Sequence[list[Any] | None] | None = None,
    max_tokens: int | Sequence[int] = 128,
    verbose: bool = False,
    return_prompt_caches: bool = False,
    return_token_ids: bool = False,
    return_logprobs: bool = False,
    *,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    completion_batch_size: int = 32,
    prefill_batch_size: int = 8,
    prefill_step_size: int = 2048,
    max_kv_size: int | None = None,
    stream: mx.Stream | mx.ThreadLocalStream | None = None,
    samplers: Sequence[Sampler | None] | None = None,
    adapters: str | Path | Sequence[str | Path | None] | None = None,
    settings: DraftSettings | Proposers | None = CHAINS,
    **overrides: Any,
) -> BatchResponse:
    """Complete several prompts at once, as ``mlx_lm.batch_generate`` does.

    Every text is what ``generate`` writes for its prompt alone. The arguments up to ``stream`` are
    mlx_lm's; those that are not listed are as for ``stream_generate``.

    Args:
        prompts: texts, token ids or chat messages, of any lengths; see ``encode_prompt``.
        prompt_caches: for each prompt ``None`` or a list of mlx_lm's caches, after whose rows it
            goes; they are not changed.
        max_tokens: the most tokens to generate: one number for all texts, or one for each.
        return_prompt_caches: also return each text's caches, lists that hold prompt and text.
        sampler: draws the tokens of all texts. Not a ``keyed_sampler``, with which several
            texts would draw with the same noise: see ``samplers``.
        completion_batch_size: the most texts at once; others join as these end.
        prefill_batch_size: raises ``completion_batch_size`` to at least itself, as in mlx_lm;
            prompts are read one after another.
        samplers: a sampler for each text; ``None``, for all or one: take the likeliest token. Each
            ``keyed_sampler`` should have a seed of its own.
        adapters: an adapter for each text, a directory or a name, see ``with_adapter`` of the
            model; ``None``, for all or one: what is mounted. Texts whose adapters fit each other go
            through one pass, others one after the other, as do all of a model with sliding windows.
        settings: settings of every step's drafts. ``None``, without ``overrides``: the rule plans
            every step, as in ``generate``.

    Raises:
        UserError: an argument is wrong, or there is not one number, sampler, adapter or cache for
            each prompt.
    """
    refuse_stream(stream)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    count = len(prompts)
    limits = _for_each("max_tokens", max_tokens, count)
    for limit in limits:
        COUNT.check("max_tokens", limit)
    if sampler is not None and samplers is not None:
        raise UserError("sampler and samplers were both given, expected one of them")
    if isinstance(sampler, KeyedSampler) and count > 1:
        raise UserError(
            f"sampler is a keyed_sampler and there are {count} prompts, which would draw with the "
            "same noise, expected samplers=[..] with one for each"
        )
    samplers = _for_each("samplers", sampler if samplers is None else samplers, count)
    models = [
        model if adapter is None else model.with_adapter(adapter)
        for adapter in _for_each("adapters", adapters, count)
    ]
    ids = [
        encode_prompt(tokenizer, prompt, own.prompt_template)
        for prompt, own in zip(prompts, models, strict=True)
    ]
    each = _for_each("prompt_caches", prompt_caches, count)
    begun = [
        PromptCache() if caches is None else PromptCache.of_list(own, deepcopy(caches))
        for caches, own in zip(each, models, strict=True)
    ]
    for prompt, cache, limit in zip(ids, begun, limits, strict=True):
        check_kv_size(model, max_kv_size, len(prompt), limit)
        if cache.quantized is not None:
            raise UserError("prompt_caches has quantized rows, expected a KVCache for each layer")
    if settings is not None and not isinstance(settings, DraftSettings | Proposers):
        raise UserError(f"settings is {shown(settings)}, expected DraftSettings, Proposers or None")
    drafting = drafting_of(settings, None, overrides)
    keeps = return_prompt_caches or prompt_caches is not None
    requests = [
        Request(
            prompt,
            drafting,
            max_tokens=limit,
            end_tokens=tokenizer.eos_token_ids,
            prefill_step_size=prefill_step_size,
            sampler=sampler,
            logits_processors=logits_processors,
            prompt_cache=cache if keeps else None,
        )
        for prompt, cache, limit, sampler in zip(ids, begun, limits, samplers, strict=True)
    ]
    sequences = [_Sequence(*pair, return_logprobs) for pair in zip(models, requests, strict=True)]
    for entry in sequences:
        entry.request.check(entry.model)
    stats = BatchStats(prompt_tokens=sum(map(len, ids)))
    size = max(completion_batch_size, prefill_batch_size)
    with running.wired(model.model):
        written = (one for group in _groups(sequences) for one in _written(group, size, stats))
        for ended, _ in enumerate(chain([None], written)):
            if verbose:
                print(f"[batch_generate] Finished processing {ended}/{count} ...", end="\r")
        if return_prompt_caches:
            for entry, cache in zip(sequences, begun, strict=True):
                rows = [*entry.request.prompt, *entry.tokens, *entry.end]
                fill(cache, entry.model, rows, prefill_step_size)
    stats.wall_time = stats.prompt_time + stats.decode_time
    if count:
        stats.accepted_length = stats.generation_tokens / sum(entry.calls for entry in sequences)
    stats.peak_memory = mx.get_peak_memory() / 1e9
    if verbose:
        print(
            f"[batch_generate] Finished processing {count}/{count}\n"
            f"[batch_generate] Prompt: {stats.prompt_tokens} tokens, "
            f"{stats.prompt_tps:.3f} tokens-per-sec\n"
            f"[batch_generate] Generation: {stats.generation_tokens} tokens, "
            f"{stats.generation_tps:.3f} tokens-per-sec\n"
            f"[batch_generate] Peak memory: {stats.peak_memory:.3f} GB\n"
            f"[batch_generate] Accepted length: {stats.accepted_length:.2f}"
        )
    return BatchResponse(
        [tokenizer.decode(entry.tokens) for entry in sequences],
        stats,
        [cache.caches for cache in begun] if return_prompt_caches else None,
        token_ids=[entry.tokens for entry in sequences] if return_token_ids else None,
        logprobs=[entry.log_probs for entry in sequences] if return_logprobs else None,
        finish_reasons=[entry.reason for entry in sequences],
    )


def stream_batch(
    texts: Sequence[tuple[SpeculativeModel, Sequence[int]]],
    tokenizer: TokenizerWrapper,
    max_tokens: int,
    reading: Progress = lambda read, of: None,
    size: int = 16,
) -> Iterator[tuple[int, GenerationResponse]]:
    """Write after prompts of token ids, ``size`` at once, and yield responses with their numbers.

    Each step reads one more prompt, so the first one's text comes first; what prompts begin with
    alike is read once. ``reading`` is called with the prompt tokens read so far, and of all.
    """
    (model, _), *others = texts
    waiting, before, of = deque(enumerate(texts)), 0, sum(len(prompt) for _, prompt in texts)
    going: dict[TokenSequence, tuple[int, deque[Step], Iterator[GenerationResponse]]] = {}
    schedulers, caches = list[Scheduler](), defaultdict[int, PromptCache](PromptCache)
    with running.wired(model.model):
        while waiting or going:
            if waiting and len(going) < size:
                number, (own, prompt) = waiting.popleft()
                request = Request(
                    prompt,
                    max_tokens=room(own, prompt, None, max_tokens),
                    end_tokens=tokenizer.eos_token_ids,
                    prompt_cache=deepcopy(caches[id(own)]) if others else None,
                    progress=partial(_counted, reading, before, of),
                )
                before += len(prompt)
                request.check(own)
                sequence, steps = TokenSequence(own, request), deque[Step]()
                scheduler = next((one for one in schedulers if one.takes(own)), None)
                if scheduler is None:
                    schedulers.append(scheduler := Scheduler(lambda: len(schedulers) < 2))
                scheduler.add(sequence)
                written = respond(tokenizer, request, iter(steps.popleft, None))
                going[sequence] = number, steps, written
                if request.prompt_cache is not None and not caches[id(own)].tokens:
                    caches[id(own)] = request.prompt_cache.without_spare_rows()
            for sequence, step in [pair for one in schedulers for pair in one.step()]:
                number, steps, written = going[sequence]
                steps.append(step)
                # In this order: whoever takes one response too many takes the next step.
                for _, response in zip(step.tokens, written, strict=False):
                    yield number, response
                    if response.finish_reason:
                        del going[sequence]
                        break
            schedulers[:] = [one for one in schedulers if one]


def _counted(reading: Progress, before: int, of: int, read: int, _: int) -> None:
    reading(before + read, of)


def _for_each(name: str, values: Any, count: int) -> list[Any]:
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise UserError(
            f"there are {count} prompts and {len(values)} {name}, expected one for each"
        )
    return list(values)


@dataclass
class _Sequence:
    """One sequence: what is written, and why it ended (empty: not yet)."""

    model: SpeculativeModel
    request: Request
    scored: bool
    tokens: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: str = ""
    calls: int = 0

    def take(self, step: Step) -> None:
        """Append a step's tokens until the text ends."""
        self.calls += 1
        most, ends = self.request.max_tokens, self.request.end_tokens
        tokens = step.tokens if most is None else step.tokens[: most - len(self.tokens)]
        taken = list(takewhile(lambda token: token not in ends, tokens))
        self.tokens += taken
        if len(taken) < len(tokens):
            self.reason, self.end = "stop", [tokens[len(taken)]]
        elif len(self.tokens) == most:
            self.reason = "length"
        if self.scored and taken:
            with mx.stream(running.generation_stream):
                rows: Any = step.log_probs()
                places = mx.array(taken)[:, None]
                chosen = mx.take_along_axis(rows[: len(taken)], places, axis=-1)
            self.log_probs += cast(list[float], chosen[:, 0].tolist())


def _groups(sequences: Sequence[_Sequence]) -> list[list[_Sequence]]:
    """Group sequences by what can go through one pass."""
    groups: list[list[_Sequence]] = []
    for entry in sequences:
        fits = (g for g in groups if all(share_a_pass(entry.model, one.model) for one in g))
        if not stays_alone(entry.model) and (group := next(fits, None)):
            group.append(entry)
        else:
            groups.append([entry])
    return groups


def _written(sequences: Sequence[_Sequence], size: int, stats: BatchStats) -> Iterator[_Sequence]:
    """Decode all sequences, ``size`` at once, and yield each as it ends."""
    start, scheduler = time.perf_counter(), Scheduler()
    waiting, reading = list(sequences), 0.0
    going: dict[TokenSequence, _Sequence] = {}

    def fill_up() -> None:
        nonlocal reading
        began = time.perf_counter()
        while waiting and len(scheduler) < size:
            entry = waiting.pop(0)
            going[scheduler.add(TokenSequence(entry.model, entry.request))] = entry
        reading += time.perf_counter() - began

    fill_up()
    for steps in scheduler.steps():
        stats.generation_steps += 1
        for sequence, step in steps:
            entry = going[sequence]
            entry.take(step)
            if entry.reason:
                yield entry
        fill_up()
    stats.generation_tokens += sum(len(entry.tokens) + len(entry.end) for entry in sequences)
    stats.prompt_time += reading
    stats.decode_time += time.perf_counter() - start - reading
