"""Fixtures: a tied Llama on both sides, and what it learns soon."""

import pytest
import torch
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from torch_tiny import tiny_completions, tiny_llama


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    """A tied Llama of three layers in Hugging Face's format."""
    directory = tmp_path_factory.mktemp("tied") / "hf"
    torch.manual_seed(0)
    tiny_llama(vocab=VOCAB_SIZE).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tied_mlx(tied):
    """``tied`` in MLX format."""
    convert_base(tied, tied.parent / "mlx")
    return tied.parent / "mlx"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Prompts and completions that a tiny model learns soon."""
    return tiny_completions(tmp_path_factory.mktemp("data") / "train.jsonl")
