"""Parsers of option values, which refuse a wrong value with what was found and what is expected."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from typer import BadParameter

from ..options.kinds import Kind

_LONGEST_PART = 100  # bytes; file systems take names of 255


def parser(kind: Kind) -> Callable[[Any], Any]:
    """A parser of texts that a kind reads; Click hands in defaults too, which are none."""

    def parse(text: Any) -> Any:
        value = text
        if isinstance(text, str) and kind.read is not None:
            with suppress(ValueError, RecursionError):  # else the text itself is refused
                value = kind.read(text)
        expected = kind.objection(value)
        if expected is not None:
            raise BadParameter(f"found {_cut(text)}, expected {expected}")
        return value

    return parse


def _cut(text: Any) -> str:
    """What the user typed, as far as it fits a sentence."""
    text = str(text)
    return text if len(text) <= 80 else f"{text[:80]} .."


def part_of_name(text: str) -> str:
    """Parse what goes into the name of a file, so that it leaves its directory no more."""
    if "/" in text or "\0" in text or len(text.encode(errors="surrogateescape")) > _LONGEST_PART:
        raise BadParameter(
            f"found {_cut(text)}, expected a part of a file's name, without a slash and of at most "
            f"{_LONGEST_PART} bytes"
        )
    return text


def utf8(text: str) -> str:
    """Parse a text, which the command line may hold bytes of that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadParameter(f"found {_cut(repr(text))}, expected UTF-8 text") from None
    return text
