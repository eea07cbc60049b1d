"""The files of a PyTorch-side adapter directory."""

from pathlib import Path

STREAM_CONFIG = "speculative_streaming.json"
STREAM_TENSORS = "speculative_streaming.safetensors"
LORA_CONFIG = "adapter_config.json"
LORA_TENSORS = "adapter_model.safetensors"


def tensor_file(path: Path) -> Path:
    """Return ``path``, or torch's ``.bin`` or ``.pt`` file of that name if only that exists."""
    choices = (path, path.with_suffix(".bin"), path.with_suffix(".pt"))
    return next((choice for choice in choices if choice.is_file()), path)
