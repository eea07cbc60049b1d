"""An LM head with the rows of some tokens only."""

from copy import copy

import mlx.core as mx
import mlx.nn as nn

_BY_ROW = ("weight", "scales", "biases", "bias", "m")  # the last is DoRA's


def rows_of(head: nn.Module, ids: mx.array | slice) -> nn.Module:
    """Make a head that scores some tokens only; tensors that are not cut are shared."""
    cut = copy(head)
    for name in _BY_ROW:
        if name in cut:
            cut[name] = cut[name][ids]
    if "linear" in cut:
        cut["linear"], cut["lora_b"] = rows_of(cut["linear"], ids), cut["lora_b"][:, ids]
    if "embedding" in cut:
        cut["embedding"], cut["lora_a"] = rows_of(cut["embedding"], ids), cut["lora_a"][ids]
    return cut
