"""Bundled adapters go back into the trainer's format without loss."""

import mlx.core as mx
import pytest
from specstream_mlx.convert.demo_model.unbundle import torch_adapter
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from toy_model import TOY

from specstream_mlx import UserError

FILES = "adapters.safetensors", "speculative_streaming.safetensors"


@pytest.mark.parametrize("adapter", ["streams", "adapters/sql"])
def test_converted_back_it_is_what_it_was(tmp_path, adapter):
    source = TOY / adapter
    began = torch_adapter(source, tmp_path / "torch")
    assert torch_adapter(began, tmp_path / "unused") == began
    convert_adapter(began, TOY / "base", tmp_path / "mlx", dtype="float16")
    for name in FILES:
        found, expected = mx.load(str(tmp_path / "mlx" / name)), mx.load(str(source / name))
        assert found.keys() == expected.keys()
        assert all(mx.array_equal(found[key], expected[key]).item() for key in expected)


def test_an_adapter_without_streams_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"fine_tune_type": "lora"}')
    with pytest.raises(UserError, match="has no streams"):
        torch_adapter(tmp_path, tmp_path / "torch")
