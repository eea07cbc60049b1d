"""What benchmarks of Spec-Bench's questions run in."""

import json

import pytest


@pytest.fixture
def here(request, tmp_path, monkeypatch):
    """An empty working directory with the module's ``QUESTIONS`` in ``q.jsonl``."""
    names = ("question_id", "category", "turns")
    questions = request.module.QUESTIONS
    lines = [json.dumps(dict(zip(names, one, strict=True))) for one in questions]
    (tmp_path / "q.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path
