"""The trained parts of a run: streams with their pruner and, in shared mode, LoRA, on a base."""

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..adapters.files import Adapter, LoraPart, lora_digest, read_adapter
from ..errors import VOCABULARY, UserError, shown
from ..hardware import few_rows
from ..hardware.cpu import exchange
from ..loading.speculative_model import SpeculativeModel
from ..models.shared_copy import shared_copy
from ..models.streams import Streams
from ..options import choice
from ..stream_config import StreamConfig
from .settings import TrainSettings


@dataclass(frozen=True)
class Start:
    """A base as it is decoded, and the parts to be trained on it."""

    base: SpeculativeModel
    tokenizer: TokenizerWrapper
    streams: Streams  # untrained ones, or those of ``init_adapter``
    lora: LoraPart  # on the base; its tensors only where they stay as they are
    chooses_vocabulary: bool  # the data decide on a draft vocabulary
    frozen_lora: str | None = None  # digest of LoRA that stays as it is


def start_of(settings: TrainSettings, base: SpeculativeModel, tokenizer: TokenizerWrapper) -> Start:
    """Make the trained parts on a base, and put LoRA on it: a frozen one in lossless mode."""
    base.model = model = shared_copy(base.base)  # LoRA is put on it
    exchange(model, few_rows.STOCK)  # the kernel has no gradient
    shared = settings.mode == "shared"
    mx.random.seed(settings.seed)
    model.freeze()
    adapter = None
    if settings.init_adapter is not None:
        adapter = read_adapter(settings.init_adapter, model, base.config)
        if adapter.lora:
            kind = adapter.config.get("fine_tune_type", "lora")
            choice("lora").check(f"init_adapter {adapter.path}: fine_tune_type", kind)
    settings.check_vocabulary(base.config["vocab_size"])
    if adapter is not None and adapter.stream_config is not None:
        stream_config = settings.continued(adapter.stream_config)
    else:
        stream_config = settings.stream_config(
            hidden_size=base.config["hidden_size"],
            num_hidden_layers=len(model.layers),
            base_model=settings.model,
            base_fingerprint=base.base_fingerprint,
        )
    streams = initial_streams(stream_config, settings.seed)
    lora = LoraPart()
    if shared or (adapter is not None and adapter.lora):
        lora = _put_lora(settings, model, adapter)
    known = streams.vocabulary is None
    if adapter is not None:
        of_lora, tensors = _trainable(adapter.lora), _trainable(adapter.stream_tensors)
        if settings.draft_vocabulary:
            tensors.pop(VOCABULARY, None)
        known = known or VOCABULARY in tensors
        model.load_weights(list(of_lora.items()), strict=False)
        streams.load_weights(list(tensors.items()), strict=False)
        lora = lora if shared else replace(lora, tensors=of_lora)
    if not shared:
        model.freeze()
    frozen = None if shared else lora_digest(adapter)
    return Start(base, tokenizer, streams, lora, not known, frozen)


def _put_lora(settings: TrainSettings, model: nn.Module, adapter: Adapter | None) -> LoraPart:
    """Put LoRA on a model: as the adapter has it, or else as the settings say."""
    parameters, count, layers = settings.lora_parameters, settings.num_layers, len(model.layers)
    if adapter is not None:
        parameters = {"dropout": 0.0, **adapter.config["lora_parameters"]}
        count = adapter.config["num_layers"]
    if settings.mode == "lossless":  # nothing of it is trained
        parameters = {**parameters, "dropout": 0.0}
    if count > layers:
        raise UserError(f"num_layers is {count}, expected at most the base's {layers}")
    count = layers if count < 0 else count
    if settings.grad_checkpoint and parameters["dropout"]:
        raise UserError(
            f"lora_parameters' dropout is {shown(parameters['dropout'])} with grad_checkpoint, "
            "expected 0: what is computed again would drop others"
        )
    linear_to_lora_layers(model, count, parameters)
    names = list(dict(tree_flatten(model.trainable_parameters())))
    outside = [name for name in names if "layers." not in name]
    if settings.mode == "shared" and not names:
        raise UserError("LoRA's keys name no linear layer of the base, expected at least one")
    if settings.mode == "shared" and outside:  # the head's gradient is never computed
        raise UserError(
            f"LoRA's keys name {outside[0].rpartition('.')[0]}, expected modules of layers alone"
        )
    return LoraPart({}, parameters, count)


def _trainable(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Tensors as they are trained: in float32, unless they hold token ids."""
    return {
        name: tensor.astype(mx.float32) if mx.issubdtype(tensor.dtype, mx.floating) else tensor
        for name, tensor in tensors.items()
    }


def initial_streams(config: StreamConfig, seed: int) -> Streams:
    """Make untrained streams, drawn as in PyTorch; last maps are 0, so they change nothing."""
    key, tensors = mx.random.key(seed), {}
    for name, shape in config.tensor_shapes().items():
        if name == VOCABULARY:
            continue
        key, drawn_by = mx.random.split(key)
        if name == "streams.embeddings":
            tensors[name] = 0.02 * mx.random.normal(shape, key=drawn_by)
        elif name.endswith("down.weight") or name == "streams.init.up.weight":
            tensors[name] = shape[1] ** -0.5 * mx.random.normal(shape, key=drawn_by)
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
        """Return the trained arrays, without the draft vocabulary, which is chosen."""
        tree = super().trainable_parameters()
        tree["streams"]["streams"].pop(VOCABULARY.rpartition(".")[2], None)
        return tree

    def arrays(self) -> dict[str, mx.array]:
        """Return the trained arrays, by the names that they have in an adapter directory."""
        trainable: Any = tree_flatten(self.trainable_parameters())
        return {name.partition(".")[2]: array for name, array in trainable}

    def load(self, arrays: dict[str, mx.array]) -> None:
        """Replace the arrays by these, in the form of ``arrays``."""
        owners = {name: "streams" if is_of_streams(name) else "model" for name in arrays}
        self.update(tree_unflatten([(f"{owners[n]}.{n}", array) for n, array in arrays.items()]))


def is_of_streams(name: str) -> bool:
    """Tell whether an array belongs to the streams or their pruner, not to LoRA."""
    return name.startswith(("streams.", "pruner."))
