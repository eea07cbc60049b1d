"""Prompt caches in files of mlx_lm's format, which either program writes and reads.

Beside mlx_lm's own metadata (``model``, ``tokenizer_config``) a file of ours lists under
``specstream_mlx`` the tokens of its rows, and the model and LoRA that made them. A file of mlx_lm's
does not: its rows must have the model's shape, and its ``model`` must be the model's name.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    KVCache,
    QuantizedKVCache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)
from safetensors import SafetensorError, safe_open

from .adapters.files import lora_digest
from .engine.kv import KVQuantization, as_mlx_lm, as_ours, check_goes_back, make_caches
from .errors import UserError
from .files import not_finite, parse_json, reason, short, staged_file
from .loading import SpeculativeModel
from .models.architectures import layer_windows

_OURS = "specstream_mlx"
_SUFFIX = ".safetensors"
_SAMPLES, _SAMPLE_BYTES = 64, 4096


@dataclass(frozen=True)
class StoredRows:
    """Contents of a file.

    Attributes:
        caches: one KV cache per layer; they may hold more rows than are stored.
        tokens: token ids of the rows behind the unknown ones.
        unknown_rows: number of rows at the front whose tokens are unknown.
    """

    caches: list[Any]
    tokens: list[int]
    unknown_rows: int

    @property
    def count(self) -> int:
        """Number of rows of each layer that are stored."""
        return self.unknown_rows + len(self.tokens)


# Writing --------------------------------------------------------------------------------------


def check_target(path: Path) -> None:
    """Check that a prompt cache may be written to ``path``.

    Raises:
        UserError: the directory does not exist, the name is not one of safetensors, or the file is
            there and is something other than a prompt cache, such as a model's weights.
    """
    if path.suffix != _SUFFIX:
        raise UserError(f"the prompt cache file is {path}, expected a name that ends in {_SUFFIX}")
    if not path.parent.is_dir():
        raise UserError(f"the directory {path.parent} of the prompt cache file does not exist")
    if path.is_dir():
        raise UserError(f"the prompt cache file {path} is a directory, expected a file")
    if path.exists():
        try:
            _header(path)
        except UserError:
            raise UserError(
                f"{path} exists and is not a prompt cache, expected a new --prompt-cache-file or a "
                "prompt cache to replace"
            ) from None


def write(
    path: Path,
    stored: StoredRows,
    model: SpeculativeModel,
    model_name: str | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> None:
    """Write a prompt's rows to a file, all of it or, on an error, no file at all.

    Args:
        path: a name that ends in ``.safetensors``; a prompt cache that is there is replaced.
        stored: the rows, at least one.
        model: the model that made them.
        model_name: the ``--model`` to give to mlx_lm; ``None``: the model's directory.
        tokenizer_config: the tokenizer's further arguments.

    Raises:
        UserError: there are no rows, or the file cannot be written, by ``check_target`` too.
    """
    check_target(path)
    if not stored.count:
        raise UserError("the prompt cache is empty, expected one that holds a prompt")
    facts = {
        "tokens": stored.tokens,
        "unknown_rows": stored.unknown_rows,
        "base_fingerprint": model.base_fingerprint,
        "weights": weights_digest(model.path),
        "adapter": lora_digest(model.adapter),
    }
    metadata = {
        "model": model_name or str(model.path),
        "tokenizer_config": json.dumps(tokenizer_config or {}),
        _OURS: json.dumps(facts),
    }
    pairs = zip(stored.caches, make_prompt_cache(model.model), strict=True)
    layers = [as_mlx_lm(layer, stored.count, own) for layer, own in pairs]
    try:
        with staged_file(path) as scratch:
            save_prompt_cache(str(scratch), layers, metadata)
            check_target(path)  # again: reading the prompt took a while
    except RuntimeError as error:  # MLX's
        raise UserError(f"the prompt cache file {path} cannot be written: {error}") from None


def weights_digest(directory: Path) -> str:
    """Digest samples of a model's weights, to tell models of the same shape apart."""
    digest = hashlib.sha256()
    for file in sorted(directory.glob(f"model*{_SUFFIX}")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            for number in range(_SAMPLES):
                stream.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


# Reading --------------------------------------------------------------------------------------


def read_metadata(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read the name of the model that made a file, and the arguments of its tokenizer.

    Raises:
        UserError: the file is missing, damaged or no prompt cache.
    """
    metadata, _ = _header(path)
    config = parse_json(metadata.get("0.tokenizer_config", "{}"), f"{path}: its tokenizer_config")
    if not isinstance(config, dict):
        raise _damaged(path, "its tokenizer_config is not a JSON object")
    config.pop("trust_remote_code", None)  # not for a file to decide
    return metadata.get("0.model"), config


def read(path: Path, model: SpeculativeModel, model_name: str | None = None) -> StoredRows:
    """Read a prompt cache that this project or mlx_lm wrote.

    Args:
        path: the file.
        model: the model that is to go on from it.
        model_name: the user's name of the model; ``None``: its directory.

    Raises:
        UserError: the file is damaged, was made with another model or LoRA, or holds a kind of
            cache that cannot drop rejected drafts.
    """
    metadata, _ = _header(path)
    ours = _our_facts(path, metadata, model.config["vocab_size"])
    if ours is not None:
        _check_made_by(path, ours, metadata.get("0.model"), model)
    else:
        _check_name(path, metadata.get("0.model"), model, model_name)
    try:
        layers = load_prompt_cache(str(path))
        states = dict(tree_flatten([layer.state for layer in layers])).items()
        name = not_finite({n: array for n, array in states if isinstance(array, mx.array)})
    except Exception as error:  # wrong metadata may fail in any way in mlx_lm
        raise _damaged(path, reason(error)) from None
    if name is not None:
        raise UserError(f"{path}: {name} holds NaN or infinity, expected finite rows")
    caches = list(_checked_layers(path, layers, model, own_windows=ours is not None))
    rows = caches[0].offset
    tokens, unknown = ([], rows) if ours is None else (ours["tokens"], ours["unknown_rows"])
    if unknown + len(tokens) != rows:
        raise _damaged(path, f"it has {rows} rows for {unknown + len(tokens)} tokens")
    for cache in caches:
        if isinstance(cache, QuantizedKVCache):
            KVQuantization(cache.bits, cache.group_size, 0).check(model.model, model.config)
    return StoredRows(caches, tokens, unknown)


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is not a complete prompt cache ({reason}), "
        "expected one from PromptCache.save or mlx_lm.cache_prompt"
    )


def _header(path: Path) -> tuple[dict[str, str], list[str]]:
    """Read a file's metadata, flat as mlx_lm writes it, and the classes of its layers' caches."""
    if not os.path.isfile(path):
        found = "is not a file" if os.path.lexists(path) else "does not exist"
        raise UserError(f"the prompt cache file {short(path)} {found}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise _damaged(path, reason(error)) from None
    classes: list[str] = []
    while (name := metadata.get(f"1.{len(classes)}")) is not None:
        classes.append(name)
    if not classes:
        raise _damaged(path, "its metadata names no caches")
    return metadata, classes


def _our_facts(path: Path, metadata: dict[str, str], vocab_size: int) -> dict[str, Any] | None:
    """Read and check our own metadata; ``None``: the file is mlx_lm's."""
    if f"0.{_OURS}" not in metadata:
        return None
    try:
        facts = parse_json(metadata[f"0.{_OURS}"], f"{path}: its metadata {_OURS}")
        sound = (
            all(isinstance(facts[name], str) for name in ("base_fingerprint", "weights"))
            and isinstance(facts["adapter"], str | None)
            and type(facts["unknown_rows"]) is int
            and facts["unknown_rows"] >= 0
            and isinstance(facts["tokens"], list)
            and all(type(token) is int and 0 <= token < vocab_size for token in facts["tokens"])
        )
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise _damaged(path, f"its metadata {_OURS} is not what we write")
    return facts


def _check_made_by(
    path: Path, facts: dict[str, Any], name: str | None, model: SpeculativeModel
) -> None:
    expected = model.base_fingerprint
    if facts["base_fingerprint"] != expected:
        raise UserError(
            f"{path} was made by another model ({name}, fingerprint {facts['base_fingerprint']}), "
            f"expected fingerprint {expected}"
        )
    expected = weights_digest(model.path)
    if facts["weights"] != expected:
        raise UserError(
            f"{path} was made by a model of the same shape with other weights ({name}, digest "
            f"{facts['weights']}), expected digest {expected}"
        )
    found, expected = (
        "no LoRA" if digest is None else f"the LoRA of digest {digest}"
        for digest in (facts["adapter"], lora_digest(model.adapter))
    )
    if found != expected:
        raise UserError(f"{path} was made with {found}, expected {expected}: rows depend on it")


def _check_name(
    path: Path, found: str | None, model: SpeculativeModel, model_name: str | None
) -> None:
    """Compare the models' names, as mlx_lm does; two names of one directory are the same here."""
    expected = model_name or str(model.path)
    if found in (expected, None):
        return
    if os.path.isdir(found) and os.path.samefile(found, model.path):
        return
    raise UserError(f"{path} was made by the model {short(found)}, expected {expected}")


def _checked_layers(
    path: Path, layers: list[Any], model: SpeculativeModel, own_windows: bool
) -> Iterator[Any]:
    """Convert the caches to this project's classes, in the model's shape and dtype."""
    probe = make_caches(model.model, model.config)
    model.model(mx.array([[0]]), cache=probe)  # never evaluated: for the rows' shape and dtype
    windows = layer_windows(model.config, model.model)
    if len(layers) != len(probe):
        raise UserError(f"{path} has {len(layers)} layers, expected the model's {len(probe)}")
    offsets = {getattr(layer, "offset", None) for layer in layers}
    for number, (layer, expected, window) in enumerate(zip(layers, probe, windows, strict=True)):
        where = f"{path}: layer {number}"
        check_goes_back(where, layer, window)
        unwindowed = isinstance(layer, KVCache) and not own_windows  # mlx_lm made them
        if unwindowed and window is not None and layer.offset > window:
            raise UserError(
                f"{where} has {layer.offset} rows of mlx_lm's, which leaves out the model's window "
                f"of {window}, expected at most so many"
            )
        _check_rows(path, layer, expected, len(offsets))
        yield as_ours(layer, window, expected.keys.dtype)


def _check_rows(path: Path, layer: Any, expected: KVCache, different_offsets: int) -> None:
    rows = layer.offset
    if different_offsets > 1 or not isinstance(rows, int) or rows < 1:
        raise _damaged(path, "its layers hold different numbers of rows, or none")
    for name in ("keys", "values"):
        _, heads, _, size = getattr(expected, name).shape
        parts = list(dict(tree_flatten(getattr(layer, name))).values())
        if not parts:
            raise _damaged(path, f"it has no {name}")
        found = parts[0]
        size_found = found.shape[-1] if found.ndim else 0
        if isinstance(layer, QuantizedKVCache):
            size_found = size_found * 32 // layer.bits if len(parts) == 3 else None
        elif not mx.issubdtype(found.dtype, mx.floating):
            raise UserError(f"{path}: {name} have dtype {found.dtype}, expected a floating one")
        if (
            found.ndim != 4
            or found.shape[:2] != (1, heads)
            or found.shape[2] < rows
            or size_found != size
        ):
            raise UserError(
                f"{path}: {name} have the shape {found.shape}, expected {rows} rows of the model's "
                f"{heads} heads of {size}"
            )
