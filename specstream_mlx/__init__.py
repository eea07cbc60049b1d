"""Speculative Streaming for MLX: a language model that drafts for itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .hardware import blas as blas  # before anything that imports mlx.core

if TYPE_CHECKING:
    from .drafting.settings import DraftSettings as DraftSettings
    from .engine.sampling import Sampling as Sampling
    from .engine.sampling import keyed_sampler as keyed_sampler
    from .errors import UserError as UserError
    from .generation.batch_generate import batch_generate as batch_generate
    from .generation.chat import Chat as Chat
    from .generation.kv_store import PromptCache as PromptCache
    from .generation.stream_generate import astream_generate as astream_generate
    from .generation.stream_generate import generate as generate
    from .generation.stream_generate import stream_generate as stream_generate
    from .generation.text import GenerationResponse as GenerationResponse
    from .loading.load import load as load
    from .loading.speculative_model import SpeculativeModel as SpeculativeModel
    from .stream_config import StreamConfig as StreamConfig

__version__ = "0.1.0"

_HOMES = {
    "Chat": "generation.chat",
    "DraftSettings": "drafting.settings",
    "GenerationResponse": "generation.text",
    "PromptCache": "generation.kv_store",
    "Sampling": "engine.sampling",
    "SpeculativeModel": "loading.speculative_model",
    "StreamConfig": "stream_config",
    "UserError": "errors",
    "astream_generate": "generation.stream_generate",
    "batch_generate": "generation.batch_generate",
    "generate": "generation.stream_generate",
    "keyed_sampler": "engine.sampling",
    "load": "loading.load",
    "stream_generate": "generation.stream_generate",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name's module when it is first asked for: training needs no MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet too."""
    return sorted({*globals(), *__all__})
