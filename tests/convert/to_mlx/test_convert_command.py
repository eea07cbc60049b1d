"""``specstream-mlx convert``: bases and adapters, quantized or not, and what it refuses."""

import mlx_lm
import pytest
import torch
from command_line import run
from specstream_mlx.convert.pytorch import reference
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import base_fingerprint, load_base
from torch_tiny import tiny_model

from specstream_mlx import load

PROMPT = [5, 6, 7, 8]


def convert(*args):
    return run("convert", *args)


@pytest.fixture(scope="module", params=["lossless", "shared"])
def torch_adapter(tied, request, tmp_path_factory):
    torch.manual_seed(0)
    base = load_base(tied)
    model = tiny_model(request.param, base=base, base_fingerprint=base_fingerprint(tied))
    directory = tmp_path_factory.mktemp("adapters") / request.param
    write_adapter(model, directory)
    return directory


def test_an_adapter_agrees_with_pytorch_and_loads_in_mlx_lm(
    tied, tied_mlx, torch_adapter, tmp_path
):
    """mlx_lm's logits without streams are those of the same LoRA here; lossless has no LoRA."""
    out = tmp_path / "adapter"
    result = convert(
        "--model", tied, "--adapter-path", torch_adapter, "--mlx-path", out, "--verify"
    )
    assert result.exit_code == 0, result.output
    assert "layer 2 streams" in result.stdout
    assert "early-exit logits" in result.stdout
    stock, tokenizer = mlx_lm.load(str(tied_mlx), adapter_path=str(out))
    ours, _ = load(tied_mlx, adapter_path=out)
    expected, found = (
        [r.token for r in mlx_lm.stream_generate(model, tokenizer, PROMPT, 12)]
        for model in (stock, ours.model)
    )
    assert expected == found


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
