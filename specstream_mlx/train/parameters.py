"""Trained parameters: streams, pruner and, in shared mode, LoRA, as one flat table of arrays."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from ..errors import VOCABULARY
from ..models.streams import Streams
from ..stream_config import StreamConfig

Parameters = dict[str, mx.array]
"""Arrays by the names that they have in an adapter directory."""

EMBEDDING_STD = 0.02


def initial_streams(config: StreamConfig, seed: int) -> Streams:
    """Make untrained streams, drawn as the PyTorch trainer draws them.

    The last map of adapters, pruner and conditioned head is 0, so that they change nothing at the
    start; so are the values of a prefix.
    """
    key, tensors = mx.random.key(seed), {}
    for name, shape in config.tensor_shapes().items():
        if name == VOCABULARY:
            continue
        key, own = mx.random.split(key)
        if name == "streams.embeddings":
            tensors[name] = EMBEDDING_STD * mx.random.normal(shape, key=own)
        elif name.endswith(".key"):
            tensors[name] = mx.random.normal(shape, key=own)
        elif name.endswith("down.weight") or name == "streams.init.up.weight":
            tensors[name] = shape[1] ** -0.5 * mx.random.normal(shape, key=own)
        else:
            tensors[name] = mx.zeros(shape)
    streams = Streams(config)
    streams.load_weights(list(tensors.items()), strict=False)
    return streams


class Trained:
    """The modules that are trained, seen as one table.

    Args:
        model: an mlx-lm model of which nothing but LoRA is trainable.
        streams: the model's streams.
        lora: whether LoRA is trained, too.
        head_alone: whether of the streams the conditioned head alone is trained.
    """

    def __init__(
        self, model: nn.Module, streams: Streams, *, lora: bool = True, head_alone: bool = False
    ):
        self._model, self._streams = model, streams
        if not lora:
            model.freeze()
        if head_alone:
            streams.freeze()
            streams.streams["head"].unfreeze()

    def get(self) -> Parameters:
        """Return the trained arrays, float32; a draft vocabulary is not trained."""
        of_streams = dict(tree_flatten(self._streams.trainable_parameters()))
        of_streams.pop(VOCABULARY, None)
        return dict(tree_flatten(self._model.trainable_parameters())) | of_streams

    def set(self, parameters: Parameters) -> None:
        """Give the modules these arrays; inside a differentiated function they may be traced."""
        for module, of_streams in ((self._streams, True), (self._model, False)):
            own = [item for item in parameters.items() if is_of_streams(item[0]) == of_streams]
            if own:
                module.update(tree_unflatten(own))


def is_of_streams(name: str) -> bool:
    """Tell whether an array belongs to the streams or their pruner, not to LoRA."""
    return name.startswith(("streams.", "pruner."))
