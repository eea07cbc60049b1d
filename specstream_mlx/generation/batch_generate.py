"""``batch_generate``: several prompts at once, each with drafts of its own.

In a batch a row is no longer cheap, so by default each sequence drafts one chain, the likeliest
token of every stream (arXiv 2402.11131, App. L).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import BatchResponse as PlainResponse
from mlx_lm.generate import BatchStats as PlainStats
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting.settings import DraftSettings, Proposers
from ..engine.sampling import KeyedSampler
from ..errors import UserError, shown
from ..grammar import Schema
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from ..options import COUNT, checked
from ..prompts import Prompt, encode_prompt
from .batch import Batch, fill
from .kv_store import PromptCache
from .request import Request
from .sequence import Step, TokenSequence
from .stream_generate import check_kv_size, drafting_of, refuse_stream, with_schema

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
    schema: Schema | None = None,
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
        schema: a JSON schema that every text is to fit.

    Raises:
        UserError: an argument is wrong, or there is not one number, sampler, adapter or cache for
            each prompt.
    """
    refuse_stream(stream)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    count = len(prompts)
    if settings is not None and not isinstance(settings, DraftSettings | Proposers):
        raise UserError(f"settings is {shown(settings)}, expected DraftSettings, Proposers or None")
    drafting = drafting_of(settings, None, overrides)
    keeps_rows = return_prompt_caches or prompt_caches is not None
    texts = []
    for prompt, most, own_sampler, adapter, caches in zip(
        prompts,
        _for_each("max_tokens", max_tokens, count),
        _samplers(sampler, samplers, count),
        _for_each("adapters", adapters, count),
        _for_each("prompt_caches", prompt_caches, count),
        strict=True,
    ):
        COUNT.check("max_tokens", most)
        mounted = model if adapter is None else model.with_adapter(adapter)
        ids = encode_prompt(tokenizer, prompt, mounted.prompt_template)
        check_kv_size(model, max_kv_size, len(ids), most)
        cache = PromptCache() if caches is None else PromptCache.of_list(mounted, deepcopy(caches))
        if cache.quantized is not None:
            raise UserError("prompt_caches has quantized rows, expected a KVCache for each layer")
        request = Request(
            ids,
            drafting,
            max_tokens=most,
            end_tokens=tokenizer.eos_token_ids,
            prefill_step_size=prefill_step_size,
            sampler=own_sampler,
            logits_processors=with_schema(logits_processors, schema, mounted, tokenizer, ids),
            prompt_cache=cache if keeps_rows else None,
        )
        request.check(mounted)
        texts.append(_Text(mounted, request, cache, return_logprobs))
    stats = BatchStats(prompt_tokens=sum(len(text.request.prompt) for text in texts))
    size = max(completion_batch_size, prefill_batch_size)
    with running.wired(model.model):
        for ended, _ in enumerate(chain([None], _ended(texts, size, stats))):
            if verbose:
                print(f"[batch_generate] Finished processing {ended}/{count} ...", end="\r")
        if return_prompt_caches:
            for text in texts:
                rows = [*text.request.prompt, *text.tokens, *text.end]
                fill(text.cache, text.model, rows, prefill_step_size)
    stats.wall_time = stats.prompt_time + stats.decode_time
    stats.accepted_length = stats.generation_tokens / max(1, sum(text.calls for text in texts))
    stats.peak_memory = mx.get_peak_memory() / 1e9
    if verbose:
        _report(stats, count)
    return BatchResponse(
        [tokenizer.decode(text.tokens) for text in texts],
        stats,
        [text.cache.caches for text in texts] if return_prompt_caches else None,
        token_ids=[text.tokens for text in texts] if return_token_ids else None,
        logprobs=[text.log_probs for text in texts] if return_logprobs else None,
        finish_reasons=[text.reason for text in texts],
    )


def _for_each(name: str, values: Any, count: int) -> list[Any]:
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise UserError(
            f"there are {count} prompts and {len(values)} {name}, expected one for each"
        )
    return list(values)


def _samplers(sampler: Sampler | None, samplers: Any, count: int) -> list[Sampler | None]:
    """Return a sampler for each text."""
    if sampler is not None and samplers is not None:
        raise UserError("sampler and samplers were both given, expected one of them")
    if isinstance(sampler, KeyedSampler) and count > 1:
        raise UserError(
            f"sampler is a keyed_sampler and there are {count} prompts, which would draw with the "
            "same noise, expected samplers=[..] with one for each"
        )
    return _for_each("samplers", sampler if samplers is None else samplers, count)


@dataclass(eq=False)
class _Text:
    """One text so far, and why it ended (empty: not yet)."""

    model: SpeculativeModel
    request: Request
    cache: PromptCache
    scored: bool
    tokens: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: str = ""
    calls: int = 0

    def take(self, step: Step) -> None:
        taken = step.tokens[: step.kept]
        self.calls, self.reason = self.calls + 1, step.finish_reason or ""
        if self.reason == "stop":
            self.end = [taken.pop()]
        self.tokens += taken
        if self.scored and taken:
            with mx.stream(running.generation_stream):
                rows: Any = step.log_probs()
                places = mx.array(taken)[:, None]
                chosen = mx.take_along_axis(rows[: len(taken)], places, axis=-1)
            self.log_probs += cast(list[float], chosen[:, 0].tolist())


def _ended(texts: Sequence[_Text], size: int, stats: BatchStats) -> Iterator[_Text]:
    """Decode all texts, ``size`` at once in one pass, and yield each as it ends."""
    start, reading = time.perf_counter(), 0.0
    waiting, going = list(texts), dict[TokenSequence, _Text]()
    with closing(Batch()) as batch:
        while waiting or batch:
            began = time.perf_counter()
            for text in list(waiting):
                if len(batch) < size and (not batch or batch.takes(text.model)):
                    waiting.remove(text)
                    sequence = TokenSequence(text.model, text.request)
                    sequence.read_all()  # so that the texts begin together
                    batch.add(sequence)
                    going[sequence] = text
            reading += time.perf_counter() - began
            stats.generation_steps += 1
            for sequence, step in batch.step():
                going[sequence].take(step)
                if step.finish_reason:
                    yield going.pop(sequence)
    stats.generation_tokens += sum(len(text.tokens) + len(text.end) for text in texts)
    stats.prompt_time += reading
    stats.decode_time += time.perf_counter() - start - reading


def _report(stats: BatchStats, count: int) -> None:
    print(
        f"[batch_generate] Finished processing {count}/{count}\n"
        f"[batch_generate] Prompt: {stats.prompt_tokens} tokens, "
        f"{stats.prompt_tps:.3f} tokens-per-sec\n"
        f"[batch_generate] Generation: {stats.generation_tokens} tokens, "
        f"{stats.generation_tps:.3f} tokens-per-sec\n"
        f"[batch_generate] Peak memory: {stats.peak_memory:.3f} GB\n"
        f"[batch_generate] Accepted length: {stats.accepted_length:.2f}"
    )
