"""Base models on both sides, made once for all tests of the conversion."""

import pytest
import torch
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import VOCAB_SIZE
from torch_tiny import data, saved, tied, tied_mlx, tiny_llama  # noqa: F401


@pytest.fixture(scope="session")
def hf(tmp_path_factory):
    """An untied Llama of four layers with biases in Hugging Face's format."""
    torch.manual_seed(0)
    model = tiny_llama(tied=False, vocab=VOCAB_SIZE, num_hidden_layers=4, attention_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return saved(model, tmp_path_factory.mktemp("untied") / "hf")


@pytest.fixture(scope="session")
def mlx(hf):
    convert_base(hf, hf.parent / "mlx")
    return hf.parent / "mlx"
