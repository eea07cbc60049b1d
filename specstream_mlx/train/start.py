"""What a run starts from: the base, with LoRA put on in shared mode, and untrained streams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..adapters.files import Adapter, read_adapter
from ..config import VOCABULARY, StreamConfig, UserError
from ..loading import SpeculativeModel
from ..models.streams import Streams
from .items import Item, most_frequent
from .parameters import initial_streams
from .settings import TrainSettings


@dataclass(frozen=True)
class Start:
    """A base with what is to be trained on it.

    Attributes:
        base: as it is decoded with: packed weights stay packed where that is faster.
        tokenizer: its.
        streams: untrained, or those of ``init_adapter``.
        lora_parameters: mlx-lm's, ``None`` without LoRA.
        num_layers: top layers with LoRA.
    """

    base: SpeculativeModel
    tokenizer: TokenizerWrapper
    streams: Streams
    lora_parameters: dict[str, Any] | None
    num_layers: int

    @property
    def model(self) -> nn.Module:
        """The mlx-lm model, LoRA included."""
        return self.base.model


def start_of(settings: TrainSettings, base: SpeculativeModel, tokenizer: TokenizerWrapper) -> Start:
    """Make what is trained on a base; nothing but LoRA of its model is left trainable.

    Args:
        settings: checked.
        base: ``settings.model``, without an adapter; LoRA is put on it in shared mode.
        tokenizer: its.

    Raises:
        UserError: ``init_adapter`` cannot be read, or a setting does not fit the base.
    """
    model, layers = base.model, len(base.model.layers)
    mx.random.seed(settings.seed)
    model.freeze()
    adapter = None
    if settings.init_adapter is not None:
        adapter = read_adapter(settings.init_adapter, model, base.config)
    config = _stream_config(settings, base, adapter)
    parameters, count = None, 0
    if settings.mode == "shared":
        parameters, count = settings.lora_parameters, settings.num_layers
        if adapter is not None:
            parameters, count = adapter.config["lora_parameters"], adapter.config["num_layers"]
        if count > layers:
            raise UserError(f"num_layers is {count}, expected at most the base's {layers}")
        count = layers if count < 0 else count
        linear_to_lora_layers(model, count, parameters)
        if not model.trainable_parameters():
            raise UserError("LoRA's keys name no linear layer of the base, expected at least one")
    streams = initial_streams(config, settings.seed)
    if adapter is not None:
        model.load_weights(list(adapter.lora.items()), strict=False)
        streams.load_weights(list(adapter.stream_tensors.items()), strict=False)
    return Start(base, tokenizer, streams, parameters, count)


def set_vocabulary(streams: Streams, items: Sequence[Item], vocab_size: int) -> None:
    """Let the streams draft the most frequent tokens of these items, if not all."""
    if streams.vocabulary is not None:
        ids = most_frequent(items, streams.config.draft_vocabulary, vocab_size)
        streams.load_weights([(VOCABULARY, mx.array(ids, mx.int32))], strict=False)


def _stream_config(
    settings: TrainSettings, base: SpeculativeModel, adapter: Adapter | None
) -> StreamConfig:
    """The configuration of the streams: the settings', or those of the adapter to start from."""
    settings.check_vocabulary(base.config["vocab_size"])
    if adapter is not None:
        return _continued(settings, adapter)
    return settings.stream_config(
        hidden_size=base.config["hidden_size"],
        num_hidden_layers=len(base.model.layers),
        base_model=settings.model,
        base_fingerprint=base.base_fingerprint,
    )


def _continued(settings: TrainSettings, adapter: Adapter) -> StreamConfig:
    """The configuration of an adapter that a run starts from; its head may become another."""
    found = adapter.stream_config
    if found is None:
        raise UserError(f"init_adapter {adapter.path} has no streams, expected some")
    if found.mode != settings.mode:
        raise UserError(
            f"init_adapter {adapter.path}: mode is {found.mode!r}, expected {settings.mode!r} as "
            "in this run"
        )
    if found.stream_head == "conditioned" and settings.stream_head == "plain":
        raise UserError(
            f"init_adapter {adapter.path}: stream_head is 'conditioned', expected 'plain' as in "
            "this run"
        )
    head = settings.head_fields()
    if found.stream_head == "conditioned":
        head = {"stream_head": "conditioned", "stream_head_rank": found.stream_head_rank}
    template = settings.prompt_template or found.prompt_template
    return replace(found, prompt_template=template, **head)
