"""Random Llamas and untrained streams: what a step costs does not depend on what it says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.llama import Model, ModelArgs

from specstream_mlx import SpeculativeModel, UserError
from specstream_mlx.hardware import device
from specstream_mlx.models.streams import Streams
from specstream_mlx.stream_config import StreamConfig


@dataclass(frozen=True)
class Size:
    """Layers and hidden size, as in ``8x1024``."""

    layers: int
    hidden: int

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Read ``LAYERSxHIDDEN``."""
        layers, _, hidden = text.partition("x")
        fits = layers.isdecimal() and hidden.isdecimal() and int(layers) > 1 and int(hidden) > 0
        if not fits or int(hidden) % 64:
            raise UserError(
                f"the random Llama is {text!r}, expected at least 2 layers and a hidden size that "
                "is a multiple of 64, such as 8x1024"
            )
        return cls(int(layers), int(hidden))


def random_llama(
    layers: int, hidden: int, vocabulary: int, kv_heads: int | None = None
) -> tuple[Model, dict[str, Any]]:
    """A model in the dtype that is fast here, and its configuration."""
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": hidden * 11 // 4,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": kv_heads or hidden // 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "max_position_embeddings": 65536,
    }
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config))
    model.set_dtype(device.fast_dtype(mx.float16))
    mx.eval(model.parameters())
    return model, config


def untrained_streams(config: Mapping[str, Any], **fields: Any) -> Streams:
    """Streams with their first weights."""
    sizes = {name: config[name] for name in ("hidden_size", "num_hidden_layers")}
    streams = Streams(StreamConfig(**sizes, **fields))
    mx.eval(streams.parameters())
    return streams


def with_streams(model: Model, config: dict[str, Any]) -> Iterator[tuple[str, SpeculativeModel]]:
    """The model with four untrained streams in the top quarter of its layers, in each mode."""
    layers = max(1, config["num_hidden_layers"] // 4)
    adapters = {"stream_mlp": "base+adapter", "stream_adapter_rank": 8}
    for mode, more in (("lossless", adapters), ("shared", {})):
        streams = untrained_streams(
            config, mode=mode, num_streams=4, num_msa_layers=layers, pruner_rank=8, **more
        )
        yield f"untrained, {mode}", SpeculativeModel(model, config, Path("random"), streams=streams)
