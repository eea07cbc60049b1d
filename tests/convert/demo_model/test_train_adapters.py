"""What the adapters are trained on, and with which settings."""

import json
import random

import pytest
from specstream_mlx.convert.demo_model import mixture, tasks, train_adapters
from specstream_mlx.convert.demo_model.work_directory import trained

from specstream_mlx.config import StreamConfig

MSA_LAYERS = {"lossless": 6, "shared": 3}


@pytest.fixture(autouse=True)
def base_writes_a_line(monkeypatch):
    def write(base, prompts, adapter=None):
        return [f"by {adapter.name} {p}" if adapter else f"to {p}" for p in prompts]

    monkeypatch.setattr(train_adapters, "greedy_outputs", write)


def settings(tmp_path, part, start=None):
    return train_adapters.settings_of(part, tmp_path, None, 7, 24, 0, MSA_LAYERS, start)


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
    assert (found.mode, found.num_msa_layers, found.num_streams) == ("shared", 3, 4)
    assert (found.iters, found.time_limit) == (7, None)


def test_the_shared_adapter_learns_all_tasks_with_their_instructions(tmp_path):
    found = settings(tmp_path, "shared")
    assert found.prompt_template is None
    starts = {line["prompt"].split("\n")[0] for line in lines(found.data)}
    assert starts == {module.INSTRUCTION for module in tasks.TASKS.values()}


def test_lossless_streams_learn_what_the_base_writes(tmp_path):
    found = settings(tmp_path, "streams")
    found.check()
    assert (found.mode, found.num_msa_layers) == ("lossless", 6)
    assert len(lines(found.data)) == 16
    for data in lines(found.data), lines(found.valid_data):
        assert all(line["completion"] == "to " + line["prompt"] for line in data)


def test_plain_streams_differ_from_those_that_are_shipped_by_the_head_alone(tmp_path):
    shipped, plain = settings(tmp_path, "streams"), settings(tmp_path, "plain-streams")
    plain.check()
    assert (shipped.stream_head, plain.stream_head) == ("conditioned", "plain")
    head = {"stream_head", "output"}
    assert {k for k, v in vars(shipped).items() if v != vars(plain)[k]} == head


def test_data_that_is_there_is_kept(tmp_path):
    before = settings(tmp_path, "sql").data.read_text()
    found = train_adapters.settings_of("sql", tmp_path, None, 7, 48, 1, MSA_LAYERS, None)
    assert found.data.read_text() == before


def test_adapters_are_watched_on_what_people_typed(tmp_path):
    one = lines(settings(tmp_path, "sql").valid_data)
    assert len(one) == 32
    assert not any(line["prompt"].startswith(tasks.TASKS["sql"].INSTRUCTION) for line in one)
    several = lines(settings(tmp_path, "shared").valid_data)
    assert len(several) == 12 * len(tasks.TASKS)


def test_a_part_that_starts_from_another_moves_its_embeddings_less(tmp_path):
    new, begun = settings(tmp_path, "sql"), settings(tmp_path, "sql", tmp_path)
    assert begun.init_adapter == tmp_path
    assert begun.embedding_learning_rate < new.embedding_learning_rate
    assert begun.learning_rate < new.learning_rate


def test_a_head_is_trained_on_what_its_adapter_writes_and_on_frozen_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(train_adapters, "converted", lambda work, part: work / part)
    config = StreamConfig("shared", 3, 16, 5, num_streams=2, prompt_template="{text}!")
    directory = tmp_path / "sql" / "adapter"
    directory.mkdir(parents=True)
    (directory / "speculative_streaming.json").write_text(json.dumps(config.to_dict()))
    found = train_adapters.head_settings(tmp_path, "sql", 32, 7, 24, 0)
    found.check()
    assert (found.train, found.stream_head, found.stream_head_rank) == ("head", "conditioned", 32)
    assert (found.init_adapter, found.output) == (directory, tmp_path / "sql-head")
    assert (found.num_msa_layers, found.num_streams) == (3, 2)
    assert found.prompt_template == "{text}!"
    assert found.lora_rank == settings(tmp_path, "sql").lora_rank
    data = lines(found.data)
    assert len(data) > 20
    assert all(line["completion"] == "by sql " + line["prompt"] for line in data)


def test_what_is_shipped_has_the_head_where_there_is_one(tmp_path):
    assert trained(tmp_path, "sql") == tmp_path / "sql" / "adapter"
    (tmp_path / "sql-head" / "adapter").mkdir(parents=True)
    assert trained(tmp_path, "sql") == tmp_path / "sql-head" / "adapter"
