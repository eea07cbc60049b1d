"""Segment attention: the same loss and gradients, in less memory."""

import weakref

import pytest
import torch
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch_tiny import tiny_batch, tiny_llama, tiny_model

from specstream_mlx.train.stream_settings import default_alphas

CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 5}
KINDS = {"all": {}, "few keys": {"stream_keys": 3}}


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive, and their peak."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if id(storage) not in self.known:
                    self.add(storage)
        return out

    def add(self, storage):
        key, size = id(storage), storage.nbytes()

        def gone(_):
            self.live -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def gradients(model, batch, segments):
    model.zero_grad()
    alphas = default_alphas(model.config.mode, model.config.num_streams)
    loss = n_gram_loss(model, batch, alphas, segments)
    loss.total.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    return loss, found


@pytest.mark.parametrize("kind", [*KINDS, "conditioned head", "conditioned head alone"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_loss_and_gradients_are_those_of_one_piece(mode, kind):
    """Also with more segments than positions."""
    model = tiny_model(mode, **KINDS.get(kind, CONDITIONED))
    if kind == "conditioned head alone":
        model.freeze_all_but_head()
    batch = tiny_batch(lengths=(21, 30, 7), stream_from=(4, 9, 1))
    whole, expected = gradients(model, batch, 1)
    for segments in (3, 100):
        loss, got = gradients(model, batch, segments)
        torch.testing.assert_close(loss.total, whole.total, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(loss.per_stream, whole.per_stream, atol=1e-5, rtol=1e-5)
        assert got.keys() == expected.keys()
        for name, gradient in expected.items():
            bound = 1e-5 * max(1.0, float(gradient.abs().max()))
            assert (got[name] - gradient).abs().max() <= bound, name


def test_peak_memory_falls():
    model = tiny_model("shared", base=tiny_llama(vocab=400), num_msa_layers=3, num_streams=4)
    batch = tiny_batch(vocab=400, lengths=(60, 60), stream_from=(8, 8))
    peaks = []
    for segments in (1, 3, 8):
        with PeakMemory() as memory:
            gradients(model, batch, segments)
        peaks.append(memory.peak)
    assert peaks[1] < 0.6 * peaks[0]
    assert peaks[2] < 0.9 * peaks[1]
