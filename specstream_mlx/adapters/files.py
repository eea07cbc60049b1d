"""Adapter directories: check everything first, then mount; swap one adapter for another.

A directory holds ``adapter_config.json`` (mlx-lm's LoRA fields and a ``speculative_streaming``
object), ``adapters.safetensors`` (LoRA tensors under mlx-lm's names, so that ``mlx_lm`` loads the
directory too) and ``speculative_streaming.safetensors`` (``streams.*``, ``pruner.*``). The stream
tensors have a file of their own because mlx-lm refuses tensors that it does not know.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..checked_files import check_tensors, read_json, tensor_headers
from ..config import ConfigError, StreamConfig, UserError
from ..models.fingerprint import fingerprint
from ..models.streams import Streams
from .lora import adapter_shapes, put_on, selected_modules, unmount

ADAPTER_CONFIG = "adapter_config.json"
LORA_FILE = "adapters.safetensors"
STREAM_FILE = "speculative_streaming.safetensors"
STREAM_KEY = "speculative_streaming"


@dataclass(frozen=True)
class Adapter:
    """A checked adapter directory whose tensors have been read.

    Attributes:
        path: the directory.
        config: its ``adapter_config.json``.
        stream_config: its streams, or ``None`` for a plain LoRA adapter.
        lora: LoRA tensors by name.
        stream_tensors: ``streams.*`` and ``pruner.*`` by name.
    """

    path: Path
    config: dict[str, Any]
    stream_config: StreamConfig | None
    lora: dict[str, mx.array]
    stream_tensors: dict[str, mx.array]

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (*self.lora.values(), *self.stream_tensors.values()))


def _expected_lora(path: Path, config: dict[str, Any], model: nn.Module) -> dict[str, tuple]:
    """Name and shape of every LoRA or DoRA tensor that ``config`` calls for."""
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, dict) or "num_layers" not in config:
        raise UserError(f"{path} has no lora_parameters and num_layers, expected mlx-lm's")
    rank, count, keys = parameters.get("rank"), config["num_layers"], parameters.get("keys")
    layers = len(model.layers)
    if not isinstance(count, int) or not -1 <= count <= layers:
        raise UserError(f"{path}: num_layers is {count!r}, expected 0 to {layers}, or -1 for all")
    if keys is not None and not isinstance(keys, list):
        raise UserError(f"{path}: the LoRA keys are {keys!r}, expected a list of names")
    if keys == [] or (count == 0 and rank == 0):
        return {}
    if not isinstance(rank, int) or rank < 1:
        raise UserError(f"{path}: the LoRA rank is {rank!r}, expected an integer of at least 1")
    if not isinstance(parameters.get("scale"), int | float):
        raise UserError(f"{path}: the LoRA scale is {parameters.get('scale')!r}, expected a number")
    expected = {}
    for name, module in selected_modules(model, keys, count).items():
        shapes = adapter_shapes(module, rank, config.get("fine_tune_type") == "dora")
        if not shapes:
            raise UserError(
                f"{path}: fine_tune_type is 'dora' with {name}, which is not a linear layer"
            )
        expected |= {f"{name}.{kind}": shape for kind, shape in shapes.items()}
    return expected


def read_adapter(directory: str | Path, model: nn.Module, base_config: dict[str, Any]) -> Adapter:
    """Check an adapter directory against its base and read its tensors.

    Args:
        directory: the adapter directory.
        model: the base as an mlx-lm model, with or without LoRA mounted.
        base_config: the base's ``config.json``.

    Raises:
        UserError: one sentence with the file, the tensor or field, what was found and what
            was expected.
    """
    path = Path(directory)
    if not path.is_dir():
        raise UserError(f"the adapter directory {path} does not exist")
    config_path = path / ADAPTER_CONFIG
    config = read_json(config_path)
    if "peft_type" in config:
        raise UserError(
            f"{path} is a PEFT directory: convert it first with "
            f"`specstream-mlx convert --model BASE --adapter-path {path} --mlx-path OUTPUT`"
        )
    fine_tune_type = config.get("fine_tune_type", "lora")
    if fine_tune_type not in ("lora", "dora"):
        raise UserError(
            f"{config_path}: fine_tune_type is {fine_tune_type!r}, expected 'lora' or 'dora'"
        )
    stream_config = None
    if STREAM_KEY in config:
        try:
            stream_config = StreamConfig.from_dict(config[STREAM_KEY])
        except (ConfigError, TypeError) as error:
            raise UserError(f"{config_path}: {STREAM_KEY}: {error}") from None
        found, expected = stream_config.base_fingerprint, fingerprint(base_config)
        if found and found != expected:
            raise UserError(
                f"{config_path}: the adapter was made for another base "
                f"({stream_config.base_model or 'unnamed'}, fingerprint {found}), "
                f"expected fingerprint {expected}"
            )
        for field in ("hidden_size", "num_hidden_layers"):
            if getattr(stream_config, field) != base_config.get(field):
                raise UserError(
                    f"{config_path}: {field} is {getattr(stream_config, field)}, "
                    f"expected the base's {base_config.get(field)}"
                )
        stream_path = path / STREAM_FILE
        check_tensors(stream_path, tensor_headers(stream_path), stream_config.tensor_shapes())
    lora_path = path / LORA_FILE
    expected_lora = _expected_lora(config_path, config, model)
    if expected_lora or lora_path.exists():
        check_tensors(lora_path, tensor_headers(lora_path), expected_lora)
    return Adapter(
        path=path,
        config=config,
        stream_config=stream_config,
        lora=dict(mx.load(str(lora_path))) if expected_lora else {},
        stream_tensors=dict(mx.load(str(path / STREAM_FILE))) if stream_config else {},
    )


def _dtype(model: nn.Module) -> mx.Dtype:
    """The dtype of the model's activations."""
    return next(p.dtype for name, p in tree_flatten(model.parameters()) if "norm" in name)


def _same_layout(first: Adapter | None, second: Adapter) -> bool:
    if first is None or not first.lora or not second.lora:
        return False
    scales = [adapter.config["lora_parameters"]["scale"] for adapter in (first, second)]
    shapes = [{name: tensor.shape for name, tensor in a.lora.items()} for a in (first, second)]
    return scales[0] == scales[1] and shapes[0] == shapes[1]


def mount(model: nn.Module, adapter: Adapter, previous: Adapter | None = None) -> Streams | None:
    """Put ``adapter``'s LoRA onto ``model`` in place of ``previous``; no base weight moves.

    Args:
        model: an mlx-lm model; changed in place.
        adapter: from ``read_adapter``.
        previous: what is mounted now.

    Returns:
        The adapter's streams, or ``None`` where it has none.
    """
    dtype = _dtype(model)
    if not _same_layout(previous, adapter):
        unmount(model)
        if adapter.lora:
            dora = adapter.config.get("fine_tune_type") == "dora"
            parameters = adapter.config["lora_parameters"]
            put_on(model, adapter.config["num_layers"], parameters, dora)
    if adapter.lora:
        # DoRA's magnitudes m stay exact: they multiply the whole output, not a small addition.
        pairs = [
            (name, tensor if name.endswith(".m") else tensor.astype(dtype))
            for name, tensor in adapter.lora.items()
        ]
        model.load_weights(pairs, strict=False)
    model.eval()
    if adapter.stream_config is None:
        mx.eval(model.parameters())
        return None
    streams = Streams(adapter.stream_config)
    streams.load_weights([(n, t.astype(dtype)) for n, t in adapter.stream_tensors.items()])
    mx.eval(model.parameters(), streams.parameters())
    return streams


def write_adapter(
    directory: Path,
    lora: dict[str, mx.array],
    lora_parameters: dict[str, Any],
    num_layers: int,
    stream_config: StreamConfig | None,
    stream_tensors: dict[str, mx.array],
    fine_tune_type: str = "lora",
) -> None:
    """Write an adapter directory's three files into an existing directory.

    Args:
        directory: where to; the caller renames it into place.
        lora: mlx-lm's names, ``lora_a`` (in, r) and ``lora_b`` (r, out).
        lora_parameters: mlx-lm's ``rank``, ``scale``, ``dropout``, ``keys``.
        num_layers: layers with LoRA, counted from the last.
        stream_config: ``None`` for a plain LoRA adapter.
        stream_tensors: see ``StreamConfig.tensor_shapes``.
        fine_tune_type: ``lora``, or ``dora`` where ``lora`` holds magnitudes ``m`` too.
    """
    config: dict[str, Any] = {
        "fine_tune_type": fine_tune_type,
        "num_layers": num_layers,
        "lora_parameters": lora_parameters,
    }
    mx.save_safetensors(str(directory / LORA_FILE), lora)
    if stream_config is not None:
        config[STREAM_KEY] = stream_config.to_dict()
        mx.save_safetensors(str(directory / STREAM_FILE), stream_tensors)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
