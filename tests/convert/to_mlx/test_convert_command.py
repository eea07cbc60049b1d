"""``specstream-mlx convert``: bases and adapters, quantized or not, and what it refuses."""

import pytest
from command_line import run
from specstream_mlx.convert.pytorch import reference
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_base
from torch_tiny import tiny_model


def convert(*args):
    return run("convert", *args)


@pytest.mark.parametrize(("keys", "hidden"), [(64, True), (5000, False)])
def test_verification_is_on_more_tokens_than_streams_select(
    keys, hidden, tied, tmp_path, monkeypatch
):
    """As far as the context reaches, here 256 tokens."""
    selected, right = [], reference.likeliest_keys

    def watched(queries, keys, positions, *rest):
        selected.append((right(queries, keys, positions, *rest).sum(-1) <= positions).any().item())
        return right(queries, keys, positions, *rest)

    monkeypatch.setattr(reference, "likeliest_keys", watched)
    model = tiny_model(base=load_base(tied), base_fingerprint=base_fingerprint(tied),
                       stream_keys=keys)  # fmt: skip
    write_adapter(model, tmp_path / "adapter")
    flags = ("--adapter-path", tmp_path / "adapter", "--mlx-path", tmp_path / "mlx", "--verify")
    result = convert("--model", tied, *flags)
    assert result.exit_code == 0, result.output
    assert selected == [hidden] * 2
