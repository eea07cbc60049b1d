"""A user's mistake ends in one clear sentence on stderr and exit code 2."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny_models import stream_adapter_directory, tiny_llama_directory, tiny_tokenizer
from typer.testing import CliRunner

from specstream_mlx import bundled
from specstream_mlx.cli import app
from specstream_mlx.prompts import chat_prompt


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


def test_streams_for_another_number_of_layers(base, adapter):
    edit(
        adapter / "adapter_config.json",
        lambda c: c["speculative_streaming"].update(num_hidden_layers=3),
    )
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "num_hidden_layers is 3, expected the base's 4" in sentence


def test_more_layers_with_streams_than_layers(base, adapter):
    edit(
        adapter / "adapter_config.json",
        lambda c: c["speculative_streaming"].update(num_msa_layers=5),
    )
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "num_msa_layers is 5, expected at most num_hidden_layers = 4" in sentence


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scale", None),
        ("rank", "four"),
        ("keys", "self_attn.q_proj"),
    ],
)
def test_spoilt_lora_parameters(field, value, base, adapter):
    edit(adapter / "adapter_config.json", lambda c: c["lora_parameters"].update({field: value}))
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert f"the LoRA {field} " in sentence
    assert repr(value) in sentence


def test_template_without_a_place_for_the_text(base, adapter):
    edit(
        adapter / "adapter_config.json",
        lambda c: c["speculative_streaming"].update(prompt_template="Fix this:"),
    )
    sentence = refused("--model", base, "--adapter-path", adapter, "-p", "hi")
    assert "prompt_template is 'Fix this:', expected text with {text}" in sentence


@pytest.mark.parametrize("place", ["config.json", "adapter_config.json"])
def test_broken_json(place, base, model, adapter):
    file = (model if place == "config.json" else adapter) / place
    file.write_text(file.read_text()[:-20])
    flags = ("--model", model, "--adapter-path", adapter)
    assert f"{file} is not valid JSON" in refused(*flags, "-p", "hi")


def test_configuration_without_a_field(model):
    edit(model / "config.json", lambda c: c.pop("hidden_size"))
    sentence = refused("--model", model, "-p", "hi")
    assert str(model) in sentence
    assert "hidden_size" in sentence


def test_weights_of_another_configuration(model):
    edit(model / "config.json", lambda c: c.update(num_hidden_layers=5))
    sentence = refused("--model", model, "-p", "hi")
    assert "config.json and the weights do not fit" in sentence
    assert "model.layers.4" in sentence


def test_damaged_tokenizer(model):
    (model / "tokenizer.json").write_text("{}")
    assert "the tokenizer cannot be read" in refused("--model", model, "-p", "hi")


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


def test_torch_pickle_disguised_as_weights(model, tmp_path):
    torch = pytest.importorskip("torch")
    trace = tmp_path / "executed"
    torch.save({"weight": Payload(trace)}, model / "model.safetensors")
    sentence = refused("--model", model, "-p", "hi")
    assert "model.safetensors is not a complete safetensors file" in sentence
    assert not trace.exists()


def test_empty_prompt(base):
    assert "empty" in refused("--model", base, "-p", "  ")
    assert "standard input is empty" in refused("--model", base, stdin="")


def test_prompt_longer_than_the_context(base, shared):
    text = "hello " * 2000
    found = len(chat_prompt(TokenizerWrapper(tiny_tokenizer()), text))
    sentence = refused("--model", base, "--adapter-path", shared, "-p", text)
    assert f"the prompt has {found} tokens" in sentence
    assert "context (max_position_embeddings) holds 512" in sentence


@pytest.mark.parametrize(
    "flag",
    [
        *("--max-tokens", "--num-streams", "--tree-width", "--tree-size", "--max-nodes"),
        *("--prefill-step-size", "--prune-threshold", "--draft-threshold"),
        *("--kv-bits", "--kv-group-size", "--quantized-kv-start"),
    ],
)
@pytest.mark.parametrize("value", ["-1", "many"])
def test_number_out_of_range(flag, value, base):
    sentence = refused("--model", base, "-p", "hi", flag, value)
    assert flag in sentence
    assert f"found {value}, expected" in sentence


def test_kv_cache_that_cannot_be_quantized_so(base):
    sentence = refused("--model", base, "-p", "hi", "--kv-bits", 3)
    assert "--kv-bits" in sentence
    assert "found 3, expected 4 or 8" in sentence
    sentence = refused("--model", base, "-p", "hi", "--kv-bits", 8, "--kv-group-size", 48)
    assert "--kv-group-size" in sentence
    assert "found 48, expected 32, 64 or 128" in sentence
    sentence = refused("--model", base, "-p", "hi", "--kv-bits", 8)
    assert "kv_group_size is 64, expected one that divides the model's head_dim of 16" in sentence


def test_kv_cache_of_a_model_with_sliding_windows(model):
    windows = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 6}
    edit(model / "config.json", lambda c: c.update(windows))
    sentence = refused("--model", model, "-p", "hi", "--kv-bits", 8)
    assert "kv_bits is 8, but layer 1 has a sliding window" in sentence


def test_draft_tree_that_is_too_large(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--tree-width", 99, "-p", "hi")
    assert "the draft tree has 97039800 nodes, expected at most" in sentence
    sentence = refused("--model", base, "--adapter-path", shared, "--tree-width", 999, "-p", "hi")
    assert "tree_width is 999, expected at most the vocabulary's 320" in sentence


def test_pruning_without_a_pruner(base, tmp_path):
    adapter = stream_adapter_directory(tmp_path / "adapter", base, pruner_rank=0)
    sentence = refused("--model", base, "--adapter-path", adapter, "--max-nodes", 3, "-p", "hi")
    assert "need a pruner, the adapter has none" in sentence


@pytest.mark.parametrize("flag", ["--max-nodes", "--prune-threshold", "--stream-nodes"])
def test_what_needs_streams_without_any(base, tmp_path, flag):
    streams = stream_adapter_directory(tmp_path / "streams", base)
    value = "0.5" if flag == "--prune-threshold" else "2"
    name = flag[2:].replace("-", "_")
    for streamless in ([], ["--adapter-path", streams, "--num-streams", 0]):
        flags = [*streamless, "--lookup", flag, value]
        sentence = refused("--model", base, *flags, "-p", "hi")
        assert f"{name} is {value}, but no streams run" in sentence


def test_empty_stop_string(base):
    assert "a stop string is empty" in refused("--model", base, "-p", "hi", "--stop", "")


def test_prompt_that_is_not_text(base):
    assert "standard input is not UTF-8" in refused("--model", base, stdin=b"caf\xe9")


def test_unknown_option(base):
    assert "No such option: --temperature" in refused("--model", base, "--temperature", 1)


def test_no_bundled_model(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "ROOT", tmp_path)
    for flags in ([], ["--adapter", "sql"]):
        sentence = refused("-p", "hi", *flags)
        assert "the bundled model is missing from this installation" in sentence
        assert "--model takes any model in MLX format" in sentence


def test_file_instead_of_a_model_directory(base):
    file = base / "model.safetensors"
    assert f"{file} is a file, expected a directory" in refused("--model", file, "-p", "hi")


def test_mode_without_an_adapter_for_it(base):
    sentence = refused("--model", base, "--mode", "shared", stdin="hi")
    assert "--mode is shared, expected lossless, the mode of a bare model" in sentence


def test_mode_that_the_adapter_was_not_trained_for(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--mode", "lossless", "-p", "hi")
    assert "--mode is lossless, expected shared" in sentence


def test_both_kinds_of_adapter(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--adapter", "sql", "-p", "hi")
    assert "--adapter and --adapter-path" in sentence


def test_more_streams_than_trained(base, shared):
    sentence = refused("--model", base, "--adapter-path", shared, "--num-streams", 9, "-p", "hi")
    assert "num_streams is 9, the adapter has 4" in sentence


def test_unsupported_architecture(model):
    edit(model / "config.json", lambda c: c.update(model_type="mamba"))
    assert "model_type is 'mamba'" in refused("--model", model, "-p", "hi")
