"""Prompt tokens, PPD (arXiv 2405.18628): learned embeddings that follow the text, and guess.

Token j of them stands j places after the newest row, sees the text and the ones before it, and
predicts the token j + 1 places after that row. The layout is that of PEFT.

The authors run them in the target's own pass, after every node. A ``DraftHead`` has no part in that
pass, so here the accepted rows go through the model once more, with the prompt tokens after them
and in KV rows of their own. The guesses are the same and the time is not: count these drafts, do
not time them.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from specstream_mlx import UserError
from specstream_mlx.adapters.lora import activations_dtype
from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.engine.draft_head import AcceptedRows, HeadConfig, Rank
from specstream_mlx.engine.kv import UncommittedRows, make_caches
from specstream_mlx.engine.rows import Rows
from specstream_mlx.loading.speculative_model import SpeculativeModel

from .head_parts import Head, Tensors

PROMPT_TOKENS = "prompt tokens"

EMBEDDINGS = "prompt_embeddings"
_KNOWN = {
    "virtual_tokens_per_special_token": (1,),
    "num_exits": (1,),
    "use_custom_lm_head": (False,),
    "use_prefix_tuning": (False,),
    "aggregation_type": ("mean",),
    "vt_attention_type": ("decoder", "ensemble"),  # both see the tokens before
    "prefix_projection": (False,),
}


class _PromptTokensOfText:
    def __init__(self, head: Head, model: BorrowedModel, target: SpeculativeModel):
        self._head, self._model = head, model
        self._caches = make_caches(target.model, target.config)
        self._logits: mx.array

    def read(self, tokens: mx.array, features: tuple[mx.array, ...]) -> None:
        rows = Rows(self._caches[0].offset)
        self._model.logits(tokens[None], [UncommittedRows(cache, rows) for cache in self._caches])
        self.commit(len(tokens))
        mx.eval([cache.state for cache in self._caches])

    def follow(self, rows: AcceptedRows) -> None:
        """Run the accepted rows, in as many places as there may be, and the prompt tokens."""
        embeddings = self._head.weights
        places, count, offset = len(rows.tokens), len(embeddings), self._caches[0].offset
        guessed_at = rows.count - 1 + mx.arange(1, count + 1)
        path = mx.broadcast_to(mx.arange(places) < rows.count, (count, places))
        sees = mx.concatenate(
            [
                mx.concatenate([mx.tri(places), mx.zeros((places, count))], axis=1),
                mx.concatenate([path, mx.tri(count)], axis=1),
            ]
        ).astype(mx.bool_)
        positions = offset + mx.concatenate([mx.arange(places), guessed_at])
        newest = mx.broadcast_to(rows.count - 1, (count,))  # windows count from it
        anchors = offset + mx.concatenate([mx.arange(places), newest])
        new = Rows(positions[None], sees[None], anchors[None])
        caches = [UncommittedRows(cache, new) for cache in self._caches]
        no_caches: list[Any] = [None] * len(caches)
        hidden = self._model.lower(rows.tokens[None], no_caches, 0)
        hidden = self._model.layers(mx.concatenate([hidden, embeddings[None]], axis=1), caches)
        self._logits = self._model.head(hidden[:, places:])[0]
        mx.async_eval([cache.keys for cache in self._caches])

    def guess(
        self, rank: Rank, expansion: Sequence[np.ndarray | None], width: int
    ) -> tuple[mx.array, mx.array, None]:
        return *rank(self._logits[: len(expansion) + 1], None, None), None

    def commit(self, count: int) -> None:
        for cache in self._caches:
            cache.offset += count

    def trim(self, count: int) -> None:
        for cache in self._caches:
            cache.offset -= min(count, cache.offset)


def read_prompt_tokens(tensors: Tensors) -> Head:
    """Make prompt tokens (gamma, h) for a target."""
    tensors.check_values(_KNOWN)
    target = tensors.target
    embeddings = tensors.arrays[EMBEDDINGS].astype(activations_dtype(target.model))
    if embeddings.ndim != 2 or embeddings.shape[1] != tensors.hidden_size:
        raise UserError(
            f"{tensors.directory}: {EMBEDDINGS} has shape {embeddings.shape}, expected rows of "
            f"{tensors.hidden_size}"
        )
    config = HeadConfig(
        PROMPT_TOKENS, len(embeddings), "plain", parameters=embeddings.size, own_rows=True
    )
    return Head(
        config, embeddings, lambda head, model: _PromptTokensOfText(head, model, target), ()
    )
