"""Prompt caches: KV rows kept from one turn to the next, so that only new tokens are read."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from .arguments import shown
from .config import UserError
from .engine.kv import WindowedKVCache, WindowedQuantizedKVCache, make_caches
from .engine.kv_quantization import KVQuantization
from .loading import SpeculativeModel
from .models.architectures import layer_windows


class PromptCache:
    """KV rows of earlier turns; give the same object to every turn of a conversation.

    The rows belong to one model and the LoRA mounted on it; with another model or LoRA they are
    dropped. A row is used again only if reading the prompt from the beginning would make the same
    row. That holds for a prompt's rows except the last, and in lossless mode for the rows of the
    generated text. In shared mode streams ran beside generated tokens, so those are read again.
    With a quantized KV cache, as in mlx_lm's prompt caches, new rows attend to quantized earlier
    rows, whereas reading from the beginning takes a whole chunk in full precision first.

    Attributes:
        caches: one KV cache per layer; they may hold more rows than can be used again.
        unknown_rows: rows at the front from a file of mlx_lm's, which does not say what tokens they
            are of. Every prompt goes behind them.
        tokens: token ids of the reusable rows behind the unknown ones.
        reused: how many tokens of the last prompt did not have to be read again.
    """

    def __init__(self) -> None:
        self.caches: list[Any] = []
        self.unknown_rows = 0
        self.tokens: list[int] = []
        self.reused = 0
        self._owner: tuple[Any, Any] | None = None
        self._generation = 0

    @classmethod
    def of(
        cls,
        model: SpeculativeModel,
        caches: Sequence[Any],
        tokens: Sequence[int],
        unknown_rows: int = 0,
    ) -> "PromptCache":
        """Make a prompt cache of KV caches that ``model`` has filled without running streams."""
        cache = cls()
        cache.caches, cache.tokens = list(caches), list(tokens)
        cache.unknown_rows, cache._owner = unknown_rows, _owner(model)
        return cache

    @classmethod
    def of_list(cls, model: SpeculativeModel, caches: list[Any]) -> "PromptCache":
        """Make a prompt cache of mlx_lm's, a list as ``make_prompt_cache(model)`` makes it.

        Every prompt goes behind the rows that the list holds. The list itself stays as it is until
        ``into_list``.

        Raises:
            UserError: it is no such list, or one of its caches cannot drop rejected drafts.
        """
        windows = layer_windows(model.config, model.model)
        if not isinstance(caches, list) or len(caches) != len(windows):
            raise UserError(
                f"prompt_cache is {shown(caches)}, expected a PromptCache, or what mlx_lm's "
                f"make_prompt_cache makes, a list of one cache for each of {len(windows)} layers"
            )
        pairs = list(zip(caches, windows, strict=True))
        for number, (cache, window) in enumerate(pairs):
            check_goes_back(f"layer {number} of prompt_cache", cache, window)
        own = [as_ours(cache, window) for cache, window in pairs]
        rows = {cache.offset for cache in own}
        if len(rows) > 1:
            raise UserError(
                f"the layers of prompt_cache hold {sorted(rows)} rows, expected the same number"
            )
        if any(rows):
            _check_heads(model, own)
        return cls.of(model, own, [], rows.pop())

    def into_list(self, caches: list[Any]) -> None:
        """Put the rows into mlx_lm's caches, which ``of_list`` was given; they then go on."""
        for number, layer in enumerate(self.caches):
            cache = caches[number]
            if isinstance(layer, QuantizedKVCache) and not isinstance(cache, QuantizedKVCache):
                cache = caches[number] = QuantizedKVCache(layer.group_size, layer.bits)
            if isinstance(cache, RotatingKVCache):  # as after one pass over all rows
                keys, values = (rows[..., : self.rows, :] for rows in (layer.keys, layer.values))
                cache.state = keys, values, self.rows, cache.keep, cache.max_size, self.rows
            else:
                cache.keys, cache.values, cache.offset = layer.keys, layer.values, self.rows

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        kind = ""
        if self.quantized is not None:
            kind = ", {} bits in groups of {}".format(*self.quantized)
        return f"PromptCache({self.rows} rows of {len(self.caches)} layers{kind})"

    @property
    def rows(self) -> int:
        """How many rows of each layer may be used again."""
        return self.unknown_rows + len(self.tokens)

    @property
    def quantized(self) -> tuple[int, int] | None:
        """Bits and group size of the rows if they are quantized, else ``None``."""
        kinds = {(c.bits, c.group_size) for c in self.caches if isinstance(c, QuantizedKVCache)}
        return next(iter(kinds), None)

    def begin(
        self, model: SpeculativeModel, prompt: Sequence[int], quantization: KVQuantization
    ) -> int:
        """Begin a generation: keep the rows that ``prompt`` can use again and drop all others.

        The last token's row is never kept, since its logits are needed.

        Args:
            model: base and adapter.
            prompt: token ids behind the ``unknown_rows``, at least one.
            quantization: how the new generation quantizes its KV cache.

        Returns:
            The generation's number, for ``extend`` and ``check_current``.

        Raises:
            UserError: the cache was made with another model, adapter or quantization, and holds
                ``unknown_rows``, which cannot be read again.
        """
        other = self._other(model, quantization)
        if other and self.unknown_rows:
            raise UserError(f"the prompt cache was made with {other}, expected the same")
        common = 0 if other else self._common(prompt)
        if common and self._too_early(common, quantization):
            common = 0
        self.tokens = self.tokens[:common]
        self.reused = len(self.tokens)
        if self.rows:
            for cache in self.caches:
                cache.trim(cache.offset - self.rows)
        else:
            self.caches = make_caches(model.model, model.config)
        self._owner = _owner(model)
        self._generation += 1
        return self._generation

    def _other(self, model: SpeculativeModel, quantization: KVQuantization) -> str | None:
        """What the rows were made with if it differs from these, in words, else ``None``."""
        if self._owner is None:
            return None
        base, adapter = _owner(model)
        if base is not self._owner[0]:
            return "another model"
        if adapter is not self._owner[1]:
            return "another adapter"
        if self.quantized not in (None, (quantization.bits, quantization.group_size)):
            bits, group_size = self.quantized
            return f"kv_bits of {bits} and a kv_group_size of {group_size}"
        return None

    def _too_early(self, common: int, quantization: KVQuantization) -> bool:
        """Whether the rows are quantized although a prompt of this length would not be yet."""
        return self.quantized is not None and self.unknown_rows + common < quantization.start

    def _common(self, prompt: Sequence[int]) -> int:
        """How many tokens the cache and ``prompt`` have in common, without the prompt's last."""
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        differs = (number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
        return next(differs, min(len(self.tokens), len(prompt) - 1))

    def extend(self, generation: int, tokens: Sequence[int]) -> None:
        """Record that the caches now also hold the rows of these tokens."""
        self.check_current(generation)
        self.tokens += tokens

    def check_current(self, generation: int) -> None:
        """Check that no later generation has taken the cache over.

        Raises:
            UserError: one has.
        """
        if generation != self._generation:
            raise UserError(
                "the prompt cache is in use by a later generation, expected one at a time"
            )


def check_goes_back(where: str, cache: Any, window: int | None) -> None:
    """Check that one of mlx_lm's caches holds all its rows, of which the last may be dropped.

    Args:
        where: which one it is, for the error, such as ``layer 3 of prompt_cache``.
        cache: of one layer.
        window: the layer's sliding window, if it has one.

    Raises:
        UserError: it is of another class, or has dropped rows.
    """
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
    """The rows of one of mlx_lm's caches, in the class that ``make_caches`` has for the layer.

    Args:
        cache: one that ``check_goes_back`` lets through.
        window: the layer's sliding window, if it has one.
        dtype: that the rows are cast to; ``None``: their own.
    """
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


def _check_heads(model: SpeculativeModel, caches: Sequence[Any]) -> None:
    """Check that filled caches are of one sequence and have the model's heads.

    Raises:
        UserError: one does not.
    """
    probe = make_caches(model.model, model.config)
    model.model(mx.array([[0]]), cache=probe)  # never evaluated: for the rows' shape
    for number, (cache, expected) in enumerate(zip(caches, probe, strict=True)):
        arrays = cache.keys if isinstance(cache, QuantizedKVCache) else (cache.keys,)
        size = arrays[0].shape[-1]
        if isinstance(cache, QuantizedKVCache):
            size = size * 32 // cache.bits
        found = (*arrays[0].shape[:2], size)
        heads, head_dim = expected.keys.shape[1], expected.keys.shape[3]
        if found != (1, heads, head_dim):
            raise UserError(
                f"layer {number} of prompt_cache has {found[0]} sequences with {found[1]} heads of "
                f"{size}, expected one with the model's {heads} heads of {head_dim}"
            )


def _owner(model: SpeculativeModel) -> tuple[Any, Any]:
    """What prompt rows depend on: the model, and the adapter if it has LoRA (not its streams)."""
    return model.model, model.adapter if model.adapter and model.adapter.lora else None
