"""Options: each is one field of a dataclass, with its kind of values, its default and its help.

Command lines, the checks of Python's functions and both trainers are made from these fields.
"""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from .errors import MAX_TREE_SIZE, MOST, MOST_STREAMS, UserError, is_integer, is_number, shown

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Kind:
    """A kind of values that an option may have."""

    objection: Callable[[Any], str | None]  # what was expected instead; ``None`` for a right value
    read: Callable[[str], Any] | None = None  # from a text, in place of the option's type
    metavar: str | None = None
    choices: tuple[str, ...] = ()

    def check(self, name: str, value: Any) -> None:
        expected = self.objection(value)
        if expected is not None:
            raise UserError(f"{name} is {shown(value)}, expected {expected}")


def what(
    words: str,
    fits: Callable[[Any], bool],
    read: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> Kind:
    """Values for which ``fits`` is true, called ``words``."""
    return Kind(lambda value: None if fits(value) else words, read, metavar)


def optional(kind: Kind) -> Kind:
    """``None``, too."""
    return replace(kind, objection=lambda value: None if value is None else kind.objection(value))


def integer(least: int, most: int = MOST) -> Kind:
    """Integers, of Python's or numpy's, from ``least`` to ``most``."""

    def objection(value: Any) -> str | None:
        if not is_integer(value) or value < least:
            return f"an integer of at least {least}"
        return f"an integer of at most {most}" if value > most else None

    return Kind(objection, int, "N")


def number(least: float = -math.inf, most: float = math.inf) -> Kind:
    """Finite numbers from ``least`` to ``most``."""
    words = "a number"
    if least > -math.inf:
        words += f" from {least} to {most}" if most < math.inf else f" of at least {least}"
    return what(words, lambda value: is_number(value) and least <= value <= most, float, "X")


def one_of(*choices: int) -> Kind:
    words = f"{', '.join(map(str, choices[:-1]))} or {choices[-1]}"
    return what(words, lambda value: is_integer(value) and value in choices, int, "N")


def choice(*choices: str) -> Kind:
    *others, last = map(repr, choices)
    words = f"{', '.join(others)} or {last}" if others else last
    return Kind(lambda value: None if value in choices else words, choices=choices)


def instance(words: str, *types: type) -> Kind:
    return what(words, lambda value: isinstance(value, types))


def having(words: str, *names: str) -> Kind:
    return what(words, lambda value: all(hasattr(value, name) for name in names))


def each(words: str, fits: Callable[[Any], bool]) -> Kind:
    """Lists and tuples of elements for which ``fits`` is true."""
    return what(words, lambda value: isinstance(value, list | tuple) and all(map(fits, value)))


FLAG = what("True or False", lambda value: isinstance(value, int) and value in (0, 1))
TEXT = instance("a text", str)
TEXTS = what(
    "a string or a list of strings",
    lambda value: all(
        isinstance(part, str) for part in (value if isinstance(value, list | tuple) else [value])
    ),
)
PATH = what(  # pathlib takes an empty text for the working directory
    "a path",
    lambda value: isinstance(value, Path) or (isinstance(value, str) and bool(value.strip())),
    lambda text: Path(text) if text.strip() else text,
)
DIRECTORY, FILE = replace(PATH, metavar="DIR"), replace(PATH, metavar="FILE")
MODEL, NAME = replace(TEXT, metavar="DIR|REPO"), replace(TEXT, metavar="NAME")
HEAD = replace(TEXT, metavar="auto|DIR|REPO")
FIELDS = instance("fields by name", dict)
HELD = choice("auto", "packed", "expanded")
COUNT, NUMBER = integer(1), number()
TREE_SIZE = optional(integer(1, MAX_TREE_SIZE))
OBJECT, BOOLEAN = instance("an object", Mapping), instance("true or false", bool)  # of JSON
POSITIVE = what("a number above 0", lambda value: is_number(value) and value > 0, float, "X")
SHARE = replace(number(0, 1), metavar="P")
PROBABILITY = what(
    "a probability of at least 0 and below 1",
    lambda value: is_number(value) and 0 <= value < 1,
    float,
    "P",
)


@dataclass(frozen=True)
class Spec:
    """The description of an option besides its type and default."""

    kind: Kind
    help: str  # text of the help page, to which the default is added if it names none
    flags: tuple[str, ...]  # names on the command line; empty: made from the field's name
    metavar: str | None = None
    panel: str | None = None  # its heading on a help page; ``None``: its class's ``PANEL``
    hidden: bool = False  # whether only Python and configuration files can set it
    positional: bool = False
    without: tuple[str, ...] = ()  # names of options that a command line cannot have too
    needs: tuple[str, ...] = ()  # names of options of which a command line must have one too


def option(default: Any, kind: Kind, help: str = "", *flags: str, **more: Any) -> Any:
    """Make a field, or a command's default, that is an option; ``...``: it is required.

    If the default is ``None``, the value may be ``None`` too. ``more`` is of ``Spec``.
    """
    kind = optional(kind) if default is None else kind
    metadata = {"option": Spec(kind, help, flags, **more)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=MISSING if default is ... else default, metadata=metadata)


def options_of(group: Any) -> Iterator[tuple[Field[Any], Spec]]:
    """The options of a dataclass or of an instance, inherited ones last."""
    _, *bases = (group if isinstance(group, type) else type(group)).__mro__
    inherited = {each.name for base in bases if is_dataclass(base) for each in fields(base)}
    for each in sorted(fields(group), key=lambda each: each.name in inherited):
        if "option" in each.metadata:
            yield each, each.metadata["option"]


def kinds_of(*groups: type) -> dict[str, Kind]:
    return {each.name: spec.kind for group in groups for each, spec in options_of(group)}


def check_options(group: Any) -> None:
    for each, spec in options_of(group):
        spec.kind.check(each.name, getattr(group, each.name))


def made_of(group: Callable[..., R], values: Mapping[str, Any]) -> R:
    """Make an instance of a dataclass of options from a JSON object, or say what is wrong there."""
    specs = {each.name: (each, spec) for each, spec in options_of(group)}
    for name in sorted(values.keys() - specs.keys()):
        raise UserError(f"unknown field {shown(name)}")
    for name, (each, spec) in specs.items():
        required = each.default is MISSING and each.default_factory is MISSING
        if required and name not in values:
            raise UserError(f"{name} is missing, expected {spec.kind.objection(None)}")
    made = group(**values)
    check_options(made)
    return made


def _biases(text: str) -> dict[int, float]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"no object: {text}")
    return {int(token): value for token, value in values.items()}


_TOKEN_BIAS = what(
    'a JSON object from token ids to numbers, such as {"5": -2}',
    lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
    _biases,
    "JSON",
)


@dataclass(frozen=True)
class ProposerOptions:
    """The proposers, besides the streams."""

    PANEL: ClassVar[str] = "Drafts"

    lookup: bool | None = option(
        None,
        FLAG,
        "Also draft what followed the newest n-gram earlier in the text. Default: on, but off in "
        "trees of a fixed shape.",
        "--lookup/--no-lookup",
    )
    lookup_size: int = option(
        10, integer(1, MAX_TREE_SIZE), "With lookup: the most tokens to look up ahead."
    )
    lookup_ngram: int = option(
        4,
        integer(1, 64),  # each token costs as many entries, and longer repeats are hardly chance
        "With lookup: tokens of the longest n-gram to match.",
    )

    draft_model: Any = option(
        None,
        what(
            "a model, or its directory or repository",
            lambda value: isinstance(value, str | Path) or hasattr(value, "layers"),
            str,
        ),
        "A smaller model with the same vocabulary, which drafts too.",
        metavar="DIR|REPO",
    )
    num_draft_tokens: int = option(
        8,
        integer(1, MAX_TREE_SIZE),
        "With --draft-model: the most tokens that it drafts ahead.",
        needs=("draft_model",),
    )

    proposers: Sequence[Callable[[Any], Any]] = option(
        tuple, each("functions that make proposers", callable), hidden=True
    )
    """Others, only in Python: functions of ``drafting.proposer.Material``, called for each text."""


@dataclass(frozen=True)
class DraftOptions(ProposerOptions):
    """The shape of the tree, pruning, and where the streams run."""

    num_streams: int | None = option(
        None,
        integer(0, MOST_STREAMS),
        "Tokens to draft ahead. Default: all that the adapter was trained for; 0: none.",
    )
    tree_width: int = option(
        4,
        integer(1, MAX_TREE_SIZE),
        "Candidates per stream. Without --tree-size: children of every node, 1 makes a chain.",
    )
    tree_size: int | None = option(
        8,
        TREE_SIZE,
        "Nodes to draft, most probable first. Default: 8, on a GPU 7, without --tree-width.",
    )
    draft_threshold: float | None = option(
        None,
        PROBABILITY,
        "Draft no node less probable than this, by the streams. Default: 0.2, none with "
        "--tree-width or --tree-size.",
    )
    max_nodes: int | None = option(
        None, integer(1, MAX_TREE_SIZE), "Nodes that early-exit pruning keeps, root included."
    )
    prune_threshold: float | None = option(
        None, PROBABILITY, "Prune transitions less probable than this, and all after them."
    )
    stream_nodes: int | None = option(
        None,
        integer(1, MAX_TREE_SIZE),
        "Lossless: run the streams at the N nodes that are most probably accepted last.",
        hidden=True,
    )
    speculation: bool = option(
        True,
        FLAG,
        "One token a step.",
        without=(
            *("lookup", "lookup_size", "lookup_ngram", "draft_model", "num_draft_tokens"),
            *("num_streams", "tree_width", "tree_size", "draft_threshold", "max_nodes"),
            "prune_threshold",
        ),
    )


def most_tokens(
    default: int | None, help: str = "Tokens of a text at most.", least: int = 1
) -> Any:
    """Make the option ``--max-tokens``; what comes after the first token is timed from 2 on."""
    return option(default, integer(least), help, "--max-tokens", "-m")


@dataclass(frozen=True)
class LengthOptions:
    """The end of the generated text."""

    PANEL: ClassVar[str] = "Text"

    max_tokens: int = most_tokens(256, "Maximum number of tokens to generate.")
    stop: list[str] | None = option(
        None, TEXTS, "End before this text; may be given several times.", metavar="TEXT"
    )


@dataclass(frozen=True)
class SamplerOptions:
    """The distribution of a token, as in mlx_lm's ``make_sampler``."""

    PANEL: ClassVar[str] = "Sampling"

    temp: float = option(
        0.0, number(0), "Sampling temperature; 0 takes the likeliest token.", metavar="T"
    )
    top_p: float = option(1.0, SHARE, "Sampling top-p; 1: all, 0 takes the likeliest token.")
    min_p: float = option(0.0, SHARE, "Sampling min-p; 0: all.")
    min_tokens_to_keep: int = option(1, integer(1), "Tokens that min-p leaves at least.")
    top_k: int = option(0, integer(0), "Sampling top-k; 0: all.", metavar="K")
    xtc_probability: float = option(
        0.0, SHARE, "Probability that XTC leaves out the likeliest tokens of a draw."
    )
    xtc_threshold: float = option(
        0.1,
        number(0, 0.5),
        "Probability above which XTC leaves out all tokens but the least likely.",
        metavar="P",
    )


@dataclass(frozen=True)
class SamplingOptions(SamplerOptions):
    """The sampler, its seed, and what changes the logits before."""

    repetition_penalty: float | None = option(
        None, POSITIVE, "Divides the logits of the last 20 tokens by this; above 1 repeats less."
    )
    logit_bias: dict | None = option(
        None, _TOKEN_BIAS, 'What to add to tokens\' logits, such as {"5": -2}.'
    )
    seed: int | None = option(
        None, integer(0, 2**64 - 1), "Repeats a text. Default: a new seed each time."
    )


@dataclass(frozen=True)
class KVCacheOptions:
    """Prefill and KV cache; ``asdict`` of it is keyword arguments of ``stream_generate``."""

    PANEL: ClassVar[str] = "Prefill and KV cache"

    prefill_step_size: int = option(
        2048, integer(1), "Number of prompt tokens to process at a time."
    )
    kv_bits: int | None = option(
        None, one_of(4, 8), "Quantize the KV cache to 4 or 8 bits. Default: not at all."
    )
    kv_group_size: int = option(
        64, one_of(32, 64, 128), "With --kv-bits: elements that share a scale; 32, 64 or 128."
    )
    quantized_kv_start: int = option(
        5000, integer(0), "With --kv-bits: tokens from which on the cache is quantized."
    )


# Arguments of Python's functions: a name means the same in each ---------------------------------


def check_arguments(**values: Any) -> None:
    for name, value in values.items():
        _KINDS[name].check(name, value)


def checked(*but: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a decorator that checks a function's arguments by their names, all ``but`` some."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind_partial(*args, **kwargs).arguments  # Python says what is missing
            # Of further ones the names are checked here; their values are by ``DraftSettings``.
            for name in given.get("overrides", {}).keys() - _DRAFTS.keys():
                raise UserError(
                    f"{function.__name__} was given {name}, which is none of its arguments"
                )
            known = _KINDS.keys() - but
            check_arguments(**{name: given[name] for name in given if name in known})
            return function(*args, **kwargs)

        return call

    return decorate


HEAD_OF_ONES_OWN = having(
    "a directory, a repository, 'auto', None or a head with config, boundaries and begin",
    *("config", "boundaries", "begin"),
)
_FIELDS = optional(instance("a dictionary or None", Mapping))
_FUNCTION = optional(what("a function or None", callable))
_LIST = "a list of functions or None"

_DRAFTS = kinds_of(DraftOptions)

_KINDS = {
    **_DRAFTS,
    **kinds_of(SamplingOptions, KVCacheOptions, LengthOptions),
    # load
    "path_or_hf_repo": instance("a directory or a Hugging Face repository", str, Path),
    "tokenizer_config": _FIELDS,
    "model_config": _FIELDS,
    "adapter_path": optional(instance("a directory, a bundled adapter's name or None", str, Path)),
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
    "schema": optional(instance("a JSON schema, as an object or as text", dict, bool, str)),
    "max_kv_size": optional(integer(1)),
    "prompt_progress_callback": _FUNCTION,
    "draft_model": optional(having("a model of mlx_lm's or None", "layers", "__call__")),
    "num_draft_tokens": integer(1),
    "verify": optional(instance("a rule's name, a class or None", str, type)),
    # batches
    "prompts": instance("a list of prompts", list, tuple),
    "prompt_caches": optional(instance("a list of mlx_lm's prompt caches or None", list, tuple)),
    "samplers": optional(each(_LIST, lambda value: value is None or callable(value))),
    "completion_batch_size": integer(1),
    "prefill_batch_size": integer(1),
}
