"""A model as stock mlx_lm runs it: without the forwards that this project gives its layers."""

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.nn as nn

from ..adapters.lora import AddedLoRALinear
from .row_blocks import BlockedEmbedding, BlockedLinear

OURS = (AddedLoRALinear, BlockedLinear, BlockedEmbedding)
"""Each derives from the module of mlx or mlx_lm whose tensors it multiplies otherwise."""


@contextmanager
def stock_modules(model: nn.Module) -> Iterator[None]:
    """Within: every layer of ``model`` multiplies as mlx and mlx_lm have it."""
    ours = [(module, type(module)) for module in model.modules() if type(module) in OURS]
    try:
        for module, own in ours:
            module.__class__ = own.__base__
        yield
    finally:
        for module, own in ours:
            module.__class__ = own
