"""How mlx_lm runs a model: on its own stream, with wired weights."""

from contextlib import AbstractContextManager
from typing import cast

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generation_stream as generation_stream
from mlx_lm.generate import wired_limit


def wired(model: nn.Module) -> AbstractContextManager[None]:
    """Wire a model's weights within the context, as ``mlx_lm`` does."""
    return wired_limit(model, [cast(mx.Stream, generation_stream)])
