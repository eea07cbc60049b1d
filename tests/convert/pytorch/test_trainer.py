"""The trainer: it learns, resumes, repeats, and says what is wrong in one sentence."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from parity import edit
from peft import PeftModel
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch import trainer, training_run
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.pytorch.training_settings import TorchTrainSettings
from tiny_models import VOCAB_SIZE
from tiny_training import rows_of, write_rows
from torch_tiny import tiny_batch

from specstream_mlx.errors import UserError

PLAIN = {"stream_head": "plain"}
CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 6}
LEARNS = {"iters": 40, "learning_rate": 2e-2}
ALMOST_NONE = {"iters": 1, "learning_rate": 1e-9}
SHARED, LORA = {"mode": "shared"}, {"lora_alone": True}
REPLAY = {"replay": True, "loss": "half"}
FEW = {"lora_targets": ("q_proj", "v_proj"), "lora_layers": 1}


@pytest.fixture(scope="module")
def settings(tied, data, tmp_path_factory):
    """Makes settings of small runs, each with an output of its own."""
    small = {"num_msa_layers": 2, "batch_size": 8, "iters": 12, "log_every": 1, "bf16": False}

    def make(**values):
        directories = {"model": tied, "data": data, "output": tmp_path_factory.mktemp("run")}
        return TorchTrainSettings(**directories | small | values)

    return make


@pytest.fixture(scope="module")
def shared(settings):
    return trainer.train(settings(**SHARED))


class StoppedError(Exception):
    pass


def stopped_at(step, chosen):
    """Train until a step, and set ``resume``."""

    def stop(now, _):
        if now == step:
            raise StoppedError

    with pytest.raises(StoppedError):
        trainer.train(chosen, on_step=stop)
    return replace(chosen, resume=True)


def read(adapter):
    """All tensors of an adapter."""
    files = sorted(adapter.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_learns_and_writes_what_load_reads(settings, tied, data, mode, tmp_path):
    """How often it is right is counted for each source, too."""
    named, sources = tmp_path / "valid.jsonl", ["news:short", "news:long", "talks"]
    write_rows(named, [r | {"source": sources[i % 3]} for i, r in enumerate(rows_of(data))])
    chosen = settings(mode=mode, **LEARNS, prompt_template="Do: {text}", valid_data=named)
    path = trainer.train(chosen)
    lines = rows_of(chosen.output / "log.jsonl")
    assert lines[39]["loss"] < 0.6 * lines[0]["loss"]
    held_out = lines[-1]["held_out"]
    model = load_adapter(tied, path)
    assert model.config.prompt_template == "Do: {text}"
    _, items = training_run.load_items(chosen, "Do: {text}", VOCAB_SIZE)
    assert set(held_out["by_source"]) == {"news", "talks"}
    for name, part in ({"": held_out} | held_out["by_source"]).items():
        own = [replace(item, source="") for item in items if item.source.startswith(name)]
        found = trainer.evaluate(model, own, 8)
        for figure in ("main", "streams", "pruner", "chain"):
            assert found[figure] == pytest.approx(part[figure], abs=1e-6)


@pytest.mark.parametrize(("step", "values"), [(1, SHARED), (7, {**LORA, **FEW}), (6, REPLAY)])
def test_resuming_equals_not_stopping(step, values, settings, shared):
    """Also where it stopped before its first checkpoint."""
    whole = shared if "mode" in values else trainer.train(settings(**values))
    if "lora_alone" in values:
        assert len(read(whole)) == 4
        assert all(".layers.2.self_attn." in name for name in read(whole))
    parts = stopped_at(step, settings(**values, save_every=5))
    assert_same(read(trainer.train(parts)), read(whole))


def test_replay_leaves_out_what_is_foreseen(settings, monkeypatch):
    """The longer the drafts, the fewer the positions at which one begins."""
    counts, right = [], trainer.n_gram_loss

    def counting(model, batch, *how):
        counts.append(int(batch.positions()[1].sum()))
        return right(model, batch, *how)

    monkeypatch.setattr(trainer, "n_gram_loss", counting)
    trainer.train(settings(replay=True, **LEARNS))
    assert counts[-1] < 0.8 * counts[0]


def test_an_adapter_goes_on(settings):
    """With all that it has; a plain head becomes a conditioned one, which is not given up."""
    losses = []
    plain = trainer.train(settings(**SHARED, **PLAIN))
    for head in (PLAIN, CONDITIONED):
        chosen = settings(**SHARED, init_adapter=plain, **ALMOST_NONE, **head)
        path = trainer.train(chosen, lambda _, figures: losses.append(figures["per_stream"]))
        found = read(path)
        for name, tensor in read(plain).items():
            torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=0)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert found["streams.head.biases"].shape == (4, 6)
    with pytest.raises(UserError, match="stream_head is 'conditioned', expected 'plain' as in"):
        trainer.train(settings(**SHARED, init_adapter=path, **PLAIN))


def test_lora_alone_and_lossless_streams_that_leave_it_as_it_is(settings, tied, data, tmp_path):
    """Its loss is PEFT's. Dropout drops nothing from streams."""
    lora = trainer.train(settings(**LORA, lora_rank=4, **LEARNS, valid_data=data))
    lines = rows_of(lora.parent / "log.jsonl")
    assert lines[39]["loss"] < 0.5 * lines[0]["loss"]
    tuned, batch = PeftModel.from_pretrained(load_base(tied), lora), tiny_batch(vocab=VOCAB_SIZE)
    labels = batch.tokens.clone()
    for row, start, length in zip(labels, batch.stream_from, batch.lengths, strict=True):
        row[:start] = row[length:] = -100
    rows, targets = trainer.answer_rows(tuned.get_base_model(), batch)
    logits = tuned.get_base_model().get_output_embeddings()(rows)
    with torch.no_grad():
        alone = tuned(batch.tokens, labels=labels)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(logits, targets), alone.loss)

    dropping = shutil.copytree(lora, tmp_path / "dropping")
    edit(dropping / "adapter_config.json", lora_dropout=0.5)
    losses, expected = [], load_file(lora / "adapter_model.safetensors")
    chosen = settings(init_adapter=dropping, iters=20, learning_rate=2e-2)
    path = trainer.train(chosen, lambda _, figures: losses.append(figures["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    assert_same(load_file(path / "adapter_model.safetensors"), expected)
    with torch.no_grad():
        found = load_adapter(tied, path)(batch.tokens, batch.stream_from, batch.lengths)
    torch.testing.assert_close(found.main_logits, alone.logits, atol=1e-5, rtol=1e-5)


def test_parts_learn_at_their_own_rates(settings, shared, tied):
    """Adam's first step is the learning rate long, whatever the gradient."""
    rates = {"learning_rate": 1e-4, "stream_learning_rate": 1e-3, "embedding_learning_rate": 1e-2}
    chosen = settings(**SHARED, iters=1, init_adapter=shared, **rates)
    before, after = (load_adapter(tied, d).state_dict() for d in (shared, trainer.train(chosen)))
    for name, rate in (("lora_B", 1e-4), ("pruner.up", 1e-3), ("streams.embeddings", 1e-2)):
        moved = [(after[n] - before[n]).abs().max().item() for n in before if name in n]
        assert max(moved) == pytest.approx(rate, rel=0.05), name


def test_time_limit_ends_the_run(settings):
    chosen = settings(iters=None, time_limit=0.01)
    trainer.train(chosen)
    lines = rows_of(chosen.output / "log.jsonl")
    assert lines[-1]["learning_rate"] < lines[len(lines) // 2]["learning_rate"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"lora_rank": 4}, "lora_rank is for new LoRA"),
        ({**LORA, "init_adapter": Path("/nowhere")}, "lora_alone and init_adapter were both"),
        ({**SHARED, "lora_targets": ("q_proj", "x")}, "lora_targets has 'x', expected"),
        ({**SHARED, "lora_layers": 9}, "lora_layers is 9, expected at most the base's 3"),
        ({"dtype": "bfloat16"}, "dtype is 'bfloat16' and bf16 is off"),
        ({**SHARED, "replay": True}, "replay is on in shared mode, expected lossless mode"),
        ({"resume": True}, "nothing to resume"),
    ],
)
def test_bad_input_is_one_sentence(settings, values, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        trainer.train(settings(**values))


def test_runs_that_are_there_already(settings):
    """They are not overwritten; a damaged checkpoint is not resumed."""
    stopped = stopped_at(1, settings(iters=2, save_every=1))
    path = stopped.output / "checkpoint.pt"
    with pytest.raises(UserError, match="of an earlier run, expected --resume to"):
        trainer.train(settings(iters=1, output=stopped.output))
    whole, nan = torch.load(path, weights_only=True), torch.full((4, 32), math.nan)
    name, groups = "streams.embeddings", whole["optimizer"]["param_groups"]
    for change, sentence in (
        ({"settings": whole["settings"] | {"seed": "1"}}, "seed was '1' and is now '0'"),
        ({"weights": {}}, "has no tensor "),
        ({"settings": []}, "is not a readable checkpoint: settings is .., expected an object"),
        ({"weights": {**whole["weights"], name: nan}}, f"{name} holds something other than finite"),
        ({"weights": {name: 3}}, "weights is .*expected tensors by name"),
        *(({"step": step}, f"step is {step!r}, expected an integer") for step in ("x", -1, None)),
        *(({"seconds": one}, "seconds is .*expected a number") for one in ("x", math.nan, [])),
        *(({"rng": rng}, "is not a readable checkpoint") for rng in (3, torch.ones(3))),
        *(
            ({"optimizer": {**whole["optimizer"], **part}}, "is not a readable checkpoint: ")
            for part in (
                {"state": {0: {}}},
                {"state": {0: 3}},
                {"state": {0: {"step": torch.ones(3), "exp_avg": nan, "exp_avg_sq": nan}}},
                {"param_groups": 3},
                {"param_groups": []},
                {"param_groups": [{**group, "betas": "x"} for group in groups]},
            )
        ),
        ({"optimizer": {}}, "is not a readable checkpoint: it lacks 'param_groups'"),
    ):
        torch.save(whole | change, path)
        with pytest.raises(UserError, match=f"checkpoint.pt.*{sentence}"):
            trainer.train(stopped)
    assert not (stopped.output / "adapter").exists()
