"""What the adapters are trained on, with which settings, and what of it is bundled."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from specstream_mlx.convert.demo_model import bundle, mixture, tasks, train_adapters

from specstream_mlx.errors import UserError
from specstream_mlx.train.data import read_rows

NOWHERE = Path("/nowhere")


@pytest.fixture
def making(tmp_path, monkeypatch):
    monkeypatch.setattr(train_adapters.demonstration, "base_path", lambda: NOWHERE)
    return train_adapters.MakingOptions(tmp_path, iters=7, items=24)


def prompts_of(path):
    return [row["prompt"] for row in read_rows(path).values()]


def test_a_tasks_lora_learns_from_content_alone_and_holds_the_instruction(making):
    found = train_adapters.lora_settings("concise", making)
    rng = random.Random("concise-0")
    items = [mixture.draw(rng, "concise") for _ in range(24)]
    lines = [json.loads(line) for line in found.data.read_text().splitlines()]
    assert lines == [{"prompt": i.content, "completion": i.target} for i in items if i.target]
    assert found.prompt_template == tasks.prompt_template("concise")
    found.check()
    assert (found.lora_alone, found.lora_rank, found.iters, found.time_limit) == (True, 4, 7, None)


def test_a_tasks_streams_learn_what_the_tuned_base_answered(making, monkeypatch):
    """To other texts than its LoRA learned from."""
    calls, work = [], making.work
    monkeypatch.setattr(train_adapters, "Writer", lambda *paths: paths)
    monkeypatch.setattr(train_adapters, "write_answers", lambda *given: calls.append(given))
    monkeypatch.setattr(train_adapters, "train", lambda settings: calls.append(settings))
    options = replace(making, items=300, task_answers=200, batch_size=3)
    lora = work / "concise-lora" / "adapter"
    lora.mkdir(parents=True)
    (lora / "adapter_config.json").write_text("{}")
    train_adapters.main(parts=["concise"], options=options)
    (writer, texts, directory, _, template), found = calls
    assert (writer, template) == ((NOWHERE, lora), tasks.prompt_template("concise"))
    assert len(texts) == len(set(texts)) == 200
    assert set(prompts_of(work / "concise.jsonl")).isdisjoint(texts)
    assert (found.data, found.valid_data) == (directory / "train.jsonl", directory / "valid.jsonl")
    assert (found.batch_size, found.mode, found.init_adapter) == (3, "lossless", lora)
    assert found.prompt_template == tasks.prompt_template("concise")
    found.check()


def test_streams_learn_what_the_base_answered(making):
    with pytest.raises(UserError, match="unknown part 'base', expected answers, streams, proof"):
        train_adapters.main(parts=["base"], options=making)
    found = train_adapters.stream_settings("streams", making)
    found.check()
    assert (found.mode, found.data.parent) == ("lossless", train_adapters.ANSWERS)
    learned, tried = (set(prompts_of(path)) for path in (found.data, found.valid_data))
    assert len(learned) > 1000 and tried and not learned & tried
    (making.work / "answers").mkdir()
    found = train_adapters.stream_settings("streams", making)
    assert found.data.parent == making.work / "answers"


def test_finished_parts_are_bundled_unless_one_is_too_large(tmp_path, monkeypatch):
    bytes_of = {"streams": 1000, "sql": 1000}

    def converted(source, base, target, **_):
        target.mkdir(parents=True, exist_ok=True)
        config = {"speculative_streaming": {"base_model": "/somewhere"}}
        (target / "adapter_config.json").write_text(json.dumps(config))
        (target / "weights").write_bytes(bytes(bytes_of[source.parent.name]))

    monkeypatch.setattr(bundle, "convert_adapter", converted)
    monkeypatch.setattr(bundle.demonstration, "base_path", lambda: None)
    for part in bytes_of:
        (tmp_path / "work" / part / "adapter").mkdir(parents=True)
    sizes = bundle.bundle(tmp_path / "work", tmp_path / "out")
    assert sizes.keys() == {"streams", "adapters/sql"}
    assert (tmp_path / "out" / "streams" / "weights").stat().st_size == 1000
    config = json.loads((tmp_path / "out" / "adapters/sql" / "adapter_config.json").read_text())
    assert config["speculative_streaming"]["base_model"] == bundle.demonstration.REPOSITORY
    bytes_of["streams"] = 2_000_000
    with pytest.raises(UserError, match="streams has 2,"):
        bundle.bundle(tmp_path / "work", tmp_path / "other")
    assert not (tmp_path / "other").exists()
