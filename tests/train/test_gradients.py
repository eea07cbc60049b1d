"""The loss of a step in MLX, and its gradients, against PyTorch on the same weights and batch."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from both_sides import Sides

from specstream_mlx.engine.borrowed_model import BorrowedModel
from specstream_mlx.models.architectures import ARCHITECTURES
from specstream_mlx.train import forward as forward_module

BOUND = 1e-4
"""Of each tensor's largest gradient, in float32."""

FAMILIES = {
    "Llama 3.2, tied": "llama",
    "Mistral 0.1, window": "mistral",
    "Phi-2": "phi",
    "Phi-3 mini 4k, window": "phi3",
    "Qwen2, windows on the upper layers": "qwen2",
    "Qwen3 8B": "qwen3",
    "Gemma 2": "gemma2",
    "Gemma 3": "gemma3_text",
    "OPT": "opt",
}

SHARED = {"mode": "shared"}
VARIANTS = {
    "linear": {"stream_init": "linear", "stream_init_rank": 4, "stream_mlp": "base+adapter"},
    "value rotation": {"stream_init": "value_rotation", "value_rotation_epsilon": 0.3},
    "conditioned head": {"stream_head": "conditioned", "stream_head_rank": 5},
    "selected keys": {"stream_keys": 5},
    "selected keys, shared": {"stream_keys": 5, **SHARED},
    "every layer": {"num_msa_layers": 4},
    "no pruner, one stream": {"pruner_rank": 0, "num_streams": 1},
    "conditioned head, shared": {"stream_head": "conditioned", "stream_head_rank": 5, **SHARED},
}


def assert_equal(sides, **kind):
    expected, gradients = sides.expected()
    (total, per_stream, pruner), found = sides.found(**kind)
    assert total.item() == pytest.approx(expected.total.item(), rel=1e-5)
    weighted = torch.tensor(sides.alphas) * expected.per_stream
    assert np.array(per_stream) == pytest.approx(weighted.numpy(), rel=1e-5)
    assert pruner.item() == pytest.approx(expected.pruner.item(), rel=1e-5)
    assert found.keys() == gradients.keys()
    off = {
        name: np.abs(found[name] - gradient).max() / np.abs(gradient).max()
        for name, gradient in gradients.items()
    }
    assert max(off.values()) < BOUND, max(off.items(), key=lambda item: item[1])


def test_every_family_has_a_case():
    assert set(FAMILIES.values()) == set(ARCHITECTURES)


@pytest.mark.parametrize("case", FAMILIES)
def test_all_families(case, tmp_path):
    assert_equal(Sides(case, tmp_path))


OWN_CODE = ("Gemma 2", "OPT")
OTHERS = [pytest.param(c, marks=pytest.mark.slow) for c in FAMILIES if c not in OWN_CODE]


@pytest.mark.parametrize("case", [*OWN_CODE, *OTHERS])
def test_lora(case, tmp_path):
    assert_equal(Sides(case, tmp_path, "shared"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants(variant, tmp_path):
    fields = VARIANTS[variant]
    assert_equal(Sides("Mistral 0.1, window", tmp_path, **fields))


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_a_draft_vocabulary(mode, tmp_path):
    sides = Sides("Gemma 2", tmp_path, mode, draft_vocabulary=40)
    assert_equal(sides)
    assert_equal(sides, **ALL_IN_ONE)


ALL_IN_ONE = {"checkpoint": True, "segment": 3}


@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_checkpointed(mode, tmp_path, monkeypatch):
    """The same, with layers that are computed twice."""
    fields = {"stream_head": "conditioned", "stream_head_rank": 5, "stream_keys": 6}
    sides, calls = Sides("Gemma 2", tmp_path, mode, **fields), []
    layer = BorrowedModel.layer
    monkeypatch.setattr(
        BorrowedModel, "layer", lambda *given: calls.append(given[1]) or layer(*given)
    )
    assert_equal(sides)
    once = len(calls)
    assert_equal(sides, **ALL_IN_ONE)
    assert len(calls) - once > once


@pytest.mark.parametrize(
    ("detail", "mode"),
    [("position", "lossless"), ("order", "shared"), ("window", "lossless"), ("segment", "shared")],
)
def test_a_wrong_detail_would_show(detail, mode, tmp_path, monkeypatch):
    """Negative control: what a row's place or its sight rests on."""
    visibility = forward_module.Visibility
    right = visibility.__init__

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
        monkeypatch.setattr(visibility, "in_segments", lambda self, whole: own(self, whole)[::-1])
    with pytest.raises(AssertionError):
        assert_equal(Sides("Mistral 0.1, window", tmp_path, mode))


own = forward_module.Visibility.in_segments
