"""The trainer: it learns, resumes, repeats, and says what is wrong in one sentence."""

import json
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from command_line import result_of
from safetensors.torch import load_file
from specstream_mlx.convert.pytorch import trainer, training_data, training_run
from specstream_mlx.convert.pytorch.load import load_adapter
from specstream_mlx.convert.pytorch.training_data import Pair, read_pairs, tokenize
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from tiny_models import tiny_tokenizer

from specstream_mlx.errors import UserError
from specstream_mlx.train.items import Item


@pytest.fixture(scope="module")
def defaults(tied, data):
    small = {"num_msa_layers": 2, "batch_size": 8, "iters": 12, "log_every": 1, "bf16": False}
    return {"model": tied, "data": data, **small}


@pytest.fixture
def settings(defaults, tmp_path):
    return lambda **values: TrainSettings(**{"output": tmp_path / "out", **defaults, **values})


@pytest.fixture(scope="module")
def first(defaults, tmp_path_factory):
    """The adapter of a finished run in shared mode."""
    output = tmp_path_factory.mktemp("first")
    return trainer.train(TrainSettings(output=output, mode="shared", **defaults))


def log(output):
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


class StoppedError(Exception):
    pass


def stopped_at(step, chosen):
    """Train until a step, and set ``resume``."""

    def stop(now, _):
        if now == step:
            raise StoppedError

    with pytest.raises(StoppedError):
        trainer.train(chosen, on_step=stop)
    chosen.resume = True
    return chosen


def read(adapter):
    """All tensors of an adapter."""
    files = sorted(adapter.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_learns_and_writes_what_load_reads(settings, tied, data, mode):
    chosen = settings(
        mode=mode, iters=40, learning_rate=2e-2, valid_data=data, prompt_template="Do: {text}"
    )
    path = trainer.train(chosen)
    assert path == chosen.output / "adapter"
    lines = log(chosen.output)
    assert lines[39]["loss"] < 0.6 * lines[0]["loss"]
    held_out = lines[-1]["held_out"]
    assert len(held_out["streams"]) == 4
    assert 1 <= held_out["chain"] <= 5

    names = {"speculative_streaming.json", "speculative_streaming.safetensors"}
    if mode == "shared":
        names |= {"adapter_config.json", "adapter_model.safetensors"}
    assert {file.name for file in path.iterdir()} == names
    model = load_adapter(tied, path)
    assert model.config.prompt_template == "Do: {text}"
    pairs = read_pairs(data)
    items = tokenize(pairs, tiny_tokenizer(), "Do: {text}", 64)
    again = trainer.evaluate(model, items, 8)
    assert again.pop("streams") == pytest.approx(held_out.pop("streams"), abs=1e-6)
    assert again == pytest.approx(held_out, abs=1e-6)


def test_held_out_items_are_counted_by_their_source(first, tied, data):
    model = load_adapter(tied, first)
    items = tokenize(read_pairs(data), tiny_tokenizer(), "Do: {text}", 64)
    sources = ["news:short", "news:long", "talks"]
    named = [replace(item, source=sources[i % 3]) for i, item in enumerate(items)]
    found = trainer.evaluate(model, named, 8)
    by_source = found.pop("by_source")
    for name, own in {"news": ("news:short", "news:long"), "talks": ("talks",)}.items():
        expected = trainer.evaluate(model, items_of(named, own), 8)
        assert flat(by_source.pop(name)) == pytest.approx(flat(expected), abs=1e-6)
    assert not by_source
    expected = trainer.evaluate(model, items, 8)
    assert flat(found) == pytest.approx(flat(expected), abs=1e-6)


def items_of(items, sources):
    return [replace(item, source="") for item in items if item.source in sources]


def flat(accuracy):
    return [accuracy["main"], *accuracy["streams"], accuracy["pruner"], accuracy["chain"]]


@pytest.mark.parametrize("step", [1, 7])
def test_resuming_equals_not_stopping(step, settings, first):
    """Also where it stopped before its first checkpoint."""
    parts = stopped_at(step, settings(mode="shared", save_every=5))
    assert_same(read(trainer.train(parts)), read(first))
    losses = {line["step"]: line["loss"] for line in log(parts.output)}
    assert losses == {line["step"]: line["loss"] for line in log(first.parent)}


PLAIN = {"stream_head": "plain"}
CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 6}
HEAD = {"streams.head.down.weight", "streams.head.biases", "streams.head.up.weight"}


@pytest.fixture(scope="module")
def plain(defaults, tmp_path_factory):
    """A function of a mode: the adapter of a run with plain heads."""

    @cache
    def make(mode):
        output = tmp_path_factory.mktemp("plain")
        return trainer.train(TrainSettings(output=output, mode=mode, **PLAIN, **defaults))

    return make


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_the_head_alone_learns_on_streams_that_stay(settings, plain, tied, mode, tmp_path):
    """From their own loss on; and a run that stopped goes on without their directory."""
    first = shutil.copytree(plain(mode), tmp_path / "first")
    expected = read(first)
    going_on, losses = [], []
    shared = {"mode": mode, "init_adapter": first, "iters": 1, "learning_rate": 1e-9}
    for name, fields in (("plain", PLAIN), ("conditioned", CONDITIONED)):
        chosen = settings(output=tmp_path / name, **shared, **fields)
        trainer.train(chosen, lambda _, figures: going_on.append(figures["per_stream"]))
    alone = {"mode": mode, "init_adapter": first, "train": "head", "learning_rate": 2e-2}
    chosen = settings(output=tmp_path / "head", **alone, **CONDITIONED)
    whole = trainer.train(chosen, lambda _, figures: losses.append(figures))
    assert going_on[1] == pytest.approx(going_on[0], rel=1e-4)
    assert losses[0]["per_stream"][1:] == pytest.approx(going_on[0][1:], rel=1e-4)
    assert losses[0]["per_stream"][0] == losses[0]["pruner"] == 0
    assert losses[-1]["loss"] < 0.9 * losses[0]["loss"]
    found = read(whole)
    assert found.keys() - expected.keys() == HEAD
    assert_same({name: found[name] for name in expected}, expected)
    assert load_adapter(tied, whole).config.stream_head_rank == 6
    parts = stopped_at(7, settings(output=tmp_path / "parts", save_every=5, **alone, **CONDITIONED))
    first.rename(tmp_path / "gone")
    assert_same(read(trainer.train(parts)), found)


def test_a_conditioned_adapter_goes_on(settings, plain, tmp_path):
    """With all that it has, or with its head alone; without its head it is refused."""
    learns = {"iters": 40, "learning_rate": 2e-2, "valid_data": settings().data}
    chosen = settings(output=tmp_path / "a", **learns, **CONDITIONED)
    first = trainer.train(chosen)
    chain = log(tmp_path / "a")[-1]["held_out"]["chain"]
    assert chain > 1.5
    before = read(first)
    for part in ("all", "head"):
        still = learns | {"iters": 1, "learning_rate": 1e-9, "train": part}
        again = settings(output=tmp_path / part, init_adapter=first, **still, **CONDITIONED)
        after = read(trainer.train(again))
        assert log(tmp_path / part)[-1]["held_out"]["chain"] == pytest.approx(chain, abs=1e-6)
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, atol=1e-7, rtol=0)
    assert before["streams.head.up.weight"].any()
    with pytest.raises(UserError, match="stream_head is 'conditioned', expected 'plain' as in"):
        trainer.train(settings(init_adapter=first, **PLAIN))
    with pytest.raises(UserError, match=r"head\.biases has shape \(4, 6\), expected \(4, 7\)"):
        trainer.train(settings(init_adapter=first, **CONDITIONED | {"stream_head_rank": 7}))


def test_parts_learn_at_their_own_rates(settings, first, tied):
    """Adam's first step is the learning rate long, whatever the gradient."""
    rates = {"learning_rate": 1e-4, "stream_learning_rate": 1e-3, "embedding_learning_rate": 1e-2}
    chosen = settings(mode="shared", iters=1, init_adapter=first, **rates)
    before, after = (load_adapter(tied, d).state_dict() for d in (first, trainer.train(chosen)))
    for name, rate in (("lora_B", 1e-4), ("pruner.up", 1e-3), ("streams.embeddings", 1e-2)):
        moved = [(after[n] - before[n]).abs().max().item() for n in before if name in n]
        assert max(moved) == pytest.approx(rate, rel=0.05), name


def test_time_limit_ends_the_run(settings):
    chosen = settings(iters=None, time_limit=0.02)
    trainer.train(chosen)
    lines = log(chosen.output)
    assert lines[-1]["learning_rate"] < lines[len(lines) // 2]["learning_rate"]
    assert lines[-1]["seconds"] < 10


def test_a_token_that_the_base_does_not_have(settings, monkeypatch):
    """A tokenizer may hold more than the model does."""
    monkeypatch.setattr(training_data, "tokenize", lambda *_: [Item([5, 10**6, 1], 1)])
    with pytest.raises(UserError, match="holds token 1000000, the model's are 0 to"):
        trainer.train(settings())
    assert not settings().output.exists()


@pytest.mark.parametrize("quick", [True, False])
def test_bfloat16_is_the_default_where_it_is_quick(quick, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": quick})
    assert training_run.is_quick_in_bf16(torch.device("cpu")) is quick


def test_items_are_tokenized_as_the_runtime_sees_them():
    tokenizer = tiny_tokenizer()
    (item,) = tokenize([Pair("noon", "the team")], tokenizer, "At: {text}", 100)
    text = tokenizer.decode(item.tokens)
    assert text == "<|user|>At: noon<|end|><|assistant|>the team<|end|>"
    assert tokenizer.decode(item.tokens[item.stream_from :]) == "the team<|end|>"
    (cut,) = tokenize([Pair("noon", "the team", cut=True)], tokenizer, "At: {text}", 100)
    assert list(cut.tokens) == list(item.tokens)[:-1]
    talk = Pair("noon", "the team", earlier=("when", "at five"), source="talks")
    (later,) = tokenize([talk], tokenizer, "At: {text}", 100)
    assert tokenizer.decode(later.tokens) == (
        "<|user|>when<|end|><|assistant|>at five<|end|><|user|>At: noon<|end|>"
        "<|assistant|>the team<|end|>"
    )
    assert (tokenizer.decode(later.tokens[later.stream_from :]), later.source) == (
        "the team<|end|>",
        "talks",
    )
    pairs = [Pair("noon", "the team"), Pair("noon " * 99, "no")]
    assert len(tokenize(pairs, tokenizer, None, 60)) == 1
    with pytest.raises(UserError, match="at most 5 tokens"):
        tokenize([Pair("noon", "the team")], tokenizer, None, 5)


def cli(*arguments):
    return result_of(trainer.main, *arguments, hidden=True)


def test_command_line(tied, data, tmp_path):
    flags = ("--model", tied, "--data", data, "--output", tmp_path / "out", "--iters", 1)
    shared = ("--mode", "shared", "--lora-targets", "q_proj,v_proj", "--lora-layers", 1)
    plain = ("--stream-head", "plain")
    result = cli(*flags, *shared, "--num-msa-layers", 1, "--no-bf16", *plain)
    assert result.exit_code == 0, result.output
    lora = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert len(lora) == 4
    assert all(".layers.2.self_attn." in name for name in lora)
    result = cli(*flags, "--mode", "both")
    assert (result.exit_code, result.stdout) == (2, "")
    sentence = "error: --mode: found 'both', expected 'lossless' or 'shared'\n"
    assert result.stderr == sentence


NOWHERE = Path("/nowhere")
HEAD_ALONE = {"train": "head", "stream_head": "conditioned"}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": NOWHERE}, "model directory /nowhere does not exist"),
        ({"lora_rank": 4}, "lora_rank is for shared mode"),
        ({"mode": "shared", "lora_targets": ("q_proj", "x")}, "lora_targets has 'x'"),
        ({"mode": "shared", "lora_layers": 9}, "lora_layers is 9, expected at most the base's 3"),
        ({"epochs": 1}, "iters and epochs were both given"),
        ({**PLAIN, "stream_head_rank": 4}, "stream_head_rank is 4 with stream_head 'plain'"),
        ({"stream_head": "conditioned", "stream_head_rank": 0}, "stream_head_rank is 0 with"),
        ({**PLAIN, "train": "head"}, "train is 'head' with stream_head 'plain', expected 'cond"),
        (HEAD_ALONE, "train is 'head' without init_adapter, expected the adapter whose streams"),
        ({**HEAD_ALONE, "init_adapter": NOWHERE, "alpha_main": 1.0}, "alpha_main is 1.0 with trai"),
        ({"resume": True}, "nothing to resume"),
    ],
)
def test_bad_input_is_one_sentence(settings, values, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        trainer.train(settings(**values))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("left", ["adapter", "checkpoint.pt", "log.jsonl"])
def test_an_earlier_run_is_kept(left, settings):
    chosen = settings(iters=1)
    trainer.train(chosen)
    for path in chosen.output.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = [path.stat() for path in chosen.output.rglob("*")]
    with pytest.raises(UserError) as caught:
        trainer.train(chosen)
    assert str(caught.value) == (
        f"{chosen.output} holds {left} of an earlier run, expected --resume to continue it or "
        "another --output"
    )
    assert [path.stat() for path in chosen.output.rglob("*")] == before


def test_resume_refuses_other_settings_and_damage(settings):
    trainer.train(settings(iters=2))
    with pytest.raises(UserError, match="seed was '0', expected '1' as in this run"):
        trainer.train(settings(iters=2, seed=1, resume=True))
    checkpoint = settings().output / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises(UserError, match="is not a readable checkpoint"):
        trainer.train(settings(iters=2, resume=True))


def first_of(state):
    return next(iter(state["weights"]))


DAMAGES = {
    "step is 'x', expected": lambda s: s.update(step="x"),
    "seconds is nan": lambda s: s.update(seconds=float("nan")),
    "readable checkpoint: ": lambda s: s.update(settings=3),
    r"has shape \(1,\), expected": lambda s: s["weights"].update({first_of(s): torch.zeros(1)}),
    "has no tensor ": lambda s: s["weights"].pop(first_of(s)),
    "fit this run: AttributeError": lambda s: s["weights"].update({first_of(s): 3}),
    "fit this run: ValueError": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(1)),
    "fit this run: TypeError": lambda s: s.update(rng=3),
}


@pytest.fixture(scope="module")
def stopped(defaults, tmp_path_factory):
    """The settings of a run that stopped after one of its two steps."""
    output = tmp_path_factory.mktemp("stopped")
    chosen = {"output": output, **defaults, "iters": 2, "save_every": 1}
    return stopped_at(1, TrainSettings(**chosen))


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_checkpoint(sentence, stopped, tmp_path):
    state = torch.load(stopped.output / "checkpoint.pt", weights_only=True)
    DAMAGES[sentence](state)
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match=f"checkpoint.pt.*{sentence}"):
        trainer.train(replace(stopped, output=tmp_path))
    assert not (tmp_path / "adapter").exists()
