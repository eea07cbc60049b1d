"""Facts about each family of models. Adding one: an entry here and a parity test.

mlx-lm's own model files compute. An entry lists the assumptions that they make, the fields that
transformers reads otherwise, and the few names and forms that the decoder needs. MLX is imported
only by functions that take a model: training reads the table without it.
"""

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import MOST, MOST_LAYERS, UserError, is_number, shown
from ..files import Headers
from ..options import BOOLEAN, COUNT, OBJECT, POSITIVE, TEXT, integer, optional, what
from .rope import (
    POSITION_ONLY,
    check_agreement,
    check_numbers,
    check_rope,
    check_same,
    rope_fields,
    rope_parameters,
    scaled_length,
)

if TYPE_CHECKING:
    import mlx.nn as nn

Config = Mapping[str, Any]
Windows = list[int | None]


@dataclass(frozen=True)
class Architecture:
    """Facts that are needed to run the models of one ``model_type``."""

    # Of fields that a config.json may leave out: transformers' values, where mlx-lm has others or
    # none, or where the fingerprint needs them.
    defaults: Config = field(default_factory=dict)
    assumes: Config = field(default_factory=dict)  # the only values that mlx-lm's model computes
    ropes: tuple[str, ...] = POSITION_ONLY  # that it computes; empty: positions are learned
    windows: Callable[[Config], Windows] | None = None  # by layer; None: as ``make_cache`` says
    fields: Callable[[Config], dict[str, Any]] | None = None  # more for mlx-lm, after defaults
    norm: str = "norm"  # name of the final norm beside the list of layers
    mlp: tuple[str, ...] = ("mlp",)  # modules of a transformers layer that are in ``mlp`` here
    # ``learned``: the model adds them to the embeddings, and takes a cache's array ``offset`` as
    # one position per row.
    positions: Literal["rope", "learned"] = "rope"
    array_masks: bool = False  # masks are read as arrays only, never as ``"causal"``
    # The query heads of a KV head, if several, have an axis, which a mask by sequence then needs.
    grouped_scores: bool = False
    quantized_kv: bool = True  # its attention reads a quantized KV cache
    own_module: str | None = None  # where model and arguments are, if mlx-lm has none
    tested: bool = True  # for parity with transformers, so nothing is checked at load

    def module_name(self, name: str) -> str:
        """Return the full name here of a linear layer or embedding of transformers."""
        owner, _, last = name.rpartition(".")
        return f"{owner}.mlp.{last}" if last in self.mlp else name

    def transformers_name(self, name: str) -> str:
        """Return the name in transformers of a linear layer or embedding here."""
        owner, _, last = name.rpartition(".")
        return f"{owner.removesuffix('.mlp')}.{last}" if last in self.mlp else name


def _windows(default: Callable[[Config, int], bool]) -> Callable[[Config], Windows]:
    """Make a function that reads windows from ``layer_types``, else from ``default`` by layer."""

    def windows(config: Config) -> Windows:
        count, window = config["num_hidden_layers"], config.get("sliding_window")
        types = config.get("layer_types")
        if types:
            slides = [kind == "sliding_attention" for kind in types]
        else:
            slides = [default(config, number) for number in range(count)]
        return [window if slide else None for slide in slides]

    return windows


def _qwen_slides(config: Config, layer: int) -> bool:
    if not config.get("use_sliding_window"):
        return False
    integer(0).check("max_window_layers", config["max_window_layers"])
    return layer >= config["max_window_layers"]


def _gemma3_fields(config: Config) -> dict[str, Any]:
    """Add the period of the sliding layers and the base of their rope, as mlx-lm needs them."""
    types, period = config.get("layer_types"), 6
    POSITIVE.check("query_pre_attn_scalar", config.get("query_pre_attn_scalar", 1))
    for name in ("_sliding_window_pattern", "sliding_window_pattern"):
        if config.get(name) is not None:
            period = config[name]
            COUNT.check(name, period)
    if types:
        full = [number for number, kind in enumerate(types) if kind == "full_attention"]
        period = full[0] + 1 if full else len(types) + 1
    count = config["num_hidden_layers"]
    expected = [
        "sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(count)
    ]
    if types and list(types) != expected:
        raise UserError(
            f"layer_types is not periodic, expected every {period}th layer to be full_attention"
        )
    if period > count:
        raise UserError(
            f"all {count} layers (num_hidden_layers) attend in a sliding window, expected one that "
            f"does not{'' if types else f', as every {period}th does without layer_types'}: "
            "mlx-lm's model takes a mask from it"
        )
    sliding = (config.get("rope_parameters") or {}).get("sliding_attention") or {}
    kind = sliding.get("rope_type", "default")
    if kind != "default":
        raise UserError(f"rope_type of the sliding layers is {kind!r}, expected 'default'")
    bases = {
        "rope_local_base_freq": config.get("rope_local_base_freq"),
        "rope_parameters' rope_theta of sliding_attention": sliding.get("rope_theta"),
    }
    check_same(bases)
    base = next((value for value in bases.values() if value is not None), 10000.0)
    return {"sliding_window_pattern": period, "rope_local_base_freq": base}


_CAP = what(
    "a number above 0: mlx-lm's Gemma 2 has no form without it",
    lambda value: is_number(value) and value > 0,
)


def _gemma2_fields(config: Config) -> dict[str, Any]:
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        _CAP.check(name, config.get(name, 1))
    POSITIVE.check("query_pre_attn_scalar", config.get("query_pre_attn_scalar", 1))
    return {}


def _opt_fields(config: Config) -> dict[str, Any]:
    width = config.get("word_embed_proj_dim", config["hidden_size"])
    if width != config["hidden_size"]:
        raise UserError(
            f"word_embed_proj_dim is {width}, expected hidden_size = {config['hidden_size']}: "
            "project_in and project_out are not supported"
        )
    return {}


_LLAMA = {"tie_word_embeddings": False}
_SILU = {"hidden_act": "silu"}
_TIED = {"tie_word_embeddings": True}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
_QWEN = {**_LLAMA, "max_window_layers": 28, "rope_theta": 10000.0}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        defaults=_LLAMA, assumes=_SILU, windows=_windows(lambda config, layer: False)
    ),
    "mistral": Architecture(
        defaults={**_LLAMA, "sliding_window": 4096},
        assumes=_SILU,
        windows=_windows(lambda config, layer: True),
        # mlx-lm's Llama, used for Mistral, needs a layer without a window in layer_types.
        fields=lambda config: {"layer_types": None},
    ),
    "phi": Architecture(
        defaults={"partial_rotary_factor": 0.5, "num_key_value_heads": None},
        assumes={"hidden_act": "gelu_new", "qk_layernorm": False, "tie_word_embeddings": False},
        ropes=("default",),
        norm="final_layernorm",
        quantized_kv=False,
    ),
    "phi3": Architecture(
        defaults=_LLAMA,
        assumes=_SILU,
        ropes=("default", "linear", "longrope"),
        windows=_windows(lambda config, layer: True),
    ),
    "qwen2": Architecture(defaults=_QWEN, assumes=_SILU, windows=_windows(_qwen_slides)),
    "qwen3": Architecture(
        defaults={**_QWEN, "head_dim": 128},
        assumes={**_SILU, "attention_bias": False},
        windows=_windows(_qwen_slides),
    ),
    "gemma2": Architecture(
        defaults={
            **_TIED,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        assumes={**_GEMMA, **_TIED},
        ropes=("default",),
        windows=_windows(lambda config, layer: layer % 2 == 0),
        fields=_gemma2_fields,
        array_masks=True,
        grouped_scores=True,
        quantized_kv=False,
    ),
    "gemma3_text": Architecture(
        defaults={
            **_TIED,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        },
        assumes={
            **_GEMMA,
            "use_bidirectional_attention": False,
            "final_logit_softcapping": None,
            "attn_logit_softcapping": None,
        },
        fields=_gemma3_fields,
    ),
    "opt": Architecture(
        defaults={**_TIED, "max_position_embeddings": 2048},
        assumes={
            "activation_function": "relu",
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
        },
        ropes=(),
        fields=_opt_fields,
        norm="final_layer_norm",
        mlp=("fc1", "activation_fn", "fc2"),
        positions="learned",
        own_module="specstream_mlx.models.opt",
    ),
}

UNTESTED = Architecture(array_masks=True, quantized_kv=False, tested=False)
"""A model of mlx-lm's that is not in the table; it must pass ``self_check`` when loaded."""

_RECURRENT = "its recurrent or linear-attention layers cannot go back to an accepted path"
_SHARED = "its layers share keys and values, so rows cannot be added or left out between them"
_CHUNKED = "its chunked attention keeps a cache that cannot go back to an accepted path"
_POSITIONS = "mlx-lm's model takes its positions from a single offset, a tree has one per row"

_MULTIMODAL = "its checkpoints hold the text model inside one that also reads pictures or sound"

REFUSED: dict[str, str] = {
    **dict.fromkeys("afm7 gemma3n gemma4 gemma4_text".split(), _SHARED),
    "gemma3": f"{_MULTIMODAL}; text-only checkpoints, of model_type 'gemma3_text', are supported",
    "phi3small": "its block-sparse attention makes masks of its own and ignores the tree's",
    **dict.fromkeys("gpt2 gpt_bigcode nanochat ministral3".split(), _POSITIONS),
    **dict.fromkeys("llama4 llama4_text".split(), _CHUNKED),
    **dict.fromkeys(
        "bailing_moe_linear falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lfm2 "
        "lfm2_moe mamba mamba2 nemotron_h olmo_hybrid plamo2 qwen3_5 qwen3_5_moe qwen3_next "
        "recurrent_gemma rwkv7".split(),
        _RECURRENT,
    ),
}
"""Models of mlx-lm that are refused: the reason for each ``model_type``."""


def architecture_of(model_type: str | None) -> Architecture:
    return ARCHITECTURES.get(model_type, UNTESTED) if isinstance(model_type, str) else UNTESTED


def completed(config: Config) -> dict[str, Any]:
    """Copy a ``config.json``, with the architecture's defaults for missing fields."""
    return {**architecture_of(config.get("model_type")).defaults, **config}


def head_size(config: Config) -> int:
    sizes = completed(config)
    heads = sizes.get("num_attention_heads")
    if not heads:
        raise UserError(f"num_attention_heads is {shown(heads)}, expected the number of heads")
    return sizes.get("head_dim") or sizes["hidden_size"] // heads


def model_classes(config: Config) -> tuple[Any, Any]:
    """Find the model class and its arguments class; fits mlx-lm's ``get_model_classes``."""
    model_type = config.get("model_type")
    name = architecture_of(model_type).own_module
    if name is None and isinstance(model_type, str) and re.fullmatch(r"[\w-]+", model_type):
        from mlx_lm.utils import MODEL_REMAPPING

        name = f"mlx_lm.models.{MODEL_REMAPPING.get(model_type, model_type)}"
    if name is not None:
        # One of them exits where its package is missing; beside its models mlx-lm keeps modules
        # such as "cache", which have no such classes.
        with contextlib.suppress(ImportError, SystemExit, AttributeError):
            with contextlib.redirect_stdout(io.StringIO()):
                module = import_module(name)
            return module.Model, module.ModelArgs
    raise UserError(
        f"model_type is {shown(model_type)}, expected one that mlx-lm has a model for, "
        f"or one of {tuple(ARCHITECTURES)}"
    )


_WORDS = {int: "a number", float: "a number", bool: "true or false", str: "a text", list: "a list"}

_READ_BY_TRANSFORMERS: dict[str, Any] = {
    "architectures": list[str] | None,
    "text_config": dict,
    "torch_dtype": str,
    "dtype": str,
}
"""Fields that mlx-lm's classes do not declare, but that fail if they are wrong."""


def check_types(config: Config, arguments: Any) -> None:
    """Check that fields have the types that mlx-lm's class of a model's arguments declares."""
    for name, hint in (get_type_hints(arguments) | _READ_BY_TRANSFORMERS).items():
        if name in config and not _is_of(config[name], hint):
            kinds = (get_origin(kind) or kind for kind in _alternatives(hint))
            words = (_WORDS.get(kind, "an object") for kind in kinds)
            expected = " or ".join(dict.fromkeys(words))
            raise UserError(f"{name} is {shown(config[name])}, expected {expected}")


def _alternatives(hint: Any) -> list[Any]:
    """The types of a union, or the one type, without that of ``None``."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    return [kind for kind in kinds if kind is not NoneType]


def _is_of(value: Any, hint: Any) -> bool:
    if value is None:  # which turns a switch off, as does no text
        return hint in (bool, str) or NoneType in get_args(hint)
    for alternative in _alternatives(hint):
        kind, parts = get_origin(alternative) or alternative, get_args(alternative)
        if kind in (list, tuple) and isinstance(value, list):
            return all(_is_of(part, parts[0]) for part in value) if parts else True
        if kind in (int, float):
            fits = is_number(value)
        else:
            fits = isinstance(value, kind) if isinstance(kind, type) else True
        if fits:
            return True
    return False


def explicit_fields(config: Config) -> dict[str, Any]:
    """Return the fields without which mlx-lm would read a configuration unlike transformers."""
    architecture, full_config = architecture_of(config.get("model_type")), completed(config)
    fields = {name: v for name, v in architecture.defaults.items() if name not in config}
    rope = rope_parameters(full_config, "full_attention")
    check_numbers(rope)  # of learned positions, too: they are read for the fingerprint
    if architecture.ropes:
        check_agreement(config, "full_attention")
        check_rope(rope, full_config, architecture.ropes)
        fields |= rope_fields(rope, full_config)
    if architecture.fields:
        fields |= architecture.fields(full_config)
    return fields


_LAYER = re.compile(r"(?:^|\.)(\d{1,9})\.")  # the first number in a name is the layer's
_EMBEDDINGS = ("embed_tokens.weight", "tok_embeddings.weight", "word_embeddings.weight")
_COUNTS = ("hidden_size", "num_hidden_layers", "vocab_size")
_COUNTS_IF_GIVEN = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("max_position_embeddings", "ffn_dim"),
)


def check_config(config: Config, headers: Headers | None = None) -> None:
    """Check, as far as ``config.json`` tells, that a model can be run here."""
    model_type = config.get("model_type")
    architecture = architecture_of(model_type)
    if isinstance(model_type, str) and model_type in REFUSED:
        raise UserError(f"model_type is {model_type!r}, which is refused: {REFUSED[model_type]}")
    if config.get("model_file") is not None:
        raise UserError(
            f"model_file is {shown(config['model_file'])}, which is refused: code that comes with "
            "a model is never run"
        )
    if not architecture.tested:
        model_classes(config)
    if config.get("text_config") is not None and config.get("hidden_size") is None:
        raise UserError(f"text_config is given, which is refused: {_MULTIMODAL}")
    for name in (*_COUNTS, *(name for name in _COUNTS_IF_GIVEN if config.get(name) is not None)):
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        integer(1, most).check(name, config.get(name))
    _check_other_fields(config)
    if architecture.tested:
        _check_heads(config)
    if headers:
        if architecture.tested and (found := fp8_tensor(headers)):
            raise UserError(
                f"{found}, expected 16 or 32 bits, or MLX's own quantization: the same model in "
                "bfloat16 can be converted with --bits 8"
            )
        check_sizes(config, headers)
    types, count = config.get("layer_types"), config["num_hidden_layers"]
    if types is not None and (not isinstance(types, list) or len(types) != count):
        given = shown(types)
        raise UserError(f"layer_types is {given}, expected a list of num_hidden_layers = {count}")
    for name, expected in architecture.assumes.items():
        if config.get(name) not in (None, expected):
            raise UserError(f"{name} is {shown(config[name])}, expected {expected!r}")
    fields = explicit_fields(config)
    _check_windows(architecture, completed(config))
    if not architecture.tested:
        _check_caches({**config, **fields})


def _check_heads(config: Config) -> None:
    """Check that heads share the model's width evenly, where they have no width of their own."""
    width, heads = config["hidden_size"], config.get("num_attention_heads")
    if heads and not completed(config).get("head_dim") and width % heads:
        raise UserError(
            f"num_attention_heads is {heads}, expected a divisor of hidden_size, {width}, "
            "where no head_dim is given"
        )


def _check_other_fields(config: Config) -> None:
    for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"):
        POSITIVE.check(name, config.get(name, 1))
    for name in ("torch_dtype", "dtype"):
        value = config.get(name)
        if isinstance(value, str) and not re.fullmatch(r"auto|(torch\.)?b?float\w+", value):
            raise UserError(f"{name} is {shown(value)}, expected one such as 'bfloat16'")
    BOOLEAN.check("rope_traditional", config.get("rope_traditional", False))
    optional(BOOLEAN).check("tie_word_embeddings", config.get("tie_word_embeddings"))
    for name in ("quantization", "quantization_config"):
        optional(OBJECT).check(name, config.get(name))
    for name in ("bits", "group_size"):
        if config.get("quantization") is not None:
            COUNT.check(f"quantization's {name}", config["quantization"].get(name))
    foreign = config.get("quantization_config") if config.get("quantization") is None else None
    if foreign:
        TEXT.check("quantization_config's quant_method", foreign.get("quant_method"))
    check_end_tokens(config)


def _check_windows(architecture: Architecture, config: Config) -> None:
    """Check the sliding window where a layer has it; Qwen's may be 0 where none has."""
    if architecture.windows is not None:
        windows = architecture.windows(config)
    else:
        slides = config.get("use_sliding_window") is not False
        windows = [config.get("sliding_window") if slides else None]
    for window in windows:
        if window is not None:
            COUNT.check("sliding_window", window)


def check_end_tokens(config: Config) -> None:
    """Check ``eos_token_id`` of a ``config.json`` or ``generation_config.json``."""
    ends = config.get("eos_token_id")
    for token in ends if isinstance(ends, list) else [ends]:
        if token is not None:
            integer(-1).check("eos_token_id", token)


def fp8_tensor(headers: Headers) -> str | None:
    """Say which tensor is of FP8, if one is; MLX would take its bytes for integers."""
    found = ((name, dtype) for name, (_, dtype) in headers.items() if dtype.startswith("F8_"))
    name, dtype = next(found, (None, ""))
    return name and f"the weights are FP8 ({name} is {dtype})"


def tied_where_untold(config: Config, headers: Headers) -> dict[str, Any]:
    """Tie the head to the embedding if the configuration does not say so and no head is there."""
    name = "tie_word_embeddings"
    untied = config.get(name) is None and not completed(config).get(name, True)
    headless = bool(headers) and not any(tensor.startswith("lm_head.") for tensor in headers)
    return {**config, name: True} if untied and headless else dict(config)


def check_sizes(config: Config, headers: Headers) -> None:
    """Compare a configuration with the shapes of the weights, before a module of it is made."""
    architecture = architecture_of(config.get("model_type"))
    numbers = [int(match[1]) for name in headers if (match := _LAYER.search(name))]
    sizes = {"num_hidden_layers": max(numbers, default=-1) + 1}
    for name, (shape, _) in headers.items():
        if name.endswith(_EMBEDDINGS) and len(shape) == 2:
            sizes["vocab_size"] = shape[0]
        elif name.endswith(f".{architecture.norm}.weight") and len(shape) == 1:
            sizes["hidden_size"] = shape[0]
        elif architecture.tested and name.endswith("mlp.gate_proj.weight"):
            sizes["intermediate_size"] = shape[0]
    projections = {"num_attention_heads": "q_proj", "num_key_value_heads": "k_proj"}
    for name, projection in projections.items() if architecture.tested else ():
        named = (n for n in headers if n.endswith(f"self_attn.{projection}.weight"))
        if (tensor := next(named, None)) is None:
            continue
        given, count = config.get(name), headers[tensor][0][0] // head_size(config)
        if (given or config.get("num_attention_heads")) != count:
            size_name = "head_dim" if completed(config).get("head_dim") else "hidden_size"
            raise UserError(
                f"{name} is {shown(given)}, expected {count}, which the tensors have where "
                f"{size_name} is {completed(config)[size_name]}"
            )
    for name, size in sizes.items():
        given = config.get(name)
        # Files of a model that is not in the table may hold more layers than it uses.
        if (given != size) if architecture.tested else (config[name] > size):
            raise UserError(f"{name} is {shown(given)}, expected {size}, which the tensors have")


def _check_caches(config: Config) -> None:
    """Check that the caches of a model, made without weights, can go back to an accepted path."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

    model_class, arguments = model_classes(config)
    try:
        caches = make_prompt_cache(model_class(arguments.from_dict(config)))
    except Exception as error:  # a missing field may raise any error in mlx-lm's model files
        raise UserError(
            f"mlx-lm's model of model_type {config['model_type']!r} cannot be made: {error}"
        ) from None
    for number, cache in enumerate(caches):
        if type(cache) not in (KVCache, RotatingKVCache) or getattr(cache, "keep", None):
            raise UserError(
                f"model_type is {config['model_type']!r}, whose layer {number} has a "
                f"{type(cache).__name__}, expected a KVCache: {_RECURRENT}"
            )


def text_limit(config: Config) -> int | None:
    """Return the most tokens that learned positions allow; ``None``: positions are rope."""
    rope = architecture_of(config.get("model_type")).positions == "rope"
    return None if rope else completed(config)["max_position_embeddings"]


def context_length(config: Config) -> int | None:
    """Return the most tokens that a prompt may have; ``None``: unknown."""
    return text_limit(config) or scaled_length(completed(config))


def layer_windows(config: Config, model: "nn.Module") -> Windows:
    """Return each layer's sliding window, as transformers applies it; ``None``: full attention."""
    architecture = architecture_of(config.get("model_type"))
    if architecture.windows is not None:
        return architecture.windows(completed(config))
    from mlx_lm.models.cache import make_prompt_cache

    return [getattr(cache, "max_size", None) for cache in make_prompt_cache(model)]
