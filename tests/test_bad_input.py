"""A user's mistake ends in one clear sentence on stderr and exit code 2."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from tiny_models import stream_adapter_directory, tiny_llama_directory
from typer.testing import CliRunner

from specstream_mlx.cli import app


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("bad") / "base")


@pytest.fixture(scope="module")
def shared(base):
    return stream_adapter_directory(base.parent / "shared", base, mode="shared", lora_rank=4)


def refused(*args, stdin=None):
    """The one line that the command line prints on refusing ``args``."""
    result = CliRunner().invoke(app, ["generate", *(str(a) for a in args)], input=stdin)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture
def adapter(shared, tmp_path):
    """A copy of the shared adapter, to be spoilt."""
    return Path(shutil.copytree(shared, tmp_path / "adapter"))


@pytest.fixture
def model(base, tmp_path):
    """A copy of the base, to be spoilt."""
    return Path(shutil.copytree(base, tmp_path / "model"))


def edit(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_missing_model_directory(tmp_path):
    assert "does not exist" in refused("--model", tmp_path / "none", "-p", "hi")


def test_missing_adapter_directory(base, tmp_path):
    sentence = refused("--model", base, "--adapter-path", tmp_path / "none", "-p", "hi")
    assert "none does not exist" in sentence


def test_adapter_of_another_base(base, adapter):
    edit(
        adapter / "adapter_config.json",
        lambda c: c["speculative_streaming"].update(base_fingerprint="0" * 16),
    )
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "another base" in sentence
    assert "adapter_config.json" in sentence


def test_wrong_lora_rank(base, adapter):
    edit(adapter / "adapter_config.json", lambda c: c["lora_parameters"].update(rank=3))
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "adapters.safetensors" in sentence
    assert "mlp.down_proj.lora_a has shape (96, 4), expected (96, 3)" in sentence


def test_wrong_number_of_layers(base, adapter):
    edit(adapter / "adapter_config.json", lambda c: c.update(num_layers=9))
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "num_layers is 9, expected 0 to 4" in sentence


def test_wrong_number_of_streams(base, adapter):
    edit(
        adapter / "adapter_config.json",
        lambda c: c["speculative_streaming"].update(num_streams=3),
    )
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "streams.embeddings has shape (4, 64), expected (3, 64)" in sentence


@pytest.mark.parametrize("name", ["adapters.safetensors", "speculative_streaming.safetensors"])
def test_truncated_adapter(name, base, adapter):
    file = adapter / name
    file.write_bytes(file.read_bytes()[:-10])
    assert name in refused("--model", base, "--adapter-path", adapter, "-p", "hi")


def test_truncated_base(model):
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert "model.safetensors is not a complete safetensors" in refused("--model", model, "-p", "x")


class Payload:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["base", "adapter"])
def test_pickle_disguised_as_weights(place, base, model, adapter, tmp_path):
    trace = tmp_path / "executed"
    data = pickle.dumps(Payload(trace))
    if place == "base":
        (model / "model.safetensors").write_bytes(data)
        sentence = refused("--model", model, "-p", "hi")
    else:
        (adapter / "adapters.safetensors").write_bytes(data)
        sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "safetensors" in sentence
    assert not trace.exists()


def test_empty_prompt(base):
    assert "empty" in refused("--model", base, "-p", "  ")
    assert "standard input is empty" in refused("--model", base, stdin="")


def test_prompt_longer_than_the_context(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "-p", "hello " * 2000)
    assert "context" in sentence
    assert "512" in sentence


@pytest.mark.parametrize(
    "flag",
    ["--max-tokens", "--num-streams", "--tree-width", "--tree-size", "--max-nodes"],
)
def test_negative_number(flag, base):
    assert flag in refused("--model", base, "-p", "hi", flag, -1)


def test_mode_that_the_adapter_was_not_trained_for(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--mode", "lossless", "-p", "hi")
    assert "works in shared" in sentence


def test_both_kinds_of_adapter(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--adapter", "sql", "-p", "hi")
    assert "--adapter and --adapter-path" in sentence


def test_more_streams_than_trained(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--num-streams", 9, "-p", "hi")
    assert "num_streams is 9, the adapter has 4" in sentence


def test_unsupported_architecture(model):
    edit(model / "config.json", lambda c: c.update(model_type="mamba"))
    assert "model_type is 'mamba'" in refused("--model", model, "-p", "hi")
