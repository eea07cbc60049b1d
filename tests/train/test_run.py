"""A training run: it learns, is interrupted and resumed, and leaves an adapter that decodes."""

import mlx.core as mx
import numpy as np
import pytest
from random_models import plain_tokens, tokens_of
from tiny_models import tiny_llama_directory
from tiny_training import Reports, make_run

from specstream_mlx import UserError, load
from specstream_mlx.adapters.files import LoraPart, write_adapter
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.train.checkpoint import Checkpoint
from specstream_mlx.train.items import Batches, Item
from specstream_mlx.train.optimizer import KINDS
from specstream_mlx.train.parameters import is_of_streams
from specstream_mlx.train.validation import steps_of


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_a_run_learns_and_its_adapter_decodes(mode, base, tmp_path):
    run, reports = make_run(base, tmp_path / "out", mode=mode), Reports()
    run.iterate(reports)
    losses = [report["train_loss"] for report in reports.train]
    assert losses[-1] < 0.3 * losses[0]
    assert reports.valid[-1]["accepted_length"] > 1.35 > 1.2 > reports.valid[0]["accepted_length"]
    found = run.validation()
    run.write_adapter()
    model, _ = load(base, adapter_path=tmp_path / "out")
    assert model.mode == mode
    assert bool(model.adapter.lora) == (mode == "shared")
    mx.eval(model.streams.parameters())
    assert found.accepted_length == reports.valid[-1]["accepted_length"]


def test_the_adapter_is_the_best_state_not_the_last(base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=8, steps_per_eval=4)
    run.iterate(Reports())
    best = Checkpoint.load(run.best)
    assert best.progress["iterations"] == run.progress.best_iteration
    run.write_adapter()
    model, _ = load(base, adapter_path=tmp_path / "out")
    for name, array in best.parameters.items():
        assert mx.array_equal(model.adapter.stream_tensors[name], array)


@pytest.mark.parametrize("vocabulary", [0, 6], ids=["all tokens", "a draft vocabulary"])
def test_validation_says_what_decoding_gets(vocabulary, base, tmp_path):
    """The replay on text that the target wrote is the accepted length of its chains."""
    run = make_run(base, tmp_path / "out", iters=12, draft_vocabulary=vocabulary)
    run.iterate(Reports())
    run.write_adapter()
    model, _ = load(base, adapter_path=tmp_path / "out")
    settings = DraftSettings(tree_width=1)
    items, tokens, steps = [], 0, 0
    for item in run.epoch[0]:
        prompt, written = item.tokens[: item.stream_from], []
        calls = -1  # the prompt's own
        for step in decode(model, Request(prompt, settings)):
            written += step.tokens
            calls += 1
            if len(written) > 24:
                break
        items.append(type(item)(prompt + written, item.stream_from))
        tokens, steps = tokens + len(written) - 1, steps + calls
    run.restore(run.best)
    run._valid = [items]
    assert run.validation().accepted_length == pytest.approx(tokens / steps, rel=1e-6)


def test_steps_of_a_chain():
    right = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 1]], bool)
    assert steps_of(right) == 3  # 0 to 3, 3 to 4, 4 to the end
    assert steps_of(right[:0]) == 0


# Interrupted and resumed ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lossless", "dropout and accumulation"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(kind, base, tmp_path):
    changes = {}
    if kind != "lossless":
        lora = {"rank": 4, "dropout": 0.2, "scale": 2.0}
        changes = {"mode": "shared", "lora_parameters": lora, "grad_accumulation_steps": 2}
    whole = make_run(base, tmp_path / "a" / "out", iters=8, **changes)
    assert whole.iterate(Reports())
    for stop in (2, 6):
        first = make_run(base, tmp_path / str(stop) / "out", iters=8, **changes)
        assert not first.iterate(
            Reports(), stops=lambda f=first, s=stop: f.progress.iterations == s
        )
        second = make_run(base, tmp_path / str(stop) / "out", iters=8, **changes, resume=True)
        second.restore(second.last)
        assert second.progress.iterations == stop
        assert list(second.parameters) == list(whole.parameters)  # norms are sums in this order
        assert second.iterate(Reports())
        ours, expected = Checkpoint.load(second.last), Checkpoint.load(whole.last)
        assert ours.parameters.keys() == expected.parameters.keys()
        for name in expected.parameters:
            assert mx.array_equal(ours.parameters[name], expected.parameters[name]), name
        for name in expected.optimizer:
            assert mx.array_equal(ours.optimizer[name], expected.optimizer[name]), name
        assert ours.progress == expected.progress


def test_a_run_is_not_resumed_with_other_settings(base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=2)
    run.iterate(Reports())
    other = make_run(base, tmp_path / "out", iters=3)
    with pytest.raises(UserError, match=r"last.safetensors: iters was '2', expected '3' as in"):
        other.restore(other.last)
    run.last.write_bytes(run.last.read_bytes()[:-10])
    with pytest.raises(UserError, match="is no checkpoint of a run"):
        run.restore(run.last)


DAMAGES = {
    "iterations is 'x', expected": lambda c: c.progress.update(iterations="x"),
    "unexpected keyword argument 'steps'": lambda c: c.progress.update(steps=1),
    "its metadata has the number NaN": lambda c: c.progress.update(waited=float("nan")),
    "progress is 3": lambda c: replaced(c, progress=3),
    r"identity is \[\]": lambda c: replaced(c, identity=[]),
    r"parameter streams.embeddings has shape \(1,\)": lambda c: c.parameters.update(
        {"streams.embeddings": mx.zeros(1)}
    ),
    "parameter streams.embeddings holds NaN": lambda c: c.parameters.update(
        {"streams.embeddings": c.parameters["streams.embeddings"] * float("nan")}
    ),
    "no tensor parameter streams.embeddings": lambda c: c.parameters.pop("streams.embeddings"),
    "optimizer embeddings step has dtype mlx.core.float32": lambda c: c.optimizer.update(
        {"embeddings step": mx.array(1.0)}
    ),
    "no tensor optimizer ": lambda c: c.optimizer.clear(),
}


def replaced(checkpoint, **fields):
    for name, value in fields.items():
        object.__setattr__(checkpoint, name, value)


@pytest.fixture(scope="module")
def run_of_one(base, tmp_path_factory):
    """A run after one of its two iterations."""
    run = make_run(base, tmp_path_factory.mktemp("run") / "out", iters=2)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 1)
    return run


@pytest.mark.parametrize("sentence", DAMAGES)
def test_a_damaged_checkpoint(sentence, run_of_one, tmp_path):
    checkpoint = Checkpoint.load(run_of_one.last)
    DAMAGES[sentence](checkpoint)
    checkpoint.save(tmp_path / "last.safetensors")
    before = run_of_one.progress, id(run_of_one.parameters)
    with pytest.raises(UserError, match=f"last.safetensors.*{sentence}"):
        run_of_one.restore(tmp_path / "last.safetensors")
    assert (run_of_one.progress, id(run_of_one.parameters)) == before


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [((np.nan, 1), "the loss is nan in"), ((1, np.inf), "the norm of the gradients is nan in")],
)
def test_what_is_no_number_ends_the_run_and_spares_the_checkpoint(
    factors, sentence, base, tmp_path, monkeypatch
):
    run = make_run(base, tmp_path / "out", iters=4, save_every=1)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 2)
    before, right = run.last.read_bytes(), run.gradients

    def wrong(items):
        loss, gradients = right(items)
        gradients = {name: one * mx.array(factors[1]) for name, one in gradients.items()}
        return loss * mx.array(factors[0]), gradients

    monkeypatch.setattr(run, "gradients", wrong)
    with pytest.raises(UserError, match=f"{sentence} iteration 3, expected a number"):
        run.iterate(Reports())
    assert run.last.read_bytes() == before


@pytest.mark.parametrize("optimizer", KINDS)
def test_a_checkpoint_of_every_optimizer_is_read(optimizer, base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=2, optimizer=optimizer)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 1)
    other = make_run(base, tmp_path / "out", iters=2, optimizer=optimizer)
    other.restore(run.last)
    assert other.progress == run.progress


def test_answers_of_nothing_but_the_end_token(base, tmp_path):
    """They have no targets for streams, and batches of nothing else no loss."""
    run = make_run(base, tmp_path / "out", iters=4, batch_size=2, val_batches=-1)
    run._batches = Batches([Item([5, 6, 7, 1], 3)] * 4, 2, 0)
    run._valid = run.epoch
    run.iterate(Reports())
    assert run.progress.best_length == 0.0
    assert run.write_adapter().is_dir()


def test_a_quantized_base_is_trained_against_its_own_weights(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    run, reports = make_run(base, tmp_path / "out", mode="shared", iters=8), Reports()
    run.iterate(reports)
    assert reports.train[-1]["train_loss"] < 0.6 * reports.train[0]["train_loss"]


def test_the_last_update_takes_what_was_gathered(base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=5, grad_accumulation_steps=3, save_every=2)
    saved, save = [], run.save
    run.save = lambda path: (saved.append(run.progress.iterations), save(path))
    updates, apply = [], run._optimizer.apply

    def counted(*given):
        updates.append(run.progress.iterations)
        return apply(*given)

    run._optimizer.apply = counted
    run._valid = []
    run.iterate(Reports())
    assert updates == [2, 4]
    assert saved == [0, 3, 5, 5]  # the first update behind every two iterations, and the end


def test_patience_ends_a_run(base, tmp_path):
    run, reports = make_run(base, tmp_path / "out", steps_per_eval=1, patience=2), Reports()
    run._validate = lambda callback: setattr(run.progress, "waited", run.progress.iterations - 3)
    run.iterate(reports)
    assert run.progress.iterations == 5


# What is trained, against what ------------------------------------------------------------------


def test_the_head_alone(base, tmp_path):
    """Streams, pruner and LoRA stay; the run takes their shape without being told it."""
    plain = make_run(base, tmp_path / "plain", stream_head="plain", stream_head_rank=None, iters=8)
    plain.iterate(Reports())
    plain.write_adapter()
    run = make_run(base, tmp_path / "out", train="head", init_adapter=tmp_path / "plain")
    assert all(name.startswith("streams.head.") for name in run.parameters)
    reports = Reports()
    run.iterate(reports)
    assert reports.valid[-1]["val_loss"] < reports.valid[0]["val_loss"]
    run.write_adapter()
    old, new = (load(base, adapter_path=tmp_path / name)[0].adapter for name in ("plain", "out"))
    for name, tensor in old.stream_tensors.items():
        assert mx.array_equal(new.stream_tensors[name], tensor)
    assert new.stream_tensors["streams.head.up.weight"].any()


def test_an_adapter_to_start_from_keeps_its_shape_and_vocabulary(base, tmp_path):
    first = make_run(base, tmp_path / "first", draft_vocabulary=12, iters=2)
    first.iterate(Reports())
    first.write_adapter()
    start = {"init_adapter": tmp_path / "first"}
    run = make_run(base, tmp_path / "out", **start)
    assert mx.array_equal(run._start.streams.vocabulary, first._start.streams.vocabulary)
    run = make_run(base, tmp_path / "other", **start, draft_vocabulary=9)
    assert run._start.streams.vocabulary.shape == (9,)
    with pytest.raises(UserError, match=r"num_streams is 6, expected none: .* has 4"):
        make_run(base, tmp_path / "out", **start, num_streams=6)


def test_lora_to_start_from(base, tmp_path):
    """Half precision is trained in single."""
    lora = {"rank": 4, "dropout": 0.1, "scale": 2.0}
    first = make_run(base, tmp_path / "first", mode="shared", iters=2, lora_parameters=lora)
    first.iterate(Reports())
    first.parameters = {name: a.astype(mx.float16) for name, a in first.parameters.items()}
    first.save(first.best)
    first.write_adapter()
    start = {"mode": "shared", "init_adapter": tmp_path / "first"}
    run = make_run(base, tmp_path / "out", **start)
    assert {array.dtype for array in run.parameters.values()} == {mx.float32}
    with pytest.raises(UserError, match=r"dropout is 0.1 with grad_checkpoint, expected 0"):
        make_run(base, tmp_path / "out", **start, grad_checkpoint=True)


def test_lossless_streams_for_lora_that_stays(base, tmp_path):
    """Streams for an adapter of mlx_lm's: the text is the adapter's, token for token."""
    lora = {"rank": 4, "dropout": 0.1, "scale": 8.0}
    own = make_run(base, tmp_path / "own", mode="shared", iters=4, lora_parameters=lora)
    own.iterate(Reports())
    tensors = {n: a for n, a in own.parameters.items() if not is_of_streams(n)}
    (tmp_path / "lora").mkdir()
    write_adapter(tmp_path / "lora", LoraPart(tensors, lora, 4), None, {})
    run = make_run(base, tmp_path / "out", init_adapter=tmp_path / "lora", draft_vocabulary=12)
    assert all(map(is_of_streams, run.parameters))
    reports = Reports()
    run.iterate(reports)
    assert reports.valid[-1]["accepted_length"] > reports.valid[0]["accepted_length"]
    run.write_adapter()
    model, _ = load(base, adapter_path=tmp_path / "out")
    assert model.mode == "lossless"
    assert_same_arrays(model.adapter.lora, tensors)
    alone, _ = load(base, adapter_path=tmp_path / "lora")
    bare, _ = load(base)
    texts = []
    for item in run.epoch[0]:
        prompt = item.tokens[: item.stream_from]
        texts.append(tokens_of(model, prompt, 24)[:24])
        assert texts[-1] == plain_tokens(alone.model, prompt, 24)
    assert texts != [plain_tokens(bare.model, i.tokens[: i.stream_from], 24) for i in run.epoch[0]]
    with pytest.raises(UserError, match="has no streams, expected some"):
        make_run(base, tmp_path / "head", init_adapter=tmp_path / "lora", train="head")
    again = make_run(base, tmp_path / "again", init_adapter=tmp_path / "out", iters=1)
    again.iterate(Reports())
    again.write_adapter()
    assert_same_arrays(load(base, adapter_path=tmp_path / "again")[0].adapter.lora, tensors)


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)


def test_lora_that_would_not_learn_is_refused(base, tmp_path):
    for keys, sentence in (
        (["self_attn.q_proj", "model.embed_tokens"], "keys name model.embed_tokens, expected"),
        (["attention.q"], "keys name no linear layer of the base"),
    ):
        lora = {"rank": 4, "dropout": 0.0, "scale": 2.0, "keys": keys}
        with pytest.raises(UserError, match=sentence):
            make_run(base, tmp_path / "out", mode="shared", lora_parameters=lora)
    with pytest.raises(UserError, match=r"num_layers is 9, expected at most the base's 4"):
        make_run(base, tmp_path / "out", mode="shared", num_layers=9)
