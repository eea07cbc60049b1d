"""Several adapters at once and in turn, on a tiny model: the same texts, and fewer passes."""

import pytest
from tiny_models import stream_adapter_directory, tiny_llama_directory

from benchmarks import several_adapters
from benchmarks.several_adapters import measure
from specstream_mlx import UserError, load


def test_both_ways_write_the_same_texts_in_fewer_passes_at_once(tmp_path, monkeypatch):
    base = tiny_llama_directory(tmp_path / "model")
    adapters = [
        stream_adapter_directory(
            tmp_path / f"shared{seed}", base, mode="shared", lora_rank=4, seed=seed
        )
        for seed in (1, 2, 3)
    ]
    pair = measure(*load(base), "please send the report", adapters, 12)
    assert pair.tokens == 36
    assert pair.passes[0] < pair.passes[1] <= 36
    assert pair.speedup == pair.at_once / pair.in_turn > 0
    write = several_adapters.batch_generate

    def other(model, tokenizer, prompts, **arguments):
        return write(model, tokenizer, [*prompts[1:], f"{len(prompts)} x"], **arguments)

    monkeypatch.setattr(several_adapters, "batch_generate", other)
    with pytest.raises(UserError, match="beside others and"):
        measure(*load(base), "please send the report", adapters, 12)
