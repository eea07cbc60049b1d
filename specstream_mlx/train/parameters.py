"""What a run trains: the streams with their pruner and, in shared mode, LoRA."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import VOCABULARY
from ..models.streams import Streams
from ..stream_config import StreamConfig

EMBEDDING_STD = 0.02


def initial_streams(config: StreamConfig, seed: int) -> Streams:
    """Make untrained streams, drawn as in PyTorch; a last map of 0 makes them change nothing."""
    key, tensors = mx.random.key(seed), {}
    for name, shape in config.tensor_shapes().items():
        if name == VOCABULARY:
            continue
        key, own = mx.random.split(key)
        if name == "streams.embeddings":
            tensors[name] = EMBEDDING_STD * mx.random.normal(shape, key=own)
        elif name.endswith("down.weight") or name == "streams.init.up.weight":
            tensors[name] = shape[1] ** -0.5 * mx.random.normal(shape, key=own)
        else:
            tensors[name] = mx.zeros(shape)
    streams = Streams(config)
    streams.load_weights(list(tensors.items()), strict=False)
    return streams


class Trained(nn.Module):
    """A model of which nothing but LoRA may be trainable, and its streams, as one module."""

    def __init__(self, model: nn.Module, streams: Streams):
        super().__init__()
        self.model, self.streams = model, streams

    def trainable_parameters(self) -> dict[str, Any]:
        """Return the trained arrays as a tree, without the draft vocabulary, which is chosen."""
        tree = super().trainable_parameters()
        tree["streams"]["streams"].pop(VOCABULARY.rpartition(".")[2], None)
        return tree

    def arrays(self) -> dict[str, mx.array]:
        """Return the trained arrays, by the names that they have in an adapter directory."""
        trainable: Any = tree_flatten(self.trainable_parameters())
        return {name.partition(".")[2]: array for name, array in trainable}

    def load(self, arrays: dict[str, mx.array]) -> None:
        """Put arrays, as of ``arrays``, in the place of those that are there."""
        owners = {name: "streams" if is_of_streams(name) else "model" for name in arrays}
        self.update(tree_unflatten([(f"{owners[n]}.{n}", array) for n, array in arrays.items()]))


def is_of_streams(name: str) -> bool:
    """Tell whether an array belongs to the streams or their pruner, not to LoRA."""
    return name.startswith(("streams.", "pruner."))
