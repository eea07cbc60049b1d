"""A model's rotary embeddings, in the fields that mlx-lm reads.

transformers 5 keeps base, scaling and the share of a head that turns in ``rope_parameters``, for
some models one set per layer type; earlier releases kept ``rope_theta``, ``rope_scaling`` and
``partial_rotary_factor`` beside the other fields. mlx-lm reads the earlier form. Where a file has
both, both libraries take the scaling from ``rope_scaling`` alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError, shown
from ..options import COUNT, OBJECT, POSITIVE, TEXT, number, optional

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
_TOP_LEVEL = ("rope_theta", "partial_rotary_factor")
_NUMBERS = (
    *(*_TOP_LEVEL, "factor", "low_freq_factor", "high_freq_factor"),
    *("beta_fast", "beta_slow", "attention_factor"),
)
_ALIASES = {"su": "longrope"}


def rope_parameters(config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """Return base, type and scaling in one form: ``rope_type`` always, ``rope_theta`` if known."""
    # rope_scaling replaces rope_parameters, except base and share if it lacks them.
    new, old = _objects(config, layer_type)
    rope = {name: value for name, value in (old or new).items() if value is not None}
    for name in _TOP_LEVEL:
        for place in (new, config):
            if name not in rope and place.get(name) is not None:
                rope[name] = place[name]
    old_kind = rope.pop("type", None)
    kind = rope.get("rope_type") or old_kind or "default"
    TEXT.check("rope_type", kind)
    return {**rope, "rope_type": _ALIASES.get(kind, kind)}


def _objects(
    config: Mapping[str, Any], layer_type: str | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the parameters of ``layer_type`` in ``rope_parameters``, and ``rope_scaling``."""
    for name in ("rope_parameters", "rope_scaling"):
        optional(OBJECT).check(name, config.get(name))
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    for name in ("full_attention", "sliding_attention"):
        optional(OBJECT).check(f"{name} of rope_parameters", new.get(name))
    if layer_type is not None and any(isinstance(value, Mapping) for value in new.values()):
        new = new.get(layer_type) or {}
    return new, old


def check_agreement(config: Mapping[str, Any], layer_type: str | None = None) -> None:
    """Check that no field has two values, of which mlx-lm reads one and transformers the other."""
    new, old = _objects(config, layer_type)
    for name in _TOP_LEVEL:
        check_same(
            {
                name: config.get(name),
                f"rope_parameters' {name}": new.get(name),
                f"rope_scaling's {name}": old.get(name),
            }
        )
    kinds = {f"rope's {name}": (old or new).get(name) for name in ("type", "rope_type")}
    if "mrope" not in kinds.values():  # as Qwen's models with pictures say beside "default"
        check_same({place: _ALIASES.get(str(kind), kind) for place, kind in kinds.items()})


def check_same(values: Mapping[str, Any]) -> None:
    given = [(place, value) for place, value in values.items() if value is not None]
    for place, value in given[1:]:
        if value != given[0][1]:
            raise UserError(
                f"{given[0][0]} is {shown(given[0][1])} and {place} is {shown(value)}, "
                "expected the same in both places"
            )


def with_changes(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change fields of a configuration, whichever form its rope has."""
    changed = {**config, **changes}
    new, given = config.get("rope_parameters"), changes.get("rope_parameters")
    if isinstance(given, Mapping):
        earlier = [name for name in ("rope_scaling", *given) if name in config]
        changed |= {name: None for name in earlier if name not in changes}
    elif isinstance(new, Mapping) and "rope_parameters" not in changes:
        changed["rope_parameters"] = {n: v for n, v in new.items() if n not in changes}
    return changed


def check_rope(
    rope: Mapping[str, Any], config: Mapping[str, Any], supported: Sequence[str]
) -> None:
    """Check that mlx-lm computes these parameters as transformers does."""
    kind = rope["rope_type"]
    if kind not in supported:
        why = ", whose angles depend on the length of the text" if kind == "dynamic" else ""
        raise UserError(f"rope_type is {kind!r}{why}, expected one of {tuple(supported)}")
    for name in _NEEDED.get(kind, ()):
        if name not in rope:
            raise UserError(f"rope_type is {kind!r} without {name}, expected it beside rope_type")
    check_numbers(rope)
    for name in ("mscale", "mscale_all_dim"):
        number(0).check(f"rope's {name}", rope.get(name, 0))
    length = _original_length(rope, config)
    if kind in _NEED_ORIGINAL_LENGTH and (not isinstance(length, int) or length < 2):
        raise UserError(
            f"rope_type is {kind!r} with original_max_position_embeddings {length!r}, "
            "expected an integer of at least 2"
        )
    for place in (rope, config):
        name = "original_max_position_embeddings"
        if place.get(name) is not None:
            COUNT.check(name, place[name])
    if kind == "proportional" or "partial_rotary_factor" in rope:
        _check_share(rope, config)
    if rope.get("truncate") is False:
        raise UserError("rope's truncate is False, expected True, which is what mlx-lm computes")
    given, usual = rope.get("attention_factor"), _usual_attention_factor(rope, config)
    if given is not None and (usual is None or not math.isclose(given, usual, rel_tol=1e-6)):
        raise UserError(f"rope's attention_factor is {given!r}, expected mlx-lm's own, {usual}")


def check_numbers(rope: Mapping[str, Any]) -> None:
    """Check base, share and factors."""
    for name in _NUMBERS:
        POSITIVE.check(f"rope's {name}", rope.get(name, 1))


def _check_share(rope: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Check that the number of turning dimensions is even: odd ones are rounded differently."""
    size = config.get("head_dim")
    if size is None and config.get("hidden_size") and config.get("num_attention_heads"):
        size = config["hidden_size"] // config["num_attention_heads"]
    share = rope.get("partial_rotary_factor", 1.0)
    turning = 0 if share > 1 else 2 if size is None else int(size * share)
    if turning < 2 or turning % 2:
        raise UserError(
            f"rope's partial_rotary_factor is {share!r}, expected at most 1 and an even number of "
            f"the {size} dimensions of a head"
        )


def _original_length(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return the context before scaling; ``None``: neither has it."""
    name = "original_max_position_embeddings"
    return rope.get(name) or config.get(name) or config.get("max_position_embeddings")


def scaled_length(config: Mapping[str, Any]) -> int | None:
    """Return the context that a model is made for, in tokens; ``None``: unknown."""
    length = config.get("max_position_embeddings")  # maybe before scaling, as in Qwen's model cards
    rope = rope_parameters(config, "full_attention")
    if length is None or rope["rope_type"] == "default":
        return length
    return max(length, int(_original_length(rope, config) * rope.get("factor", 1)))


def _usual_attention_factor(rope: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """Return the factor on queries and keys that mlx-lm derives from the other parameters."""
    if rope["rope_type"] == "yarn" and not rope.get("mscale_all_dim"):
        return 0.1 * rope.get("mscale", 1) * math.log(max(rope["factor"], 1)) + 1
    if rope["rope_type"] == "longrope":
        original = _original_length(rope, config)
        factor = (config.get("max_position_embeddings") or original) / original
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return None


def rope_fields(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters as top-level fields that mlx-lm reads."""
    kind = rope["rope_type"]
    top_level = ("rope_theta",) if kind == "proportional" else _TOP_LEVEL
    fields = {name: rope[name] for name in top_level if name in rope}
    if kind == "default":
        if config.get("rope_scaling"):
            fields["rope_scaling"] = None
            if config.get("rope_parameters"):  # which mlx-lm's Qwen3 reads where that is None
                fields["rope_parameters"] = dict(rope)
        return fields
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
