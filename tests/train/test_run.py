"""A training run: it learns, is interrupted and resumed, and leaves an adapter that decodes."""

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
from specstream_mlx.request import Request
from specstream_mlx.scheduler import decode
from specstream_mlx.train.batches import Batches, Item
from specstream_mlx.train.checkpoint import Checkpoint
from specstream_mlx.train.start import is_of_streams


@pytest.mark.parametrize(("mode", "vocabulary"), [("lossless", 0), ("lossless", 6), ("shared", 0)])
def test_a_run_learns_and_validation_says_what_decoding_gets(mode, vocabulary, base, tmp_path):
    """The adapter is the best state; a replay of its own texts gives the length of its chains."""
    changes = {"mode": mode, "draft_vocabulary": vocabulary, "steps_per_eval": 4}
    run, reports = make_run(base, tmp_path / "out", **changes), Reports()
    run.iterate(reports)
    losses = [report["train_loss"] for report in reports.train]
    assert losses[-1] < 0.3 * losses[0]
    lengths = [report["accepted_length"] for report in reports.valid]
    assert lengths[-1] > 1.35 and lengths[-1] > lengths[0]
    assert vocabulary or lengths[0] < 1.2
    assert run.progress.best_length == max(lengths[1:])
    run.write_adapter()
    best = Checkpoint.load(run.best)
    assert best.progress["iterations"] == run.progress.best_iteration
    model, _ = load(base, adapter_path=tmp_path / "out")
    assert (model.mode, bool(model.adapter.lora)) == (mode, mode == "shared")
    written = model.adapter.stream_tensors | model.adapter.lora
    assert_same_arrays({n: a for n, a in written.items() if n in best.parameters}, best.parameters)
    items, tokens, steps = [], 0, 0
    for item in run._batches.epoch(0)[0]:
        prompt, text = list(item.tokens[: item.stream_from]), []
        calls = -1  # the prompt's own
        for step in decode(model, Request(prompt, DraftSettings(tree_width=1))):
            text += step.tokens
            calls += 1
            if len(text) > 24:
                break
        items.append(Item(prompt + text, item.stream_from))
        tokens, steps = tokens + len(text) - 1, steps + calls
    run.restore(run.best)
    run._valid = [items]
    assert run.validation().accepted_length == pytest.approx(tokens / steps, rel=1e-6)


DROPOUT = {
    "mode": "shared",
    "lora_parameters": {"rank": 4, "dropout": 0.2, "scale": 2.0},
    "grad_accumulation_steps": 2,
}


@pytest.mark.parametrize(("stop", "changes"), [(3, {}), (6, DROPOUT)])
def test_a_resumed_run_is_the_run_that_was_not_interrupted(stop, changes, base, tmp_path):
    whole = make_run(base, tmp_path / "a" / "out", iters=8, **changes)
    assert whole.iterate(Reports())
    first = make_run(base, tmp_path / "b" / "out", iters=8, **changes)
    assert not first.iterate(Reports(), stops=lambda: first.progress.iterations == stop)
    second = make_run(base, tmp_path / "b" / "out", iters=8, **changes, resume=True)
    second.restore(second.last)
    assert second.progress.iterations == stop
    assert second.iterate(Reports())
    found, expected = Checkpoint.load(second.last), Checkpoint.load(whole.last)
    assert list(second.trained.arrays()) == list(whole.trained.arrays())  # norms are sums of these
    assert_same_arrays(found.parameters, expected.parameters)
    assert_same_arrays(found.optimizer, expected.optimizer)
    assert found.progress == expected.progress


@pytest.fixture(scope="module")
def run_of_one(base, tmp_path_factory):
    """A run after one of its two iterations."""
    run = make_run(base, tmp_path_factory.mktemp("run") / "out", iters=2)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 1)
    return run


DAMAGES = {
    "iterations is 'x', expected": lambda c: c.progress.update(iterations="x"),
    "its metadata has the number NaN": lambda c: c.progress.update(waited=float("nan")),
    r"parameter streams.embeddings has shape \(1,\)": lambda c: c.parameters.update(
        {"streams.embeddings": mx.zeros(1)}
    ),
    "parameter streams.embeddings holds NaN": lambda c: c.parameters.update(
        {"streams.embeddings": c.parameters["streams.embeddings"] * float("nan")}
    ),
    "optimizer states.0.step has dtype mlx.core.float32": lambda c: c.optimizer.update(
        {"states.0.step": mx.array(1.0)}
    ),
    "no tensor optimizer ": lambda c: c.optimizer.clear(),
}


def test_damaged_checkpoints_and_those_of_other_settings(run_of_one, base, tmp_path):
    before = run_of_one.progress, run_of_one.trained.arrays()
    for sentence, damage in DAMAGES.items():
        checkpoint = Checkpoint.load(run_of_one.last)
        damage(checkpoint)
        checkpoint.save(tmp_path / "last.safetensors")
        with pytest.raises(UserError, match=f"last.safetensors.*{sentence}"):
            run_of_one.restore(tmp_path / "last.safetensors")
        assert run_of_one.progress == before[0]
        assert_same_arrays(run_of_one.trained.arrays(), before[1])
    other = make_run(base, tmp_path / "out", iters=3)
    with pytest.raises(UserError, match=r"last.safetensors: iters was '2', expected '3' as in"):
        other.restore(run_of_one.last)


def test_what_is_no_number_ends_the_run_and_spares_the_checkpoint(base, tmp_path, monkeypatch):
    run = make_run(base, tmp_path / "out", iters=4, save_every=1)
    run.iterate(Reports(), stops=lambda: run.progress.iterations == 2)
    before, right = run.last.read_bytes(), run.gradients
    for of_loss, of_gradients, sentence in (
        (np.nan, 1, "the loss is nan in"),
        (1, np.inf, "the norm of the gradients is nan in"),
    ):

        def wrong(items, of_loss=of_loss, of_gradients=of_gradients):
            loss, gradients = right(items)
            gradients = tree_map(lambda one: one * mx.array(of_gradients), gradients)
            return loss * mx.array(of_loss), gradients

        monkeypatch.setattr(run, "gradients", wrong)
        with pytest.raises(UserError, match=f"{sentence} iteration 3, expected a number"):
            run.iterate(Reports())
        assert run.last.read_bytes() == before


def test_answers_of_nothing_but_the_end_token(base, tmp_path):
    """They have no targets for streams, and batches of nothing else no loss."""
    run = make_run(base, tmp_path / "out", iters=4, batch_size=2, val_batches=-1)
    run._batches = Batches([Item([5, 6, 7, 1], 3)] * 4, 2, 0)
    run._valid = run._batches.epoch(0)
    run.iterate(Reports())
    assert run.progress.best_length == 0.0
    assert run.write_adapter().is_dir()


def test_a_quantized_base_is_trained_against_its_own_weights(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    run, reports = make_run(base, tmp_path / "out", mode="shared", iters=8), Reports()
    run.iterate(reports)
    assert reports.train[-1]["train_loss"] < 0.6 * reports.train[0]["train_loss"]


def test_the_last_update_takes_what_was_gathered_and_patience_ends_a_run(base, tmp_path):
    run = make_run(base, tmp_path / "out", iters=5, grad_accumulation_steps=3, save_every=2)
    saved, save, updates, update = [], run.save, [], run._optimizer.update
    run.save = lambda path: (saved.append(run.progress.iterations), save(path))
    run._optimizer.update = lambda *given: (
        updates.append(run.progress.iterations),
        update(*given),
    )
    run._valid = []
    run.iterate(Reports())
    assert updates == [2, 4]
    assert saved == [0, 3, 5, 5]  # the first update after every two iterations, and the end
    run = make_run(base, tmp_path / "other", steps_per_eval=1, patience=2)
    run._validate = lambda callback: setattr(run.progress, "waited", run.progress.iterations - 3)
    run.iterate(Reports())
    assert run.progress.iterations == 5


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


def test_lora_to_start_from_is_trained_in_single_precision(base, tmp_path):
    lora = {"rank": 4, "dropout": 0.1, "scale": 2.0}
    first = make_run(base, tmp_path / "first", mode="shared", iters=2, lora_parameters=lora)
    first.iterate(Reports())
    first.trained.set_dtype(mx.float16)
    first.save(first.best)
    first.write_adapter()
    start = {"mode": "shared", "init_adapter": tmp_path / "first"}
    run = make_run(base, tmp_path / "out", **start)
    assert {array.dtype for array in run.trained.arrays().values()} == {mx.float32}
    with pytest.raises(UserError, match=r"dropout is 0.1 with grad_checkpoint, expected 0"):
        make_run(base, tmp_path / "out", **start, grad_checkpoint=True)


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
    assert texts != [
        plain_tokens(bare.model, i.tokens[: i.stream_from], 24) for i in run._batches.epoch(0)[0]
    ]
    with pytest.raises(UserError, match="has no streams, expected some"):
        make_run(base, tmp_path / "shared", init_adapter=tmp_path / "lora", mode="shared")
    again = make_run(base, tmp_path / "again", init_adapter=tmp_path / "out", iters=1)
    again.iterate(Reports())
    again.write_adapter()
    assert_same_arrays(load(base, adapter_path=tmp_path / "again")[0].adapter.lora, tensors)


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)


def test_lora_that_would_not_learn_is_refused(base, tmp_path):
    lora = {"rank": 4, "dropout": 0.0, "scale": 2.0, "keys": ["attention.q"]}
    with pytest.raises(UserError, match="keys name no linear layer of the base"):
        make_run(base, tmp_path / "out", mode="shared", lora_parameters=lora)
