"""Speculative Streaming for MLX: a language model that drafts for itself."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .hardware import blas as blas  # before anything that imports mlx.core

if TYPE_CHECKING:
    from .batch import batch_generate as batch_generate
    from .chat import Chat as Chat
    from .drafting.settings import DraftSettings as DraftSettings
    from .engine.sampling import Sampling as Sampling
    from .engine.sampling import keyed_sampler as keyed_sampler
    from .errors import UserError as UserError
    from .generation import astream_generate as astream_generate
    from .generation import generate as generate
    from .generation import stream_generate as stream_generate
    from .kv_store import PromptCache as PromptCache
    from .loading import SpeculativeModel as SpeculativeModel
    from .loading import load as load
    from .responses import GenerationResponse as GenerationResponse
    from .stream_config import StreamConfig as StreamConfig

__version__ = "0.1.0"

_HOMES = {
    "Chat": "chat",
    "DraftSettings": "drafting.settings",
    "GenerationResponse": "responses",
    "PromptCache": "kv_store",
    "Sampling": "engine.sampling",
    "SpeculativeModel": "loading",
    "StreamConfig": "stream_config",
    "UserError": "errors",
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


def __dir__() -> list[str]:
    """List the public names, those that are not imported yet too."""
    return sorted({*globals(), *__all__})
