"""Conversion of mlx_lm's KV caches to this project's, which can drop rejected drafts, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from ..errors import UserError, shown
from .kv import WindowedKVCache, WindowedQuantizedKVCache, make_caches


def check_goes_back(where: str, cache: Any, window: int | None) -> None:
    """Check that one of mlx_lm's caches holds all its rows, and that the last may be dropped."""
    if isinstance(cache, RotatingKVCache):
        kept, most, end = cache.state[3:]
        if kept or most != window or end != cache.offset:
            raise UserError(
                f"{where} has a RotatingKVCache that dropped rows or has another window than the "
                "model, expected all rows: only then can it go back; a PromptCache keeps them"
            )
    elif not isinstance(cache, KVCache | QuantizedKVCache):
        raise UserError(
            f"{where} is {shown(cache)}, expected a KVCache or a QuantizedKVCache: no other can "
            "drop rejected drafts"
        )


def as_ours(cache: Any, window: int | None, dtype: mx.Dtype | None = None) -> Any:
    """Convert one of mlx_lm's caches to the class that ``make_caches`` has for the layer."""
    own: KVCache | QuantizedKVCache
    if isinstance(cache, QuantizedKVCache):
        own = QuantizedKVCache(cache.group_size, cache.bits)
    else:
        own = KVCache() if window is None else WindowedKVCache(window)
    own.keys, own.values, own.offset = cache.keys, cache.values, cache.offset
    if dtype is not None:
        own.keys, own.values = tree_map(
            lambda array: array if array.dtype == mx.uint32 else array.astype(dtype),
            (own.keys, own.values),
        )
    if window is not None and isinstance(own, QuantizedKVCache):
        return WindowedQuantizedKVCache(window, own)
    return own


def as_mlx_lm(cache: Any, rows: int, own: Any) -> Any:
    """Convert the first rows of one of our caches to the class that mlx_lm has for the layer."""
    keys, values = tree_map(lambda array: array[..., :rows, :], (cache.keys, cache.values))
    if isinstance(cache, QuantizedKVCache):
        return QuantizedKVCache.from_state((keys, values, rows, cache.group_size, cache.bits))
    if isinstance(own, RotatingKVCache):  # as it is after one pass over all rows
        return RotatingKVCache.from_state((keys, values, rows, own.keep, own.max_size, rows))
    return KVCache.from_state((keys, values, rows))


def check_heads(model: nn.Module, config: Mapping[str, Any], caches: Sequence[Any]) -> None:
    """Check that filled caches are of one sequence and have the model's heads."""
    probe = make_caches(model, config)
    model(mx.array([[0]]), cache=probe)  # never evaluated: for the rows' shape
    for number, (cache, expected) in enumerate(zip(caches, probe, strict=True)):
        keys = cache.keys[0] if isinstance(cache.keys, tuple | list) else cache.keys
        size = keys.shape[-1]
        if isinstance(cache, QuantizedKVCache):
            size = size * 32 // cache.bits
        found = (*keys.shape[:2], size)
        heads, head_dim = expected.keys.shape[1], expected.keys.shape[3]
        if found != (1, heads, head_dim):
            raise UserError(
                f"layer {number} of prompt_cache has {found[0]} sequences with {found[1]} heads of "
                f"{size}, expected one with the model's {heads} heads of {head_dim}"
            )
