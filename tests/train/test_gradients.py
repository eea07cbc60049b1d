"""The loss of a step in MLX, and its gradients, against PyTorch on the same weights and batch."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import torch
from both_sides import Sides

from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.models.architectures import ARCHITECTURES
from specstream_mlx.train import forward as forward_module
from specstream_mlx.train.loss import head_cross_entropy

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


def assert_equal(sides, loss="cross_entropy", **kind):
    expected, gradients = sides.expected(loss)
    (total, per_stream, pruner), found = sides.found(**kind, loss=loss)
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
            self.own = self.own[:, ::-1, ::-1]
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
