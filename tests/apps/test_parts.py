"""A text in parts, and the result that is put together again."""

import json
from pathlib import Path

import pytest
from specstream_mlx.apps.writing_tools.parts import TextInParts

PARTS = json.loads((Path(__file__).parent / "parts.json").read_text())


@pytest.mark.parametrize("case", PARTS, ids=lambda case: case["tool"])
def test_a_text_in_parts(case):
    """The page has the same cases."""
    work, shown = TextInParts(case["tool"], case["text"]), ""
    assert work.prompts == case["parts"]
    for number, text in enumerate(case["written"]):
        shown += "".join(work.add(number, letter, False) for letter in text)
        shown += work.add(number, "", True)
    assert shown == work.result == case["result"]


def test_long_texts_are_cut_between_sentences():
    long = " ".join(["We meets on sunday, and we has to go."] * 150)
    for tool, most in (("proofread", 600), ("summarize", 4000), (None, len(long)), ("sql", 9999)):
        sent = TextInParts(tool, long).prompts
        assert " ".join(sent) == long and all(most / 2 < len(one) <= most for one in sent[:-1])
        assert (len(sent) == 1) == (most >= len(long))
