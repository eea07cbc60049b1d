"""What a run starts from: the base, with LoRA put on in shared mode, and untrained streams."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tuner.utils import linear_to_lora_layers

from ..adapters.files import Adapter, read_adapter
from ..config import VOCABULARY, StreamConfig, UserError
from ..loading import SpeculativeModel, load
from ..models.streams import Streams
from .parameters import initial_streams
from .sequences import Item
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


def start_of(settings: TrainSettings) -> Start:
    """Load the base and make what is trained; nothing but LoRA of the model is left trainable.

    Raises:
        UserError: the base or ``init_adapter`` cannot be loaded, or a setting does not fit it.
    """
    base, tokenizer = load(settings.model)
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


def set_vocabulary(streams: Streams, items: Sequence[Item]) -> None:
    """Let the streams draft the tokens that come most often in completions, if not all.

    Where these are as frequent, those that come most often anywhere.
    """
    if streams.vocabulary is None:
        return
    in_completions: Counter[int] = Counter()
    anywhere: Counter[int] = Counter()
    for item in items:
        anywhere.update(item.tokens)
        in_completions.update(item.tokens[item.stream_from :])
    ranked = sorted(anywhere, key=lambda token: (in_completions[token], anywhere[token]))[::-1]
    wanted = streams.config.draft_vocabulary
    others = (token for token in range(wanted + len(ranked)) if token not in anywhere)
    chosen = ranked[:wanted] + [next(others) for _ in range(wanted - len(ranked))]
    streams.load_weights([(VOCABULARY, mx.array(sorted(chosen), mx.int32))], strict=False)


def _stream_config(
    settings: TrainSettings, base: SpeculativeModel, adapter: Adapter | None
) -> StreamConfig:
    """The configuration of the streams: the settings', or those of the adapter to start from."""
    vocab_size = base.config["vocab_size"]
    if settings.draft_vocabulary > vocab_size:
        raise UserError(
            f"draft_vocabulary is {settings.draft_vocabulary}, expected at most the base's "
            f"{vocab_size}"
        )
    head_rank = settings.stream_head_rank
    if head_rank is None:
        head_rank = 128 if settings.stream_head == "conditioned" else 0
    head = {
        "stream_head": settings.stream_head,
        "stream_head_rank": head_rank,
        "draft_vocabulary": settings.draft_vocabulary,
    }
    if adapter is not None:
        return _continued(settings, adapter, head)
    shared = settings.mode == "shared"
    stream_mlp = settings.stream_mlp or ("base" if shared else "adapter")
    adapter_rank, init_rank = settings.stream_adapter_rank, settings.stream_init_rank
    if adapter_rank is None:
        adapter_rank = 0 if stream_mlp == "base" else 8
    if init_rank is None:
        init_rank = 8 if settings.stream_init == "linear" else 0
    return StreamConfig(
        mode=settings.mode,
        num_msa_layers=settings.num_msa_layers,
        hidden_size=base.config["hidden_size"],
        num_hidden_layers=len(base.model.layers),
        num_streams=settings.num_streams,
        stream_init=settings.stream_init,
        stream_init_rank=init_rank,
        value_rotation_epsilon=settings.value_rotation_epsilon,
        stream_mlp=stream_mlp,
        stream_adapter_rank=adapter_rank,
        stream_keys=settings.stream_keys,
        pruner_rank=settings.pruner_rank,
        pruner_form=settings.pruner_form,
        base_model=settings.model,
        base_fingerprint=base.base_fingerprint,
        prompt_template=settings.prompt_template,
        **head,
    )


def _continued(settings: TrainSettings, adapter: Adapter, head: dict[str, Any]) -> StreamConfig:
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
    if found.stream_head == "conditioned":
        head = {"stream_head": "conditioned", "stream_head_rank": found.stream_head_rank}
    template = settings.prompt_template or found.prompt_template
    return replace(found, prompt_template=template, **head)
