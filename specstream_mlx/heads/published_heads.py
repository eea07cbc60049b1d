"""EAGLE-3 heads on the Hugging Face hub, by the model that each was trained for.

``published_heads.json`` lists them, as of November 2026, with the source of each: public text,
since the hub was not in reach. Where all digits of a size are given, they agree with the tensors
that a head of such sizes has.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIZES = "model_type", "hidden_size", "num_hidden_layers", "vocab_size"


@dataclass(frozen=True)
class PublishedHead:
    """A head in a repository; ``sizes``: its base's, see ``_SIZES``; ``size`` is in bytes."""

    base: str
    sizes: tuple[str | int, ...]
    repository: str
    licence: str | None
    size: int

    def __str__(self) -> str:
        size = f"{self.size / 1e9:.1f} GB" if self.size >= 1e9 else f"{self.size / 1e6:.0f} MB"
        return f"{self.repository} ({size}, {self.licence or 'licence not found: see its page'})"


def _published_heads() -> list[PublishedHead]:
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    for row in rows:
        del row["source"]
        row["sizes"] = tuple(row.pop(name) for name in _SIZES)
    return [PublishedHead(**row) for row in rows]


PUBLISHED_HEADS = _published_heads()

_FORMAT = re.compile(
    r"([-_.](mlx|gguf|awq|gptq|dwq|hf|mixed|ud|quantized|dynamic|(fp|bf|f|int|g)\d+|\d+bits?|\d|\d{6}"
    r"|i?q\d\w*|w\d+a\d+|(mx|nv)fp\d+))*",
    re.ASCII,
)
"""The suffixes of the names of quantized and converted models."""


def head_for(model: Path, config: Mapping[str, Any]) -> PublishedHead | None:
    """Find the head for a model, in its directory and of its ``config.json``."""
    name = repository_of(model) or os.path.basename(os.path.abspath(model))
    return next((head for head in heads_of_size(config) if _names(head.base, name)), None)


def heads_of_size(config: Mapping[str, Any]) -> list[PublishedHead]:
    """List the heads for models of the same sizes, which may be other models."""
    sizes = tuple(config.get(name) for name in _SIZES)
    return [head for head in PUBLISHED_HEADS if head.sizes == sizes]


def repository_of(directory: Path) -> str | None:
    """Return the repository whose snapshot a directory of the Hugging Face cache is."""
    parts = [part for part in directory.parts if part.startswith("models--")]
    return parts[-1].removeprefix("models--").replace("--", "/", 1) if parts else None


def _names(base: str, name: str) -> bool:
    """Whether a repository's or directory's name says that it is a base, in some format."""
    expected, given = (text.split("/")[-1].lower().removeprefix("meta-") for text in (base, name))
    return given.startswith(expected) and _FORMAT.fullmatch(given[len(expected) :]) is not None
