"""The texts typed for testing, as what no training item may repeat.

They are only ever compared with; nothing of them reaches an item.
"""

import json
from functools import cache
from pathlib import Path

from .written import ngrams

TYPED = Path(__file__).parents[2] / "benchmarks" / "typed"
LENGTH = 8
"""Words in a row that an item may not have in common with a test text."""


@cache
def _test_ngrams() -> frozenset[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for path in sorted(TYPED.glob("*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            for text in (values["input"], *values["accepted"]):
                found |= ngrams(text, LENGTH)
    for path in sorted(TYPED.glob("*/prose.txt")):
        for text in path.read_text(encoding="utf-8").splitlines():
            found |= ngrams(text, LENGTH)
    if not found:
        raise FileNotFoundError(f"{TYPED}: expected the typed test texts")
    return frozenset(found)


def repeats_test_text(text: str) -> bool:
    """Tell whether ``text`` has eight words in a row of a test text."""
    return not _test_ngrams().isdisjoint(ngrams(text, LENGTH))
