"""What the suite ``tuned`` compares with where an earlier run has swept."""

import json

import pytest

from benchmarks.sweep import Decision, decisions_of
from specstream_mlx import UserError


def result(path, best):
    decision = {"mode": "shared", "task": "sql", "best": best, "best_fixed": "chain"}
    path.write_text(json.dumps({"decisions": [decision | {"speedups": {"chain": 2.5}}]}))
    return path


def test_an_earlier_sweep_is_read(tmp_path):
    found = decisions_of(result(tmp_path / "a.json", "sweep: plain"), [("shared", "sql")])
    expected = Decision("shared", "sql", "sweep: plain", "chain", {"chain": 2.5})
    assert found == {("shared", "sql"): expected}


def test_what_was_not_swept_is_refused(tmp_path):
    swept, bare = result(tmp_path / "a.json", "chain"), result(tmp_path / "b.json", None)
    for path, job in ((swept, ("lossless", "sql")), (bare, ("shared", "sql"))):
        with pytest.raises(UserError, match=f"has no sweep of sql, {job[0]}, expected one"):
            decisions_of(path, [job])


@pytest.mark.parametrize("content", ["no JSON", "{}", '{"decisions": [1]}', None])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"a\.json is not a JSON file of the suite tuned"):
        decisions_of(path, [])
