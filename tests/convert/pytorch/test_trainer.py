"""The trainer: it learns, resumes, repeats, and says what is wrong in one sentence."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.convert.pytorch.data import collate, epoch, read_pairs, tokenize
from specstream_mlx.convert.pytorch.formats import (
    FormatError,
    load_adapter,
    read_streams,
    read_tensors,
    write_adapter,
)
from specstream_mlx.convert.pytorch.settings import TrainSettings
from tiny_models import tiny_tokenizer
from torch_tiny import tiny_batch, tiny_completions, tiny_llama, tiny_model
from typer import Typer
from typer.testing import CliRunner

from specstream_mlx.adapters.description import describe
from specstream_mlx.config import UserError

VOCAB = 320


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("base")
    tiny_llama(vocab=VOCAB).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_completions(tmp_path_factory.mktemp("data") / "train.jsonl")


@pytest.fixture
def settings(base_dir, data, tmp_path):
    def make(**overrides):
        values = {
            "model": base_dir,
            "data": data,
            "output": tmp_path / "out",
            "num_msa_layers": 2,
            "batch_size": 8,
            "iters": 12,
            "log_every": 1,
            "bf16": False,
        }
        return TrainSettings(**(values | overrides))

    return make


def log(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_learns_and_writes_what_load_reads(settings, base_dir, data, mode):
    chosen = settings(
        mode=mode, iters=60, learning_rate=2e-2, valid_data=data, prompt_template="Do: {text}"
    )
    path = trainer.train(chosen)
    assert path == chosen.output / "adapter"
    lines = log(chosen.output)
    assert lines[59]["loss"] < 0.6 * lines[0]["loss"]
    held_out = lines[-1]["held_out"]
    assert len(held_out["streams"]) == 4
    assert 1 <= held_out["chain"] <= 5

    names = {"speculative_streaming.json", "speculative_streaming.safetensors"}
    if mode == "shared":
        names |= {"adapter_config.json", "adapter_model.safetensors"}
    assert {file.name for file in path.iterdir()} == names
    model = load_adapter(base_dir, path)
    assert model.config.prompt_template == "Do: {text}"
    pairs = read_pairs(data)
    items = tokenize(pairs, tiny_tokenizer(), "Do: {text}", 64)
    again = trainer.evaluate(model, items, 8)
    assert again.pop("streams") == pytest.approx(held_out.pop("streams"), abs=1e-6)
    assert again == pytest.approx(held_out, abs=1e-6)


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_resuming_equals_not_stopping(settings, tmp_path, mode):
    whole = settings(mode=mode, output=tmp_path / "whole")
    expected = trainer.train(whole)
    parts = settings(mode=mode, output=tmp_path / "parts", save_every=5)

    def stop(step, _):
        if step == 7:
            raise StoppedError

    with pytest.raises(StoppedError):
        trainer.train(parts, on_step=stop)
    parts.resume = True
    got = trainer.train(parts)
    for name in sorted(file.name for file in expected.glob("*.safetensors")):
        found = load_file(got / name)
        for key, tensor in load_file(expected / name).items():
            assert torch.equal(found[key], tensor), key
    losses = {line["step"]: line["loss"] for line in log(parts.output)}
    assert losses == {line["step"]: line["loss"] for line in log(whole.output)}


def test_seed_repeats(settings, tmp_path):
    runs = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        chosen = settings(output=tmp_path / name, seed=seed, iters=4, segments=2, bf16=True)
        runs.append(load_file(trainer.train(chosen) / "speculative_streaming.safetensors"))
    for key, tensor in runs[0].items():
        assert torch.equal(tensor, runs[1][key])
    assert not torch.equal(runs[0]["streams.embeddings"], runs[2]["streams.embeddings"])


def test_training_with_a_pruner_trains_the_same_streams(settings, tmp_path):
    tensors = []
    for rank in (8, 0):
        chosen = settings(mode="shared", output=tmp_path / str(rank), pruner_rank=rank)
        path = trainer.train(chosen)
        lora = load_file(path / "adapter_model.safetensors")
        tensors.append(lora | load_file(path / "speculative_streaming.safetensors"))
    assert tensors[0].keys() - tensors[1].keys() == {"pruner.down.weight", "pruner.up.weight"}
    for name, tensor in tensors[1].items():
        assert torch.equal(tensor, tensors[0][name]), name


def test_init_adapter_starts_where_the_other_run_ended(settings, base_dir, tmp_path):
    first = trainer.train(settings(mode="shared", output=tmp_path / "first"))
    fresh, started = [], []
    train = settings(mode="shared", output=tmp_path / "a", iters=1, learning_rate=1e-9)
    trainer.train(train, lambda _, figures: fresh.append(figures["loss"]))
    train = settings(
        mode="shared", output=tmp_path / "b", iters=1, learning_rate=1e-9, init_adapter=first
    )
    trainer.train(train, lambda _, figures: started.append(figures["loss"]))
    assert started[0] < fresh[0]
    before, after = (
        load_adapter(base_dir, d).state_dict() for d in (first, tmp_path / "b/adapter")
    )
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, atol=1e-7, rtol=0)


def test_init_adapter_of_another_shape_is_refused(settings, tmp_path):
    first = trainer.train(settings(mode="shared", lora_rank=4, output=tmp_path / "first", iters=1))
    with pytest.raises(UserError, match=r"init_adapter .*lora_A.* has shape \(4, .*expected \(8,"):
        trainer.train(settings(mode="shared", init_adapter=first))


def test_parts_learn_at_their_own_rates(settings, base_dir, tmp_path):
    """Adam's first step is the learning rate long, whatever the gradient."""
    first = trainer.train(settings(mode="shared", output=tmp_path / "first"))
    rates = {"learning_rate": 1e-4, "stream_learning_rate": 1e-3, "embedding_learning_rate": 1e-2}
    chosen = settings(mode="shared", output=tmp_path / "a", iters=1, init_adapter=first, **rates)
    before, after = (load_adapter(base_dir, d).state_dict() for d in (first, trainer.train(chosen)))
    for name, rate in (("lora_B", 1e-4), ("pruner.up", 1e-3), ("streams.embeddings", 1e-2)):
        moved = [(after[n] - before[n]).abs().max().item() for n in before if name in n]
        assert max(moved) == pytest.approx(rate, rel=0.05), name


def test_time_limit_ends_the_run(settings):
    chosen = settings(iters=None, time_limit=0.02)
    trainer.train(chosen)
    lines = log(chosen.output)
    assert lines[-1]["learning_rate"] < lines[len(lines) // 2]["learning_rate"]
    assert lines[-1]["seconds"] < 10


def test_items_are_tokenized_as_the_runtime_sees_them():
    tokenizer = tiny_tokenizer()
    (item,) = tokenize([("noon", "the team")], tokenizer, "At: {text}", 100)
    text = tokenizer.decode(item.tokens)
    assert text == "<|user|>At: noon<|end|><|assistant|>the team<|end|>"
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the team<|end|>"
    assert len(tokenize([("noon", "the team"), ("noon " * 99, "no")], tokenizer, None, 60)) == 1
    with pytest.raises(UserError, match="at most 5 tokens"):
        tokenize([("noon", "the team")], tokenizer, None, 5)


def test_an_epoch_holds_every_item_once(data):
    items = tokenize(read_pairs(data), tiny_tokenizer(), None, 100)
    batches = list(epoch(items, 5, seed=3))
    assert [len(batch.tokens) for batch in batches].count(5) == 4
    rows = [
        tuple(row[:length].tolist())
        for batch in batches
        for row, length in zip(batch.tokens, batch.lengths, strict=True)
    ]
    assert sorted(rows) == sorted(tuple(item.tokens) for item in items)
    again = list(epoch(items, 5, seed=3))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(batches, again, strict=True))
    assert collate(items[:2]).stream_from.tolist() == [item.stream_from for item in items[:2]]


def cli(*arguments):
    app = Typer()
    app.command()(trainer.main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_line(base_dir, data, tmp_path):
    flags = ("--model", base_dir, "--data", data, "--output", tmp_path / "out", "--iters", 1)
    shared = ("--mode", "shared", "--lora-targets", "q_proj,v_proj", "--lora-layers", 1)
    result = cli(*flags, *shared, "--num-msa-layers", 1, "--no-bf16")
    assert result.exit_code == 0, result.output
    lora = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert len(lora) == 4
    assert all(".layers.2.self_attn." in name for name in lora)


BAD_LINES = ["{", "[1]", '{"prompt": "a"}', '{"prompt": "a", "completion": 3}', '"a"', "null"]


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_line_is_named(tmp_path, line):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' + line + "\n")
    with pytest.raises(UserError, match=r"bad\.jsonl, line 2: expected"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--model", "/nowhere"), "model directory /nowhere does not exist"),
        (("--data", "/nowhere.jsonl"), "data file /nowhere.jsonl cannot be read"),
        (("--lora-rank", 4), "lora_rank is for shared mode"),
        (("--mode", "both"), "mode is 'both'"),
        (("--mode", "shared", "--lora-targets", "q_proj,x"), "lora_targets has 'x'"),
        (("--mode", "shared", "--lora-layers", 9), "lora_layers is 9, the base has 3"),
        (("--num-streams", 0), "num_streams is 0"),
        (("--num-msa-layers", 7), "num_msa_layers is 7"),
        (("--iters", -1), "iters is -1"),
        (("--iters", 2, "--epochs", 1), "iters and epochs exclude each other"),
        (("--stream-init", "zero"), "stream_init is 'zero'"),
        (("--prompt-template", "Hello"), "{text}"),
        (("--resume",), "nothing to resume"),
        (("--max-seq-length", 3), "at most 3 tokens"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(base_dir, data, tmp_path, flags, sentence):
    defaults = {"--model": base_dir, "--data": data, "--output": tmp_path / "out"}
    defaults |= {"--num-msa-layers": 2}
    given = {name: value for name, value in defaults.items() if name not in flags}
    result = cli(*(part for pair in given.items() for part in pair), *flags)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_empty_data_and_foreign_output(settings, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(UserError, match="is empty"):
        trainer.train(settings(data=empty))
    (tmp_path / "out" / "adapter").mkdir(parents=True)
    (tmp_path / "out" / "adapter" / "letter.txt").write_text("mine")
    with pytest.raises(FormatError, match="is no adapter directory"):
        trainer.train(settings())


def test_resume_refuses_other_settings_and_damage(settings):
    trainer.train(settings(iters=2))
    with pytest.raises(UserError, match="made with seed = 0, now it is 1"):
        trainer.train(settings(iters=2, seed=1, resume=True))
    checkpoint = settings().output / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(FormatError, match="is not a readable checkpoint"):
        trainer.train(settings(iters=2, resume=True))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_adapter_round_trip_is_exact(base_dir, tmp_path, mode):
    torch.manual_seed(0)
    model = tiny_model(mode, base=tiny_llama(vocab=VOCAB))
    write_adapter(model, tmp_path / "adapter")
    write_adapter(model, tmp_path / "adapter")  # replaces the first
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    loaded = load_adapter(base_dir, tmp_path / "adapter")
    expected = {n: t for n, t in model.state_dict().items() if "lora_" in n or "base." not in n}
    found = loaded.state_dict()
    assert expected.keys() == {n for n in found if "lora_" in n or "base." not in n}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    batch = tiny_batch()
    with torch.no_grad():
        out = loaded(batch.tokens, batch.stream_from, batch.lengths)
    assert out.stream_logits.isfinite().all()


@pytest.fixture
def adapter(tmp_path):
    write_adapter(tiny_model("shared", base=tiny_llama(vocab=VOCAB)), tmp_path / "adapter")
    return tmp_path / "adapter"


def change(path, name, tensor):
    tensors = load_file(path)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        ("streams.embeddings", torch.zeros(2, 32), r"has shape \(2, 32\), expected \(3, 32\)"),
        ("streams.embeddings", torch.zeros(3, 32).int(), "has dtype torch.int32, expected"),
        (
            "streams.embeddings",
            None,
            r"no tensor streams.embeddings, expected one of shape",
        ),
        ("streams.extra", torch.zeros(1), "an unexpected tensor streams.extra"),
        ("pruner.up.weight", torch.zeros(32, 5), r"has shape \(32, 5\), expected \(32, 4\)"),
    ],
)
def test_wrong_stream_tensor_is_named(adapter, name, tensor, sentence):
    change(adapter / "speculative_streaming.safetensors", name, tensor)
    with pytest.raises(UserError, match=sentence):
        read_streams(describe(adapter))


def test_wrong_lora_tensor_is_named(adapter, base_dir):
    path = adapter / "adapter_model.safetensors"
    name = next(iter(load_file(path)))
    change(path, name, torch.zeros(3, 3))
    with pytest.raises(UserError, match=r"has shape \(3, 3\), expected"):
        load_adapter(base_dir, adapter)
    change(path, name, None)
    with pytest.raises(UserError, match=r"is missing, by adapter_config\.json"):
        load_adapter(base_dir, adapter)


def test_damaged_and_foreign_files(adapter, base_dir, tmp_path):
    text = (adapter / "speculative_streaming.json").read_text()
    values = json.loads(text)
    for broken, sentence in [
        ("{", "is not valid JSON"),
        ("[]", "expected a JSON object"),
        (json.dumps(values | {"mode": "fast"}), "mode is 'fast'"),
        (json.dumps(values | {"base_fingerprint": "0" * 16}), "was made for another base"),
        (
            json.dumps(values | {"num_hidden_layers": 5}),
            "num_hidden_layers is 5, expected",
        ),
    ]:
        (adapter / "speculative_streaming.json").write_text(broken)
        with pytest.raises(UserError, match=sentence):
            load_adapter(base_dir, adapter)
    (adapter / "speculative_streaming.json").write_text(text)

    tensors = adapter / "speculative_streaming.safetensors"
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a readable safetensors file"):
        read_streams(describe(adapter))
    tensors.unlink()
    with pytest.raises(UserError, match="does not exist"):
        read_streams(describe(adapter))
    with pytest.raises(UserError, match=r"config\.json is missing"):
        load_adapter(tmp_path, adapter_copy(adapter, tmp_path, whole))


def adapter_copy(adapter, tmp_path, tensors):
    copy = shutil.copytree(adapter, tmp_path / "copy")
    (copy / "speculative_streaming.safetensors").write_bytes(tensors)
    return copy


class Hostile:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_pickles_run_no_code(tmp_path, capsys):
    torch.save({"a": torch.ones(2)}, tmp_path / "good.bin")
    assert torch.equal(read_tensors(tmp_path / "good.bin")["a"], torch.ones(2))
    torch.save({"a": Hostile()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"bad\.pt is refused"):
        read_tensors(tmp_path / "bad.pt")
    (tmp_path / "bad.pt").rename(tmp_path / "bad.safetensors")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        read_tensors(tmp_path / "bad.safetensors")
    torch.save({"a": 3}, tmp_path / "other.bin")
    with pytest.raises(UserError, match="something else than named tensors"):
        read_tensors(tmp_path / "other.bin")
    assert "must not run" not in capsys.readouterr().out
