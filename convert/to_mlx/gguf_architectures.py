"""Names of an architecture's sizes and tensors, GGUF's and mlx-lm's."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specstream_mlx.errors import shown

from .gguf_header import Header

_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What all published models with Llama 3's rope have; the factor differs."""

_ATTENTION = {
    "attn_norm.weight": ("input_layernorm.weight", "H"),
    "attn_q.weight": ("self_attn.q_proj.weight", "QH"),
    "attn_k.weight": ("self_attn.k_proj.weight", "KH"),
    "attn_v.weight": ("self_attn.v_proj.weight", "KH"),
    "attn_output.weight": ("self_attn.o_proj.weight", "HQ"),
}
_MLP = {
    "ffn_gate.weight": ("mlp.gate_proj.weight", "IH"),
    "ffn_up.weight": ("mlp.up_proj.weight", "IH"),
    "ffn_down.weight": ("mlp.down_proj.weight", "HI"),
}
_TWO_NORMS = {"ffn_norm.weight": ("post_attention_layernorm.weight", "H")}
_FOUR_NORMS = {
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "H"),
    "ffn_norm.weight": ("pre_feedforward_layernorm.weight", "H"),
    "post_ffw_norm.weight": ("post_feedforward_layernorm.weight", "H"),
}
_HEAD_NORMS = {
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "D"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "D"),
}
_BIASES = {
    "attn_q.bias": ("self_attn.q_proj.bias", "Q"),
    "attn_k.bias": ("self_attn.k_proj.bias", "K"),
    "attn_v.bias": ("self_attn.v_proj.bias", "K"),
}
_SETTINGS = frozenset(
    "block_count context_length embedding_length feed_forward_length vocab_size "
    "attention.head_count attention.head_count_kv attention.key_length attention.value_length "
    "attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base rope.scaling.type "
    "rope.scaling.factor".split()
)


@dataclass(frozen=True)
class _Architecture:
    """One architecture that is read.

    Attributes:
        model_type: of ``config.json``.
        model_class: of transformers.
        layer: name and sizes of mlx-lm's tensors, by GGUF's name, for each layer.
        interleaved: whether rows of q and k are written as the pairs that rope turns.
        norms_plus_one: whether norms are written with the 1 that mlx-lm adds.
        settings: names of metadata beside ``_SETTINGS`` that are read.
        fields: further fields of ``config.json``.
    """

    model_type: str
    model_class: str
    layer: Mapping[str, tuple[str, str]]
    interleaved: bool = False
    norms_plus_one: bool = False
    settings: frozenset[str] = frozenset()
    fields: Callable[[Header, Mapping[str, Any]], dict[str, Any]] = lambda *_: {
        "hidden_act": "silu"
    }


def _gemma3_fields(header: Header, config: Mapping[str, Any]) -> dict[str, Any]:
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    largest = config["num_hidden_layers"] == 62  # which scales by another width than a head's
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] // heads if largest else head_dim,
        "sliding_window": header.integer("gemma3.attention.sliding_window", least=1),
        "sliding_window_pattern": header.integer("gemma3.attention.sliding_window_pattern", 6, 1),
        "rope_local_base_freq": header.number("gemma3.rope.freq_base_swa", 10000.0),
    }


_ARCHITECTURES = {
    "llama": _Architecture(
        "llama", "LlamaForCausalLM", {**_ATTENTION, **_TWO_NORMS, **_MLP}, interleaved=True
    ),
    "qwen2": _Architecture(
        "qwen2", "Qwen2ForCausalLM", {**_ATTENTION, **_BIASES, **_TWO_NORMS, **_MLP}
    ),
    "qwen3": _Architecture(
        "qwen3", "Qwen3ForCausalLM", {**_ATTENTION, **_HEAD_NORMS, **_TWO_NORMS, **_MLP}
    ),
    "gemma3": _Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_ATTENTION, **_HEAD_NORMS, **_FOUR_NORMS, **_MLP},
        norms_plus_one=True,
        settings=frozenset(
            ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
        ),
        fields=_gemma3_fields,
    ),
}


@dataclass(frozen=True)
class Target:
    """Destination of a tensor.

    Attributes:
        name: in mlx-lm.
        shape: that it must have.
        heads: of q and k whose rows are to be put back in order; 0: leave the rows.
        subtracted: 1 for a norm that is written with the 1 that mlx-lm adds.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    subtracted: int = 0

    @property
    def module(self) -> str:
        """The module that holds it."""
        return self.name.rpartition(".")[0]

    def ordered(self, rows: np.ndarray) -> np.ndarray:
        """The rows as mlx-lm has them: of each head first the pairs' first halves."""
        if not self.heads:
            return rows
        return rows.reshape(self.heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@dataclass(frozen=True)
class Layout:
    """Fields of a model's ``config.json``, and where its tensors go, by GGUF's names."""

    config: dict[str, Any]
    tensors: Mapping[str, Target] = field(repr=False)


def layout(header: Header, vocabulary: int) -> Layout:
    """The configuration of a GGUF's model and its tensors, none of which is read but one.

    Args:
        header: of the file.
        vocabulary: the number of tokens.

    Raises:
        UserError: the architecture is another one, or a setting is missing, unknown or wrong.
    """
    name = header.text("general.architecture")
    if name not in _ARCHITECTURES:
        raise header.refuse(
            f"general.architecture is {shown(name)}, expected one of {', '.join(_ARCHITECTURES)}"
        )
    architecture = _ARCHITECTURES[name]
    known = _SETTINGS | architecture.settings
    for key, value in header.metadata.items():
        prefix, _, setting = key.partition(".")
        none = type(value) in (int, float) and value == 0
        if prefix == name and setting not in known and not none:
            raise header.refuse(f"{key} is a setting that is not known here, expected none such")
    config = _config(header, name, architecture)
    config["vocab_size"] = vocabulary
    sizes = {
        "H": config["hidden_size"],
        "I": config["intermediate_size"],
        "D": config["head_dim"],
        "Q": config["num_attention_heads"] * config["head_dim"],
        "K": config["num_key_value_heads"] * config["head_dim"],
        "V": vocabulary,
    }
    heads = {"Q": config["num_attention_heads"], "K": config["num_key_value_heads"]}
    tensors = {}

    def add(source: str, target: str, letters: str) -> None:
        rotated = architecture.interleaved and source.endswith(("attn_q.weight", "attn_k.weight"))
        one = architecture.norms_plus_one and source.endswith("norm.weight")
        shape = tuple(sizes[letter] for letter in letters)
        tensors[source] = Target(target, shape, heads[letters[0]] if rotated else 0, int(one))

    add("token_embd.weight", "model.embed_tokens.weight", "VH")
    add("output_norm.weight", "model.norm.weight", "H")
    if not config["tie_word_embeddings"]:
        add("output.weight", "lm_head.weight", "VH")
    for number in range(config["num_hidden_layers"]):
        for source, (target, letters) in architecture.layer.items():
            add(f"blk.{number}.{source}", f"model.layers.{number}.{target}", letters)
    return Layout(config, tensors)


def _config(header: Header, name: str, architecture: _Architecture) -> dict[str, Any]:
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
        "model_type": architecture.model_type,
        "architectures": [architecture.model_class],
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
    return config | architecture.fields(header, config)


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
    scaling = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    expected = _llama3_factors(config["rope_theta"], width, factor)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise header.refuse(
            f"{ROPE_FACTORS} holds other factors than Llama 3's of {factor:g}, expected those"
        )
    return scaling


ROPE_FACTORS = "rope_freqs.weight"
"""The tensor that becomes ``rope_scaling``."""


def _llama3_factors(base: float, width: int, factor: float) -> np.ndarray:
    """Factors by which Llama 3's rope divides the frequencies."""
    waves = 2 * math.pi * base ** (np.arange(0, width, 2) / width)
    low, high, length = _LLAMA3.values()
    smooth = np.clip((length / waves - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
