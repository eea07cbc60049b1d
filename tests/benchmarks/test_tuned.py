"""What ``benchmarks.tuned`` compares with when an earlier run has swept."""

import json

import pytest

from benchmarks.tuned import Decision, decided_before
from specstream_mlx import UserError


def result(path, best):
    row = {"task": "sql", "mode": "shared", "best_of_sweep": best, "best_of_paper": "chain"}
    path.write_text(json.dumps({"rows": [row | {"speedups_that_decided": {"chain": 2.5}}]}))
    return path


def test_an_earlier_sweep_is_read(tmp_path):
    found = decided_before(result(tmp_path / "a.json", "sweep: plain"), [("shared", "sql")])
    assert found == {("shared", "sql"): Decision("sweep: plain", "chain", {"chain": 2.5})}


def test_what_was_not_swept_is_refused(tmp_path):
    swept, bare = result(tmp_path / "a.json", "chain"), result(tmp_path / "b.json", None)
    for path, job in ((swept, ("lossless", "sql")), (bare, ("shared", "sql"))):
        with pytest.raises(UserError, match=f"has no sweep of sql, {job[0]}, expected one"):
            decided_before(path, [job])


@pytest.mark.parametrize("content", ["no JSON", "{}", '{"rows": [1]}', None])
def test_another_file_is_refused(content, tmp_path):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=r"a\.json is not a JSON file of benchmarks\.tuned"):
        decided_before(path, [])
