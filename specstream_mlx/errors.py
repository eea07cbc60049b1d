"""Mistakes of the user, limits, and checks of single values. Pure Python."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, Literal

Mode = Literal["lossless", "shared"]


class UserError(ValueError):
    """A mistake in the user's input; the message is one sentence that says what to change."""

    def __init__(self, sentence: str):
        super().__init__(_LONG.sub(r"\1 ..", sentence))


_LONG = re.compile(r"(\S{400})\S+")  # a path or another word that nobody reads to its end


def install(extra: str) -> str:
    """The command that brings a group of optional packages, as README has it."""
    return f'.venv/bin/pip install -e ".[{extra}]"'


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Let a ``UserError`` in the context begin with the place that it is about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


VOCABULARY = "streams.vocabulary"
"""The name of the only tensor of integers: the token ids of the draft vocabulary, int32."""

MOST = 2**31 - 1  # MLX counts the elements of an axis in 32 bits
MOST_LAYERS = 4096
MOST_STREAMS = 1024
MAX_TREE_SIZE = 4096


_ADDRESS = re.compile(
    r"<(?:(?:bound method|class|function) )?(?:[\w.<>]*\.)?(\w+).{0,80} at 0x\w+>+"
)
"""What Python says of an object that has no other text."""


def shown(value: Any, limit: int = 80) -> str:
    """A value as text for a sentence, on one line and cut to ``limit`` characters."""
    if isinstance(value, int) and value.bit_length() > 4 * limit:
        return "a number of more digits than fit here"
    text = _ADDRESS.sub(r"a \1", " ".join(repr(value).split()))
    return text if len(text) <= limit else f"{text[:limit]} .."


def is_integer(value: Any) -> bool:
    """Check for an integer, of Python's or numpy's, that is no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Check for a finite number, of Python's or numpy's, that is no truth value."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False
