"""``batch_generate``: several prompts at once, each with a chain of drafts.

In a batch a row is no longer cheap, so no sequence drafts a tree: each drafts one chain, the
likeliest token of every stream (arXiv 2402.11131, App. L). All chains have the same length; how
much of each is accepted differs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx_lm.generate import BatchResponse as PlainResponse
from mlx_lm.generate import BatchStats as PlainStats
from mlx_lm.sample_utils import Sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .config import UserError
from .drafting.settings import DraftSettings
from .drafting.tree import DraftTree
from .engine.kv import StackedKVCache, make_caches
from .engine.sampling import sampling_of
from .engine.step import Decoder
from .engine.verify.by_name import find_rule
from .engine.verify.rule import VerifyRule
from .engine.verify.side_by_side import SideBySide
from .hardware import device
from .loading import SpeculativeModel
from .loop import fill
from .models.architectures import architecture_of, layer_windows
from .prompt_cache import PromptCache
from .prompts import check_prompt, encode_prompt


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
    """mlx_lm's response. ``stats`` is a ``BatchStats``; ``caches`` and ``logprobs`` are ``None``.

    Attributes:
        finish_reasons: why each text ended, one per prompt: ``stop`` or ``length``.
    """

    finish_reasons: Sequence[str] = ()


def batch_generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompts: Sequence[str | Sequence[int]],
    max_tokens: int | Sequence[int] = 128,
    *,
    samplers: Sequence[Sampler | None] | None = None,
    num_streams: int | None = None,
    speculation: bool = True,
    deferred: bool = True,
    prefill_step_size: int = 2048,
    return_token_ids: bool = False,
) -> BatchResponse:
    """Complete several prompts at once, as ``mlx_lm.batch_generate`` does.

    Every text is what ``generate`` writes for its prompt alone.

    Args:
        model: from ``load``.
        tokenizer: from ``load``.
        prompts: texts or token ids, of any lengths.
        max_tokens: the most tokens to generate: one number for all texts, or one for each.
        samplers: what draws the tokens of each text, see ``stream_generate``; ``None``, for all or
            one: its likeliest tokens. Each ``keyed_sampler`` should have a seed of its own.
        num_streams: tokens to draft ahead; ``None``: all that the adapter was trained for.
        speculation: false for one token a step.
        deferred: where lossless streams run, see ``DraftSettings``.
        prefill_step_size: prompt tokens per pass; the prompts are read one after another.
        return_token_ids: also return each text's token ids.

    Raises:
        UserError: there are no prompts, a prompt or a number is out of range, there is not one
            sampler for each prompt, or the model cannot run in batches: it has sliding windows,
            learned positions, or an attention that takes no mask per sequence.
    """
    _check_model(model)
    ids = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    for prompt in ids:
        check_prompt(prompt, model.config)
    limits = [max_tokens] * len(ids) if isinstance(max_tokens, int) else list(max_tokens)
    if not ids or len(limits) != len(ids) or min(limits) < 1:
        raise UserError(
            f"there are {len(ids)} prompts and max_tokens is {max_tokens}, expected at least one "
            "prompt, and one number of at least 1 for all or for each"
        )
    if samplers is not None and len(samplers) != len(ids):
        raise UserError(
            f"there are {len(ids)} prompts and {len(samplers)} samplers, expected one for each"
        )
    for sampling in map(sampling_of, samplers or ()):
        if sampling is not None:
            sampling.check(model.config["vocab_size"])
    settings = DraftSettings(
        num_streams=num_streams,
        tree_width=1,
        tree_size=None,
        speculation=speculation,
        deferred=deferred,
    )
    settings.check(model.config["vocab_size"], model.streams and model.streams.config)
    stats = BatchStats(prompt_tokens=sum(map(len, ids)))
    ends = tokenizer.eos_token_ids
    with device.wired_limit(model.model, [device.generation_stream]):
        batch = _Batch(model, ids, settings, prefill_step_size, stats, samplers)
        texts, reasons = batch.run(limits, ends)
    stats.peak_memory = mx.get_peak_memory() / 1e9
    return BatchResponse(
        [tokenizer.decode(text) for text in texts],
        stats,
        None,
        token_ids=texts if return_token_ids else None,
        finish_reasons=reasons,
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


class _Batch:
    """One run of ``batch_generate``.

    Args:
        model: base and adapter.
        prompts: token ids.
        settings: how to draft.
        step_size: prompt tokens per pass.
        stats: to be filled in.
        samplers: one per prompt; ``None``: all texts are greedy.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        prompts: Sequence[Sequence[int]],
        settings: DraftSettings,
        step_size: int,
        stats: BatchStats,
        samplers: Sequence[Sampler | None] | None = None,
    ):
        config = model.streams and model.streams.config
        self._stats, self._settings, self._depth = stats, settings, 0
        if settings.drafts_with(model.streams):
            trained = config.num_streams
            self._depth = trained if settings.num_streams is None else settings.num_streams
        start = time.perf_counter()
        read = [_read(model, prompt[:-1], step_size) for prompt in prompts]
        nodes, placement = 1 + self._depth, settings.placement(config)
        gamma = 0 if placement == "none" else config.num_streams
        room = nodes * (1 + gamma) if placement == "beside" else nodes + gamma
        caches = [StackedKVCache(layer, room) for layer in zip(*read, strict=True)]
        self._decoder = Decoder(model.model, model.streams, caches)
        self._lengths = [cache.offset for cache, *_ in read]
        self._rule = VerifyRule()
        if samplers is not None:
            rules = [find_rule(None, sampler)(sampler) for sampler in samplers]
            self._rule = SideBySide(rules)
        self._tokens = [[prompt[-1]] for prompt in prompts]
        stats.prompt_time = time.perf_counter() - start

    def run(self, limits: Sequence[int], ends: set[int]) -> tuple[list[list[int]], list[str]]:
        """Decode until every text has ended.

        Args:
            limits: the most tokens of each text.
            ends: tokens that end a text.

        Returns:
            The texts' token ids without end tokens, and why each ended.
        """
        texts: list[list[int]] = [[] for _ in limits]
        reasons = [""] * len(limits)
        alive, calls = list(range(len(limits))), 0
        start = time.perf_counter()
        while alive:
            self._stats.generation_steps += 1
            calls += len(alive)
            going, committed = [], self._step()
            self._rule.commit(committed)
            for number, tokens in enumerate(committed):
                text, limit = texts[alive[number]], limits[alive[number]]
                reason = _extend(text, tokens, limit, ends)
                reasons[alive[number]] = reason
                if not reason:
                    going.append(number)
            if len(going) < len(alive):
                alive = [alive[number] for number in going]
                self._tokens = [self._tokens[number] for number in going]
                if alive:
                    self._keep(going)
            if self._stats.generation_steps % 64 == 0:
                mx.clear_cache()
        stats = self._stats
        stats.generation_tokens = sum(map(len, texts)) + reasons.count("stop")  # end tokens count
        stats.decode_time = time.perf_counter() - start
        stats.wall_time = stats.prompt_time + stats.decode_time
        stats.accepted_length = stats.generation_tokens / calls
        return texts, reasons

    def _step(self) -> list[list[int]]:
        """Run one target call and return the tokens that each sequence committed."""
        tokens = np.array(self._tokens, np.int32)
        places = np.arange(tokens.shape[1], dtype=np.int32)
        chains = DraftTree(tokens, places - 1, places)
        with mx.stream(device.generation_stream):
            result = self._decoder.step(chains, self._settings, self._rule)
        arrays = [result.predictions, result.last]
        mx.eval(arrays if result.candidates is None else [*arrays, result.candidates])
        predictions, accepted = (array.tolist() for array in arrays)
        drafts = [[]] * len(accepted)
        if result.candidates is not None:
            drafts = result.candidates[..., 0].tolist()
        committed, following = [], []
        for chain, after, count, draft in zip(
            self._tokens, predictions, accepted, drafts, strict=True
        ):
            committed.append([*chain[1 : count + 1], after[count]])
            following.append([after[count], *draft[: self._depth]])
        pairs = zip(self._lengths, accepted, strict=True)
        self._set_lengths([length + 1 + count for length, count in pairs])
        self._tokens = following
        return committed

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


def _read(model: SpeculativeModel, tokens: Sequence[int], step_size: int) -> list:
    """Read a prompt alone and return its KV caches, one per layer."""
    if not tokens:
        return make_caches(model.model, model.config)
    cache = PromptCache()
    fill(cache, model, tokens, step_size)
    return cache.caches


def _extend(text: list[int], tokens: Sequence[int], limit: int, ends: set[int]) -> str:
    """Append tokens to ``text`` until it ends. Returns why it ended, or an empty string."""
    for token in tokens:
        if token in ends:
            return "stop"
        text.append(token)
        if len(text) == limit:
            return "length"
    return ""
