"""Base models on both sides, made once for all tests of the conversion."""

import pytest
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_peft import untied_llama
from torch_tiny import data, tied, tied_mlx  # noqa: F401


@pytest.fixture(scope="session")
def hf(tmp_path_factory):
    """An untied Llama of four layers in Hugging Face's format."""
    return untied_llama(tmp_path_factory.mktemp("untied") / "hf")


@pytest.fixture(scope="session")
def mlx(hf):
    """``hf`` in MLX format."""
    convert_base(hf, hf.parent / "mlx")
    return hf.parent / "mlx"
