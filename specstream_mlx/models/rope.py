"""A model's rotary embeddings, in the fields that mlx-lm reads.

transformers 5 keeps base, scaling and the share of a head that turns in ``rope_parameters``, for
some models one set per layer type; earlier releases kept ``rope_theta``, ``rope_scaling`` and
``partial_rotary_factor`` beside the other fields. mlx-lm reads the earlier form.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import UserError, is_number, shown

POSITION_ONLY = ("default", "linear", "llama3", "yarn", "longrope", "proportional")
"""Rope types whose angles depend on a token's position alone, not on the length of the text.

``longrope`` is one of them in mlx-lm, which takes the long factors always; transformers takes the
short ones as long as the text fits the original context, so on such a text the two differ.
"""

_NEED_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")
_NEEDED = {
    "linear": ("factor",),
    "llama3": ("factor",),
    "yarn": ("factor",),
    "longrope": ("long_factor", "short_factor"),
}
_NUMBERS = (
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
)
_NUMBERS_OR_ZERO = ("mscale", "mscale_all_dim")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ALIASES = {"su": "longrope"}


def rope_parameters(config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """Base, type and scaling in one form: ``rope_type`` always, ``rope_theta`` where known.

    Args:
        config: a ``config.json`` of either form.
        layer_type: for models that have one set of parameters per layer type.

    Raises:
        UserError: they are not JSON objects, or their type is not a text.
    """
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    for name, value in (("rope_parameters", new), ("rope_scaling", old)):
        if not isinstance(value, Mapping):
            raise UserError(f"{name} is {shown(value)}, expected an object")
    for name in _LAYER_TYPES:
        value = new.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise UserError(f"{name} of rope_parameters is {shown(value)}, expected an object")
    if layer_type is not None and any(isinstance(value, Mapping) for value in new.values()):
        new, old = new.get(layer_type) or {}, {}
    rope = {name: value for name, value in {**old, **new}.items() if value is not None}
    for name in ("rope_theta", "partial_rotary_factor"):
        if name not in rope and config.get(name) is not None:
            rope[name] = config[name]
    kind = rope.pop("type", None)
    kind = rope.get("rope_type") or kind or "default"
    if not isinstance(kind, str):
        raise UserError(f"rope_type is {shown(kind)}, expected a text")
    return {**rope, "rope_type": _ALIASES.get(kind, kind)}


def check_rope(
    rope: Mapping[str, Any], config: Mapping[str, Any], supported: Sequence[str]
) -> None:
    """Check that mlx-lm computes these parameters as transformers does.

    Args:
        rope: from ``rope_parameters``.
        config: the whole ``config.json``.
        supported: rope types that the architecture's model can compute.

    Raises:
        UserError: it does not; the sentence names the field.
    """
    kind = rope["rope_type"]
    if kind == "dynamic":
        raise UserError(
            "rope_type is 'dynamic', whose angles depend on the length of the text, "
            f"expected one of {tuple(supported)}"
        )
    if kind not in supported:
        raise UserError(f"rope_type is {kind!r}, expected one of {tuple(supported)}")
    for name in _NEEDED.get(kind, ()):
        if name not in rope:
            raise UserError(f"rope_type is {kind!r} without {name}, expected it beside rope_type")
    for name in _NUMBERS:
        value = rope.get(name, 1)
        if not is_number(value) or value <= 0:
            raise UserError(f"rope's {name} is {shown(value)}, expected a number above 0")
    for name in _NUMBERS_OR_ZERO:
        value = rope.get(name, 0)
        if not is_number(value) or value < 0:
            raise UserError(f"rope's {name} is {shown(value)}, expected a number of at least 0")
    length = _original_length(rope, config)
    if kind in _NEED_ORIGINAL_LENGTH and (not isinstance(length, int) or length < 2):
        raise UserError(
            f"rope_type is {kind!r} with original_max_position_embeddings {length!r}, "
            "expected an integer of at least 2"
        )
    if kind == "proportional":
        _check_share(rope, config)
    if rope.get("truncate") is False:
        raise UserError("rope's truncate is False, expected True, which is what mlx-lm computes")
    found = rope.get("attention_factor")
    usual = _usual_attention_factor(rope, config)
    if found is not None and (usual is None or not math.isclose(found, usual, rel_tol=1e-6)):
        raise UserError(f"rope's attention_factor is {found!r}, expected mlx-lm's own, {usual}")


def _check_share(rope: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """mlx-lm rounds an odd number of turning dimensions up, transformers down."""
    size = config.get("head_dim")
    if size is None and config.get("hidden_size") and config.get("num_attention_heads"):
        size = config["hidden_size"] // config["num_attention_heads"]
    share = rope.get("partial_rotary_factor", 1.0)
    if share > 1 or (size is not None and int(size * share) % 2):
        raise UserError(
            f"rope's partial_rotary_factor is {share!r}, expected at most 1 and an even number of "
            f"the {size} dimensions of a head"
        )


def _original_length(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """The context before scaling; ``None`` where neither says it."""
    name = "original_max_position_embeddings"
    return rope.get(name) or config.get(name) or config.get("max_position_embeddings")


def _usual_attention_factor(rope: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """The factor on queries and keys that mlx-lm derives from the other parameters."""
    if rope["rope_type"] == "yarn" and not rope.get("mscale_all_dim"):
        return 0.1 * rope.get("mscale", 1) * math.log(max(rope["factor"], 1)) + 1
    if rope["rope_type"] == "longrope":
        original = _original_length(rope, config)
        factor = (config.get("max_position_embeddings") or original) / original
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return None


def rope_fields(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The same parameters as top-level fields that mlx-lm reads.

    Args:
        rope: from ``rope_parameters``, checked.
        config: the whole ``config.json``.
    """
    kind = rope["rope_type"]
    beside = ("rope_theta",) if kind == "proportional" else ("rope_theta", "partial_rotary_factor")
    fields = {name: rope[name] for name in beside if name in rope}
    if kind == "default":
        return fields | ({"rope_scaling": None} if config.get("rope_scaling") else {})
    # mlx-lm's Phi-3 reads the type under its old name, and insists on a factor with a point.
    scaling = {name: value for name, value in rope.items() if name not in fields}
    scaling["type"] = kind
    if "factor" in scaling:
        scaling["factor"] = float(scaling["factor"])
    if kind in _NEED_ORIGINAL_LENGTH:
        length = _original_length(rope, config)
        scaling["original_max_position_embeddings"] = length
        fields["original_max_position_embeddings"] = length
    return {**fields, "rope_scaling": scaling}
