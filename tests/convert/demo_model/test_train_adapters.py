"""What the adapters are trained on, with which settings, and what of it is bundled."""

import json
import random

import pytest
from specstream_mlx.convert.demo_model import bundle, mixture, tasks, train_adapters
from specstream_mlx.convert.pytorch.training_data import read_pairs
from toy_model import TOY


def settings(tmp_path, part, start=None):
    options = train_adapters.MakingOptions(tmp_path, iters=7, items=24, start=start)
    return train_adapters.settings_of(part, options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_tasks_adapter_learns_from_content_alone_and_holds_the_instruction(tmp_path):
    found = settings(tmp_path, "concise")
    rng = random.Random("concise-0")
    items = [mixture.draw(rng, "concise") for _ in range(24)]
    expected = [{"prompt": item.content, "completion": item.target} for item in items]
    assert lines(found.data) == [line for line in expected if line["completion"]]
    assert found.prompt_template == tasks.prompt_template("concise")
    found.check()
    assert (found.mode, found.iters, found.time_limit) == ("shared", 7, None)


def test_lossless_streams_learn_what_the_base_answered(tmp_path):
    found = settings(tmp_path, "streams")
    found.check()
    assert (found.mode, found.keep_hidden) == ("lossless", True)
    learned, tried = (
        {pair.prompt for pair in read_pairs(p)} for p in (found.data, found.valid_data)
    )
    assert len(learned) > 1000 and tried and not learned & tried


def copied(work, base, target):
    """A stand-in for the conversion: 1,000 bytes, or as many as the part's file says."""
    target.mkdir(parents=True)
    (target / "weights").write_bytes(bytes(int((work / "size").read_text())))


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A work directory with finished streams and a finished task."""
    monkeypatch.setattr(bundle, "copy_adapter", copied)
    monkeypatch.setattr(bundle.demonstration, "base_path", lambda: TOY / "base")
    for part in ("streams", "sql"):
        (tmp_path / "work" / part / "adapter").mkdir(parents=True)
        (tmp_path / "work" / part / "adapter" / "size").write_text("1000")
    return tmp_path / "work"
