"""Checks of Python's arguments by name: a name means the same in every function."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .config import UserError, is_integer
from .options.fields import kinds_of
from .options.generation import (
    DraftOptions,
    KVCacheOptions,
    LengthOptions,
    PrefillOptions,
    SamplingOptions,
)
from .options.kinds import FLAG, each, having, instance, integer, optional, what

P = ParamSpec("P")
R = TypeVar("R")


def check_arguments(**values: Any) -> None:
    """Check arguments by their names.

    Raises:
        UserError: an argument has a wrong type or is out of range; names the first one.
    """
    for name, value in values.items():
        _KINDS[name].check(name, value)


def checked(*but: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that checks the arguments of a function by their names.

    Unknown names are not checked. ``**overrides`` must be options of drafts, whose values are
    checked where they are put together.

    Args:
        *but: names of arguments that the function checks itself.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind_partial(*args, **kwargs).arguments  # Python says what is missing
            for name in given.get("overrides", ()):
                if name not in _DRAFTS:
                    raise UserError(
                        f"{function.__name__} was given {name}, which is none of its arguments"
                    )
            known = _KINDS.keys() - but
            check_arguments(**{name: value for name, value in given.items() if name in known})
            return function(*args, **kwargs)

        return call

    return decorate


_FIELDS = optional(instance("a dictionary or None", Mapping))
_FUNCTION = optional(what("a function or None", callable))
_LIST = "a list of functions or None"

_DRAFTS = kinds_of(DraftOptions)

_KINDS = {
    **_DRAFTS,
    **kinds_of(SamplingOptions, KVCacheOptions, LengthOptions, PrefillOptions),
    # load
    "path_or_hf_repo": instance("a directory or a Hugging Face repository", str, Path),
    "tokenizer_config": _FIELDS,
    "model_config": _FIELDS,
    "adapter_path": optional(instance("a directory, a bundled adapter's name or None", str, Path)),
    "lazy": FLAG,
    "return_config": FLAG,
    "revision": optional(instance("a branch, a tag, a commit or None", str)),
    "trust_remote_code": FLAG,
    # generation
    "model": having("what specstream_mlx.load returns", "swap_adapter"),
    "tokenizer": having("what specstream_mlx.load returns", "encode", "decode"),
    "max_tokens": what(
        "an integer of at least 1, or -1 for no limit",
        lambda value: is_integer(value) and (value >= 1 or value == -1),
    ),
    "sampler": _FUNCTION,
    "logits_processors": optional(each(_LIST, callable)),
    "xtc_special_tokens": each("a list of token ids", is_integer),
    "max_kv_size": optional(integer(1)),
    "prompt_progress_callback": _FUNCTION,
    "draft_model": optional(having("a model of mlx_lm's or None", "layers", "__call__")),
    "num_draft_tokens": integer(1),
    "verify": optional(instance("a rule's name, a class or None", str, type)),
    "profile": having("a Profile", "border"),
    "verbose": FLAG,
    # batches
    "prompts": instance("a list of prompts", list, tuple),
    "prompt_caches": optional(instance("a list of mlx_lm's prompt caches or None", list, tuple)),
    "samplers": optional(each(_LIST, lambda value: value is None or callable(value))),
    "return_prompt_caches": FLAG,
    "return_token_ids": FLAG,
    "return_logprobs": FLAG,
    "completion_batch_size": integer(1),
    "prefill_batch_size": integer(1),
}
