"""A GGUF model's configuration, and where its tensors go: mlx-lm's model says which there are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from mlx.utils import tree_flatten

from specstream_mlx.errors import UserError, shown
from specstream_mlx.files import reason
from specstream_mlx.models.architectures import check_config, model_classes

from .gguf_header import Header

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
"""The architectures that are read, and transformers' classes of them."""

_SETTINGS = (
    "block_count context_length embedding_length feed_forward_length vocab_size "
    "attention.head_count attention.head_count_kv attention.key_length attention.value_length "
    "attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base rope.scaling.type "
    "rope.scaling.factor"
).split()
_GEMMA3 = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that becomes ``rope_scaling``."""
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What all published models with Llama 3's rope have; the factor differs."""


@dataclass(frozen=True)
class Target:
    """Destination of a tensor: its name in mlx-lm, and the shape that it must have."""

    name: str
    shape: tuple[int, ...]
    heads: int = 0  # of q and k whose rows are to be put back in order
    subtracted: int = 0  # the 1 that mlx-lm adds to a norm

    @property
    def module(self) -> str:
        """The module that holds it."""
        return self.name.rpartition(".")[0]

    def ordered(self, rows: np.ndarray) -> np.ndarray:
        """The rows as mlx-lm has them: of each head first the first halves of rope's pairs."""
        if not self.heads:
            return rows
        return rows.reshape(self.heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def layout(header: Header, vocabulary: int) -> tuple[dict[str, Any], dict[str, Target]]:
    """The fields of ``config.json``, and where the tensors go, by GGUF's names."""
    name = header.text("general.architecture")
    if name not in _CLASSES:
        raise header.refuse(
            f"general.architecture is {shown(name)}, expected one of {', '.join(_CLASSES)}"
        )
    known = {*_SETTINGS, *(_GEMMA3 if name == "gemma3" else ())}
    for key, value in header.metadata.items():
        prefix, _, setting = key.partition(".")
        none = type(value) in (int, float) and value == 0
        if prefix == name and setting not in known and not none:
            raise header.refuse(f"{key} is a setting that is not known here, expected none such")
    config = _config(header, name) | {"vocab_size": vocabulary}
    try:
        check_config(config)
        model_class, arguments = model_classes(config)
        parameters: Any = tree_flatten(model_class(arguments.from_dict(config)).parameters())
    except UserError as error:
        raise header.refuse(str(error)) from None
    except Exception as error:  # a wrong size may raise any error in mlx-lm
        raise header.refuse(f"its settings do not fit each other: {reason(error)}") from None
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config["num_hidden_layers"])
    targets = {}
    for target, array in parameters:
        source = names.get_name(target, (".weight", ".bias")) or target
        if source == "output.weight" and config["tie_word_embeddings"]:
            continue
        module = target.split(".")[-2]
        pairs = heads.get(module, 0) if name == "llama" else 0
        offset = int(name == "gemma3" and module.endswith("norm"))
        targets[source] = Target(target, array.shape, pairs, offset)
    return config, targets


def _config(header: Header, name: str) -> dict[str, Any]:
    def integer(setting: str, default: int | None = None) -> int:
        return header.integer(f"{name}.{setting}", default, least=1)

    layers, heads = integer("block_count"), integer("attention.head_count")
    if layers > len(header.tensors):
        raise header.refuse(
            f"{name}.block_count is {layers}, expected no more than {len(header.tensors)} tensors"
        )
    hidden = integer("embedding_length")
    head_dim = integer("attention.key_length", max(hidden // heads, 1))
    for setting in ("attention.value_length", "rope.dimension_count"):
        if integer(setting, head_dim) != head_dim:
            raise header.refuse(
                f"{name}.{setting} is {integer(setting)}, expected the width of a head, {head_dim}"
            )
    config = {
        "model_type": "gemma3_text" if name == "gemma3" else name,
        "architectures": [_CLASSES[name]],
        "hidden_size": hidden,
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": integer("context_length"),
        "rms_norm_eps": header.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": header.number(f"{name}.rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
    }
    scaling = _rope_scaling(header, name, config)
    if scaling:
        config["rope_scaling"] = scaling
    if name != "gemma3":
        return config | {"hidden_act": "silu"}
    # The largest one scales by another width than a head's.
    scale = hidden // heads if layers == 62 else head_dim
    return config | {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale,
        "sliding_window": integer("attention.sliding_window"),
        "sliding_window_pattern": integer("attention.sliding_window_pattern", 6),
        "rope_local_base_freq": header.number("gemma3.rope.freq_base_swa", 10000.0),
    }


def _rope_scaling(header: Header, name: str, config: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = header.text(f"{name}.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise header.refuse(f"{name}.rope.scaling.type is {shown(kind)}, expected none or linear")
    linear = None
    if kind == "linear":
        factor = header.number(f"{name}.rope.scaling.factor")
        linear = {"rope_type": "linear", "factor": factor} if factor != 1 else None
    if ROPE_FACTORS not in header.tensors:
        return linear
    tensor, width = header.tensors[ROPE_FACTORS], config["head_dim"]
    if name != "llama" or linear or tensor.kind.name != "F32" or tensor.shape != (width // 2,):
        raise header.refuse(
            f"{ROPE_FACTORS} is {tensor.kind.name} of shape {tensor.shape}, expected none, or F32 "
            f"of shape {(width // 2,)} in a llama without rope.scaling"
        )
    factors = header.data(tensor).view("<f4").reshape(-1)
    factor = float(factors.max())
    if factor == 1 and (factors == 1).all():
        return None
    low, high, length = _LLAMA3.values()
    waves = 2 * math.pi * config["rope_theta"] ** (np.arange(0, width, 2) / width)
    smooth = np.clip((length / waves - low) / (high - low), 0, 1)
    if not np.allclose(factors, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        raise header.refuse(
            f"{ROPE_FACTORS} holds other factors than Llama 3's of {factor:g}, expected those"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
