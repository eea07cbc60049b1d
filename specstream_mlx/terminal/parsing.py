"""Parsers of option values; they refuse a wrong value and say what was expected."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from typer import BadParameter

from ..options.kinds import Kind


def parser(kind: Kind) -> Callable[[Any], Any]:
    """Make a parser from a kind; Click also passes it defaults, which are not texts."""

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
    """Shorten what the user typed to fit a sentence."""
    text = str(text)
    if not text.strip():
        return repr(text)
    return text if len(text) <= 80 else f"{text[:80]} .."
