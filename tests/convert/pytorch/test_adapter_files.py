"""Adapter directories on the PyTorch side: exact, and what is wrong with one is named."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import read_streams, write_adapter
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from torch_tiny import tiny_batch, tiny_model

from specstream_mlx.adapters.description import describe
from specstream_mlx.errors import UserError

CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 5}


@pytest.mark.parametrize("head", [{}, CONDITIONED], ids=["plain", "conditioned"])
@pytest.mark.parametrize("mode", ["lossless", "shared"])
def test_adapter_round_trip_is_exact(tied, tmp_path, mode, head):
    model = tiny_model(mode, base=load_base(tied), **head)
    write_adapter(model, tmp_path / "adapter")
    write_adapter(model, tmp_path / "adapter")  # replaces the first
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    loaded = load_adapter(tied, tmp_path / "adapter")
    expected = {n: t for n, t in model.state_dict().items() if "lora_" in n or "base." not in n}
    found = loaded.state_dict()
    assert expected.keys() == {n for n in found if "lora_" in n or "base." not in n}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    batch = tiny_batch()
    with torch.no_grad():
        out = loaded(batch.tokens, batch.stream_from, batch.lengths)
    assert out.stream_logits.isfinite().all()


@pytest.fixture(scope="module")
def written(tied, tmp_path_factory):
    directory = tmp_path_factory.mktemp("written") / "adapter"
    write_adapter(tiny_model("shared", base=load_base(tied)), directory)
    return directory


@pytest.fixture
def adapter(written, tmp_path):
    """A copy to be spoilt."""
    return shutil.copytree(written, tmp_path / "adapter")


def change(path, name, tensor):
    tensors = load_file(path)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        ("streams.embeddings", torch.zeros(2, 32), r"has shape \(2, 32\), expected \(3, 32\)"),
        ("streams.embeddings", None, "no tensor streams.embeddings, expected one of shape"),
        ("streams.extra", torch.zeros(1), "an unexpected tensor streams.extra"),
    ],
)
def test_wrong_stream_tensor_is_named(adapter, name, tensor, sentence):
    change(adapter / "speculative_streaming.safetensors", name, tensor)
    with pytest.raises(UserError, match=sentence):
        read_streams(describe(adapter))
