"""``batch_generate``: several prompts at once, each with a chain of drafts.

In a batch a row is no longer cheap, so no sequence drafts a tree: each drafts one chain, the
likeliest token of every stream (arXiv 2402.11131, App. L). All chains have the same length; how
much of each is accepted differs.
"""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchResponse as PlainResponse
from mlx_lm.generate import BatchStats as PlainStats
from mlx_lm.models.cache import KVCache
from mlx_lm.sample_utils import LogitsProcessor, Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .arguments import check_arguments
from .config import UserError
from .drafting.settings import DraftSettings
from .engine.kv import StackedKVCache, make_caches
from .engine.sampling import KeyedSampler, check_drawn, normalized, sampling_of
from .engine.step import Decoder
from .engine.tree import DraftTree, root_only
from .engine.verify.by_name import find_rule
from .engine.verify.rule import VerifyRule
from .engine.verify.side_by_side import SideBySide
from .hardware import device
from .loading import SpeculativeModel
from .loop import fill
from .models.architectures import architecture_of, layer_windows
from .prompt_cache import PromptCache
from .prompts import Prompt, check_prompt, encode_prompt
from .refused import check_kv_size, refuse_others


@dataclass(kw_only=True)
class BatchStats(PlainStats):
    """mlx_lm's statistics of a batch, with how well drafting went.

    Attributes:
        accepted_length: tokens per sequence and target call, over the calls it was still part of.
    """

    accepted_length: float = 0.0

    @property
    def target_calls(self) -> int:
        """Forward passes of the target over the whole batch."""
        return self.generation_steps


@dataclass
class BatchResponse(PlainResponse):
    """mlx_lm's response; ``stats`` is a ``BatchStats``.

    Attributes:
        finish_reasons: why each text ended, one per prompt: ``stop`` or ``length``.
    """

    finish_reasons: Sequence[str] = ()


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
    num_streams: int | None = None,
    speculation: bool = True,
    deferred: bool = True,
) -> BatchResponse:
    """Complete several prompts at once, as ``mlx_lm.batch_generate`` does.

    Every text is what ``generate`` writes for its prompt alone. The arguments up to ``stream`` are
    mlx_lm's.

    Args:
        model: from ``load``.
        tokenizer: from ``load``.
        prompts: texts, token ids or chat messages, of any lengths; see ``encode_prompt``. An empty
            list gives an empty response.
        prompt_caches: for each prompt a list of mlx_lm's caches, behind whose rows it goes, or
            ``None``; they stay as they are.
        max_tokens: the most tokens to generate: one number for all texts, or one for each.
        verbose: print how many texts have ended, as they do, and figures.
        return_prompt_caches: also return each text's caches, lists that hold prompt and text.
        return_token_ids: also return each text's token ids.
        return_logprobs: also return the log-probability of each token.
        sampler: what draws the tokens of all texts. Not a ``keyed_sampler``, with which several
            texts would draw with the same noise: see ``samplers``.
        logits_processors: functions of (tokens, logits), for all texts.
        completion_batch_size: the most prompts at once; more come one group after another.
        prefill_batch_size: prompts are read one after another, so this only raises
            ``completion_batch_size`` to at least itself, as in mlx_lm.
        prefill_step_size: prompt tokens per pass.
        max_kv_size, stream: see ``stream_generate``.
        samplers: what draws the tokens of each text, see ``stream_generate``; ``None``, for all or
            one: its likeliest tokens. Each ``keyed_sampler`` should have a seed of its own.
        num_streams: tokens to draft ahead; ``None``: all that the adapter was trained for.
        speculation: false for one token a step.
        deferred: where lossless streams run, see ``DraftSettings``.

    Raises:
        UserError: an argument has a wrong type or is out of range; there is not one number, sampler
            or cache for each prompt; or the model cannot run in batches: it has sliding windows,
            learned positions, or an attention that takes no mask per sequence.
    """
    check_arguments(
        model=model,
        tokenizer=tokenizer,
        prompts=prompts,
        prompt_caches=prompt_caches,
        verbose=verbose,
        return_prompt_caches=return_prompt_caches,
        return_token_ids=return_token_ids,
        return_logprobs=return_logprobs,
        sampler=sampler,
        logits_processors=logits_processors,
        completion_batch_size=completion_batch_size,
        prefill_batch_size=prefill_batch_size,
        prefill_step_size=prefill_step_size,
        max_kv_size=max_kv_size,
        samplers=samplers,
    )
    refuse_others(None, stream)
    _check_model(model)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    count = len(prompts)
    limits = _for_each("max_tokens", max_tokens, count)
    for limit in limits:
        check_arguments(max_tokens=limit)
    if min(limits, default=1) < 1:
        raise UserError(
            f"max_tokens is {max_tokens}, expected one number of at least 1 for all or for each"
        )
    if sampler is not None and samplers is not None:
        raise UserError("sampler and samplers were both given, expected one of them")
    if isinstance(sampler, KeyedSampler) and count > 1:
        raise UserError(
            f"sampler is a keyed_sampler and there are {count} prompts, which would draw with the "
            "same noise, expected samplers=[..] with one for each"
        )
    samplers = _for_each("samplers", sampler if samplers is None else samplers, count)
    for sampling in map(sampling_of, samplers):
        if sampling is not None:
            sampling.check(model.config["vocab_size"])
    ids = [encode_prompt(tokenizer, prompt, model.prompt_template) for prompt in prompts]
    begun = [
        PromptCache() if caches is None else PromptCache.of_list(model, deepcopy(caches))
        for caches in _for_each("prompt_caches", prompt_caches, count)
    ]
    for prompt, cache, limit in zip(ids, begun, limits, strict=True):
        check_prompt(prompt, model.config, cache.unknown_rows)
        check_kv_size(model, max_kv_size, len(prompt), limit)
        if cache.quantized is not None:
            raise UserError("prompt_caches has quantized rows, expected a KVCache for each layer")
    settings = DraftSettings(
        num_streams=num_streams,
        tree_width=1,
        tree_size=None,
        speculation=speculation,
        deferred=deferred,
    )
    settings.check(model.config["vocab_size"], model.streams and model.streams.config)
    texts = [
        _Text(prompt, cache, limit, sampler)
        for prompt, cache, limit, sampler in zip(ids, begun, limits, samplers, strict=True)
    ]
    stats = BatchStats(prompt_tokens=sum(map(len, ids)))
    size = max(completion_batch_size, prefill_batch_size)

    def report() -> None:
        done = sum(bool(text.reason) for text in texts)
        print(f"[batch_generate] Finished processing {done}/{count} ...", end="\r")

    ended = report if verbose else _nobody
    ended()
    with device.wired_limit(model.model, [device.generation_stream]):
        for first in range(0, count, size):
            group = texts[first : first + size]
            batch = _Batch(model, group, settings, prefill_step_size, stats, logits_processors)
            batch.run(tokenizer.eos_token_ids, return_logprobs, return_prompt_caches, ended)
    stats.wall_time = stats.prompt_time + stats.decode_time
    if count:
        stats.accepted_length = stats.generation_tokens / sum(text.calls for text in texts)
    stats.peak_memory = mx.get_peak_memory() / 1e9
    if verbose:
        print(f"[batch_generate] Finished processing {count}/{count}")
        _print_figures(stats)
    return BatchResponse(
        [tokenizer.decode(text.tokens) for text in texts],
        stats,
        [text.cache.caches for text in texts] if return_prompt_caches else None,
        token_ids=[text.tokens for text in texts] if return_token_ids else None,
        logprobs=[text.log_probs for text in texts] if return_logprobs else None,
        finish_reasons=[text.reason for text in texts],
    )


def _for_each(name: str, values: Any, count: int) -> list[Any]:
    """``values`` for each of ``count`` prompts: one for all, or a list with one for each.

    Raises:
        UserError: the list has another length.
    """
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise UserError(
            f"there are {count} prompts and {len(values)} {name}, expected one for each"
        )
    return list(values)


def _nobody() -> None:
    """For a batch whose progress nobody asked for."""


def _print_figures(stats: BatchStats) -> None:
    """Print what mlx_lm prints, and how well drafting went."""
    print(
        f"[batch_generate] Prompt: {stats.prompt_tokens} tokens, "
        f"{stats.prompt_tps:.3f} tokens-per-sec\n"
        f"[batch_generate] Generation: {stats.generation_tokens} tokens, "
        f"{stats.generation_tps:.3f} tokens-per-sec\n"
        f"[batch_generate] Peak memory: {stats.peak_memory:.3f} GB\n"
        f"[batch_generate] Accepted length: {stats.accepted_length:.2f}"
    )


def _check_model(model: SpeculativeModel) -> None:
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


@dataclass
class _Text:
    """One prompt and the text behind it.

    Attributes:
        prompt: token ids.
        cache: the rows that the prompt goes behind, then the prompt's own.
        limit: the most tokens.
        sampler: what draws them.
        tokens: the text's token ids, without an end token.
        log_probs: of ``tokens``, where they are asked for.
        reason: why it ended; empty until it has.
        calls: forward passes that it was part of.
    """

    prompt: list[int]
    cache: PromptCache
    limit: int
    sampler: Sampler | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reason: str = ""
    calls: int = 0

    def extend(self, tokens: Sequence[int], ends: set[int]) -> int:
        """Append tokens until the text ends. Returns how many it took, an end token included."""
        self.calls += 1
        for number, token in enumerate(tokens, start=1):
            if token in ends:
                self.reason = "stop"
                return number
            self.tokens.append(token)
            if len(self.tokens) == self.limit:
                self.reason = "length"
                return number
        return len(tokens)


class _Batch:
    """One group of texts that are decoded together.

    Args:
        model: base and adapter.
        texts: the prompts; their texts are written here.
        settings: how to draft.
        step_size: prompt tokens per pass.
        stats: to be added to.
        processors: logits processors, for all texts.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        texts: Sequence[_Text],
        settings: DraftSettings,
        step_size: int,
        stats: BatchStats,
        processors: Sequence[LogitsProcessor] | None = None,
    ):
        config = model.streams and model.streams.config
        self._model, self._texts, self._step_size = model, list(texts), step_size
        self._stats, self._depth = stats, 0
        if settings.drafts_with(model.streams):
            trained = config.num_streams
            self._depth = trained if settings.num_streams is None else settings.num_streams
        start = time.perf_counter()
        read = [self._read(text) for text in texts]
        nodes, self._plan_of = 1 + self._depth, settings.plans(config)
        sample = self._plan_of(root_only(0))
        count = sample.streams
        room = nodes * (1 + count) if sample.place == "beside" else nodes + count
        caches = [StackedKVCache(layer, room) for layer in zip(*read, strict=True)]
        self._decoder = Decoder(model.model, model.streams, caches)
        self._lengths = [cache.offset for cache, *_ in read]
        self._rule = VerifyRule()
        if processors or any(text.sampler is not None for text in texts):
            rules = [
                find_rule(None, text.sampler)(text.sampler, processors, text.prompt)
                for text in texts
            ]
            self._rule = SideBySide(rules)
        self._tokens = [[text.prompt[-1]] for text in texts]
        stats.prompt_time += time.perf_counter() - start

    def _read(self, text: _Text) -> list[KVCache]:
        """Read a prompt but for its last token, alone. Returns its KV caches, one per layer."""
        if len(text.prompt) > 1:
            fill(text.cache, self._model, text.prompt[:-1], self._step_size)
        elif not text.cache.rows:
            return make_caches(self._model.model, self._model.config)
        return text.cache.caches

    def run(self, ends: set[int], log_probs: bool, caches: bool, ended: Callable[[], None]) -> None:
        """Decode until every text has ended.

        Args:
            ends: tokens that end a text.
            log_probs: note those of the tokens.
            caches: let each text's ``cache`` hold the rows of prompt and text in the end.
            ended: called whenever a text has ended.
        """
        alive = list(self._texts)
        start = time.perf_counter()
        while alive:
            self._stats.generation_steps += 1
            committed, result = self._step(log_probs)
            self._rule.commit(committed)
            for number, (text, tokens) in enumerate(zip(alive, committed, strict=True)):
                before = len(text.tokens)
                taken = text.extend(tokens, ends)
                self._stats.generation_tokens += taken  # end tokens count
                if log_probs:
                    text.log_probs += result[number][: len(text.tokens) - before]
                if text.reason and caches:
                    self._keep_rows(text, number, tokens[:taken])
                if text.reason:
                    ended()
            going = [number for number, text in enumerate(alive) if not text.reason]
            if len(going) < len(alive):
                alive = [alive[number] for number in going]
                self._tokens = [self._tokens[number] for number in going]
                if alive:
                    self._keep(going)
            if self._stats.generation_steps % 64 == 0:
                mx.clear_cache()
        self._stats.decode_time += time.perf_counter() - start

    def _keep_rows(self, text: _Text, number: int, last: Sequence[int]) -> None:
        """Let the text's cache hold prompt and text, an end token included.

        Args:
            text: it has just ended.
            number: of its sequence.
            last: the tokens of its last step.
        """
        end = last[-1:] if text.reason == "stop" else []
        tokens, unknown = [*text.prompt, *text.tokens, *end], text.cache.unknown_rows
        known = tokens[: self._lengths[number] - unknown]
        if self._model.mode == "shared":  # whose generated rows have seen their streams
            known = text.prompt[:-1]
        rows = unknown + len(known)
        layers = [cache.extract(number, rows) for cache in self._decoder.caches]
        text.cache = PromptCache.of(self._model, layers, known, unknown)
        fill(text.cache, self._model, tokens, self._step_size)

    def _step(self, log_probs: bool) -> tuple[list[list[int]], list[list[float]]]:
        """Run one target call.

        Returns:
            The tokens that each sequence committed, and their log-probabilities if asked for.
        """
        tokens = np.array(self._tokens, np.int32)
        places = np.arange(tokens.shape[1], dtype=np.int32)
        chains = DraftTree(tokens, places - 1, places)
        with mx.stream(device.generation_stream):
            result = self._decoder.step(self._plan_of(chains), self._rule)
            found = mx.zeros(result.predictions.shape)
            if log_probs:
                found = mx.take_along_axis(
                    normalized(result.logits), result.predictions[..., None], axis=-1
                )[..., 0]
        arrays = [result.predictions, result.last, found]
        mx.eval(arrays if result.streams is None else [*arrays, result.streams.candidates])
        predictions, accepted, found = (array.tolist() for array in arrays)
        drafts = [[]] * len(accepted)
        if result.streams is not None:
            drafts = result.streams.candidates.reshape(len(accepted), -1).tolist()  # chains
        committed, following = [], []
        for chain, after, count, draft in zip(
            self._tokens, predictions, accepted, drafts, strict=True
        ):
            committed.append([*chain[1 : count + 1], after[count]])
            check_drawn(committed[-1])
            following.append([after[count], *draft[: self._depth]])
        pairs = zip(self._lengths, accepted, strict=True)
        self._set_lengths([length + 1 + count for length, count in pairs])
        self._tokens = following
        return committed, found

    def _keep(self, sequences: Sequence[int]) -> None:
        """Drop the sequences that are not listed; at least one goes on."""
        for cache in self._decoder.caches:
            cache.keep(sequences)
        if isinstance(self._rule, SideBySide):
            self._rule.keep(sequences)
        self._set_lengths([self._lengths[number] for number in sequences])

    def _set_lengths(self, lengths: list[int]) -> None:
        """Set each sequence's number of KV rows; accepted rows of a chain lie in place already."""
        self._lengths = lengths
        for cache in self._decoder.caches:
            cache.commit(lengths)
