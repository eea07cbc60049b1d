"""Published prompt tokens as streams: PPD's, BiTA's and SSD's.

They are streams without a main stream in their seed: learned embeddings that pass through all
layers beside a token, with the base's own MLPs and head (``stream_init: embedding``). Beside PPD's
(arXiv 2405.18628), which PEFT has saved, there is nothing else; BiTA's (arXiv 2401.12522) and SSD's
lie within a whole model and see learned keys and values in every layer (``stream_prefix``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx

from specstream_mlx.adapters.description import ADAPTER_CONFIG
from specstream_mlx.adapters.torch_files import tensor_file
from specstream_mlx.checked_files import read_json
from specstream_mlx.config import MOST_STREAMS, UserError, check_integer, shown
from specstream_mlx.heads.files import CONFIG
from specstream_mlx.models.architectures import completed, key_size
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.stream_config import StreamConfig

from .source_tensors import arrays_of_files, read_arrays

Found = tuple[StreamConfig, dict[str, mx.array]]

_OF_PPD = {
    "virtual_tokens_per_special_token": 1,
    "num_exits": 1,
    "use_custom_lm_head": False,
    "use_prefix_tuning": False,
    "aggregation_type": "mean",
}
"""Settings of PPD's ``adapter_config.json`` that can be run here, which are its defaults."""

_SEE_EACH_OTHER = "decoder", "ensemble"
"""Its ``vt_attention_type``: with one embedding a token both see the tokens before."""

_MASKS, _PREFIX = "mask_tokens.weight", "prefix_encoder.embedding.weight"
"""Ends of the names of BiTA's tensors; with ``prefix_projection`` there is ``prefix_encoder.trans``
too."""


def holds_prompt_tokens(source: Path) -> bool:
    """Tell whether a directory holds published prompt tokens, by its configuration.

    Raises:
        UserError: that cannot be read.
    """
    return _layout_of(source) is not None


def read_prompt_tokens(source: Path, base: Mapping[str, Any]) -> Found | None:
    """Read prompt tokens as lossless streams.

    Args:
        source: a directory with anything.
        base: the base's ``config.json``.

    Returns:
        The streams' configuration and tensors; ``None``: the directory holds no prompt tokens.

    Raises:
        UserError: the files are damaged, do not fit the base, or have what cannot be run here.
    """
    layout = _layout_of(source)
    if layout is None:
        return None
    path, values = layout
    if path.name == ADAPTER_CONFIG:
        return _of_ppd(path, values, base)
    return _of_bita(source, values, base)


def _layout_of(source: Path) -> tuple[Path, dict[str, Any]] | None:
    """The configuration that says that a directory holds prompt tokens, and its path."""
    for name, field in ((ADAPTER_CONFIG, "num_special_tokens"), (CONFIG, "mask_num")):
        if (path := source / name).is_file():
            values = read_json(path)
            return (path, values) if field in values else None
    return None


def _of_ppd(path: Path, values: Mapping[str, Any], base: Mapping[str, Any]) -> Found:
    """Read what PPD has saved, by its ``adapter_config.json``."""
    for name, expected in _OF_PPD.items():
        if (value := values.get(name, expected)) != expected:
            raise UserError(f"{path}: {name} is {shown(value)}, expected {shown(expected)}")
    if (kind := values.get("vt_attention_type", "decoder")) not in _SEE_EACH_OTHER:
        raise UserError(
            f"{path}: vt_attention_type is {shown(kind)}, expected one of {_SEE_EACH_OTHER}"
        )
    file = tensor_file(path.parent / "adapter_model.safetensors")
    embeddings = _named(file, read_arrays(file), "prompt_embeddings")
    count = values["num_special_tokens"]
    check_integer(f"{path}: num_special_tokens", count, 1, MOST_STREAMS)
    return _streams(file, "prompt_embeddings", embeddings, count, base)


def _of_bita(source: Path, values: Mapping[str, Any], base: Mapping[str, Any]) -> Found:
    """Read what BiTA or SSD has saved within a model, by the model's ``config.json``."""
    path, count = source / CONFIG, values["mask_num"]
    check_integer(f"{path}: mask_num", count, 1, MOST_STREAMS)
    if values.get("prefix_projection"):
        raise UserError(
            f"{path}: prefix_projection is True, expected False: keys and values that a network "
            "makes are not read"
        )
    found: dict[str, mx.array] = {}
    for arrays in arrays_of_files(source, "the model with prompt tokens"):
        for name, array in arrays.items():
            found |= {end: array for end in (_MASKS, _PREFIX) if name.endswith(end)}
    embeddings = _named(source, found, _MASKS)
    if embeddings.ndim == 2 and len(embeddings) == 1 and not values.get("mask_diff"):
        embeddings = mx.repeat(embeddings, count, axis=0)  # one for all of them
    prefix = _named(source, found, _PREFIX) if values.get("prompt_num") else None
    return _streams(source, _MASKS, embeddings, count, base, prefix)


def _named(path: Path, arrays: Mapping[str, mx.array], name: str) -> mx.array:
    if name not in arrays:
        raise UserError(f"{path} has no {name}, expected it: it is said to hold prompt tokens")
    return arrays[name]


def _streams(
    path: Path,
    name: str,
    embeddings: mx.array,
    count: int,
    base: Mapping[str, Any],
    prefix: mx.array | None = None,
) -> Found:
    """Make streams of prompt tokens.

    Args:
        path, name: where the embeddings are, for errors.
        embeddings: (count, h).
        count: of the tokens.
        base: the base's ``config.json``.
        prefix: (n, 2 * layers * size) keys and values: of layer l the parts 2 l and 2 l + 1.
    """
    sizes, size = completed(base), key_size(base)
    layers, hidden = sizes["num_hidden_layers"], sizes["hidden_size"]
    if embeddings.shape != (count, hidden):
        raise UserError(
            f"{path}: {name} has shape {embeddings.shape}, expected {(count, hidden)}: "
            f"{count} tokens for this base"
        )
    tensors = {"streams.embeddings": embeddings}
    if prefix is not None:
        if prefix.ndim != 2 or prefix.shape[1] != 2 * layers * size:
            raise UserError(
                f"{path}: {_PREFIX} has shape {prefix.shape}, expected (.., {2 * layers * size}): "
                f"keys and values of {size} in {layers} layers, one for each of the base's "
                "key-value heads"
            )
        for number, part in enumerate(mx.split(prefix, 2 * layers, axis=1)):
            kind = "value" if number % 2 else "key"
            tensors[f"streams.prefix.{number // 2}.{kind}"] = part
    config = StreamConfig(
        mode="lossless",
        num_streams=count,
        num_msa_layers=layers,
        hidden_size=hidden,
        num_hidden_layers=layers,
        stream_init="embedding",
        stream_prefix=0 if prefix is None else len(prefix),
        stream_prefix_size=0 if prefix is None else size,
        pruner_rank=0,
        base_fingerprint=fingerprint(base),
    )
    return config, tensors
