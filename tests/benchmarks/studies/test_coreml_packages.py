"""The study of exported packages compares texts, and goes on where it was broken off."""

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from specstream_mlx.convert.to_coreml.vectors import EXACT, FAR

from benchmarks.studies.coreml_packages import Kept, random_subject, rows_of
from specstream_mlx import UserError

pytestmark = pytest.mark.slow


def test_what_was_measured_is_not_measured_again(tmp_path):
    path = tmp_path / "work/texts.jsonl"
    kept = Kept(path, {"max_tokens": 3})
    assert kept.get("one", lambda: {"calls": 5}) == {"calls": 5}
    again = Kept(path, {"max_tokens": 3})
    assert again.get("one", lambda: {"calls": 6}) == {"calls": 5}
    assert again.get("two", lambda: {"calls": 7}) == {"calls": 7}
    with pytest.raises(UserError, match="was begun with"):
        Kept(path, {"max_tokens": 4})


def test_a_random_model_decodes_as_the_engine_does(tmp_path):
    subject = random_subject("random Llama", tmp_path, 1)
    subject.write()
    rows = rows_of(subject, Kept(tmp_path / "texts.jsonl", {}), 6)
    assert {(row["nodes"], row["how"]) for row in rows} == {
        (nodes, how) for nodes in (8, 16) for how in ("greedy", "temperature 1")
    }
    for row in rows:
        assert row["texts"] == row["same_text"] == 1
        assert row["calls"] == row["same_trees"] > 0
        assert row["guesses"] <= EXACT
        if row["how"] == "greedy":
            assert row["half_text"] is not None
        else:
            assert row["logits"] <= EXACT < row["half"] < FAR
