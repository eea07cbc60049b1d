"""``specstream-mlx convert``: bases and adapters, quantized or not, and what it refuses."""

import json

import mlx_lm
import pytest
import torch
from specstream_mlx.convert.pytorch.formats import base_fingerprint, write_adapter
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from torch_tiny import tiny_llama, tiny_model
from typer.testing import CliRunner

from specstream_mlx import DraftSettings, load, stream_generate
from specstream_mlx.cli import app


def run(*args):
    return CliRunner().invoke(app, ["convert", *(str(a) for a in args)])


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    directory = tmp_path_factory.mktemp("convert") / "hf"
    torch.manual_seed(0)
    tiny_llama(vocab=VOCAB_SIZE).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=["lossless", "shared"])
def torch_adapter(hf, request):
    torch.manual_seed(0)
    model = tiny_model(
        request.param, base=tiny_llama(vocab=VOCAB_SIZE), base_fingerprint=base_fingerprint(hf)
    )
    write_adapter(model, hf.parent / request.param)
    return hf.parent / request.param


@pytest.mark.parametrize("bits", [None, 4, 8])
def test_a_base_decodes_in_mlx_lm_and_here_alike(bits, hf, tmp_path):
    flags = ["--bits", bits, "--group-size", 32] if bits else []
    result = run("--model", hf, "--mlx-path", tmp_path / "mlx", *flags)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config.get("quantization", {}).get("bits") == bits
    stock, tokenizer = mlx_lm.load(str(tmp_path / "mlx"))
    prompt = [5, 6, 7, 8]
    plain = [r.token for r in mlx_lm.stream_generate(stock, tokenizer, prompt, 20)]
    ours, tokenizer = load(tmp_path / "mlx")
    settings = DraftSettings(speculation=False)
    assert plain == [
        r.token for r in stream_generate(ours, tokenizer, prompt, 20, settings=settings)
    ]


def test_an_adapter_agrees_with_pytorch(hf, torch_adapter, tmp_path):
    out = tmp_path / "adapter"
    result = run("--model", hf, "--adapter-path", torch_adapter, "--mlx-path", out, "--verify")
    assert result.exit_code == 0, result.output
    assert "layer 2 streams" in result.stdout
    assert "early-exit logits" in result.stdout


def test_stock_mlx_lm_loads_the_lora_part(hf, torch_adapter, tmp_path):
    """Its logits without streams are those of the same LoRA here; lossless has no LoRA."""
    assert run("--model", hf, "--mlx-path", tmp_path / "mlx").exit_code == 0
    out = tmp_path / "adapter"
    assert run("--model", hf, "--adapter-path", torch_adapter, "--mlx-path", out).exit_code == 0
    stock, tokenizer = mlx_lm.load(str(tmp_path / "mlx"), adapter_path=str(out))
    ours, _ = load(tmp_path / "mlx", adapter_path=out)
    prompt = [5, 6, 7, 8]
    expected = [r.token for r in mlx_lm.stream_generate(stock, tokenizer, prompt, 12)]
    found = [r.token for r in mlx_lm.stream_generate(ours.model, tokenizer, prompt, 12)]
    assert expected == found


def test_an_existing_target_is_kept(hf, tmp_path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "mine.txt").write_text("mine")
    result = run("--model", hf, "--mlx-path", tmp_path / "mlx")
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    result = run("--model", hf, "--mlx-path", tmp_path / "mlx", "--overwrite")
    assert result.exit_code == 2
    assert "holds other files than a model's or an adapter's" in result.stderr
    assert (tmp_path / "mlx" / "mine.txt").read_text() == "mine"


def test_a_truncated_base_leaves_nothing_behind(hf, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in hf.iterdir():
        data = file.read_bytes()
        (broken / file.name).write_bytes(data[:-100] if file.suffix == ".safetensors" else data)
    result = run("--model", broken, "--mlx-path", tmp_path / "mlx")
    assert result.exit_code == 2
    assert "broken" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_an_interruption_leaves_nothing_behind(hf, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("specstream_mlx.convert.to_mlx.base.save_config", interrupted)
    assert run("--model", hf, "--mlx-path", tmp_path / "mlx").exit_code != 0
    assert list(tmp_path.iterdir()) == []


def test_missing_directories(hf, tmp_path):
    result = run("--model", tmp_path / "none", "--mlx-path", tmp_path / "mlx")
    assert (result.exit_code, "does not exist" in result.stderr) == (2, True)
    result = run(
        *("--model", hf, "--mlx-path", tmp_path / "mlx"), "--adapter-path", tmp_path / "none"
    )
    assert (result.exit_code, "does not exist" in result.stderr) == (2, True)
