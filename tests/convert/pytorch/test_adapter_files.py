"""Adapter directories on the PyTorch side: exact, and what is wrong with one is named."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import read_streams, write_adapter
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from torch_tiny import tiny_model

from specstream_mlx.adapters.description import describe
from specstream_mlx.errors import UserError

CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 5}


@pytest.mark.parametrize(("mode", "head"), [("lossless", CONDITIONED), ("shared", {})])
def test_adapter_round_trip_is_exact(tied, tmp_path, mode, head):
    model = tiny_model(mode, base=load_base(tied), **head)
    write_adapter(model, tmp_path / "adapter")
    write_adapter(model, tmp_path / "adapter")  # replaces the first
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    found = load_adapter(tied, tmp_path / "adapter").state_dict()
    expected = {n: t for n, t in model.state_dict().items() if "lora_" in n or "base." not in n}
    assert expected.keys() == {n for n in found if "lora_" in n or "base." not in n}
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_wrong_stream_tensor_is_named(tied, tmp_path):
    write_adapter(tiny_model("shared", base=load_base(tied)), tmp_path / "adapter")
    path = tmp_path / "adapter" / "speculative_streaming.safetensors"
    tensors, name = load_file(path), "streams.embeddings"
    for changed, sentence in (
        ({name: torch.zeros(2, 32)}, r"has shape \(2, 32\), expected \(3, 32\)"),
        ({"streams.extra": torch.zeros(1)}, "an unexpected tensor streams.extra"),
    ):
        save_file(tensors | changed, path)
        with pytest.raises(UserError, match=sentence):
            read_streams(describe(tmp_path / "adapter"))
