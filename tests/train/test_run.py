"""A training run: it learns, is interrupted and resumed, and leaves an adapter that decodes."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from random_models import plain_tokens, tokens_of
from tiny_models import tiny_llama_directory
from tiny_training import Reports, make_run

from specstream_mlx import UserError, load
from specstream_mlx.adapters.files import LoraPart, write_adapter
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.generation.batch import decode
from specstream_mlx.generation.request import Request
from specstream_mlx.train import batches
from specstream_mlx.train.batches import Batches, Item
from specstream_mlx.train.checkpoint import Checkpoint
from specstream_mlx.train.start import is_of_streams
from specstream_mlx.train.validation import replay, validate


@pytest.mark.parametrize(("mode", "bits"), [("lossless", None), ("shared", 4)])
def test_a_run_learns_and_validation_says_what_decoding_gets(mode, bits, tmp_path, monkeypatch):
    """The adapter is the best state; a replay of its own texts gives the length of its chains."""
    base = tiny_llama_directory(tmp_path / "base", bits=bits)
    run, reports = make_run(base, tmp_path / "out", mode=mode, steps_per_eval=4), Reports()
    run.iterate(reports)
    assert reports.train[-1]["train_loss"] < 0.3 * reports.train[0]["train_loss"]
    lengths = [report["accepted_length"] for report in reports.valid]
    assert lengths[0] < 1.2 and lengths[-1] > 1.35
    assert run.progress.best_length == max(lengths[1:])
    run.write_adapter()
    best = Checkpoint.load(run.best)
    assert best.progress["iterations"] == run.progress.best_iteration
    model, _ = load(base, adapter_path=tmp_path / "out")
    assert (model.mode, bool(model.adapter.lora)) == (mode, mode == "shared")
    written = model.adapter.stream_tensors | model.adapter.lora
    assert_same_arrays({n: a for n, a in written.items() if n in best.parameters}, best.parameters)
    items, tokens, steps, begins = [], 0, 0, []
    for item in run._batches.epoch(0)[0]:
        prompt, text = list(item.tokens[: item.stream_from]), []
        begins.append([])
        for step in decode(model, Request(prompt, DraftSettings(tree_width=1))):
            text += step.tokens
            steps += 1
            if len(text) > 24:
                break
            begins[-1].append(len(prompt) + len(text) - 2)  # the newest token has no row yet
        items.append(Item(prompt + text, item.stream_from))
        tokens, steps = tokens + len(text) - 1, steps - 1  # the prompt's own call writes one
    run.restore(run.best)
    found = validate(run._forward, [items], run._alphas)
    assert found.accepted_length == pytest.approx(tokens / steps, rel=1e-6)
    monkeypatch.setattr(batches, "_REPLAY_EVERY", 100)
    drawn = replay(run._forward, items, run._places)
    assert [item.positions for item in drawn] == begins
    if mode == "lossless":
        expected, _ = run.gradients(drawn)
        run.settings = replace(run.settings, replay=True)
        assert run.gradients(items)[0].item() == expected.item()


DROPOUT = {
    "mode": "shared",
    "lora_parameters": {"rank": 4, "dropout": 0.2, "scale": 2.0},
    "grad_accumulation_steps": 2,
}


@pytest.mark.parametrize("fields", [DROPOUT, {"replay": True}], ids=["dropout", "replay"])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(fields, base, tmp_path):
    whole = make_run(base, tmp_path / "a" / "out", iters=8, **fields)
    assert whole.iterate(Reports())
    first = make_run(base, tmp_path / "b" / "out", iters=8, **fields)
    assert not first.iterate(Reports(), stops=lambda: first.progress.iterations == 6)
    second = make_run(base, tmp_path / "b" / "out", iters=8, **fields, resume=True)
    second.restore(second.last)
    assert second.progress.iterations == 6
    assert second.iterate(Reports())
    found, expected = Checkpoint.load(second.last), Checkpoint.load(whole.last)
    assert list(second.trained.arrays()) == list(whole.trained.arrays())  # norms are sums of these
    assert_same_arrays(found.parameters, expected.parameters)
    assert_same_arrays(found.optimizer, expected.optimizer)
    assert found.progress == expected.progress


def test_other_checkpoints_and_what_is_no_number(base, tmp_path, monkeypatch):
    """They end the run with a sentence, and its last checkpoint stays."""
    run = make_run(base, tmp_path / "out", iters=2, save_every=1)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 1)
    whole, checkpoint = run.last.read_bytes(), Checkpoint.load(run.last)
    nan, name = mx.array(np.nan), "streams.embeddings"
    as_integers = checkpoint.parameters | {name: checkpoint.parameters[name].astype(mx.int32)}
    for changes, sentence in (
        ({"identity": checkpoint.identity | {"iters": "3"}}, "iters was '3' and is now '2'"),
        ({"parameters": {name: mx.zeros(1)}}, rf"{name} has shape \(1,\)"),
        ({"parameters": {name: nan}}, f"{name} holds NaN"),
        ({"optimizer": {}}, "no tensor optimizer "),
        ({"identity": []}, r"its identity is \[\], expected an object"),
        ({"progress": 3}, "is no checkpoint of a run: its progress is 3, expected an object"),
        *(
            ({"progress": checkpoint.progress | {field: value}}, f"of a run: {field} is {value!r}")
            for field, values in {
                "iterations": ("x", -1, 2.5, None, True, 10**30),
                "trained_tokens": (None, "x", -1),
                "best_length": ("x", -1.0, True),
                "best_iteration": (None, -1),
                "waited": ({}, "x", -1),
            }.items()
            for value in values
        ),
        ({"progress": checkpoint.progress | {"more": 1}}, "unknown field 'more'"),
        ({"parameters": as_integers}, f"{name} is of int32, expected float32"),
    ):
        replace(checkpoint, **changes).save(tmp_path / "last.safetensors")
        with pytest.raises(UserError, match=f"last.safetensors.*{sentence}"):
            run.restore(tmp_path / "last.safetensors")
    loss, gradients = run.gradients(run._batches.epoch(0)[0])
    for result, sentence in (
        ((loss * nan, gradients), "the loss is nan in"),
        ((loss, tree_map(lambda one: one * nan, gradients)), "the norm of the gradients is nan in"),
    ):
        monkeypatch.setattr(run, "gradients", lambda items, result=result: result)
        with pytest.raises(UserError, match=f"{sentence} iteration 2, expected a number"):
            run.iterate(Reports())
        assert run.last.read_bytes() == whole


def test_answers_of_nothing_but_the_end_token(base, tmp_path):
    """They have no targets for streams."""
    run = make_run(base, tmp_path / "out", iters=4, batch_size=2, val_batches=-1)
    run._batches = Batches([Item([5, 6, 7, 1], 3)] * 4, 2, 0)
    run._valid = run._batches.epoch(0)
    run.iterate(Reports())
    assert run.progress.best_length == 0.0
    assert run.write_adapter().is_dir()


def test_the_last_update_takes_what_was_gathered_and_patience_ends_a_run(base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=5, grad_accumulation_steps=3, save_every=2)
    saved, save = [], run.save
    run.save = lambda path: (saved.append(run.progress.iterations), save(path))
    run._valid = []
    run.iterate(Reports())
    assert run._optimizer.optimizers[0].step.item() == 2
    assert saved == [0, 3, 5, 5]  # the first update after every two iterations, and the end
    run = make_run(base, tmp_path / "other", steps_per_eval=1, patience=2, learning_rate=1e9)
    run.iterate(Reports())
    assert (run.progress.iterations, run.progress.waited) == (3, 2)


@pytest.mark.parametrize(("size", "gathered", "iters"), [(6, 2, 2), (4, 3, 3), (4, 8, 3)])
@pytest.mark.parametrize("fields", [{"draft_vocabulary": 12}, {"mode": "shared", "pruner_rank": 4}])
def test_gathered_gradients_are_those_of_all_sequences_at_once(
    fields, size, gathered, iters, base, tmp_path
):
    """Also of unequal lengths, and where a run ends before an update has all its iterations."""
    items = [Item([5, 6, *range(7, 9 + 3 * n), 1], 3) for n in range(12)]
    fields = {**fields, "optimizer": "sgd", "learning_rate": 1.0, "max_grad_norm": 1e9}
    found = []
    for name, shape in {"whole": (12, 1, 1), "parts": (size, gathered, iters)}.items():
        changes = dict(zip(("batch_size", "grad_accumulation_steps", "iters"), shape, strict=True))
        run, reports = make_run(base, tmp_path / name / "out", **fields, **changes), Reports()
        before = run.trained.arrays()
        run._batches, run._valid = Batches(items, shape[0], 0), []
        run.iterate(reports)
        steps = {n: array - before[n] for n, array in run.trained.arrays().items()}
        found.append((steps, reports.train[-1]["train_loss"]))
    (whole, loss), (parts, mean) = found
    assert mean == pytest.approx(loss, rel=1e-4)
    assert sum(float(mx.abs(step).max()) > 0 for step in whole.values()) > 3
    for name, step in whole.items():
        assert mx.abs(parts[name] - step).max() <= 1e-4 * mx.abs(step).max() + 1e-8, name


def test_an_adapter_to_start_from(base, tmp_path):
    """It keeps its shape and draft vocabulary, and is trained in single precision."""
    lora = {"rank": 4, "dropout": 0.1, "scale": 2.0}
    shared = {"mode": "shared", "lora_parameters": lora}
    first = make_run(base, tmp_path / "first", **shared, draft_vocabulary=12, iters=2)
    first.iterate(Reports())
    first.trained.set_dtype(mx.float16)
    first.save(first.best)
    first.write_adapter()
    start = {"mode": "shared", "init_adapter": tmp_path / "first"}
    run = make_run(base, tmp_path / "out", **start)
    assert mx.array_equal(run._start.streams.vocabulary, first._start.streams.vocabulary)
    assert {array.dtype for array in run.trained.arrays().values()} == {mx.float32}
    run = make_run(base, tmp_path / "other", **start, draft_vocabulary=9)
    assert run._start.streams.vocabulary.shape == (9,)
    with pytest.raises(UserError, match=r"num_streams is 6, expected none: .* has 4"):
        make_run(base, tmp_path / "out", **start, num_streams=6)
    shared["lora_parameters"] = lora | {"keys": ["attention.q"]}
    with pytest.raises(UserError, match="keys name no linear layer of the base"):
        make_run(base, tmp_path / "out", **shared)


def test_lossless_streams_for_lora_that_stays(base, tmp_path):
    """Streams for an adapter of mlx_lm's: the text is the adapter's, token for token."""
    lora = {"rank": 4, "dropout": 0.1, "scale": 8.0}
    own = make_run(base, tmp_path / "own", mode="shared", iters=4, lora_parameters=lora)
    own.iterate(Reports())
    tensors = {n: a for n, a in own.trained.arrays().items() if not is_of_streams(n)}
    (tmp_path / "lora").mkdir()
    write_adapter(tmp_path / "lora", LoraPart(tensors, lora, 4), None, {})
    run = make_run(base, tmp_path / "out", init_adapter=tmp_path / "lora", draft_vocabulary=12)
    assert all(map(is_of_streams, run.trained.arrays()))
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
    for item in run._batches.epoch(0)[0]:
        prompt = item.tokens[: item.stream_from]
        texts.append(tokens_of(model, prompt, 24)[:24])
        assert texts[-1] == plain_tokens(alone.model, prompt, 24)
    assert texts[-1] != plain_tokens(bare.model, prompt, 24)
    with pytest.raises(UserError, match="has no streams, expected some"):
        make_run(base, tmp_path / "shared", init_adapter=tmp_path / "lora", mode="shared")
    again = make_run(base, tmp_path / "again", init_adapter=tmp_path / "out", iters=1)
    again.iterate(Reports())
    again.write_adapter()
    assert_same_arrays(load(base, adapter_path=tmp_path / "again")[0].adapter.lora, tensors)


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)
