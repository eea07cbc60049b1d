"""Several adapters at once and in turn, on a tiny model: the same texts, fewer passes at once."""

import json

from command_line import result_of, run_program
from tiny_models import stream_adapter_directory, tiny_llama_directory

from benchmarks import several_adapters
from specstream_mlx import bundled, demonstration

FLAGS = ["--pairs", "1", "--max-tokens", "12"]


def test_at_once_takes_fewer_passes_and_another_text_ends_the_run(tmp_path, monkeypatch):
    base = tiny_llama_directory(tmp_path / "base")
    (tmp_path / "adapters").mkdir()
    for seed, name in enumerate(("friendly", "sql", "summary")):
        directory = tmp_path / "adapters" / name
        stream_adapter_directory(directory, base, mode="shared", lora_rank=4, seed=seed)
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    monkeypatch.setattr(demonstration, "base_path", lambda: base)
    run_program(several_adapters.main, *FLAGS, "--output", tmp_path)
    (file,) = tmp_path.glob("several-adapters-*.json")
    values = json.loads(file.read_text())
    (pair,) = values["pairs"]
    at_once, in_turn = pair["passes"]
    assert pair["tokens"] == 36 and at_once < in_turn <= 36
    assert "3 adapters, 1 pairs" in file.with_suffix(".md").read_text()

    write = several_adapters.batch_generate

    def other(model, tokenizer, prompts, **arguments):
        return write(model, tokenizer, [*prompts[1:], f"{len(prompts)} x"], **arguments)

    monkeypatch.setattr(several_adapters, "batch_generate", other)
    result = result_of(several_adapters.main, *FLAGS, "--counts")
    assert result.exit_code == 2 and "beside others and" in result.stderr
