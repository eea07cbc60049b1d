"""Parts of a base model, from its ``config.json`` and the headers of its weight files.

No weight is read, so a model of any size takes a moment and next to no memory.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ..checked_files import Headers, model_headers, read_json
from ..config import UserError, check_integer, is_number, shown
from ..loading import weight_files
from ..models.architectures import architecture_of, check_config, completed
from ..models.fingerprint import fingerprint
from ..models.rope import rope_parameters

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of the same kind in several layers: their names differ in the layer number alone.

    Attributes:
        name: with ``*`` for the number.
        shape: logical, that is, before packing.
        dtype: as stored, or bits and group size of a quantized tensor, such as ``4 bits, g64``.
        count: how many.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    count: int


@dataclass(frozen=True)
class Quantization:
    """Bits and group size of quantized weights.

    Attributes:
        bits: the default.
        group_size: the default.
        mode: mlx-lm's, such as ``affine``.
        layers: number of layers by ``"<bits> bits, group <size>"``; several entries where the
            recipe is mixed.
        unquantized_parameters: those outside packed tensors, such as norms.
        bits_per_weight: scales and whatever is not packed included.
    """

    bits: int
    group_size: int
    mode: str
    layers: dict[str, int]
    unquantized_parameters: int
    bits_per_weight: float

    @property
    def mixed(self) -> bool:
        """True if some layers are quantized otherwise than others."""
        return len(self.layers) > 1


@dataclass(frozen=True)
class BaseReport:
    """The report of ``inspect`` about a base model.

    Attributes:
        path: its directory.
        architecture: ``model_type`` of its configuration.
        refusal: why streams cannot run on this model; ``None`` where they do.
        hidden_size: h.
        intermediate_size: of the MLP; ``None`` where the configuration does not say.
        num_hidden_layers: N.
        num_attention_heads: of queries.
        num_key_value_heads: of keys and values.
        head_dim: of each head.
        vocab_size: V.
        context: ``max_position_embeddings``.
        tied_head: whether the head is the embedding.
        rope_type: ``default`` where nothing is scaled, ``None`` where positions are learned; of the
            layers with full attention where others have another rope.
        rope_theta: its base; ``None`` where the configuration does not say.
        rope_factor: of the scaling, if any.
        fingerprint: what adapters are compared with.
        parameters: logical; neither a tied head twice nor scales of the quantization.
        bytes: on disk.
        files: number of weight files.
        dtypes: logical parameters by stored dtype; packed ones under ``quantized``.
        quantization: ``None`` for none.
        tensors: shapes.
    """

    path: str
    architecture: str
    refusal: str | None
    hidden_size: int
    intermediate_size: int | None
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    context: int | None
    tied_head: bool
    rope_type: str | None
    rope_theta: float | None
    rope_factor: float | None
    fingerprint: str
    parameters: int
    bytes: int
    files: int
    dtypes: dict[str, int]
    quantization: Quantization | None
    tensors: list[TensorGroup]


def inspect_base(directory: Path) -> BaseReport:
    """Describe a base model directory in Hugging Face's or mlx-lm's format.

    Raises:
        UserError: a file is missing or damaged, a field is not what it must be, or the weights are
            packed in a way that mlx-lm's own quantization does not use.
    """
    path = directory / "config.json"
    outer = read_json(path)
    config = completed(outer | _object(path, outer, "text_config"))
    hidden_size = _integer(path, config, "hidden_size")
    heads = _integer(path, config, "num_attention_heads")
    tied = bool(config.get("tie_word_embeddings"))
    files = weight_files(directory)
    headers = _loaded_headers(files, tied)
    packed = _packed_weights(path, outer, headers)
    logical = _logical_tensors(headers, packed)
    parameters = sum(prod(shape) for shape, _ in logical.values())
    dtypes: Counter[str] = Counter()
    for name, (shape, dtype) in logical.items():
        dtypes["quantized" if name in packed else dtype] += prod(shape)
    rope = _rope(path, config)
    return BaseReport(
        path=str(directory),
        architecture=str(outer.get("model_type")),
        refusal=_refusal(outer, headers),
        hidden_size=hidden_size,
        intermediate_size=_integer(path, config, "intermediate_size", required=False),
        num_hidden_layers=_integer(path, config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_integer(path, config, "num_key_value_heads", required=False) or heads,
        head_dim=_integer(path, config, "head_dim", required=False) or hidden_size // heads,
        vocab_size=_integer(path, config, "vocab_size"),
        context=_integer(path, config, "max_position_embeddings", required=False),
        tied_head=tied,
        rope_type=rope.get("rope_type"),
        rope_theta=_number(path, "rope_theta", rope.get("rope_theta")),
        rope_factor=_number(path, "the rope's factor", rope.get("factor")),
        fingerprint=fingerprint(outer),
        parameters=parameters,
        bytes=sum(file.stat().st_size for file in files),
        files=len(files),
        dtypes=dict(dtypes),
        quantization=_quantization(outer, packed, dtypes, headers, parameters),
        tensors=group_tensors(logical),
    )


def group_tensors(headers: Headers) -> list[TensorGroup]:
    """Tensors of all layers taken together where shape and dtype agree, sorted by name.

    Args:
        headers: shape and dtype by name.
    """
    counts = Counter(
        (_LAYER_NUMBER.sub("*", name), shape, dtype) for name, (shape, dtype) in headers.items()
    )
    return [TensorGroup(*key, count) for key, count in sorted(counts.items())]


def _loaded_headers(files: list[Path], tied: bool) -> Headers:
    """Headers of the tensors that mlx-lm loads; it drops a tied head that was stored, and tables.

    Args:
        files: the weight files.
        tied: whether the head is the embedding.
    """
    headers = dict(model_headers(files))
    if tied:
        headers.pop("lm_head.weight", None)
    return {n: h for n, h in headers.items() if not n.endswith("rotary_emb.inv_freq")}


def _rope(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The rope of layers with full attention; empty where positions are learned."""
    if architecture_of(config.get("model_type")).positions != "rope":
        return {}
    try:
        return rope_parameters(config, "full_attention")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _integer(path: Path, config: Mapping[str, Any], name: str, required: bool = True) -> int | None:
    """A field that must be an integer of at least 1, or may be missing."""
    value = config.get(name)
    if value is None and not required:
        return None
    check_integer(f"{path}: {name}", value)
    return value


def _number(path: Path, name: str, value: Any) -> float | None:
    """A field that must be a number, or may be missing."""
    if value is None or is_number(value):
        return value
    raise UserError(f"{path}: {name} is {shown(value)}, expected a number")


def _refusal(config: Mapping[str, Any], headers: Headers) -> str | None:
    try:
        check_config(config, headers)
    except UserError as error:
        return str(error)
    return None


def _object(path: Path, config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A field that must be an object, empty where it is missing."""
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise UserError(f"{path}: {name} is {shown(value)}, expected an object")
    return value


def _packed_weights(
    path: Path, config: Mapping[str, Any], headers: Headers
) -> dict[str, tuple[int, int]]:
    """Bits and group size of every packed weight by its name.

    A layer that the configuration does not list is taken to have the default group size; the bits
    then follow from how many words there are to a scale.
    """
    settings = _object(path, config, "quantization")
    if not settings:
        foreign = config.get("quantization_config")
        if foreign is not None:
            method = foreign.get("quant_method") if isinstance(foreign, dict) else foreign
            raise UserError(
                f"{path}: the weights are quantized by {shown(method)}, "
                "expected MLX's own quantization or none"
            )
        return {}
    _integer(path, settings, "bits")
    _integer(path, settings, "group_size")
    packed = {}
    for name, (shape, dtype) in headers.items():
        layer = name.removesuffix(".weight")
        scales = headers.get(f"{layer}.scales")
        if dtype != "U32" or layer == name or scales is None:
            continue
        listed = settings.get(layer)
        size = _integer(path, listed if isinstance(listed, dict) else settings, "group_size")
        groups = (0, *scales[0])[-1]
        if not groups or not shape:
            raise UserError(f"{path}: {name} is packed, expected groups that have scales")
        bits, remainder = divmod(shape[-1] * 32, groups * size)
        if remainder or bits not in _BITS:
            raise UserError(
                f"{path}: {name} has {shape[-1]} words for {groups} groups, "
                f"which is no number of bits with the group size {size} of quantization"
            )
        packed[name] = (bits, size)
    return packed


def _logical_tensors(headers: Headers, packed: Mapping[str, tuple[int, int]]) -> Headers:
    """The tensors as they were before packing; scales and biases of groups are left out."""
    logical = {}
    for name, (shape, dtype) in headers.items():
        layer, _, last = name.rpartition(".")
        if last in ("scales", "biases") and f"{layer}.weight" in packed:
            continue
        if name in packed:
            bits, size = packed[name]
            logical[name] = ((*shape[:-1], shape[-1] * 32 // bits), f"{bits} bits, g{size}")
        else:
            logical[name] = (shape, dtype)
    return logical


def _quantization(
    config: Mapping[str, Any],
    packed: Mapping[str, tuple[int, int]],
    dtypes: Mapping[str, int],
    headers: Headers,
    parameters: int,
) -> Quantization | None:
    if not packed:
        return None
    settings = config["quantization"]
    stored = sum(prod(shape) * _stored_bits(dtype) for shape, dtype in headers.values())
    layers = Counter(f"{bits} bits, group {size}" for bits, size in packed.values())
    return Quantization(
        bits=settings["bits"],
        group_size=settings["group_size"],
        mode=settings.get("mode", "affine"),
        layers=dict(layers.most_common()),
        unquantized_parameters=parameters - dtypes["quantized"],
        bits_per_weight=stored / parameters,
    )


def _stored_bits(dtype: str) -> int:
    """Bits of one element, given the name of its dtype such as ``BF16`` or ``F8_E4M3``."""
    digits = re.search(r"\d+", dtype)
    return int(digits[0]) if digits else 8  # BOOL
