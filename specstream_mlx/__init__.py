"""Speculative Streaming for MLX: a language model that drafts for itself."""

from importlib import import_module
from typing import Any

from .hardware import blas as blas  # before anything that imports mlx.core

__version__ = "0.1.0"

_HOMES = {
    "Chat": "chat",
    "DraftSettings": "drafting.settings",
    "GenerationResponse": "generation",
    "PromptCache": "prompt_cache",
    "Sampling": "engine.sampling",
    "SpeculativeModel": "loading",
    "StreamConfig": "config",
    "UserError": "config",
    "astream_generate": "generation",
    "batch_generate": "batch",
    "generate": "generation",
    "keyed_sampler": "engine.sampling",
    "load": "loading",
    "stream_generate": "generation",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for: training needs no MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
