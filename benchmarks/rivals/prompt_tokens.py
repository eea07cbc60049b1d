"""Prompt tokens: learned embeddings that pass through the model behind the text, and guess.

PPD's (arXiv 2405.18628), saved by PEFT, are nothing else; those of BiTA (arXiv 2401.12522) and SSD
lie within a whole model and also see learned keys and values in every layer, which the text does
not. Token j of them stands j places behind the newest row, sees the text and the ones before it,
and predicts the token j + 1 places behind that row.

The authors run them in the target's own pass, beside every node. A ``DraftHead`` has no part in
that pass, so here the accepted rows go through the model once more, with the prompt tokens behind
them and in KV rows of their own. The guesses are the same and the time is not: count these drafts,
do not time them.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from specstream_mlx import SpeculativeModel, UserError
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows, DraftHead, HeadConfig, Rank
from specstream_mlx.engine.kv import UncommittedRows, make_caches
from specstream_mlx.engine.rows import Rows
from specstream_mlx.models.architectures import completed, head_size

from .head_tensors import Tensors

PROMPT_TOKENS = "prompt tokens"

_PPD = "prompt_embeddings"
_MASKS, _PREFIX = "mask_tokens.weight", "prefix_encoder.embedding.weight"  # ends of BiTA's names
_PPD_VALUES = {
    "virtual_tokens_per_special_token": (1,),
    "num_exits": (1,),
    "use_custom_lm_head": (False,),
    "use_prefix_tuning": (False,),
    "aggregation_type": ("mean",),
    "vt_attention_type": ("decoder", "ensemble"),  # both see the tokens before
    "prefix_projection": (False,),
}


class _Embedding(nn.Module):
    """The target's embedding, with the prompt tokens behind its own."""

    def __init__(self, own: Any, further: mx.array, vocab_size: int):
        super().__init__()
        self.own, self.further, self._vocab_size = own, further, vocab_size

    def __call__(self, tokens: mx.array) -> mx.array:
        known = self.own(mx.minimum(tokens, self._vocab_size - 1))
        further = self.further[mx.maximum(tokens - self._vocab_size, 0)]
        return mx.where((tokens < self._vocab_size)[..., None], known, further)

    def as_linear(self, hidden: mx.array) -> mx.array:
        """Score the target's tokens, where head and embedding are one."""
        return self.own.as_linear(hidden)


class _RowsAndPrefix(UncommittedRows):
    """New rows of a layer, with learned keys and values (1, kv heads, n, head size) behind them."""

    def __init__(self, cache: Any, rows: Rows, prefix: tuple[mx.array, mx.array]):
        super().__init__(cache, rows)
        self._prefix = prefix

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        """Write the new rows, and behind them the prefix, which no ``commit`` keeps."""
        new = ((keys, self._prefix[0]), (values, self._prefix[1]))
        return super().update_and_fetch(*(mx.concatenate(list(pair), axis=2) for pair in new))


@dataclass(frozen=True, eq=False)
class PromptTokens:
    """Prompt tokens for a target; a ``MountedHead``.

    Attributes:
        config: what drafting knows of them.
        model: the target.
        embeddings: (gamma, h).
        prefix: keys and values of each layer; empty: none.
        tokens: (n,) tokens that are drafted; ``None``: all.
    """

    config: HeadConfig
    model: SpeculativeModel
    embeddings: mx.array
    prefix: Sequence[tuple[mx.array, mx.array]]
    tokens: mx.array | None
    boundaries: tuple[int, ...] = ()

    def begin(self, model: BorrowedModel) -> DraftHead:
        """Begin a text."""
        return _PromptTokensOfText(self)


class _PromptTokensOfText:
    def __init__(self, head: PromptTokens):
        base = head.model.model
        inner = copy(base.model)
        vocab_size = head.model.config["vocab_size"]
        inner["embed_tokens"] = _Embedding(inner.embed_tokens, head.embeddings, vocab_size)
        base = copy(base)
        base["model"] = inner
        self._head, self._caches = head, make_caches(base, head.model.config)
        self._model = BorrowedModel(base)
        count = len(head.embeddings)
        self._own = mx.arange(vocab_size, vocab_size + count, dtype=mx.int32)
        self._learned = head.prefix[0][0].shape[2] if head.prefix else 0
        self._logits: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        rows = Rows(self._caches[0].offset)
        self._model.fill(tokens[None], [UncommittedRows(cache, rows) for cache in self._caches])
        self.commit(len(tokens))
        mx.eval([cache.state for cache in self._caches])

    def follow(self, rows: AcceptedRows) -> None:
        """Run the accepted rows, in as many places as there may be, and the prompt tokens."""
        places, count, offset = len(rows.tokens), len(self._own), self._caches[0].offset
        own = rows.count - 1 + mx.arange(1, count + 1)
        positions = offset + mx.concatenate([mx.arange(places), own])
        path = mx.broadcast_to(mx.arange(places) < rows.count, (count, places))
        sees = mx.concatenate(
            [
                mx.concatenate([mx.tri(places), mx.zeros((places, count + self._learned))], 1),
                mx.concatenate([path, mx.tri(count), mx.ones((count, self._learned))], 1),
            ]
        ).astype(mx.bool_)
        anchors = offset + mx.concatenate(
            [mx.arange(places), mx.broadcast_to(rows.count - 1, (count + self._learned,))]
        )
        new = Rows(positions[None], sees[None], anchors[None])
        caches = [UncommittedRows(cache, new) for cache in self._caches]
        if self._learned:
            pairs = zip(self._caches, self._head.prefix, strict=True)
            caches = [_RowsAndPrefix(cache, new, prefix) for cache, prefix in pairs]
        tokens = mx.concatenate([rows.tokens, self._own])
        self._logits = self._model.logits(tokens[None], caches)[0, places:]
        mx.async_eval([cache.keys for cache in self._caches])

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, None]:
        logits, tokens = self._logits[: len(expansion) + 1], self._head.tokens
        return *rank(logits if tokens is None else logits[:, tokens], tokens, None), None

    def commit(self, count: int) -> None:
        for cache in self._caches:
            cache.offset += count

    def trim(self, count: int) -> None:
        for cache in self._caches:
            cache.offset -= min(count, cache.offset)


def is_prompt_tokens(tensors: Tensors) -> bool:
    """Whether the tensors are those of prompt tokens."""
    return any(name == _PPD or name.endswith(_MASKS) for name in tensors.arrays)


def read_prompt_tokens(tensors: Tensors, model: SpeculativeModel) -> PromptTokens:
    """Make prompt tokens for a target.

    Raises:
        UserError: they do not fit it, or have what cannot be run here.
    """
    for name, known in _PPD_VALUES.items():
        if (value := tensors.values.get(name, known[0])) not in known:
            raise UserError(f"{tensors.directory}: {name} is {value!r}, expected {known[0]!r}")
    tokens = tensors.token_map("token_map")
    name = next(n for n in tensors.arrays if n == _PPD or n.endswith(_MASKS))
    count = int(tensors.values.get("mask_num") or len(tensors.arrays[name]))
    embeddings = tensors.arrays[name].astype(tensors.dtype)
    if len(embeddings) == 1:  # BiTA's, one for all of them
        embeddings = mx.repeat(embeddings, count, axis=0)
    if embeddings.shape != (count, tensors.hidden_size):
        raise UserError(
            f"{tensors.directory}: {name} has shape {embeddings.shape}, expected "
            f"{(count, tensors.hidden_size)}"
        )
    learned = next((n for n in tensors.arrays if n.endswith(_PREFIX)), None)
    prefix: list[tuple[mx.array, mx.array]] = []
    if learned is not None and tensors.values.get("prompt_num"):
        sizes, size = completed(tensors.target), head_size(tensors.target)
        heads = sizes.get("num_key_value_heads") or sizes["num_attention_heads"]
        shape = (-1, sizes["num_hidden_layers"], 2, heads, size)
        pairs = (
            tensors.arrays[learned].astype(tensors.dtype).reshape(shape).transpose(1, 2, 3, 0, 4)
        )
        prefix = [(pair[:1], pair[1:]) for pair in pairs]
    size = embeddings.size + sum(array.size for pair in prefix for array in pair)
    drafted = 0 if tokens is None else tokens.size
    config = HeadConfig(PROMPT_TOKENS, count, "plain", drafted, size, own_rows=True)
    return PromptTokens(config, model, embeddings, prefix, tokens)
