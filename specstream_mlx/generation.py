"""The decoding loop: ``load``, ``stream_generate`` and ``generate`` with mlx_lm's signatures."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from . import device
from .adapters import Adapter, mount, read_adapter
from .architectures import text_limit
from .base_model import model_directory, read_config, read_model, read_tokenizer
from .config import Mode, UserError
from .decoder import Decoder, StepResult
from .draft_settings import DraftSettings, draft_settings
from .fingerprint import fingerprint
from .kv import make_caches
from .kv_quantization import KVQuantization
from .lora_layers import unmount
from .prompts import check_prompt, encode_prompt
from .sampling import Sampling
from .streams import Streams
from .tree import DraftTree, root_only
from .verify_rules import VerifyName, check_rule, make_rule, rule_name
from .weight_policy import HeldWeights, hold_weights


@dataclass
class SpeculativeModel:
    """A base model with at most one adapter mounted.

    Attributes:
        model: the mlx-lm model.
        config: the base's ``config.json``.
        path: where the base was loaded from.
        adapter: what is mounted, if anything.
        streams: the mounted adapter's streams, if it has any.
        held: how the base's weights are held.
    """

    model: nn.Module
    config: dict[str, Any]
    path: Path
    adapter: Adapter | None = None
    streams: Streams | None = None
    held: HeldWeights | None = None

    @property
    def mode(self) -> Mode:
        """The mounted adapter's mode; ``lossless`` without streams."""
        return self.streams.config.mode if self.streams else "lossless"

    @property
    def prompt_template(self) -> str | None:
        """What the mounted adapter puts around the user's raw text; see ``chat_prompt``."""
        return self.streams.config.prompt_template if self.streams else None

    def swap_adapter(self, directory: str | Path | None) -> None:
        """Mount the adapter at ``directory`` instead of the present one; ``None``: the bare base.

        Raises:
            AdapterError: the directory does not fit; the present adapter then stays. Where
                mounting itself fails, the bare base is left.
        """
        if directory is None:
            unmount(self.model)
            self.adapter = self.streams = None
            return
        adapter = read_adapter(directory, self.model, self.config)
        previous, self.adapter, self.streams = self.adapter, None, None
        try:
            self.streams = mount(self.model, adapter, previous)
        except BaseException:  # an interrupt too must not leave another adapter's LoRA behind
            unmount(self.model)
            raise
        self.adapter = adapter

    @property
    def base_fingerprint(self) -> str:
        """See ``fingerprint.fingerprint``."""
        return fingerprint(self.config)


@dataclass
class GenerationResponse(PlainResponse):
    """mlx_lm's response with the figures of speculation.

    Attributes:
        target_calls: forward passes of the target that committed tokens so far.
        accepted_length: tokens committed per target call so far.
        drafted_tokens: drafted nodes that the target tested so far.
        accepted_tokens: drafted tokens that were emitted so far.
    """

    target_calls: int = 0
    accepted_length: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass
class Step:
    """What one target call committed.

    Attributes:
        tokens: the accepted drafts, then the correction or bonus token.
        tested_nodes: tree nodes that the target tested, root included; pruned ones are not.
        result: the device arrays of the call.
        rows: for each token, the row of ``result.logits`` that predicts it.
    """

    tokens: list[int]
    tested_nodes: int
    result: StepResult
    rows: list[int]


def load(
    path_or_hf_repo: str | Path,
    tokenizer_config: dict[str, Any] | None = None,
    adapter_path: str | Path | None = None,
    lazy: bool = False,
    weights: str = "auto",
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a base model in MLX format and, optionally, an adapter directory.

    Args:
        path_or_hf_repo: a local directory or a Hugging Face repository.
        tokenizer_config: further arguments of the tokenizer.
        adapter_path: an adapter directory (see ``adapters``).
        lazy: as in mlx_lm; weights are read when first used.
        weights: ``packed``, ``expanded``, or ``auto`` for what runs faster here (see
            ``weight_policy``).

    Raises:
        UserError: the model or the adapter cannot be used; one sentence says why.
    """
    path = model_directory(path_or_hf_repo)
    model, full_config = read_model(path)
    model, held = hold_weights(model, weights)
    if not lazy:
        mx.eval(model.parameters())
    tokenizer = read_tokenizer(path, full_config, tokenizer_config)
    speculative = SpeculativeModel(model, read_config(path), path, held=held)
    if adapter_path is not None:
        speculative.swap_adapter(adapter_path)
    return speculative, tokenizer


def decode(
    model: SpeculativeModel,
    prompt: Sequence[int],
    settings: DraftSettings,
    prefill_step_size: int = 2048,
    *,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    verify: VerifyName | None = None,
) -> Iterator[Step]:
    """Decoding without end, one ``Step`` per target call.

    The next call is under way on the device when a ``Step`` is handed out.

    Args:
        model: base and adapter.
        prompt: token ids, at least one.
        settings: how to draft.
        prefill_step_size: prompt tokens per pass.
        kv_bits: 4 or 8 for a quantized KV cache, ``None`` for none.
        kv_group_size: elements that share a scale there.
        quantized_kv_start: rows from which on the cache is quantized.
        sampler, logits_processors, verify: see ``stream_generate``.

    Raises:
        UserError: the KV cache cannot be quantized so, or the verify rule does not go with the
            sampler or the tree.
    """
    quantization = KVQuantization(kv_bits, kv_group_size, quantized_kv_start)
    quantization.check(model.model, model.config)
    verify = rule_name(verify, sampler)
    check_rule(verify, settings)
    rule = make_rule(verify, sampler, logits_processors, prompt)
    placement = settings.placement(model.streams and model.streams.config)
    speculates = settings.drafts_with(model.streams)
    lookup = settings.new_lookup(prompt)
    caches = make_caches(model.model, model.config)
    decoder = Decoder(model.model, model.streams, caches)
    with mx.stream(device.generation_stream):
        _prefill(decoder, prompt[:-1], prefill_step_size, quantization)
    tree = root_only(prompt[-1])
    width = settings.tree_width if speculates else 1
    pending = None
    count = 0
    while True:
        with mx.stream(device.generation_stream):
            result = decoder.step(
                tree, placement, width, settings.max_nodes, settings.prune_threshold, rule
            )
        mx.async_eval(*result.arrays())
        if pending is not None:
            yield pending
        with mx.stream(device.generation_stream):
            step, path, kept_path = _read(tree, result)
            decoder.commit(path, kept_path)
            rule.commit(step.tokens)
            quantization.apply(decoder.caches)
        if speculates:
            if lookup is not None:
                lookup.accept(step.tokens)
            tree = settings.grow(step.tokens[-1], *result.guesses(), lookup)
            tree = quantization.fitting(tree, decoder.caches[0])
        else:
            tree = root_only(step.tokens[-1])
        pending = step
        count += 1
        if count % 64 == 0:
            mx.clear_cache()


def _prefill(
    decoder: Decoder, tokens: Sequence[int], step_size: int, quantization: KVQuantization
) -> None:
    for start in range(0, len(tokens), step_size):
        decoder.prefill(mx.array(tokens[start : start + step_size]))
        quantization.apply(decoder.caches)
        mx.eval([cache.state for cache in decoder.caches])
        mx.clear_cache()


def _read(tree: DraftTree, result: StepResult) -> tuple[Step, list[int], list[int]]:
    """Wait for the call: its step, and the accepted path in the tree and among the kept nodes."""
    mx.eval(*result.arrays())
    last = result.last.item()
    predictions = np.array(result.predictions)
    if result.kept is None:
        tested = len(tree)
        path = kept_path = tree.path(last)
    else:
        tested = int(np.array(result.in_play).sum())
        kept = np.array(result.kept).tolist()
        path = tree.path(kept[last])
        kept_path = [kept.index(node) for node in path]
    tokens = [*tree.tokens[path[1:]].tolist(), int(predictions[last])]
    return Step(tokens, tested, result, kept_path), path, kept_path


def stream_generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: str | mx.array | Sequence[int],
    max_tokens: int = 256,
    *,
    settings: DraftSettings | None = None,
    stop: Sequence[str] = (),
    prefill_step_size: int = 2048,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    verify: VerifyName | None = None,
    **overrides: Any,
) -> Iterator[GenerationResponse]:
    """Generate text, one response per token, as ``mlx_lm.stream_generate`` does.

    Args:
        model: from ``load``.
        tokenizer: from ``load``.
        prompt: text or token ids.
        max_tokens: the most tokens to generate; -1 for no limit. A model with learned positions
            ends where they do.
        settings: how to draft; ``LIKELY_DRAFTS`` if neither these nor a tree's shape are given.
        stop: strings that end the text; neither they nor what follows is yielded.
        prefill_step_size: prompt tokens per pass.
        kv_bits: 4 or 8 for a quantized KV cache, ``None`` for none.
        kv_group_size: elements of a head that share a scale there: 32, 64 or 128.
        quantized_kv_start: tokens from which on the cache is quantized, as in mlx_lm.
        sampler: draws tokens from (rows, vocab) log-probabilities, each row independently of the
            others; ``Sampling`` or mlx_lm's ``make_sampler``. ``None``: the arg-max.
        logits_processors: functions of (tokens, logits), as in mlx_lm; see ``NodeProcessors``.
        verify: the verify rule; ``None``: ``greedy`` where ``sampler`` takes the arg-max, else
            ``sample``. ``typical`` is lossy: its text is not distributed as the model's.
        **overrides: fields of ``DraftSettings``.

    Yields:
        ``GenerationResponse``; the last one carries ``finish_reason``.

    Raises:
        UserError: an empty prompt, one longer than the model's context, or a setting that is out
            of range or does not fit the model, its KV cache included, or the verify rule.
    """
    verify = rule_name(verify, sampler)
    if settings:
        settings = replace(settings, **overrides)
    else:
        settings = draft_settings(drawn=verify == "rejection", **overrides)
    check_rule(verify, settings)
    if isinstance(sampler, Sampling):
        sampler.check(model.config["vocab_size"])
    if max_tokens == 0 or max_tokens < -1:
        raise UserError(f"max_tokens is {max_tokens}, expected at least 1, or -1 for no limit")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stop:
        raise UserError("a stop string is empty, expected at least one character")
    if prefill_step_size < 1:
        raise UserError(f"prefill_step_size is {prefill_step_size}, expected at least 1")
    ids = encode_prompt(tokenizer, prompt)
    check_prompt(ids, model.config)
    room = text_limit(model.config)
    if room is not None:  # the last token of all is not read any more
        longest = room - len(ids) + 1
        max_tokens = longest if max_tokens < 0 else min(max_tokens, longest)
    settings.check(model.config["vocab_size"], model.streams and model.streams.config)
    KVQuantization(kv_bits, kv_group_size, quantized_kv_start).check(model.model, model.config)
    steps = decode(
        model,
        ids,
        settings,
        prefill_step_size,
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
        sampler=sampler,
        logits_processors=logits_processors,
        verify=verify,
    )
    return _respond(model, tokenizer, len(ids), steps, max_tokens, stop)


def _respond(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt_tokens: int,
    steps: Iterator[Step],
    max_tokens: int,
    stop: tuple[str, ...],
) -> Iterator[GenerationResponse]:
    detokenizer = tokenizer.detokenizer
    response = GenerationResponse("", 0, mx.array([]), False, prompt_tokens, 0.0, 0, 0.0, 0.0)
    held = ""  # text that may be the beginning of a stop string
    with device.wired_limit(model.model, [device.generation_stream]):
        start = time.perf_counter()
        for step in steps:
            if response.generation_tokens == 0:
                now = time.perf_counter()
                response.prompt_tps = prompt_tokens / (now - start)
                start = now
            response.target_calls += 1
            response.drafted_tokens += step.tested_nodes - 1
            with mx.stream(device.generation_stream):
                logits = step.result.logits[mx.array(step.rows)]
                log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
            mx.async_eval(log_probs)  # else a kept response would keep all rows' logits
            for index, token in enumerate(step.tokens):
                response.generation_tokens += 1
                response.token = token
                response.logprobs = log_probs[index]
                response.from_draft = index < len(step.tokens) - 1
                response.accepted_tokens += response.from_draft
                ended = token in tokenizer.eos_token_ids
                if not ended:
                    detokenizer.add_token(token)
                if not ended and response.generation_tokens == max_tokens:
                    response.finish_reason = "length"
                if ended:
                    response.finish_reason = "stop"
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


def _cut(text: str, stop: tuple[str, ...]) -> tuple[str, str, bool]:
    """Split ``text`` into what may be shown and what may begin a stop string.

    Returns:
        (text to show, text to hold back, whether a stop string was met).
    """
    starts = [text.find(word) for word in stop if word in text]
    if starts:
        return text[: min(starts)], "", True
    for size in range(min(len(text), max((len(word) for word in stop), default=1) - 1), 0, -1):
        if any(word.startswith(text[-size:]) for word in stop):
            return text[:-size], text[-size:], False
    return text, "", False


def generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: str | Sequence[int],
    verbose: bool = False,
    **kwargs: Any,
) -> str:
    """Generate a complete text; see ``stream_generate`` for the arguments."""
    text = ""
    for response in stream_generate(model, tokenizer, prompt, **kwargs):
        text += response.text
        if verbose:
            print(response.text, end="", flush=True)
    if verbose:
        print(
            f"\nPrompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec\n"
            f"Generation: {response.generation_tokens} tokens, "
            f"{response.generation_tps:.3f} tokens-per-sec\n"
            f"Accepted length: {response.accepted_length:.2f} in {response.target_calls} calls\n"
            f"Peak memory: {response.peak_memory:.3f} GB"
        )
    return text
