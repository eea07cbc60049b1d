"""What benchmarks of Spec-Bench's questions run in."""

import pytest
from tiny_training import write_rows


@pytest.fixture
def here(request, tmp_path, monkeypatch):
    """An empty working directory with the module's ``QUESTIONS`` in ``q.jsonl``."""
    names = ("question_id", "category", "turns")
    questions = request.module.QUESTIONS
    write_rows(tmp_path / "q.jsonl", [dict(zip(names, one, strict=True)) for one in questions])
    monkeypatch.chdir(tmp_path)
    return tmp_path
