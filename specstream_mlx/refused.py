"""Arguments that mlx_lm's functions take and ours do not, with the reason."""

from typing import Any

from .errors import UserError, shown
from .hardware import device
from .loading import SpeculativeModel


def refuse_others(stream: Any, input_embeddings: Any = None) -> None:
    """Refuse arguments that only mlx_lm's own functions take."""
    if stream is not None and stream is not device.generation_stream:
        raise UserError(
            f"stream is {shown(stream)}, expected mlx_lm's generation_stream: all runs there"
        )
    if input_embeddings is not None:
        raise UserError(
            "input_embeddings were given, but drafts and their checks are of tokens, expected a "
            "prompt of token ids"
        )


def check_kv_size(
    model: SpeculativeModel, max_kv_size: int | None, prompt_tokens: int, max_tokens: int
) -> None:
    """Check that a text fits into ``max_kv_size`` rows, so that none is overwritten."""
    if max_kv_size is None or hasattr(model, "make_cache"):  # whose caches have their own sizes
        return
    if max_tokens < 0 or prompt_tokens + max_tokens > max_kv_size:
        most = "no limit" if max_tokens < 0 else f"{prompt_tokens + max_tokens} tokens"
        raise UserError(
            f"max_kv_size is {max_kv_size} and prompt and text may have {most}, expected that they "
            "fit: a cache that overwrites rows cannot drop rejected drafts"
        )
