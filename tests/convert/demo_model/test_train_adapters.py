"""What the adapters are trained on, with which settings, and what of it is bundled."""

import json
import random
from dataclasses import replace

import pytest
from specstream_mlx.convert.demo_model import bundle, mixture, tasks, train_adapters
from specstream_mlx.convert.pytorch.training_data import read_pairs
from toy_model import TOY

from specstream_mlx.config import UserError


def making(tmp_path):
    return train_adapters.MakingOptions(tmp_path, iters=7, items=24)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_tasks_adapter_learns_from_content_alone_and_holds_the_instruction(tmp_path):
    found = train_adapters.lora_settings("concise", making(tmp_path))
    rng = random.Random("concise-0")
    items = [mixture.draw(rng, "concise") for _ in range(24)]
    expected = [{"prompt": item.content, "completion": item.target} for item in items]
    assert lines(found.data) == [line for line in expected if line["completion"]]
    assert found.prompt_template == tasks.prompt_template("concise")
    found.check()
    assert (found.lora_rank, found.iters, found.time_limit) == (4, 7, None)
    streams = train_adapters.stream_settings("concise", making(tmp_path), None)
    streams.check()
    assert streams.mode == "lossless"
    assert streams.prompt_template == found.prompt_template


def test_a_tasks_streams_learn_what_the_tuned_base_answered(tmp_path, monkeypatch):
    """To other texts than its LoRA learned from."""
    asked = []
    monkeypatch.setattr(train_adapters, "Writer", lambda *paths: paths)
    monkeypatch.setattr(train_adapters, "write_answers_of", lambda *given: asked.append(given))
    options = replace(making(tmp_path), items=300, task_answers=200, batch_size=3)
    lora = tmp_path / "concise-lora" / "adapter"
    lora.mkdir(parents=True)
    assert train_adapters.start_of("concise", options) == lora
    ((writer, directory, task, texts),) = asked
    assert (writer, task) == ((tmp_path / "expanded", lora), "concise")
    assert len(texts) == len(set(texts)) == 200
    learned = read_pairs(train_adapters.lora_settings("concise", options).data)
    assert {pair.prompt for pair in learned}.isdisjoint(texts)
    found = train_adapters.stream_settings("concise", options, None)
    assert (found.data, found.valid_data) == (directory / "train.jsonl", directory / "valid.jsonl")
    assert found.batch_size == 3
    without = replace(options, task_answers=0)
    assert train_adapters.start_of("concise", without) == lora and len(asked) == 1
    found = train_adapters.stream_settings("concise", without, None)
    assert found.data == tmp_path / "concise.jsonl"


@pytest.mark.parametrize("part", ["answers", "streams", "concise"])
def test_the_base_comes_first(part, tmp_path):
    with pytest.raises(UserError, match=f"expected part base before {part}"):
        train_adapters.main([part], options=making(tmp_path))
    assert not any(tmp_path.iterdir())


def test_streams_learn_from_new_answers_once_these_are_there(tmp_path):
    def data(**values):
        options = replace(making(tmp_path), **values)
        return train_adapters.stream_settings("streams", options, None).data.parent

    assert data() == train_adapters.ANSWERS
    (tmp_path / "answers").mkdir()
    assert data() == tmp_path / "answers"
    assert data(answers=tmp_path) == tmp_path


def test_lossless_streams_learn_what_the_base_answered(tmp_path):
    found = train_adapters.stream_settings("streams", making(tmp_path), None)
    found.check()
    assert (found.mode, found.keep_hidden) == ("lossless", True)
    learned, tried = (
        {pair.prompt for pair in read_pairs(p)} for p in (found.data, found.valid_data)
    )
    assert len(learned) > 1000 and tried and not learned & tried


def test_new_lora_takes_the_streams_of_an_adapter(tmp_path):
    lora, other = tmp_path / "lora", tmp_path / "other"
    for directory in (lora, other):
        directory.mkdir()
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (directory / name).write_text(directory.name)
    (other / "speculative_streaming.safetensors").write_text("streams")
    (other / "speculative_streaming.json").write_text('{"mode": "shared", "num_streams": 3}')
    found = train_adapters.with_streams(lora, other, tmp_path / "first")
    read = {path.name: path.read_text() for path in found.iterdir()}
    config = json.loads(read.pop("speculative_streaming.json"))
    assert config == {"mode": "lossless", "num_streams": 3}
    assert read == {
        "adapter_config.json": "lora",
        "adapter_model.safetensors": "lora",
        "speculative_streaming.safetensors": "streams",
    }


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
