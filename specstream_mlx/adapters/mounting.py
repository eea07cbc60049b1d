"""An adapter on a model: mounted, and swapped for another one."""

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..config import VOCABULARY
from ..models.streams import Streams
from .files import Adapter
from .lora import base_weights, put_on, unmount


def activations_dtype(model: nn.Module) -> mx.Dtype:
    """Return the dtype of a model's activations, which its adapters get."""
    return next(p.dtype for n, p in dict(tree_flatten(model.parameters())).items() if "norm" in n)


def _same_layout(first: Adapter | None, second: Adapter) -> bool:
    if first is None or not first.lora or not second.lora or first.is_full or second.is_full:
        return False
    scales = [adapter.config["lora_parameters"]["scale"] for adapter in (first, second)]
    shapes = [{name: tensor.shape for name, tensor in a.lora.items()} for a in (first, second)]
    return scales[0] == scales[1] and shapes[0] == shapes[1]


def mount(model: nn.Module, adapter: Adapter, previous: Adapter | None = None) -> Streams | None:
    """Put ``adapter``'s LoRA onto ``model`` in place of ``previous``; no base weight moves.

    One that ``is_full`` replaces base weights, which the caller keeps and restores.

    Args:
        model: an mlx-lm model; changed in place.
        adapter: from ``read_adapter``.
        previous: the adapter that is mounted now.

    Returns:
        The adapter's streams, or ``None`` where it has none.
    """
    dtype = activations_dtype(model)
    if not _same_layout(previous, adapter):
        unmount(model)
        if adapter.lora and not adapter.is_full:
            dora = adapter.config.get("fine_tune_type") == "dora"
            parameters = adapter.config["lora_parameters"]
            put_on(model, adapter.config["num_layers"], parameters, dora)
    if adapter.is_full:
        own = base_weights(model)
        tuned = [(name, tensor.astype(own[name].dtype)) for name, tensor in adapter.lora.items()]
        model.load_weights(tuned, strict=False)
    elif adapter.lora:
        # DoRA's magnitudes m stay exact: they multiply the whole output, not a small addition.
        pairs = [
            (name, tensor if name.endswith(".m") else tensor.astype(dtype))
            for name, tensor in adapter.lora.items()
        ]
        model.load_weights(pairs, strict=False)
    model.eval()
    if adapter.stream_config is None:
        mx.eval(model.parameters())
        return None
    streams = Streams(adapter.stream_config)
    tensors = adapter.stream_tensors.items()
    streams.load_weights([(n, t if n == VOCABULARY else t.astype(dtype)) for n, t in tensors])
    mx.eval(model.parameters(), streams.parameters())
    return streams
