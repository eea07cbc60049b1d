"""Layers of a head's own that attend to earlier rows of the text: their KV rows.

A step writes the rows of the accepted path behind the committed ones, in as many places as the path
may have, and drafted rows behind these places. How many of the places count, and so how far the
rows are committed, the host says afterwards: it keeps that many, and the next step writes over the
others.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache
from mlx_lm.models.llama import ModelArgs

from ..config import UserError, check_integer, is_number, shown
from ..engine.kv import UncommittedRows
from ..engine.rows import Rows
from ..engine.stand_ins import rope_at
from ..models.rope import POSITION_ONLY, check_rope, rope_fields, rope_parameters


class OwnRows:
    """The KV rows of one layer in one text.

    Rows are counted from the first one that the head has read, and their number is their position:
    a rotary embedding depends on differences alone.
    """

    def __init__(self) -> None:
        self._cache = KVCache()
        self._places = 0

    @property
    def count(self) -> int:
        """The number of committed rows."""
        return self._cache.offset

    def path(self, places: int) -> UncommittedRows:
        """Make the stand-in for the KV cache in a pass over the places of an accepted path."""
        self._places = places
        return UncommittedRows(self._cache, Rows(self.count))

    def drafts(self, positions: mx.array, sees: mx.array) -> UncommittedRows:
        """Make the stand-in for the KV cache in a pass over drafted rows.

        Args:
            positions: (rows,) int32, of the drafted rows.
            sees: (rows, behind) bool, which of the rows behind the committed ones each one sees:
                the path's places, earlier drafted rows, and these.
        """
        behind = sees.shape[1] - len(sees)
        return UncommittedRows(self._cache, Rows(positions[None], sees[None]), skip=behind)

    def evaluate(self) -> None:
        """Let the device compute the rows, which it otherwise might not before many steps."""
        mx.async_eval(self._cache.keys, self._cache.values)

    def commit(self, count: int) -> None:
        """Keep the first ``count`` rows of the newest path."""
        self._cache.offset += count

    def trim(self, count: int) -> None:
        """Take back the last ``count`` rows; there may be fewer, where a prompt was not read."""
        self._cache.offset -= min(count, self._cache.offset)


def llama_args(path: Path, config: Any, **fields: Any) -> ModelArgs:
    """Read the sizes and the rope of a Llama layer.

    Args:
        path: where the configuration comes from, for errors.
        config: a ``config.json`` of transformers' Llama.
        **fields: of ``ModelArgs``, in place of the configuration's.

    Raises:
        UserError: a field is missing or of another kind, or the rope is not one that depends on
            positions alone.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{path}: the layer is {shown(config)}, expected an object with its sizes")
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if name not in config:
            raise UserError(f"{path}: {name} is missing, expected the sizes of a Llama layer")
        check_integer(f"{path}: {name}", config[name])
    for name in ("num_key_value_heads", "head_dim"):
        if config.get(name) is not None:
            check_integer(f"{path}: {name}", config[name])
    values: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}  # transformers'
    rope = rope_parameters(config)
    check_rope(rope, config, POSITION_ONLY)
    values |= {**config, **rope_fields(rope, config), **fields}
    epsilon = values["rms_norm_eps"]
    if not is_number(epsilon) or epsilon <= 0:
        raise UserError(f"{path}: rms_norm_eps is {shown(epsilon)}, expected a number above 0")
    values |= {"model_type": "llama", "num_hidden_layers": 1, "layer_types": None, "vocab_size": 0}
    return ModelArgs.from_dict(values)


class RowsRope:
    """A rotary embedding that also takes a position for every row.

    Args:
        rope: an mlx-lm layer's rope.
    """

    def __init__(self, rope: nn.Module):
        self._rope = rope

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        return rope_at(self._rope, x, offset)
