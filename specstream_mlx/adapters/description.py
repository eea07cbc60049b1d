"""The description of an adapter directory: its configuration, and headers of its tensors.

It covers directories in MLX's format (see ``files``) and those of the PyTorch side. No weights are
read, and MLX is not imported.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import VOCABULARY, UserError, naming, shown
from ..files import Headers, check_tensors, read_json, short, tensor_headers
from ..models.architectures import architecture_of, completed
from ..models.fingerprint import fingerprint
from ..options import COUNT, NUMBER, OBJECT
from ..stream_config import StreamConfig

ADAPTER_CONFIG = "adapter_config.json"
LORA_FILE = "adapters.safetensors"
STREAM_FILE = "speculative_streaming.safetensors"
STREAM_KEY = "speculative_streaming"

LORA_CONFIG = "adapter_config.json"  # of the PyTorch side, as these
LORA_TENSORS = "adapter_model.safetensors"
STREAM_CONFIG = "speculative_streaming.json"
STREAM_TENSORS = "speculative_streaming.safetensors"

ADAPTER_FILES = re.compile("|".join(map(re.escape, (ADAPTER_CONFIG, LORA_FILE, STREAM_FILE))))


@dataclass(frozen=True)
class AdapterDescription:
    """An adapter directory, of either format, whose configuration has been read and checked."""

    path: Path
    config: dict[str, Any]
    stream_config: StreamConfig | None
    format: Literal["mlx", "pytorch"]

    @property
    def config_path(self) -> Path:
        return self.path / ADAPTER_CONFIG

    @property
    def is_peft(self) -> bool:
        """Whether LoRA is in PEFT's format; it may be in mlx-lm's on the PyTorch side too."""
        return "peft_type" in self.config

    @property
    def base_model(self) -> str:
        """The base's name or path, for people; empty if the directory names none."""
        named = self.stream_config.base_model if self.stream_config else ""
        # mlx_lm's own files have it as ``model``.
        names = (self.config.get(name) for name in ("base_model_name_or_path", "model"))
        return str(named or next(filter(None, names), ""))

    @property
    def stream_file(self) -> Path | None:
        return self.path / STREAM_FILE if self.stream_config else None

    @property
    def lora_file(self) -> Path | None:
        if self.is_peft:
            return self.path / LORA_TENSORS
        return path if os.path.lexists(path := self.path / LORA_FILE) else None

    def check_base(self, base_config: Mapping[str, Any]) -> None:
        """Check that the streams, if there are any, were made for a base."""
        streams = self.stream_config
        if streams is None:
            return
        where = self.path / STREAM_CONFIG if self.format == "pytorch" else self.config_path
        made_for, expected = streams.base_fingerprint, fingerprint(base_config)
        if made_for and made_for != expected:
            raise UserError(
                f"{where}: the adapter was made for another base "
                f"({streams.base_model or 'unnamed'}, fingerprint {made_for}), "
                f"expected fingerprint {expected}; --model names the base"
            )
        sizes = completed(base_config)
        for field in ("hidden_size", "num_hidden_layers"):
            if getattr(streams, field) != sizes.get(field):
                raise UserError(
                    f"{where}: {field} is {getattr(streams, field)}, "
                    f"expected the base's {sizes.get(field)}; --model names the base"
                )
        name = base_config.get("model_type")
        if streams.stream_keys and not architecture_of(name).tested:
            raise UserError(
                f"{where}: stream_keys is {streams.stream_keys} with model_type {shown(name)}, "
                "expected 0: how its attention scores keys is not known here"
            )

    def rank_and_scale(self) -> tuple[int, float]:
        """Return LoRA's rank, and the factor on the product of its two matrices."""
        names = ("r", "lora_alpha") if self.is_peft else ("rank", "scale")
        fields: Any = self.config if self.is_peft else self.config.get("lora_parameters")
        if not isinstance(fields, dict):
            raise UserError(f"{self.config_path} has no lora_parameters, expected mlx-lm's")
        found: list[Any] = [fields.get(name) for name in names]
        rank, scale = found
        COUNT.check(f"{self.config_path}: the LoRA {names[0]}", rank)
        NUMBER.check(f"{self.config_path}: the LoRA {names[1]}", scale)
        if self.is_peft:
            scale /= rank**0.5 if self.config.get("use_rslora") else rank  # rank-stabilised
        return rank, scale

    def stream_headers(self) -> Headers:
        """Read the headers of streams and pruner, and check them."""
        if self.stream_file is None or self.stream_config is None:
            return {}
        headers = _headers(self.stream_file)
        expected = self.stream_config.tensor_shapes()
        check_tensors(self.stream_file, headers, expected, integers=[VOCABULARY])
        return headers

    def lora_headers(self) -> Headers:
        return {} if self.lora_file is None else _headers(self.lora_file)


def describe(directory: str | Path) -> AdapterDescription:
    """Read the configuration of an adapter directory of either format."""
    path = Path(directory)
    if not os.path.isdir(path):
        raise UserError(f"the adapter directory {short(path)} does not exist")
    config_path, stream_path = path / ADAPTER_CONFIG, path / STREAM_CONFIG
    torch_streams = os.path.lexists(stream_path)
    if not os.path.lexists(config_path) and not torch_streams:
        raise UserError(f"{path} has neither {STREAM_CONFIG} nor {ADAPTER_CONFIG}")
    config = read_json(config_path) if os.path.lexists(config_path) else {}
    where, values = f"{config_path}: {STREAM_KEY}", config.get(STREAM_KEY)
    if torch_streams:
        where, values = str(stream_path), read_json(stream_path)
    streams = None
    if torch_streams or STREAM_KEY in config:
        OBJECT.check(where, values)
        with naming(where):
            streams = StreamConfig.from_dict(values)  # type: ignore[arg-type]
    torch_side = torch_streams or "peft_type" in config
    return AdapterDescription(path, config, streams, "pytorch" if torch_side else "mlx")


def check_vocabulary(path: Path, ids: Sequence[int], vocab_size: int) -> None:
    """Check the token ids of a draft vocabulary."""
    if len(set(ids)) < len(ids) or min(ids) < 0 or max(ids) >= vocab_size:
        raise UserError(
            f"{path}: {VOCABULARY} holds ids from {min(ids)} to {max(ids)}, expected different "
            f"ones of the base's {vocab_size}"
        )


def tensor_file(path: Path) -> Path:
    """Return ``path``, or torch's ``.bin`` or ``.pt`` file of that name if only that exists."""
    choices = (path, path.with_suffix(".bin"), path.with_suffix(".pt"))
    return next((choice for choice in choices if choice.is_file()), path)


def _headers(path: Path) -> Headers:
    pickled = path.with_suffix(".bin")
    if not os.path.lexists(path) and pickled.exists():
        raise UserError(f"{pickled} has no header to read, expected {path.name}")
    return tensor_headers(path)
