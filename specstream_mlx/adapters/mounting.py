"""An adapter on a model: mounted, and swapped for another one."""

from dataclasses import replace

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..errors import VOCABULARY
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


def as_mounted(model: nn.Module, adapter: Adapter) -> Adapter:
    """Return an adapter with its tensors as ``mount`` puts them onto ``model``.

    They have the dtype of the activations; tuned weights, that of those which they replace. DoRA's
    magnitudes m stay exact: they multiply the whole output, not a small addition.
    """
    dtype, lora = activations_dtype(model), adapter.lora
    if adapter.is_full:
        own = base_weights(model)
        lora = {name: tensor.astype(own[name].dtype) for name, tensor in lora.items()}
    else:
        lora = {
            name: tensor if name.endswith(".m") else tensor.astype(dtype)
            for name, tensor in lora.items()
        }
    streams = {
        name: tensor if name == VOCABULARY else tensor.astype(dtype)
        for name, tensor in adapter.stream_tensors.items()
    }
    return replace(adapter, lora=lora, stream_tensors=streams)


def mount(model: nn.Module, adapter: Adapter, previous: Adapter | None = None) -> Streams | None:
    """Put ``adapter``'s LoRA onto ``model`` in place of ``previous``; no base weight moves.

    One that ``is_full`` replaces base weights, which the caller keeps and restores.
    """
    if not _same_layout(previous, adapter):
        unmount(model)
        if adapter.lora and not adapter.is_full:
            dora = adapter.config.get("fine_tune_type") == "dora"
            parameters = adapter.config["lora_parameters"]
            put_on(model, adapter.config["num_layers"], parameters, dora)
    model.load_weights([*adapter.lora.items()], strict=False)
    model.eval()
    if adapter.stream_config is None:
        mx.eval(model.parameters())
        return None
    streams = Streams(adapter.stream_config)
    streams.load_weights([*adapter.stream_tensors.items()])
    mx.eval(model.parameters(), streams.parameters())
    return streams
