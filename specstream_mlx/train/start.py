"""The start of a run: the base, with LoRA where there is to be any, and untrained streams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..adapters.files import Adapter, lora_digest, read_adapter
from ..errors import VOCABULARY, UserError, shown
from ..loading import SpeculativeModel
from ..models.streams import Streams
from ..models.twin import twin
from ..stream_config import StreamConfig
from .items import Item, most_frequent
from .parameters import initial_streams
from .settings import TrainSettings
from .stream_settings import SHAPE


@dataclass(frozen=True)
class Start:
    """A base with what is to be trained on it.

    Attributes:
        base: the base as it is decoded with: weights stay packed where that is faster.
        tokenizer: the base's tokenizer.
        streams: untrained streams, or those of ``init_adapter``.
        lora_parameters: mlx-lm's ``lora_parameters``; ``None`` without LoRA.
        num_layers: number of top layers with LoRA.
        chooses_vocabulary: whether the data give a draft vocabulary (``set_vocabulary``).
        frozen_lora: digest of LoRA that stays as it is; ``None`` where there is none.
    """

    base: SpeculativeModel
    tokenizer: TokenizerWrapper
    streams: Streams
    lora_parameters: dict[str, Any] | None
    num_layers: int
    chooses_vocabulary: bool
    frozen_lora: str | None = None

    @property
    def prompt_template(self) -> str | None:
        """The instruction around every prompt: the run's, or that of ``init_adapter``."""
        return self.streams.config.prompt_template

    @property
    def model(self) -> nn.Module:
        """The mlx-lm model, LoRA included."""
        return self.base.model


def start_of(settings: TrainSettings, base: SpeculativeModel, tokenizer: TokenizerWrapper) -> Start:
    """Make what is trained on a base; nothing but LoRA of its model is left trainable.

    Args:
        settings: checked.
        base: ``settings.model``, without an adapter; LoRA is put on it in shared mode, and in
            lossless mode that of ``init_adapter``, which stays as it is.
        tokenizer: its.

    Raises:
        UserError: ``init_adapter`` cannot be read, or a setting does not fit the base.
    """
    base.model = model = twin(base.base)  # LoRA is put on it
    layers = len(model.layers)
    mx.random.seed(settings.seed)
    model.freeze()
    adapter = None
    if settings.init_adapter is not None:
        adapter = read_adapter(settings.init_adapter, model, base.config)
    config = _stream_config(settings, base, adapter)
    parameters, count = None, 0
    if settings.mode == "shared" or (adapter is not None and adapter.lora):
        parameters, count = settings.lora_parameters, settings.num_layers
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
        if settings.mode == "shared":
            _check_mounted(model)
    streams = initial_streams(config, settings.seed)
    if adapter is not None:
        tensors = dict(adapter.stream_tensors)
        if settings.draft_vocabulary:
            tensors.pop(VOCABULARY, None)
        for module, own in ((model, adapter.lora), (streams, tensors)):
            module.load_weights([(name, _trainable(t)) for name, t in own.items()], strict=False)
    has_streams = adapter is not None and adapter.stream_config is not None
    known = streams.vocabulary is None or (has_streams and not settings.draft_vocabulary)
    frozen = lora_digest(adapter) if settings.mode == "lossless" else None
    return Start(base, tokenizer, streams, parameters, count, not known, frozen)


def set_vocabulary(streams: Streams, items: Sequence[Item], vocab_size: int) -> None:
    """Let streams with a draft vocabulary draft the most frequent tokens of these items."""
    ids = most_frequent(items, streams.config.draft_vocabulary, vocab_size)
    streams.load_weights([(VOCABULARY, mx.array(ids, mx.int32))], strict=False)


def _trainable(tensor: mx.array) -> mx.array:
    """A tensor as it is trained: in float32, unless it holds token ids."""
    return tensor.astype(mx.float32) if mx.issubdtype(tensor.dtype, mx.floating) else tensor


def _check_mounted(model: nn.Module) -> None:
    """Check that there is LoRA, and in layers alone: the head's gradient is never computed."""
    names = list(dict(tree_flatten(model.trainable_parameters())))
    if not names:
        raise UserError("LoRA's keys name no linear layer of the base, expected at least one")
    outside = [name for name in names if "layers." not in name]
    if outside:
        raise UserError(
            f"LoRA's keys name {outside[0].rpartition('.')[0]}, expected modules of layers alone"
        )


def _stream_config(
    settings: TrainSettings, base: SpeculativeModel, adapter: Adapter | None
) -> StreamConfig:
    """The configuration of the streams: the settings', or those of the adapter to start from."""
    settings.check_vocabulary(base.config["vocab_size"])
    if adapter is not None:
        _check_kind(adapter)
        if adapter.stream_config is not None or not settings.may_add_streams:
            return _continued(settings, adapter)
    return settings.stream_config(
        hidden_size=base.config["hidden_size"],
        num_hidden_layers=len(base.model.layers),
        base_model=settings.model,
        base_fingerprint=base.base_fingerprint,
    )


def _check_kind(adapter: Adapter) -> None:
    """Check that what an adapter has beside its streams is LoRA."""
    kind = adapter.config.get("fine_tune_type", "lora")
    if adapter.lora and kind != "lora":
        raise UserError(
            f"init_adapter {adapter.path}: fine_tune_type is {shown(kind)}, expected 'lora'"
        )


def _continued(settings: TrainSettings, adapter: Adapter) -> StreamConfig:
    """The configuration of an adapter that a run starts from; its head may become another."""
    initial = adapter.stream_config
    if initial is None:
        raise UserError(f"init_adapter {adapter.path} has no streams, expected some")
    if initial.mode != settings.mode:
        raise UserError(
            f"init_adapter {adapter.path}: mode is {initial.mode!r}, expected {settings.mode!r} as "
            "in this run"
        )
    if initial.stream_head == "conditioned" and settings.stream_head == "plain":
        raise UserError(
            f"init_adapter {adapter.path}: stream_head is 'conditioned', expected 'plain' as in "
            "this run"
        )
    fixed = set(SHAPE)
    head = settings.head_fields(initial.hidden_size)
    if initial.stream_head == "conditioned":
        fixed.add("stream_head_rank")
        head = {}
    for name in sorted(fixed):
        asked, has = getattr(settings, name), getattr(initial, name)
        if asked not in (has, TrainSettings.__dataclass_fields__[name].default):
            raise UserError(
                f"{name} is {shown(asked)}, expected none: init_adapter {adapter.path} has "
                f"{shown(has)}"
            )
    vocabulary = settings.draft_vocabulary or initial.draft_vocabulary
    template = settings.prompt_template or initial.prompt_template
    return replace(initial, **{**head, "draft_vocabulary": vocabulary, "prompt_template": template})
