"""The load of a server for some seconds, on tiny models."""

import pytest
from serving import Resident
from tiny_models import stream_adapter_directory, tiny_llama_directory

from benchmarks.server_load import compare, press


@pytest.mark.slow
def test_a_short_load(tmp_path):
    base = tiny_llama_directory(tmp_path / "model", max_position_embeddings=2048)
    streams = stream_adapter_directory(tmp_path / "streams", base)
    shared = {
        f"shared{seed}": stream_adapter_directory(
            tmp_path / f"shared{seed}", base, mode="shared", lora_rank=4, seed=seed
        )
        for seed in (1, 2)
    }
    tiny = Resident(base, streams, **shared)
    service = tiny.service(most_texts=4, most_waiting=4)
    load = press(service, 8, 12, 24)
    assert compare(load, tiny.models, tiny.tokenizer, 24) == []
    known = {"complete", "complete, read slowly", "left"}
    known |= {"status 400", "status 413", "status 429"}
    assert set(load.counts) <= known, load.counts
    assert load.counts["complete"] > 2
    assert load.counts["left"] > 0
    assert load.held <= 8
    ask, text = load.complete[0]
    load.complete.append((ask, f"{text}x"))
    load.begun.append((ask, f"x{text}"))
    wrong = compare(load, tiny.models, tiny.tokenizer, 24)
    assert [(a, t) for a, t, _ in wrong] == [(ask, f"{text}x"), (ask, f"x{text}")]
