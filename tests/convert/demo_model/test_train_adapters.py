"""What the adapters are trained on, with which settings, and what of it is bundled."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from specstream_mlx.convert.demo_model import mixture, tasks, train_adapters
from tiny_training import rows_of

from specstream_mlx.errors import UserError
from specstream_mlx.train.data import read_rows

NOWHERE = Path("/nowhere")


@pytest.fixture
def making(tmp_path, monkeypatch):
    monkeypatch.setattr(train_adapters.demonstration, "base_path", lambda: NOWHERE)
    return train_adapters.MakingOptions(
        tmp_path, iters=7, items=300, task_answers=200, batch_size=3
    )


def prompts_of(path):
    return [row["prompt"] for row in read_rows(path).values()]


def test_a_tasks_streams_learn_what_the_tuned_base_answered(making, monkeypatch):
    """Its LoRA learns content and holds the instruction, other texts are answered, and the streams
    begin as the base's."""
    calls, work, template = [], making.work, tasks.prompt_template("concise")
    monkeypatch.setattr(train_adapters, "AnswerWriter", lambda *paths: paths)
    monkeypatch.setattr(train_adapters, "write_answers", lambda *given: calls.append(given))

    def trained(settings):
        settings.check()
        calls.append(settings)
        (settings.output / "adapter").mkdir(parents=True)
        (settings.output / "adapter" / settings.output.name).touch()

    monkeypatch.setattr(train_adapters, "train", trained)
    with pytest.raises(UserError, match="concise before streams, expected the base's streams"):
        train_adapters.main(parts=["concise"], options=making)
    trained(train_adapters.stream_settings("streams", making))
    calls.clear()
    for _ in range(2):  # what is finished is skipped
        train_adapters.main(parts=["concise"], options=making)
    lora, (writer, texts, directory, *_, given), streams = calls
    rng = random.Random("concise-0")
    items = [mixture.draw(rng, "concise") for _ in range(300)]
    drawn = [{"prompt": i.content, "completion": i.target} for i in items if i.target]
    assert rows_of(lora.data) == drawn
    assert (lora.lora_alone, lora.lora_rank, lora.iters, lora.time_limit) == (True, 4, 7, None)
    assert writer == (NOWHERE, work / "concise-lora" / "adapter")
    assert len(texts) == 200 and set(prompts_of(work / "concise.jsonl")).isdisjoint(texts)
    assert streams.data == directory / "train.jsonl"
    assert (streams.batch_size, streams.mode) == (3, "lossless")
    begun = {path.name for path in streams.init_adapter.iterdir()}
    assert begun == {"concise-lora", "streams"}
    assert lora.prompt_template == given == streams.prompt_template == template


def test_half_of_what_is_answered_may_be_by_people(making):
    typed = tasks.typed_dev("concise", 1)[0].content
    texts = [f"Somebody wrote message {number}." for number in range(150)]
    lines = [json.dumps({"prompt": text}) for text in [typed, *texts]]
    (making.work / "concise.jsonl").write_text("\n".join(lines))
    learned = train_adapters.lora_settings("concise", replace(making, work=making.work / "w")).data
    found = train_adapters.unseen("concise", replace(making, task_texts=making.work), learned)
    assert len(found) == len(set(found)) == 200 and typed not in found
    assert len(set(found) & set(texts)) == 100


def test_streams_learn_what_the_base_answered(making):
    with pytest.raises(UserError, match="unknown part 'base', expected answers, streams, proof"):
        train_adapters.main(parts=["base"], options=making)
    found = train_adapters.stream_settings("streams", making)
    found.check()
    assert (found.mode, found.data.parent) == ("lossless", train_adapters.ANSWERS)
    learned, tried = (set(prompts_of(path)) for path in (found.data, found.valid_data))
    assert len(learned) > 1000 and tried and not learned & tried


def test_finished_parts_are_bundled_unless_one_is_too_large(tmp_path, monkeypatch):
    bytes_of, work, out = {"streams": 1000, "sql": 1000}, tmp_path / "work", tmp_path / "out"

    def converted(source, base, target, **_):
        target.mkdir(parents=True, exist_ok=True)
        config = {"speculative_streaming": {"base_model": "/somewhere"}}
        (target / "adapter_config.json").write_text(json.dumps(config))
        (target / "weights").write_bytes(bytes(bytes_of[source.parent.name]))

    monkeypatch.setattr(train_adapters, "convert_adapter", converted)
    monkeypatch.setattr(train_adapters.demonstration, "base_path", lambda: None)
    monkeypatch.setattr(train_adapters.bundled, "ROOT", out)
    for part in bytes_of:
        (work / part / "adapter").mkdir(parents=True)
    train_adapters.main(parts=["bundle"], options=train_adapters.MakingOptions(work))
    assert (out / "streams" / "weights").stat().st_size == 1000
    config = json.loads((out / "adapters/sql" / "adapter_config.json").read_text())
    repository = train_adapters.demonstration.REPOSITORY
    assert config["speculative_streaming"]["base_model"] == repository
    bytes_of["streams"] = 2_000_000
    with pytest.raises(UserError, match="streams has 2,"):
        train_adapters.bundle(work, tmp_path / "other")
    assert not (tmp_path / "other").exists()
