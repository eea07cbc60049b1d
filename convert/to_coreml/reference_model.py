"""The weights that a package holds as an MLX model, to compare the two."""

from collections.abc import Mapping

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import dequantize_model

from specstream_mlx.models.streams import Streams

from .weights import operation_name


def decoded_model(model: nn.Module, weights: Mapping[str, np.ndarray]) -> nn.Module:
    """A model in float32 with what a package holds of its weights.

    Args:
        model: the exported model with its LoRA; it is changed.
        weights: by operation, of one of the adapter's step functions: ``Package.weights``.

    Raises:
        ValueError: a weight has another shape there.
    """
    model = dequantize_model(model)
    model.update(tree_map(_halved, model.parameters()))
    for name, part in model.named_modules():
        found = weights.get(operation_name(name.removesuffix(".linear")))
        if isinstance(part, nn.Linear | nn.Embedding) and found is not None:
            if found.shape != part.weight.shape:
                raise ValueError(f"{name} is {found.shape}, expected {part.weight.shape}")
            part.weight = mx.array(found)
    return model


def decoded_streams(streams: Streams) -> Streams:
    """Streams in float32 with what a package holds of them; they are changed."""
    streams.update(tree_map(_halved, streams.parameters()))
    return streams


def _halved(p: mx.array) -> mx.array:
    """Floats rounded to half precision, in float32."""
    return p.astype(mx.float16).astype(mx.float32) if mx.issubdtype(p.dtype, mx.floating) else p
