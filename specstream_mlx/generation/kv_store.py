"""KV rows that outlive a generation: prompt caches in memory and in files of mlx_lm's format.

A file of ours also lists, under ``specstream_mlx``, the tokens of its rows, and the model and LoRA
that made them. A file of mlx_lm's must have rows of the model's shape, and the model's name.
"""

import json
import os
from collections.abc import Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from safetensors import SafetensorError, safe_open

from ..adapters.files import lora_digest
from ..engine.kv import WindowedKVCache, WindowedQuantizedKVCache, make_caches
from ..engine.kv_quantization import KVQuantization
from ..errors import UserError, is_integer, shown
from ..files import check_tokens, not_finite, parse_json, reason, sampled_digest, short, staged_file
from ..loading.model_paths import check_prompt_cache_file, weight_files
from ..loading.speculative_model import SpeculativeModel
from ..models.architectures import layer_windows

_OURS = "specstream_mlx"
_SUFFIX = ".safetensors"


class PromptCache:
    """KV rows of earlier turns; pass the same object to every turn of a conversation.

    The rows belong to one model and the LoRA mounted on it; with another they are dropped. A row is
    used again only if reading the prompt from the beginning would make the same row: those of a
    prompt except the last, and in lossless mode those of the generated text.
    """

    def __init__(self) -> None:
        self.caches: list[Any] = []  # one a layer; they may hold more rows than can be used again
        self.unknown_rows = 0  # at the front, from mlx_lm, which does not name their tokens
        self.tokens: list[int] = []  # of the reusable rows after these
        self.reused = 0  # tokens of the last prompt that were not read again
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
        """Make a prompt cache of a list from mlx_lm's ``make_prompt_cache``, or refuse it."""
        theirs = _own_layers("prompt_cache", caches, model)
        return cls.of(model, theirs, [], theirs[0].offset)

    def into_list(self, caches: list[Any]) -> None:
        """Put the rows into the list of mlx_lm's caches that ``of_list`` was given."""
        pairs = zip(self.caches, caches, strict=True)
        caches[:] = [_as_mlx_lm(layer, self.rows, theirs) for layer, theirs in pairs]

    @classmethod
    def load(
        cls, path: str | Path, model: SpeculativeModel, model_name: str | None = None
    ) -> "PromptCache":
        """Read a prompt cache that ``save`` or mlx_lm wrote; ``model_name``: the user's name.

        Raises:
            UserError: the file is damaged, another model's or LoRA's, or cannot drop drafts.
        """
        path = Path(path)
        metadata = _metadata(path)
        ours = _our_facts(path, metadata, model)
        if ours is None:
            _check_name(path, metadata.get("0.model"), model, model_name)
        try:
            layers = load_prompt_cache(str(path))
            states = dict(tree_flatten([layer.state for layer in layers])).items()
            name = not_finite({n: array for n, array in states if isinstance(array, mx.array)})
        except Exception as error:  # wrong metadata may fail in any way in mlx_lm
            raise _damaged(path, reason(error)) from None
        if name is not None:
            raise UserError(f"{path}: {name} holds NaN or infinity, expected finite rows")
        if ours is None:
            _check_windows(path, layers, model)
        caches = _own_layers(str(path), layers, model)
        rows = caches[0].offset
        if rows < 1:
            raise _damaged(path, "its layers hold no rows")
        tokens, unknown = ([], rows) if ours is None else (ours["tokens"], ours["unknown_rows"])
        if unknown + len(tokens) != rows:
            raise _damaged(path, f"it has {rows} rows for {unknown + len(tokens)} tokens")
        for cache in caches:
            if isinstance(cache, QuantizedKVCache):
                KVQuantization(cache.bits, cache.group_size, 0).check(model.model, model.config)
        return cls.of(model, caches, tokens, unknown)

    def save(
        self, path: str | Path, model: SpeculativeModel, model_name: str | None = None
    ) -> None:
        """Write the rows to a ``.safetensors`` file, whole or not at all.

        ``model_name`` is the ``--model`` to give to mlx_lm, by default the model's directory.

        Raises:
            UserError: there are no rows, they are another model's, or the file cannot be written.
        """
        path = Path(path)
        if other := self._other_model(model):
            raise UserError(f"the prompt cache was made with {other}, expected the same")
        _check_target(path)
        if not self.rows:
            raise UserError("the prompt cache is empty, expected one that holds a prompt")
        facts = {"tokens": self.tokens, "unknown_rows": self.unknown_rows, **_maker(model)}
        metadata = {
            "model": model_name or str(model.path),
            "tokenizer_config": "{}",  # which mlx_lm reads
            _OURS: json.dumps(facts),
        }
        pairs = zip(self.caches, make_prompt_cache(model.model), strict=True)
        layers = [_as_mlx_lm(layer, self.rows, theirs) for layer, theirs in pairs]
        with staged_file(path) as scratch:
            save_prompt_cache(str(scratch), layers, metadata)

    def __deepcopy__(self, memo: dict[int, Any]) -> "PromptCache":
        """Branch a conversation; model and adapter stay the same objects."""
        return self._with(deepcopy(self.caches, memo))

    def without_spare_rows(self) -> "PromptCache":
        """Copy the rows that may be used again, without unused room of the buffers."""

        def cut(buffer: mx.array) -> mx.array:
            return mx.contiguous(buffer[..., : self.rows, :])

        caches = [copy(layer) for layer in self.caches]
        for layer in caches:
            layer.keys, layer.values = tree_map(cut, (layer.keys, layer.values))
            layer.offset = self.rows
        mx.eval([(layer.keys, layer.values) for layer in caches])  # or they hold the buffers
        return self._with(caches)

    def _with(self, caches: list[Any]) -> "PromptCache":
        copied = copy(self)
        copied.caches, copied.tokens, copied._generation = caches, list(self.tokens), 0
        return copied

    def __len__(self) -> int:
        return self.rows

    @property
    def rows(self) -> int:
        """Number of rows of each layer that may be used again."""
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

        Returns the generation's number, for ``extend`` and ``check_current``.
        """
        other, quantized = self._other_model(model), self.quantized
        if other is None and quantized not in (None, (quantization.bits, quantization.group_size)):
            other = "kv_bits of {} and a kv_group_size of {}".format(*quantized)
        if other and self.unknown_rows:
            raise UserError(f"the prompt cache was made with {other}, expected the same")
        pairs = zip(self.tokens, prompt[:-1], strict=False)  # the last token's logits are needed
        differs = (number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
        common = next(differs, min(len(self.tokens), len(prompt) - 1))
        # A prompt of this length would not be quantized yet.
        too_early = quantized is not None and self.unknown_rows + common < quantization.start
        if other or (common and too_early):
            common = 0
        self.tokens, self.reused = self.tokens[:common], common
        if self.rows:
            for cache in self.caches:
                cache.trim(cache.offset - self.rows)
        else:
            self.caches = make_caches(model.model, model.config)
        self._owner = _owner(model)
        self._generation += 1
        return self._generation

    def _other_model(self, model: SpeculativeModel) -> str | None:
        """Name the maker of the rows, if it was not ``model``, else return ``None``."""
        if self._owner is None:
            return None
        base, adapter = _owner(model)
        if base is not self._owner[0]:
            return "another model"
        return None if adapter is self._owner[1] else "another adapter"

    def extend(self, generation: int, tokens: Sequence[int]) -> None:
        """Record that the caches now also hold the rows of these tokens."""
        self.check_current(generation)
        self.tokens += tokens

    def check_current(self, generation: int) -> None:
        """Check that no later generation has taken the cache over."""
        if generation != self._generation:
            raise UserError(
                "the prompt cache is in use by a later generation, expected one at a time"
            )


def _owner(model: SpeculativeModel) -> tuple[Any, Any]:
    return model.base, model.adapter if model.adapter and model.adapter.lora else None


def read_metadata(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read the name of the model that made a file, and the arguments of its tokenizer."""
    metadata = _metadata(path)
    config = parse_json(metadata.get("0.tokenizer_config", "{}"), f"{path}: its tokenizer_config")
    if not isinstance(config, dict):
        raise _damaged(path, "its tokenizer_config is not a JSON object")
    config.pop("trust_remote_code", None)  # not for a file to decide
    return metadata.get("0.model"), config


def _check_target(path: Path) -> None:
    """Check that a prompt cache may be written to ``path``."""
    if path.suffix != _SUFFIX:
        raise UserError(f"the prompt cache file is {path}, expected a name that ends in {_SUFFIX}")
    if not os.path.isdir(path.parent):
        raise UserError(f"the directory {path.parent} of the prompt cache file does not exist")
    if os.path.exists(path):
        try:
            _metadata(path)
        except UserError:
            raise UserError(
                f"{path} exists and is not a prompt cache, expected a new file or a prompt cache"
                " to replace"
            ) from None


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is not a complete prompt cache ({reason}), "
        "expected one from PromptCache.save or mlx_lm.cache_prompt"
    )


def _metadata(path: Path) -> dict[str, str]:
    """Read a file's metadata, flat as mlx_lm writes it: 1.N is the class of layer N's cache."""
    check_prompt_cache_file(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, reason(error)) from None
    if "1.0" not in metadata:
        raise _damaged(path, "its metadata names no caches")
    return metadata


_MADE = {
    "base_fingerprint": "by another model",
    "weights": "by a model of the same shape with other weights",
    "adapter": "with another LoRA",
}
"""The words of an error for each field of ``_maker`` in which a file's maker differs."""


def _maker(model: SpeculativeModel) -> dict[str, str | None]:
    """Digests of everything that rows depend on; of the weights only samples."""
    weights = sampled_digest(weight_files(model.path))
    adapter = lora_digest(model.adapter)
    return {"base_fingerprint": model.base_fingerprint, "weights": weights, "adapter": adapter}


def _our_facts(path: Path, metadata: dict[str, str], model: SpeculativeModel) -> Any:
    """Read and check our own metadata; ``None``: the file is mlx_lm's."""
    if f"0.{_OURS}" not in metadata:
        return None
    facts = parse_json(metadata[f"0.{_OURS}"], f"{path}: its metadata {_OURS}")
    try:
        tokens, unknown = facts["tokens"], facts["unknown_rows"]
        sound = type(unknown) is int and unknown >= 0 and all(map(is_integer, tokens))
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise _damaged(path, f"its metadata {_OURS} is not what we write")
    check_tokens(str(path), tokens, model.config["vocab_size"])
    for name, expected in _maker(model).items():
        if (found := facts.get(name)) != expected:
            raise UserError(
                f"{path} was made {_MADE[name]} ({metadata.get('0.model')}, {name} {shown(found)}),"
                f" expected {shown(expected)}"
            )
    return facts


def _check_name(
    path: Path, name: str | None, model: SpeculativeModel, model_name: str | None
) -> None:
    """Compare the models' names, as mlx_lm does, but two names of one directory are the same."""
    expected = model_name or str(model.path)
    if name in (expected, None) or (os.path.isdir(name) and os.path.samefile(name, model.path)):
        return
    raise UserError(f"{path} was made by the model {short(name)}, expected {expected}")


def _check_windows(path: Path, layers: list[Any], model: SpeculativeModel) -> None:
    """Check that rows that mlx_lm made without the model's windows are the same with them."""
    windows = layer_windows(model.config, model.model)
    for number, (layer, window) in enumerate(zip(layers, windows, strict=False)):
        if isinstance(layer, KVCache) and window is not None and layer.offset > window:
            raise UserError(
                f"layer {number} of {path} has {layer.offset} rows of mlx_lm's, which leaves out "
                f"the model's window of {window}, expected at most so many"
            )


def _own_layers(where: str, layers: Any, model: SpeculativeModel) -> list[Any]:
    """Convert mlx_lm's caches, one a layer, to this project's classes, in the model's dtype."""
    windows = layer_windows(model.config, model.model)
    if not isinstance(layers, list) or len(layers) != len(windows):
        problem = f"is {shown(layers)}, expected a PromptCache or a list of"
        if isinstance(layers, list):
            problem = f"has {len(layers)} layers, expected"
        raise UserError(f"{where} {problem} mlx_lm's caches, one for each of {len(windows)} layers")
    for number, (layer, window) in enumerate(zip(layers, windows, strict=True)):
        _check_goes_back(f"layer {number} of {where}", layer, window)
    rows = {layer.offset for layer in layers}
    if len(rows) > 1:
        raise UserError(f"the layers of {where} hold {sorted(rows)} rows, expected the same number")
    if rows == {0}:
        return [_as_ours(layer, window) for layer, window in zip(layers, windows, strict=True)]
    probe = make_caches(model.model, model.config)
    model.model(mx.array([[0]]), cache=probe)  # never evaluated: for the rows' shape and dtype
    for number, (layer, expected) in enumerate(zip(layers, probe, strict=True)):
        for name in ("keys", "values"):
            shape = getattr(expected, name).shape
            _check_rows(f"layer {number} of {where}", name, layer, shape)
    dtype = probe[0].keys.dtype
    return [_as_ours(layer, window, dtype) for layer, window in zip(layers, windows, strict=True)]


def _check_rows(where: str, name: str, layer: Any, expected: Sequence[int]) -> None:
    """Check shape and dtype of a layer's keys or values."""
    _, heads, _, size = expected
    parts: list[mx.array] = list(dict(tree_flatten(getattr(layer, name))).values())
    shape: tuple[int, ...] = parts[0].shape if parts else ()
    size_found = shape[-1] if shape else 0
    if isinstance(layer, QuantizedKVCache):
        size_found = size_found * 32 // layer.bits if len(parts) == 3 else 0
    elif parts and not mx.issubdtype(parts[0].dtype, mx.floating):
        raise UserError(f"{where}: {name} have dtype {parts[0].dtype}, expected a floating one")
    fits = len(shape) == 4 and shape[:2] == (1, heads) and shape[2] >= layer.offset
    if not fits or size_found != size:
        raise UserError(
            f"{where}: {name} have the shape {shape}, expected {layer.offset} rows of the model's "
            f"{heads} heads of {size}"
        )


# mlx_lm's own caches ---------------------------------------------------------------------------


def _check_goes_back(where: str, cache: Any, window: int | None) -> None:
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


def _as_ours(cache: Any, window: int | None, dtype: mx.Dtype | None = None) -> Any:
    """Convert one of mlx_lm's caches to the class that ``make_caches`` has for the layer."""
    ours: KVCache | QuantizedKVCache
    if isinstance(cache, QuantizedKVCache):
        ours = QuantizedKVCache(cache.group_size, cache.bits)
    else:
        ours = KVCache() if window is None else WindowedKVCache(window)
    ours.keys, ours.values, ours.offset = cache.keys, cache.values, cache.offset
    if dtype is not None:
        ours.keys, ours.values = tree_map(
            lambda array: array if array.dtype == mx.uint32 else array.astype(dtype),
            (ours.keys, ours.values),
        )
    if window is not None and isinstance(ours, QuantizedKVCache):
        return WindowedQuantizedKVCache(window, ours)
    return ours


def _as_mlx_lm(cache: Any, rows: int, theirs: Any) -> Any:
    """Convert the first rows of one of our caches to the class that mlx_lm has for the layer."""
    keys, values = tree_map(lambda array: array[..., :rows, :], (cache.keys, cache.values))
    if isinstance(cache, QuantizedKVCache):
        return QuantizedKVCache.from_state((keys, values, rows, cache.group_size, cache.bits))
    if isinstance(theirs, RotatingKVCache):  # as it is after one pass over all rows
        return RotatingKVCache.from_state((keys, values, rows, theirs.keep, theirs.max_size, rows))
    return KVCache.from_state((keys, values, rows))
