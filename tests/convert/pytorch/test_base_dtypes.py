"""A base held in bfloat16, and one that MLX has quantized, compute what they should."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from parity import BOUND
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from torch_tiny import tiny_batch, tiny_completions, tiny_model

from specstream_mlx import load
from specstream_mlx.train.settings import default_alphas


@pytest.fixture(scope="module")
def packed(hf, tied, tmp_path_factory):
    """Models that MLX has quantized, by number of bits and whether the head is tied."""
    root = tmp_path_factory.mktemp("packed")
    found = {}
    for bits, name, source in ((3, "untied", hf), (4, "untied", hf), (4, "tied", tied)):
        found[bits, name] = root / f"{name}-{bits}"
        convert_base(source, found[bits, name], Quantization(bits, 32))
    return found


def loss_of(directory, dtype, autocast, mode):
    model = tiny_model(mode, base=load_base(directory, dtype))
    alphas = default_alphas(mode, model.config.num_streams)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = n_gram_loss(model, tiny_batch(), alphas)
    loss.total.backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([loss.per_stream, loss.pruner[None]]), gradients


@pytest.mark.parametrize(
    ("source", "mode"), [("untied", "lossless"), ("tied", "shared"), ("packed", "shared")]
)
def test_linear_layers_in_bfloat16_have_the_same_loss(mode, source, hf, tied, packed):
    """Autocast rounds the weights to bfloat16 in any case, so nothing at all differs.

    Against float32 a product of bfloat16 is off by 2^-9 of its factors at most, each way; ten of
    them, one after the other, by some 4% where all errors add up.
    """
    directory = {"untied": hf, "tied": tied, "packed": packed[4, "untied"]}[source]
    loss, gradients = loss_of(directory, "bfloat16", True, mode)
    expected, expected_gradients = loss_of(directory, "float32", True, mode)
    assert torch.equal(loss, expected)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or torch.equal(found, wanted)
    exact, _ = loss_of(directory, "float32", False, mode)
    assert not torch.equal(loss, exact)
    torch.testing.assert_close(loss, exact, rtol=0.04, atol=0)


def test_a_quantized_model_computes_what_it_computes_in_mlx(packed):
    tokens = [3, 17, 41, 5, 22, 9]
    for directory in packed.values():
        model, _ = mlx_lm.load(str(directory))
        expected = np.array(model(mx.array([tokens]))[0].astype(mx.float32))
        with torch.no_grad():
            found = load_base(directory)(torch.tensor([tokens])).logits[0].numpy()
        assert np.abs(found - expected).max() <= BOUND * max(1, np.abs(expected).max())


def test_streams_are_trained_on_a_quantized_model(packed, tmp_path):
    """And fit it: the runtime takes them for the model that they were trained on."""
    base = packed[4, "untied"]
    data = tiny_completions(tmp_path / "data.jsonl")
    small = {"num_msa_layers": 1, "iters": 2, "batch_size": 4, "dtype": "bfloat16"}
    settings = TrainSettings(model=base, data=data, output=tmp_path / "run", **small)
    convert_adapter(trainer.train(settings), base, tmp_path / "streams")
    model, _ = load(base, adapter_path=tmp_path / "streams")
    assert model.streams is not None
