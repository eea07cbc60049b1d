"""The decoding loop: ``load``, ``stream_generate`` and ``generate`` with mlx_lm's signatures."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.generate import GenerationResponse as PlainResponse
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from . import device
from .adapters import Adapter, mount, read_adapter, unmount
from .base_model import model_directory, read_config, read_model, read_tokenizer
from .config import Mode, UserError, fingerprint
from .decoder import Decoder, StepResult, StreamPlacement
from .streams import Streams
from .tree import DraftTree, best_first_tree, full_tree, root_only

MAX_TREE_SIZE = 4096


@dataclass
class SpeculativeModel:
    """A base model with at most one adapter mounted.

    Attributes:
        model: the mlx-lm model.
        config: the base's ``config.json``.
        path: where the base was loaded from.
        adapter: what is mounted, if anything.
        streams: the mounted adapter's streams, if it has any.
    """

    model: nn.Module
    config: dict[str, Any]
    path: Path
    adapter: Adapter | None = None
    streams: Streams | None = None

    @property
    def mode(self) -> Mode:
        """The mounted adapter's mode; ``lossless`` without streams."""
        return self.streams.config.mode if self.streams else "lossless"

    def swap_adapter(self, directory: str | Path | None) -> None:
        """Mount the adapter at ``directory`` instead of the present one; ``None``: the bare base.

        Raises:
            AdapterError: the directory does not fit; the present adapter then stays.
        """
        if directory is None:
            unmount(self.model)
            self.adapter = self.streams = None
            return
        adapter = read_adapter(directory, self.model, self.config)
        self.streams = mount(self.model, adapter, self.adapter)
        self.adapter = adapter

    @property
    def base_fingerprint(self) -> str:
        """See ``config.fingerprint``."""
        return fingerprint(self.config)


@dataclass(frozen=True)
class DraftSettings:
    """How a step drafts and what it keeps.

    Attributes:
        num_streams: depth of the tree; ``None``: all trained streams; 0: no drafts.
        tree_width: children of every node in a full tree, and candidates per stream.
        tree_size: nodes drafted best-first by joint probability; ``None``: the full tree.
        max_nodes: nodes kept by early-exit pruning, the root included; ``None``: no pruning.
        prune_threshold: probability below which an edge's subtree is dropped.
        deferred: lossless only: run the streams for the accepted node alone, after verification.
        speculation: ``False``: an empty tree, one token a step.
    """

    num_streams: int | None = None
    tree_width: int = 4
    tree_size: int | None = 8
    max_nodes: int | None = None
    prune_threshold: float | None = None
    deferred: bool = True
    speculation: bool = True

    def __post_init__(self) -> None:
        for name in ("tree_width", "tree_size", "max_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}, expected an integer of at least 1")
        if self.num_streams is not None and self.num_streams < 0:
            raise UserError(f"num_streams is {self.num_streams}, expected at least 0")
        if self.prune_threshold is not None and not 0 <= self.prune_threshold < 1:
            raise UserError(
                f"prune_threshold is {self.prune_threshold}, expected a probability below 1"
            )

    def grow(self, root: int, candidates: np.ndarray, log_probs: np.ndarray) -> DraftTree:
        """The next tree from the streams' (gamma, k) candidates."""
        depth = len(candidates) if self.num_streams is None else self.num_streams
        candidates, log_probs = candidates[:depth], log_probs[:depth]
        if self.tree_size is None:
            return full_tree(root, candidates, self.tree_width)
        return best_first_tree(root, candidates, log_probs, self.tree_size)

    def describe(self) -> str:
        """A few words for people."""
        if not self.speculation or self.num_streams == 0:
            return "no drafts"
        if self.tree_size is None:
            shape = "chain" if self.tree_width == 1 else f"full {self.tree_width}-ary"
        else:
            shape = f"best-first, {self.tree_size} nodes, width {self.tree_width}"
        if self.num_streams is not None:
            shape += f", depth {self.num_streams}"
        if self.max_nodes is not None:
            shape += f", pruned to {self.max_nodes}"
        if self.prune_threshold is not None:
            shape += f", edges above {self.prune_threshold}"
        return shape


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
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a base model in MLX format and, optionally, an adapter directory.

    Args:
        path_or_hf_repo: a local directory or a Hugging Face repository.
        tokenizer_config: further arguments of the tokenizer.
        adapter_path: an adapter directory (see ``adapters``).
        lazy: as in mlx_lm; weights held as they are in the file are read when first used.

    Raises:
        UserError: the model or the adapter cannot be used; one sentence says why.
    """
    path = model_directory(path_or_hf_repo)
    model, full_config = read_model(path)
    model = device.hold_weights(model)
    if not lazy:
        mx.eval(model.parameters())
    tokenizer = read_tokenizer(path, full_config, tokenizer_config)
    speculative = SpeculativeModel(model, read_config(path), path)
    if adapter_path is not None:
        speculative.swap_adapter(adapter_path)
    return speculative, tokenizer


def decode(
    model: SpeculativeModel,
    prompt: Sequence[int],
    settings: DraftSettings,
    prefill_step_size: int = 2048,
) -> Iterator[Step]:
    """Greedy decoding without end, one ``Step`` per target call.

    The next call is under way on the device when a ``Step`` is handed out.

    Args:
        model: base and adapter.
        prompt: token ids, at least one.
        settings: how to draft.
        prefill_step_size: prompt tokens per pass.
    """
    shared = model.mode == "shared"
    speculates = settings.speculation and settings.num_streams != 0 and model.streams is not None
    placement: StreamPlacement = "none"
    if shared:
        placement = "beside"
    elif speculates:
        placement = "deferred" if settings.deferred else "beside"
    caches = make_prompt_cache(model.model)
    decoder = Decoder(model.model, model.streams, caches)
    with mx.stream(device.generation_stream):
        _prefill(decoder, prompt[:-1], prefill_step_size)
    tree = root_only(prompt[-1])
    width = settings.tree_width if speculates else 1
    pending = None
    count = 0
    while True:
        with mx.stream(device.generation_stream):
            result = decoder.step(
                tree, placement, width, settings.max_nodes, settings.prune_threshold
            )
        mx.async_eval(*result.arrays())
        if pending is not None:
            yield pending
        with mx.stream(device.generation_stream):
            step, path, kept_path = _read(tree, result)
            decoder.commit(path, kept_path)
        if speculates:
            tree = settings.grow(
                step.tokens[-1], np.array(result.candidates), np.array(result.log_probs)
            )
        else:
            tree = root_only(step.tokens[-1])
        pending = step
        count += 1
        if count % 64 == 0:
            mx.clear_cache()


def _prefill(decoder: Decoder, tokens: Sequence[int], step_size: int) -> None:
    for start in range(0, len(tokens), step_size):
        decoder.prefill(mx.array(tokens[start : start + step_size]))
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
    **overrides: Any,
) -> Iterator[GenerationResponse]:
    """Generate text, one response per token, as ``mlx_lm.stream_generate`` does.

    Args:
        model: from ``load``.
        tokenizer: from ``load``.
        prompt: text or token ids.
        max_tokens: the most tokens to generate; -1 for no limit.
        settings: how to draft.
        stop: strings that end the text; neither they nor what follows is yielded.
        prefill_step_size: prompt tokens per pass.
        **overrides: fields of ``DraftSettings``.

    Yields:
        ``GenerationResponse``; the last one carries ``finish_reason``.

    Raises:
        UserError: an empty prompt, one longer than the model's context, or a setting that is out
            of range or does not fit the model.
    """
    settings = replace(settings or DraftSettings(), **overrides)
    if max_tokens == 0 or max_tokens < -1:
        raise UserError(f"max_tokens is {max_tokens}, expected at least 1, or -1 for no limit")
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if "" in stop:
        raise UserError("a stop string is empty, expected at least one character")
    if prefill_step_size < 1:
        raise UserError(f"prefill_step_size is {prefill_step_size}, expected at least 1")
    ids = encode_prompt(tokenizer, prompt)
    _check_prompt(ids, model.config)
    _check_settings(settings, model)
    return _respond(model, tokenizer, ids, max_tokens, settings, stop, prefill_step_size)


def _check_prompt(ids: list[int], config: dict[str, Any]) -> None:
    if not ids:
        raise UserError("the prompt is empty, expected at least one token")
    context, vocab_size = config.get("max_position_embeddings"), config["vocab_size"]
    if context is not None and len(ids) > context:
        raise UserError(
            f"the prompt has {len(ids)} tokens, the model's context "
            f"(max_position_embeddings) holds {context}"
        )
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise UserError(f"the prompt holds token {wrong}, the model's are 0 to {vocab_size - 1}")


def _check_settings(settings: DraftSettings, model: SpeculativeModel) -> None:
    if settings.tree_width > model.config["vocab_size"]:
        raise UserError(
            f"tree_width is {settings.tree_width}, "
            f"expected at most the vocabulary's {model.config['vocab_size']}"
        )
    if model.streams is None:
        return
    trained = model.streams.config
    if settings.num_streams is not None and settings.num_streams > trained.num_streams:
        raise UserError(
            f"num_streams is {settings.num_streams}, the adapter has {trained.num_streams}"
        )
    depth = trained.num_streams if settings.num_streams is None else settings.num_streams
    full = sum(settings.tree_width**level for level in range(1, depth + 1))
    drafted = min(full, settings.tree_size or full)
    if drafted > MAX_TREE_SIZE:
        raise UserError(
            f"the draft tree has {drafted} nodes, expected at most {MAX_TREE_SIZE}: "
            "lower tree_size or tree_width"
        )
    prunes = settings.max_nodes is not None or settings.prune_threshold is not None
    if prunes and not trained.pruner_rank:
        raise UserError("max_nodes and prune_threshold need a pruner, the adapter has none")


def encode_prompt(tokenizer: TokenizerWrapper, prompt: str | mx.array | Sequence[int]) -> list[int]:
    """Token ids of a prompt, special tokens added as mlx_lm does."""
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        return tokenizer.encode(
            prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    return prompt.tolist() if isinstance(prompt, mx.array) else list(prompt)


def _respond(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    ids: list[int],
    max_tokens: int,
    settings: DraftSettings,
    stop: tuple[str, ...],
    prefill_step_size: int,
) -> Iterator[GenerationResponse]:
    detokenizer = tokenizer.detokenizer
    response = GenerationResponse("", 0, mx.array([]), False, len(ids), 0.0, 0, 0.0, 0.0)
    held = ""  # text that may be the beginning of a stop string
    with device.wired_limit(model.model, [device.generation_stream]):
        start = time.perf_counter()
        for step in decode(model, ids, settings, prefill_step_size):
            if response.generation_tokens == 0:
                now = time.perf_counter()
                response.prompt_tps = len(ids) / (now - start)
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
