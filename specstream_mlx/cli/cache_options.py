"""``generate``'s options for the KV cache, under mlx_lm's names."""

from pathlib import Path
from typing import Annotated

from typer import Option

from . import numbers

_CACHE = "KV cache"

KVBits = Annotated[
    int | None,
    Option(
        parser=numbers.one_of(4, 8),
        metavar="N",
        help="Quantize the KV cache to 4 or 8 bits. Default: not at all.",
        rich_help_panel=_CACHE,
    ),
]
KVGroupSize = Annotated[
    int,
    Option(
        parser=numbers.one_of(32, 64, 128),
        metavar="N",
        help="With --kv-bits: elements that share a scale; 32, 64 or 128.",
        rich_help_panel=_CACHE,
    ),
]
QuantizedKVStart = Annotated[
    int,
    Option(
        parser=numbers.at_least(0),
        metavar="N",
        help="With --kv-bits: tokens from which on the cache is quantized; 0: all of them.",
        rich_help_panel=_CACHE,
    ),
]
PromptCacheFile = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="A prompt cache of cache-prompt's or mlx_lm's: its text comes before --prompt. "
        "Default of --model: the model that made it.",
        rich_help_panel=_CACHE,
    ),
]
