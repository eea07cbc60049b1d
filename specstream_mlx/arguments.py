"""Checks of what users give: one table says of each argument, by its name, what it may be."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .config import UserError

Fits = Callable[[Any], bool]

KV_BITS = 4, 8
KV_GROUP_SIZES = 32, 64, 128


def check_arguments(**values: Any) -> None:
    """Check arguments by their names; a name means the same in every public call.

    Raises:
        UserError: one has a wrong type or is out of range; names the first one.
    """
    for name, value in values.items():
        fits, expected = _EXPECTED[name]
        if not fits(value):
            raise UserError(f"{name} is {shown(value)}, expected {expected}")


def check_names(function: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Check that further keyword arguments are known ones.

    Raises:
        UserError: one is not; names the first one.
    """
    for name in names:
        if name not in known:
            raise UserError(f"{function} was given {name}, which is none of its arguments")


def shown(value: Any, limit: int = 80) -> str:
    """``repr`` on one line, cut to ``limit`` characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else f"{text[:limit]} .."


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, of Python's or numpy's, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _integer(least: int) -> Fits:
    return lambda value: is_integer(value) and value >= least


def _number(least: float, most: float = math.inf) -> Fits:
    def fits(value: Any) -> bool:
        real = isinstance(value, Real) and not isinstance(value, bool)
        return real and math.isfinite(value) and least <= value <= most

    return fits


def _one_of(*choices: int) -> Fits:
    return lambda value: is_integer(value) and value in choices


def _optional(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _each(fits: Fits) -> Fits:
    """A list or tuple of such values."""
    return lambda value: isinstance(value, list | tuple) and all(map(fits, value))


def _has(*names: str) -> Fits:
    return lambda value: all(hasattr(value, name) for name in names)


def _of(*types: type) -> Fits:
    return lambda value: isinstance(value, types)


def _is_flag(value: Any) -> bool:
    return isinstance(value, int) and value in (0, 1)


def _are_strings(value: Any) -> bool:
    return isinstance(value, str) or _each(_of(str))(value)


def _is_below_one(value: Any) -> bool:
    return _number(0, 1)(value) and value < 1


_FLAG = _is_flag, "True or False"
_COUNT = _optional(_integer(1)), "an integer of at least 1"
_SHARE = _number(0, 1), "a number from 0 to 1"
_PROBABILITY = _optional(_is_below_one), "a probability below 1"
_FIELDS = _optional(_of(Mapping)), "a dictionary or None"
_CALLABLE = _optional(callable), "a function or None"
_INTEGER = _integer(0), "an integer of at least 0"
_LEAST_ONE = _integer(1), "an integer of at least 1"

_EXPECTED: dict[str, tuple[Fits, str]] = {
    # load
    "path_or_hf_repo": (_of(str, Path), "a directory or a Hugging Face repository"),
    "tokenizer_config": _FIELDS,
    "model_config": _FIELDS,
    "adapter_path": (_optional(_of(str, Path)), "a directory, a bundled adapter's name or None"),
    "lazy": _FLAG,
    "return_config": _FLAG,
    "revision": (_optional(_of(str)), "a branch, a tag, a commit or None"),
    "trust_remote_code": _FLAG,
    # generation
    "model": (_has("swap_adapter"), "what specstream_mlx.load returns"),
    "tokenizer": (_has("encode", "decode"), "what specstream_mlx.load returns"),
    "max_tokens": (
        lambda value: is_integer(value) and (value >= 1 or value == -1),
        "an integer of at least 1, or -1 for no limit",
    ),
    "sampler": _CALLABLE,
    "logits_processors": (_optional(_each(callable)), "a list of functions or None"),
    "max_kv_size": _COUNT,
    "prefill_step_size": _LEAST_ONE,
    "kv_bits": (_optional(_one_of(*KV_BITS)), f"one of {KV_BITS}"),
    "kv_group_size": (_one_of(*KV_GROUP_SIZES), f"one of {KV_GROUP_SIZES}"),
    "quantized_kv_start": _INTEGER,
    "prompt_progress_callback": _CALLABLE,
    "draft_model": (_optional(_has("layers", "__call__")), "a model of mlx_lm's or None"),
    "num_draft_tokens": _LEAST_ONE,
    "stop": (_are_strings, "a string or a list of strings"),
    "verify": (_optional(_of(str, type)), "a rule's name, a class or None"),
    "profile": (_has("border"), "a Profile"),
    "verbose": _FLAG,
    # batches
    "prompts": (_of(list, tuple), "a list of prompts"),
    "prompt_caches": (_optional(_of(list, tuple)), "a list of mlx_lm's prompt caches or None"),
    "samplers": (_optional(_each(_optional(callable))), "a list of functions or None"),
    "return_prompt_caches": _FLAG,
    "return_token_ids": _FLAG,
    "return_logprobs": _FLAG,
    "completion_batch_size": _LEAST_ONE,
    "prefill_batch_size": _LEAST_ONE,
    # Sampling
    "temp": (_number(0), "a number of at least 0"),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "min_tokens_to_keep": _LEAST_ONE,
    "top_k": _INTEGER,
    "xtc_probability": _SHARE,
    "xtc_threshold": (_number(0, 0.5), "a number from 0 to 0.5"),
    "xtc_special_tokens": (_each(is_integer), "a list of token ids"),
    # DraftSettings
    "num_streams": (_optional(_integer(0)), "an integer of at least 0"),
    "tree_width": _LEAST_ONE,
    "tree_size": _COUNT,
    "draft_threshold": _PROBABILITY,
    "max_nodes": _COUNT,
    "prune_threshold": _PROBABILITY,
    "lookup": _FLAG,
    "lookup_size": _LEAST_ONE,
    "lookup_ngram": _LEAST_ONE,
    "deferred": _FLAG,
    "stream_nodes": _COUNT,
    "speculation": _FLAG,
}
