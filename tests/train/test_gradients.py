"""The loss of a step in MLX, and its gradients, against PyTorch on the same weights and batch."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import torch
from both_sides import ITEMS, Sides
from specstream_mlx.convert.pytorch.losses import stream_hits
from specstream_mlx.convert.pytorch.training_run import collate

from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.models.architectures import ARCHITECTURES
from specstream_mlx.train import batches
from specstream_mlx.train import forward as forward_module
from specstream_mlx.train.batches import Item, replayed
from specstream_mlx.train.loss import head_cross_entropy
from specstream_mlx.train.sequences import places_of
from specstream_mlx.train.validation import replay

BOUND = 1e-4
"""Of each tensor's largest gradient, in float32."""

FAMILIES = {  # with the mode that each is tried in
    "Llama 3.2, tied": ("llama", "lossless"),
    "Mistral 0.1, window": ("mistral", "shared"),
    "Phi-2": ("phi", "lossless"),
    "Phi-3 mini 4k, window": ("phi3", "shared"),
    "Qwen2, windows on the upper layers": ("qwen2", "lossless"),
    "Qwen3 8B": ("qwen3", "shared"),
    "Gemma 2": ("gemma2", "lossless"),
    "Gemma 3": ("gemma3_text", "shared"),
    "OPT": ("opt", "lossless"),
}

HEAD = {"stream_head": "conditioned", "stream_head_rank": 5}
VARIANTS = {
    "linear": {"stream_init": "linear", "stream_init_rank": 4, "stream_mlp": "base+adapter"},
    "value rotation": {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3},
    "selected keys": {"stream_keys": 5, **HEAD},
    "selected keys, shared": {"stream_keys": 5, "mode": "shared", **HEAD},
    "every layer": {"num_msa_layers": 4},
    "no pruner, one stream": {"pruner_rank": 0, "num_streams": 1},
}


def assert_equal(sides, loss="cross_entropy", items=ITEMS, **kind):
    expected, gradients = sides.expected(loss, items)
    (total, per_stream, pruner), found = sides.found(**kind, loss=loss, items=items)
    assert total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    weighted = torch.tensor(sides.alphas) * expected.per_stream
    assert np.array(per_stream) == pytest.approx(weighted.numpy(), rel=1e-5, abs=1e-8)
    assert pruner.item() == pytest.approx(expected.pruner.item(), rel=1e-5)
    assert found.keys() == gradients.keys()
    off = {
        name: np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        for name, gradient in gradients.items()
    }
    assert max(off.values()) < BOUND, max(off.items(), key=lambda item: item[1])


@pytest.mark.parametrize("case", FAMILIES)
def test_all_families(case, tmp_path):
    assert {family for family, _ in FAMILIES.values()} == set(ARCHITECTURES)
    assert_equal(Sides(case, tmp_path, FAMILIES[case][1]))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants(variant, tmp_path):
    assert_equal(Sides("Mistral 0.1, window", tmp_path, **VARIANTS[variant]))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
@pytest.mark.parametrize("loss", ["acceptance", "half"])
def test_all_losses(loss, mode, tmp_path):
    """Also of targets that are outside of the draft vocabulary, where a chain ends."""
    sides = Sides("Gemma 2", tmp_path, mode, **HEAD, draft_vocabulary=40)
    assert_equal(sides, loss)
    plain, other = (sides.expected(name)[0].per_stream[1] for name in ("cross_entropy", loss))
    assert plain.item() != pytest.approx(other.item(), rel=1e-3)


def test_replayed_positions(tmp_path, monkeypatch):
    """Both sides draw the same, and learn the same at what is drawn."""
    monkeypatch.setattr(batches, "_REPLAY_EVERY", 100)
    sides, items = Sides("Gemma 2", tmp_path, **HEAD, draft_vocabulary=40, stream_keys=5), []
    for item in ITEMS:  # of which the first stream has guessed every other token
        tokens, start = torch.tensor([item.tokens]), torch.tensor([item.stream_from])
        for place in range(item.completion_tokens - 1):
            out = sides.torch_model(tokens, start, torch.tensor([len(item.tokens)]))
            guesses = out.stream_logits[0, place, 0][sides.torch_model.draft_vocabulary]
            if place % 2:
                tokens[0, item.stream_from + 1 + place] = guesses.argmax()
        items.append(Item(tokens[0].tolist(), item.stream_from))
    forward = forward_module.StreamForward(sides.model, sides.config, sides.streams)
    places = places_of(sides.streams.vocabulary, sides.config["vocab_size"])
    drawn = replay(forward, items, places)
    assert drawn == list(map(replayed, items, stream_hits(sides.torch_model, collate(items))))
    assert all(0 < len(item.positions) < item.completion_tokens - 2 for item in drawn)
    assert_equal(sides, "half", drawn)


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_checkpointed(mode, tmp_path, monkeypatch):
    """The same, with layers that are computed twice; with a draft vocabulary, too."""
    fields = {**HEAD, "stream_keys": 6, "draft_vocabulary": 40}
    sides, calls = Sides("Gemma 2", tmp_path, mode, **fields), []
    layer = BorrowedModel.layer
    monkeypatch.setattr(BorrowedModel, "layer", lambda *all: calls.append(all[1]) or layer(*all))
    assert_equal(sides)
    once = len(calls)
    assert_equal(sides, checkpoint=True, segment=3)
    assert len(calls) - once > once


@pytest.mark.parametrize(
    ("detail", "mode"),
    [("position", "lossless"), ("order", "shared"), ("window", "lossless"), ("segment", "shared")],
)
def test_a_wrong_detail_would_show(detail, mode, tmp_path, monkeypatch):
    """Negative control: what a row's place or its sight rests on."""
    visibility = forward_module.Visibility
    right, in_segments = visibility.__init__, visibility.in_segments

    def wrong(self, sequences, config, windows, group_axis):
        right(self, sequences, config, windows, group_axis)
        if detail == "position":
            self.positions = self.positions + (mx.arange(self.positions.shape[1]) == 0)
        elif detail == "order":
            self.sees_streams = self.sees_streams[:, ::-1, ::-1]
        elif detail == "window":
            whole = visibility.__new__(visibility)
            right(whole, sequences, config, {None}, group_axis)
            self.seen = dict.fromkeys(windows, whole.seen[None])

    monkeypatch.setattr(visibility, "__init__", wrong)
    if detail == "segment":
        monkeypatch.setattr(
            visibility, "in_segments", lambda self, whole: in_segments(self, whole)[::-1]
        )
    with pytest.raises(AssertionError):
        assert_equal(Sides("Mistral 0.1, window", tmp_path, mode))


def test_the_logits_of_all_rows_are_never_held():
    """The head goes slice by slice, which gives the loss and the gradient of the whole."""
    rows, vocab_size = 4096, 8192
    hidden, weight = mx.random.normal((rows, 8)), mx.random.normal((vocab_size, 8))
    targets, weights = mx.random.randint(0, vocab_size, (rows,)), mx.linspace(0, 1, rows)

    def by_slices(hidden):
        losses = head_cross_entropy(lambda part: part @ weight.T, hidden, targets, vocab_size)
        return (losses * weights).sum()

    def whole(hidden):
        return (nn.losses.cross_entropy(hidden @ weight.T, targets) * weights).sum()

    mx.eval(hidden, weight, targets, weights)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    loss, gradient = mx.value_and_grad(by_slices)(hidden)
    mx.eval(loss, gradient)
    assert mx.get_peak_memory() - before < rows * vocab_size * 4 / 2
    expected, expected_gradient = mx.value_and_grad(whole)(hidden)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)
