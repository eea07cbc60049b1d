"""The files of a PyTorch-side adapter directory."""

from pathlib import Path

from specstream_mlx.adapters.torch_files import (
    LORA_CONFIG,
    LORA_TENSORS,
    STREAM_CONFIG,
    STREAM_TENSORS,
)

__all__ = ["LORA_CONFIG", "LORA_TENSORS", "STREAM_CONFIG", "STREAM_TENSORS", "tensor_file"]


def tensor_file(path: Path) -> Path:
    """``path``, or torch's ``.bin`` or ``.pt`` file of that name where only that exists."""
    choices = (path, path.with_suffix(".bin"), path.with_suffix(".pt"))
    return next((choice for choice in choices if choice.is_file()), path)
