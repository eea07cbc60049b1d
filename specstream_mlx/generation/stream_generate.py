"""``stream_generate`` and ``generate`` with mlx_lm's signatures."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from ..drafting import Planner
from ..drafting.settings import DraftSettings, Proposers, chosen_drafts
from ..engine.kv_quantization import KVQuantization
from ..engine.verify.by_name import VerifyName
from ..engine.verify.rule import VerifyRule
from ..errors import UserError, shown
from ..grammar import Schema, grammars_of
from ..hardware import running
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import text_limit
from ..options import checked
from ..prompts import Prompt, encode_prompt
from .kv_store import PromptCache
from .request import Progress, Request
from .text import GenerationResponse, responses


@checked()
def stream_generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: Prompt,
    max_tokens: int = 256,
    draft_model: nn.Module | None = None,
    stream: mx.Stream | mx.ThreadLocalStream = running.generation_stream,
    *,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    max_kv_size: int | None = None,
    prompt_cache: PromptCache | list[Any] | None = None,
    prefill_step_size: int = 2048,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    prompt_progress_callback: Progress | None = None,
    input_embeddings: mx.array | None = None,
    num_draft_tokens: int = 2,
    settings: DraftSettings | Proposers | Planner | None = None,
    stop: Sequence[str] = (),
    schema: Schema | None = None,
    verify: VerifyName | type[VerifyRule] | None = None,
    **overrides: Any,
) -> Iterator[GenerationResponse]:
    """Generate text, one response per token, as ``mlx_lm.stream_generate`` does.

    The arguments up to ``num_draft_tokens`` are mlx_lm's.

    Args:
        model, tokenizer: from ``load``.
        prompt: text, token ids, or the messages of a chat; see ``encode_prompt``.
        max_tokens: -1 for no limit. A model with learned positions ends where they do.
        draft_model: a second model with the same vocabulary, from ``load`` here or in mlx_lm.
        stream: mlx_lm's own alone, on which everything here runs.
        sampler: ``keyed_sampler(seed)``; or a ``Sampling`` or what mlx_lm's ``make_sampler``
            returns, under a seed drawn from mlx's random state. ``None``: take the likeliest token.
        logits_processors: functions of (tokens, logits), as in mlx_lm; see ``NodeProcessors``.
        max_kv_size: rows of the KV cache, into which prompt and text must fit. Without effect with
            ``prompt_cache``, or where the model chooses its caches.
        prompt_cache: a ``PromptCache``: what it holds of ``prompt`` is not read again, and
            afterwards it holds this prompt too, in lossless mode also the text. Or a list from
            mlx_lm's ``make_prompt_cache``: ``prompt`` goes after its rows, as in mlx_lm.
        kv_bits, kv_group_size, quantized_kv_start: 4 or 8 for a KV cache that is quantized from
            that length on, 32, 64 or 128 elements to a scale.
        prompt_progress_callback: called with the number of prompt tokens read so far and of all.
        input_embeddings: refused: drafts are verified as tokens.
        settings: settings of every step's drafts. ``None``, without ``overrides`` of the shape: the
            rule drafts what is worth most in every step; ``lookup``, ``draft_model`` and
            ``proposers`` alone say of what. Or a ``drafting.Planner`` of one's own.
        stop: strings that end the text, outside of thoughts; only the text before the first of them
            is yielded.
        schema: a JSON schema, as an object or as text, that the text is to fit; see ``grammar``.
        verify: the verify rule. ``None``: ``greedy`` without a sampler or temperature, else
            ``keyed``; either writes what plain decoding writes, in less precision than float32 up
            to near-ties. ``rejection`` has its distribution, and ``typical`` is lossy.
        **overrides: fields of ``DraftSettings`` that replace those of ``settings``.

    Raises:
        UserError: an argument is wrong or does not fit model, KV cache or verify rule, or the
            prompt the context; the schema cannot be followed; later, the sampler drew a token
            outside the vocabulary or one that the schema forbids.
    """
    refuse_stream(stream)
    if input_embeddings is not None:
        raise UserError(
            "input_embeddings were given, but drafts and their checks are of tokens, expected a "
            "prompt of token ids"
        )
    if draft_model is not None:
        overrides |= {"draft_model": draft_model, "num_draft_tokens": num_draft_tokens}
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stop:
        raise UserError("a stop string is empty, expected at least one character")
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    ids = encode_prompt(tokenizer, prompt, model.prompt_template)
    if model.ranks is not None:
        ids = model.ranks.same(ids)
    logits_processors = with_schema(logits_processors, schema, model, tokenizer, ids)
    quantization = KVQuantization(kv_bits, kv_group_size, quantized_kv_start)
    caches = None  # mlx_lm's list
    if prompt_cache is None:
        check_kv_size(model, max_kv_size, len(ids), max_tokens)
    elif not isinstance(prompt_cache, PromptCache):
        caches, prompt_cache = prompt_cache, PromptCache.of_list(model, prompt_cache)
        if prompt_cache.quantized is not None and kv_bits is None:
            quantization = KVQuantization(*prompt_cache.quantized, 0)
    request = Request(
        ids,
        drafting_of(settings, verify, overrides),
        max_tokens=room(model, ids, prompt_cache, max_tokens),
        end_tokens=tokenizer.eos_token_ids,
        prefill_step_size=prefill_step_size,
        quantization=quantization,
        sampler=sampler,
        logits_processors=logits_processors,
        verify=verify,
        prompt_cache=prompt_cache,
        progress=prompt_progress_callback,
    )
    request.check(model)
    return running.closed_at_exit(responses(model, tokenizer, request, stop, caches))


def drafting_of(
    settings: DraftSettings | Proposers | Planner | None, verify: object, overrides: dict[str, Any]
) -> DraftSettings | Proposers | Planner | None:
    if isinstance(settings, DraftSettings):
        return replace(settings, **overrides)
    if settings is None or isinstance(settings, Proposers):
        return chosen_drafts(verify, **(vars(settings) if settings else {}) | overrides)
    if overrides:
        raise UserError(
            f"settings is a planner and {next(iter(overrides))} was given too, expected one"
        )
    return settings


def with_schema(
    processors: Sequence[LogitsProcessor] | None,
    schema: Schema | None,
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: Sequence[int],
) -> Sequence[LogitsProcessor] | None:
    """Return logits processors and, as the last one, the mask of a schema, if there is one."""
    if schema is None:
        return processors
    grammars = grammars_of(tokenizer, model.config["vocab_size"])
    return [*(processors or ()), grammars.json(schema, len(prompt))()]


def refuse_stream(stream: Any) -> None:
    if stream is not None and stream is not running.generation_stream:
        raise UserError(
            f"stream is {shown(stream)}, expected mlx_lm's generation_stream: all runs there"
        )


def check_kv_size(
    model: SpeculativeModel, max_kv_size: int | None, prompt_tokens: int, max_tokens: int
) -> None:
    """Check that a text fits into ``max_kv_size`` rows, so that none is overwritten."""
    if max_kv_size is None or hasattr(model, "make_cache"):  # whose caches have their own sizes
        return
    if max_tokens < 0 or prompt_tokens + max_tokens > max_kv_size:
        most = "no limit" if max_tokens < 0 else f"{prompt_tokens + max_tokens} tokens"
        raise UserError(
            f"max_kv_size is {max_kv_size} and prompt and text may have {most}, expected that they "
            "fit: a cache that overwrites rows cannot drop rejected drafts"
        )


_THREAD = ThreadPoolExecutor(1, "astream_generate")
"""Runs all generations of asyncio, a response each in turn."""


async def astream_generate(
    model: SpeculativeModel, tokenizer: TokenizerWrapper, prompt: Prompt, **kwargs: Any
) -> AsyncGenerator[GenerationResponse, None]:
    """Generate text as ``stream_generate`` does, without holding up asyncio's loop.

    The work is done in one thread of its own; several generations take turns there. Cancelling the
    task that reads, or closing the generator, ends the work with the step under way.
    """
    run = asyncio.get_running_loop().run_in_executor
    begin = partial(stream_generate, model, tokenizer, prompt, **kwargs)
    written: Any = await run(_THREAD, begin)
    try:
        while (response := await run(_THREAD, next, written, None)) is not None:
            yield response
    finally:
        with suppress(RuntimeError):  # at the end of the program, where it is closed already
            _THREAD.submit(written.close)


def room(
    model: SpeculativeModel, ids: Sequence[int], prompt_cache: PromptCache | None, max_tokens: int
) -> int | None:
    """Return the most tokens to generate: ``max_tokens``, or fewer with learned positions."""
    limit, most = text_limit(model.config), [] if max_tokens < 0 else [max_tokens]
    if limit is not None:
        before = 0 if prompt_cache is None else prompt_cache.unknown_rows
        most.append(max(1, limit - before - len(ids) + 1))  # the last token of all is not read
    return min(most, default=None)


@checked()
def generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: Prompt,
    verbose: bool = False,
    **kwargs: Any,
) -> str:
    """Generate a complete text, and with ``verbose`` print it; see ``stream_generate``."""
    written = stream_generate(model, tokenizer, prompt, **kwargs)
    if verbose:
        print("=" * 10)
    text = ""
    for response in written:
        text += response.text
        if verbose:
            print(response.text, end="", flush=True)
    if verbose:
        print(
            f"\n{'=' * 10}\n"
            f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec\n"
            f"Generation: {response.generation_tokens} tokens, "
            f"{response.generation_tps:.3f} tokens-per-sec\n"
            f"Peak memory: {response.peak_memory:.3f} GB\n"
            f"Accepted length: {response.accepted_length:.2f} in {response.target_calls} calls"
        )
    return text
