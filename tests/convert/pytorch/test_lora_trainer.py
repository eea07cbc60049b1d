"""LoRA alone is trained, and then lossless streams for it, which leave it as it is."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch import lora_trainer, trainer
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.pytorch.training_settings import LoraSettings, TrainSettings
from torch_tiny import tiny_batch

from specstream_mlx.errors import UserError


@pytest.fixture
def settings(tied, data, tmp_path):
    small = {"model": tied, "data": data, "batch_size": 8, "log_every": 1, "bf16": False}
    return lambda **values: LoraSettings(output=tmp_path / "out", **small, **values)


def test_it_learns_what_peft_reads(settings, tied, data, tmp_path):
    chosen = settings(iters=40, learning_rate=2e-2, lora_rank=4, valid_data=data)
    path = lora_trainer.train_lora(chosen)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert lines[39]["loss"] < 0.5 * lines[0]["loss"]
    assert lines[-1]["held_out"]["main"] > 0.5
    tuned = PeftModel.from_pretrained(load_base(tied), path)
    base = tuned.get_base_model()
    batch = tiny_batch(vocab=tuned.config.vocab_size)
    labels = batch.tokens.clone()
    for row, start, length in zip(labels, batch.stream_from, batch.lengths, strict=True):
        row[:start] = row[length:] = -100
    rows, targets = lora_trainer.answer_rows(base, batch)
    found = torch.nn.functional.cross_entropy(base.get_output_embeddings()(rows), targets)
    torch.testing.assert_close(found, tuned(batch.tokens, labels=labels).loss)


def test_resuming_equals_not_stopping(settings, tmp_path):
    def stop(now, _):
        if now == 7:
            raise InterruptedError

    chosen = settings(iters=12, save_every=5)
    with pytest.raises(InterruptedError):
        lora_trainer.train_lora(chosen, stop)
    chosen.resume = True
    found = load_file(lora_trainer.train_lora(chosen) / "adapter_model.safetensors")
    shutil.rmtree(tmp_path / "out")
    whole = load_file(lora_trainer.train_lora(settings(iters=12)) / "adapter_model.safetensors")
    for name, tensor in whole.items():
        assert torch.equal(found[name], tensor), name


def test_streams_for_it_leave_it_as_it_is(settings, tied, data, tmp_path):
    lora = lora_trainer.train_lora(settings(iters=12, learning_rate=2e-2))
    streams = {"model": tied, "data": data, "batch_size": 8, "bf16": False, "num_msa_layers": 2}
    streams |= {"iters": 20, "learning_rate": 2e-2, "log_every": 1}
    told = {"prompt_template": "Do: {text}"}
    chosen = TrainSettings(output=tmp_path / "streams", init_adapter=lora, **streams, **told)
    losses = []
    path = trainer.train(chosen, lambda _, figures: losses.append(figures["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    found, expected = (load_file(d / "adapter_model.safetensors") for d in (path, lora))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    model, batch = load_adapter(tied, path), tiny_batch(vocab=found_vocab(tied))
    assert model.config.mode == "lossless"
    with torch.no_grad():
        logits = model(batch.tokens, batch.stream_from, batch.lengths).main_logits
        alone = PeftModel.from_pretrained(load_base(tied), lora)(batch.tokens).logits
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)
    again = TrainSettings(output=tmp_path / "again", init_adapter=path, **streams | {"iters": 1})
    resumed = trainer.train(again)
    found = load_file(resumed / "adapter_model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert load_adapter(tied, resumed).config.prompt_template == "Do: {text}"


def test_dropout_of_lora_that_stays_drops_nothing(settings, tied, data, tmp_path):
    lora = lora_trainer.train_lora(settings(iters=4, learning_rate=2e-2))
    config = json.loads((lora / "adapter_config.json").read_text())
    (lora / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.5}))
    fields = {"model": tied, "data": data, "init_adapter": lora, "num_msa_layers": 2}
    chosen = TrainSettings(output=tmp_path / "s", **fields)
    model, batch = trainer.build_model(chosen), tiny_batch(vocab=found_vocab(tied))
    first, second = (model(batch.tokens, batch.stream_from, batch.lengths) for _ in range(2))
    assert torch.equal(first.main_logits, second.main_logits)
    head = TrainSettings(output=tmp_path / "h", train="head", **fields)
    with pytest.raises(UserError, match=r"speculative_streaming\.json is missing"):
        trainer.train(head)


def found_vocab(base):
    return json.loads((base / "config.json").read_text())["vocab_size"]


def test_refusals(settings):
    for fields, sentence in (
        ({"lora_targets": ("nosuch",)}, "lora_targets has 'nosuch', expected some of"),
        ({"lora_layers": 99}, "lora_layers is 99, expected at most"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
    ):
        with pytest.raises(UserError, match=sentence):
            lora_trainer.train_lora(settings(**fields))
