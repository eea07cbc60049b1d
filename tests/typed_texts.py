"""The texts typed for testing the demonstration model, for tests that compare with them."""

import json
from functools import cache
from pathlib import Path

from specstream_mlx.convert.demo_model import written

TYPED = Path(__file__).parents[1] / "benchmarks" / "typed"


def typed(split):
    """Inputs and accepted answers of the texts typed for testing, by task."""
    for path in sorted((TYPED / split).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            values = json.loads(line)
            assert set(values) == {"input", "accepted"}, f"{path.name}: {line}"
            assert values["input"] and values["accepted"]
            yield path.stem, values["input"], values["accepted"]


@cache
def eight_words():
    """All eight words in a row of all texts of both splits."""
    found = set()
    for split in ("dev", "test"):
        for _, text, accepted in typed(split):
            for one in (text, *accepted):
                found |= written.ngrams(one, 8)
        for text in (TYPED / split / "prose.txt").read_text().splitlines():
            found |= written.ngrams(text, 8)
    return found
