"""Bases in bfloat16 or quantized by MLX, as PyTorch loads them."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from architecture_models import pair
from parity import TOKENS, close, torch_logits
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.training_settings import TorchTrainSettings
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from torch_tiny import tiny_batch, tiny_model

from specstream_mlx import load
from specstream_mlx.train.settings import default_alphas


@pytest.fixture(scope="module")
def packed(hf, tied, tmp_path_factory):
    """Models that MLX has quantized, by number of bits; of that in 3 the head is tied."""
    root = tmp_path_factory.mktemp("packed")
    for bits, source in ((3, tied), (4, hf)):
        convert_base(source, root / str(bits), Quantization(bits, 32))
    return {bits: root / str(bits) for bits in (3, 4)}


def loss_of(directory, dtype, autocast, mode):
    model = tiny_model(mode, base=load_base(directory, dtype))
    alphas = default_alphas(mode, model.config.num_streams)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = n_gram_loss(model, tiny_batch(), alphas)
    loss.total.backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    return torch.cat([loss.per_stream, loss.pruner[None]]), gradients


@pytest.mark.parametrize(("source", "mode"), [("Gemma 2", "lossless"), ("packed", "shared")])
def test_linear_layers_in_bfloat16_have_the_same_loss(mode, source, packed):
    """Autocast rounds the weights to bfloat16 in any case, so nothing at all differs.

    Against float32 a product of bfloat16 is off by 2^-9 of its factors at most, each way; ten of
    them, one after the other, by some 4% where all errors add up.
    """
    directory = pair(source).model.path if source == "Gemma 2" else packed[4]
    loss, gradients = loss_of(directory, "bfloat16", True, mode)
    expected, expected_gradients = loss_of(directory, "float32", True, mode)
    assert torch.equal(loss, expected)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        assert (found is None) == (wanted is None)
        assert found is None or torch.equal(found, wanted)
    exact, _ = loss_of(directory, "float32", False, mode)
    assert not torch.equal(loss, exact)
    torch.testing.assert_close(loss, exact, rtol=0.04, atol=0)


def test_a_quantized_model_computes_what_it_computes_in_mlx(packed, data, tmp_path):
    """And streams that are trained on it fit it."""
    for directory in packed.values():
        model, _ = mlx_lm.load(str(directory))
        expected = np.array(model(mx.array([TOKENS]))[0].astype(mx.float32))
        assert close(expected, torch_logits(load_base(directory)))
    small = {"num_msa_layers": 1, "iters": 2, "batch_size": 4, "dtype": "bfloat16"}
    base = packed[4]
    settings = TorchTrainSettings(model=base, data=data, output=tmp_path / "run", **small)
    convert_adapter(trainer.train(settings), base, tmp_path / "streams")
    assert load(base, adapter_path=tmp_path / "streams")[0].streams is not None
