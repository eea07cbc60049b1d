"""A base held in bfloat16, and one that MLX has quantized, compute what they should."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from specstream_mlx.convert.parity import BOUND
from specstream_mlx.convert.pytorch import trainer
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.pytorch.losses import n_gram_loss
from specstream_mlx.convert.pytorch.packed import PackedLinear, Room
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.recipes import Quantization
from tiny_peft import edit
from torch_tiny import tiny_batch, tiny_completions, tiny_model

from specstream_mlx import UserError, load
from specstream_mlx.train.stream_settings import default_alphas


@pytest.fixture(scope="module")
def packed(hf, tied, tmp_path_factory):
    """Models that MLX has quantized, by number of bits and whether the head is tied."""
    root = tmp_path_factory.mktemp("packed")
    found = {}
    for bits in (4, 8):
        for name, source in (("untied", hf), ("tied", tied)):
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


@pytest.mark.parametrize(("bits", "name"), [(4, "untied"), (4, "tied"), (8, "untied")])
def test_a_quantized_model_computes_what_it_computes_in_mlx(bits, name, packed):
    tokens = [3, 17, 41, 5, 22, 9]
    model, _ = mlx_lm.load(str(packed[bits, name]))
    expected = np.array(model(mx.array([tokens]))[0].astype(mx.float32))
    with torch.no_grad():
        found = load_base(packed[bits, name])(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(found - expected).max() <= BOUND * max(1, np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_model_stays_packed(dtype, packed):
    """Its decoder's layers take the memory of their files."""
    layers = load_base(packed[4, "untied"], dtype).get_decoder().layers
    linear = [m for m in layers.modules() if isinstance(m, PackedLinear)]
    held = sum(tensor.nbytes for module in linear for tensor in module.buffers())
    tensors = mx.load(str(packed[4, "untied"] / "model.safetensors"))
    names = [name for name in tensors if ".layers." in name and name.endswith(".scales")]
    ends = [name.removesuffix("scales") + part for name in names for part in ("weight", "biases")]
    assert len(linear) == len(names)
    assert held == sum(tensors[name].nbytes for name in names + ends) > 0


def test_gradients_through_packed_weights():
    """Against numeric ones; the weights themselves get none."""
    parts = mx.quantize(mx.random.normal((6, 64), key=mx.random.key(1)), 32, 4)
    layer = PackedLinear(*(torch.tensor(np.array(part)) for part in parts), 4, Room(torch.float64))
    layer.bias = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    x = torch.linspace(-2, 2, 3 * 64, dtype=torch.float64).reshape(3, 64).requires_grad_()
    assert torch.autograd.gradcheck(layer, x)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_streams_are_trained_on_a_quantized_model(packed, tmp_path):
    """And fit it: the runtime takes them for the model that they were trained on."""
    base = packed[4, "untied"]
    data = tiny_completions(tmp_path / "data.jsonl")
    settings = TrainSettings(
        base, data, tmp_path / "run", num_msa_layers=1, iters=2, batch_size=4, dtype="bfloat16"
    )
    convert_adapter(trainer.train(settings), base, tmp_path / "streams")
    model, _ = load(base, adapter_path=tmp_path / "streams")
    assert model.streams is not None


def test_refusals(packed, tmp_path, hf):
    for fields, expected in (
        ({"dtype": "float16"}, "dtype is 'float16', expected 'float32' or 'bfloat16'"),
        ({"dtype": "bfloat16", "bf16": False}, "dtype is 'bfloat16' and bf16 is off"),
    ):
        with pytest.raises(UserError, match=expected):
            trainer.train(TrainSettings(hf, hf / "data", tmp_path / "run", **fields))
    convert_base(hf, tmp_path / "three", Quantization(3, 32))
    with pytest.raises(UserError, match=r"mode 'affine' and bits 3, expected 'affine' and one of"):
        load_base(tmp_path / "three")
    convert_base(hf, tmp_path / "other", Quantization(8, 32))
    edit(tmp_path / "other" / "config.json", quantization={"bits": 4, "group_size": 32})
    with pytest.raises(UserError):
        load_base(tmp_path / "other")
