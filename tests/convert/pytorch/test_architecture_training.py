"""The trainer on other architectures than Llama's, and what the runtime makes of the result."""

import json
from dataclasses import replace

import pytest
from architecture_models import random_model
from command_line import run
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from tiny_models import tiny_tokenizer

from specstream_mlx import load

VOCAB = 320


@pytest.mark.parametrize(
    ("case", "mode", "head", "keys"),
    [
        ("Phi-2", "lossless", "plain", 0),
        ("Phi-3 mini 4k, window", "shared", "conditioned", 4),
        ("Gemma 2", "shared", "plain", 0),
        ("Gemma 2", "lossless", "conditioned", 4),
        ("OPT", "shared", "plain", 4),
    ],
)
def test_learns_and_converts(case, mode, head, keys, data, tmp_path):
    """The loss falls, in bfloat16 it starts the same, and MLX computes the same afterwards."""
    hf = tmp_path / "hf"
    random_model(case, VOCAB).save_pretrained(hf)
    tiny_tokenizer().save_pretrained(hf)
    settings = TrainSettings(
        model=hf,
        data=data,
        output=tmp_path / "run",
        mode=mode,
        stream_head=head,
        stream_keys=keys,
        num_msa_layers=2,
        batch_size=8,
        iters=16,
        learning_rate=2e-2,
        log_every=1,
        bf16=False,
    )
    adapter = trainer.train(settings)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    once = replace(settings, output=tmp_path / "bf16", iters=1, bf16=True)
    trainer.train(once, lambda _, figures: losses.append(figures["loss"]))
    assert losses[-1] == pytest.approx(losses[0], rel=0.02)
    flags = ["--model", hf, "--adapter-path", adapter, "--mlx-path", tmp_path / "mlx"]
    result = run("convert", *flags)
    assert result.exit_code == 0, result.output
    model, _ = load(hf, adapter_path=tmp_path / "mlx")
    assert bool(model.adapter.lora) == (mode == "shared")
    assert model.streams.config.mode == mode
    assert (model.streams.head is not None) == (head == "conditioned")
    assert model.streams.config.stream_keys == keys
