"""Adapter directories in MLX's format: read and checked against their base, mounted, written.

A directory holds ``adapter_config.json`` (mlx-lm's LoRA fields and a ``speculative_streaming``
object), ``adapters.safetensors`` (LoRA tensors under mlx-lm's names, so that ``mlx_lm`` loads the
directory too) and ``speculative_streaming.safetensors`` (``streams.*``, ``pruner.*``), since mlx-lm
refuses tensors that it does not know.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from ..errors import VOCABULARY, UserError, shown
from ..files import check_tensors, read_arrays, short, tensor_headers
from ..models.shared_copy import shared_copy
from ..models.streams import Streams
from ..options import choice
from ..stream_config import StreamConfig
from .description import (
    ADAPTER_CONFIG,
    LORA_FILE,
    STREAM_FILE,
    STREAM_KEY,
    AdapterDescription,
    check_vocabulary,
    describe,
)
from .lora import activations_dtype, adapter_shapes, own_parts, put_on, selected_modules


@dataclass(frozen=True)
class Adapter:
    """A checked adapter directory whose tensors have been read."""

    path: Path
    config: dict[str, Any]
    stream_config: StreamConfig | None
    lora: dict[str, mx.array]  # of fine_tune_type 'full', weights that replace the base's own
    stream_tensors: dict[str, mx.array]  # ``streams.*`` and ``pruner.*``

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.lora.values(), *self.stream_tensors.values()))


def read_adapter(
    directory: str | Path, model: nn.Module, base_config: dict[str, Any], full: bool = False
) -> Adapter:
    """Check an adapter directory against its base, an mlx-lm model without LoRA, and read it.

    It may contain tuned weights instead of LoRA only if ``full`` is true.
    """
    description = describe(directory)
    if description.format == "pytorch":
        kind = "a PEFT directory" if description.is_peft else "an adapter of the PyTorch side"
        raise UserError(
            f"{description.path} is {kind}: convert it first with "
            f"`specstream-mlx convert --model BASE --adapter-path {description.path} "
            "--mlx-path OUTPUT`"
        )
    description.check_base(base_config)
    description.stream_headers()
    if full and description.config.get("fine_tune_type") == "full":
        path, parameters = description.path / LORA_FILE, dict(tree_flatten(model.parameters()))
        headers = tensor_headers(path)
        shapes = {name: parameters[name].shape for name in headers if name in parameters}
        check_tensors(path, headers, shapes)
        lora = read_arrays(path)
    else:
        try:
            lora = read_lora(description, model)
        except UserError as error:
            if description.stream_config is None and description.base_model:
                named = short(description.base_model)
                raise UserError(f"{error}; its base is {named}, see --model") from None
            raise
    file = description.stream_file
    stream_tensors = read_arrays(file) if file else {}
    if file and VOCABULARY in stream_tensors:
        ids: Any = stream_tensors[VOCABULARY].tolist()
        check_vocabulary(file, ids, base_config["vocab_size"])
    return Adapter(
        description.path, description.config, description.stream_config, lora, stream_tensors
    )


def read_lora(description: AdapterDescription, model: nn.Module) -> dict[str, mx.array]:
    """Read LoRA's tensors by name, in mlx-lm's format; empty if the adapter has none."""
    path, config = description.config_path, description.config
    kind, parameters = config.get("fine_tune_type", "lora"), config.get("lora_parameters")
    choice("lora", "dora").check(f"{path}: fine_tune_type", kind)
    if not isinstance(parameters, dict) or "num_layers" not in config:
        raise UserError(f"{path} has no lora_parameters and num_layers, expected mlx-lm's")
    count, keys, layers = config["num_layers"], parameters.get("keys"), len(model.layers)
    if type(count) is not int or not -1 <= count <= layers:
        raise UserError(
            f"{path}: num_layers is {shown(count)}, expected 0 to {layers}, or -1 for all"
        )
    if keys is not None and not (isinstance(keys, list) and all(isinstance(k, str) for k in keys)):
        raise UserError(f"{path}: the LoRA keys are {shown(keys)}, expected a list of names")
    expected: dict[str, tuple[int, ...]] = {}
    if keys != [] and (count or parameters.get("rank") != 0):
        rank, _ = description.rank_and_scale()
        for name, module in selected_modules(model, keys, count).items():
            shapes = adapter_shapes(module, rank, kind == "dora")
            if not shapes:
                raise UserError(
                    f"{path}: fine_tune_type is 'dora' with {name}, which is not a linear layer"
                )
            expected |= {f"{name}.{part}": shape for part, shape in shapes.items()}
    file = description.path / LORA_FILE
    if expected or file.exists():
        check_tensors(file, tensor_headers(file), expected)
    return own_parts(model, read_arrays(file)) if expected else {}


def mounted(base: nn.Module, adapter: Adapter) -> tuple[nn.Module, Adapter, Streams | None]:
    """Make a model with an adapter around the weights of a base, which is never changed.

    Tensors get the dtype of the activations; tuned weights that of those which they replace. DoRA's
    magnitudes m stay exact: they multiply the whole output, not a small addition. Without LoRA the
    model is the base itself; the adapter that is returned has its tensors as they are mounted.
    """
    dtype, parameters = activations_dtype(base), dict(tree_flatten(base.parameters()))

    def cast(tensors: Mapping[str, mx.array]) -> dict[str, mx.array]:
        return {
            name: tensor.astype(parameters[name].dtype if name in parameters else dtype)
            if not name.endswith((".m", VOCABULARY))
            else tensor
            for name, tensor in tensors.items()
        }

    adapter = replace(adapter, lora=cast(adapter.lora), stream_tensors=cast(adapter.stream_tensors))
    model, streams = base, None
    if adapter.lora:
        model, config = shared_copy(base), adapter.config
        kind = config.get("fine_tune_type")
        if kind != "full":
            put_on(model, config["num_layers"], config["lora_parameters"], kind == "dora")
        model.load_weights([*adapter.lora.items()], strict=False)
    if adapter.stream_config is not None:
        streams = Streams(adapter.stream_config)
        streams.load_weights([*adapter.stream_tensors.items()])
        mx.eval(streams.parameters())
    model.eval()
    mx.eval(model.parameters())
    return model, adapter, streams


def lora_digest(adapter: Adapter | None) -> str | None:
    """Digest an adapter's LoRA, on which the rows of a prompt depend; ``None``: no LoRA."""
    if adapter is None or not adapter.lora:
        return None
    parameters = dict(adapter.config.get("lora_parameters") or {})
    parameters.pop("dropout", None)  # of training alone
    facts = parameters, adapter.config.get("fine_tune_type", "lora")
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(adapter.lora.items()):
        digest.update(name.encode())
        digest.update(np.array(mx.contiguous(tensor).view(mx.uint8)).tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class LoraPart:
    """The LoRA of an adapter as mlx-lm stores it; by default none, which mlx-lm loads too."""

    # By full name ``lora_a`` (in, r), ``lora_b`` (r, out) and DoRA's ``m`` (out,).
    tensors: dict[str, mx.array] = field(default_factory=dict)
    parameters: dict[str, Any] = field(
        default_factory=lambda: {"rank": 1, "scale": 1.0, "dropout": 0.0, "keys": []}
    )
    num_layers: int = 0  # counted from the last
    fine_tune_type: str = "lora"


def write_adapter(
    directory: Path,
    lora: LoraPart,
    stream_config: StreamConfig | None,
    stream_tensors: dict[str, mx.array],
) -> None:
    """Write an adapter's files into an existing directory, which the caller renames into place."""
    config: dict[str, Any] = {
        "fine_tune_type": lora.fine_tune_type,
        "num_layers": lora.num_layers,
        "lora_parameters": lora.parameters,
    }
    mx.save_safetensors(str(directory / LORA_FILE), lora.tensors)
    if stream_config is not None:
        config[STREAM_KEY] = stream_config.to_dict()
        mx.save_safetensors(str(directory / STREAM_FILE), stream_tensors)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
