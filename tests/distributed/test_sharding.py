"""What cannot be divided is refused, and each process holds its part of the layers."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import pytest
from command_line import generate, refusal, run
from parity import edit
from processes import Processes
from tiny_models import (
    stream_adapter_directory,
    tiny_llama,
    tiny_llama_config,
    tiny_llama_directory,
)

from specstream_mlx import UserError, load
from specstream_mlx.cli import launched
from specstream_mlx.distributed.sharding import check_divisible


@pytest.mark.parametrize(
    ("changes", "size", "sentence"),
    [
        ({}, 3, "num_attention_heads is 4, expected one that 3 processes divide"),
        ({}, 4, "num_key_value_heads is 2, expected one that 4 processes divide"),
        (
            {"model_type": "opt"},
            2,
            "model_type is 'opt', which mlx-lm cannot shard, expected one process instead of 2",
        ),
    ],
)
def test_models_that_cannot_be_divided(changes, size, sentence):
    config = tiny_llama_config() | changes
    model = SimpleNamespace() if changes else tiny_llama(config)
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_divisible(model, config, SimpleNamespace(size=size))


def test_adapters_that_cannot_be_divided(base, tmp_path):
    model = replace(load(base)[0], ranks=SimpleNamespace(agree=lambda *_: None))
    adapter = stream_adapter_directory(tmp_path / "keys", base, lora_rank=2, stream_keys=3)
    for sentence in ("stream_keys is 3, expected 0 where", "fine_tune_type is 'dora', expected"):
        with pytest.raises(UserError, match=sentence):
            model.swap_adapter(adapter)
        edit(adapter / "adapter_config.json", fine_tune_type="dora")


@pytest.fixture
def several(monkeypatch):
    """Commands take this process for one of several."""
    monkeypatch.setattr(launched, "group", lambda: mx)
    monkeypatch.setattr(launched, "ranks", lambda: None)


def test_commands_and_options_for_one_process(several, base):
    assert "convert was started in several processes, expected one" in refusal(run("convert", base))
    assert "--compare was given to several processes" in refusal(generate(base, "--compare"))
    package = run("generate", "--coreml", "x.mlpackage", "-p", "hello")
    assert "--coreml was given to several processes" in refusal(package)
    assert "expected --prompt under mlx.launch" in refusal(generate(base, prompt="-"))


SCRIPT = """
import json, sys
import mlx.core as mx
from specstream_mlx import load

model, _ = load(sys.argv[1], group=mx.distributed.init(), weights=sys.argv[2])
print(json.dumps([mx.get_active_memory(), mx.get_peak_memory()]), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "bits", "weights"), [(2, None, "auto"), (2, 8, "packed"), (3, 4, "packed")]
)
def test_the_weights_are_divided(tmp_path, size, bits, weights):
    """No rank holds a tenth more than its part; embeddings and norms are whole on each."""
    base = tiny_llama_directory(
        tmp_path / "base",
        num_hidden_layers=12,
        num_attention_heads=2 * size,
        num_key_value_heads=size,
        hidden_size=256 * size,
        intermediate_size=512 * size,
        bits=bits,
    )
    command = ["-c", SCRIPT, base, weights]
    bytes_of = {True: 0, False: 0}  # of what is divided, and of the rest
    for name, tensor in mx.load(str(base / "model.safetensors")).items():
        bytes_of["_proj." in name] += tensor.nbytes
    own = bytes_of[True] / size + bytes_of[False]
    for rank in Processes(tmp_path, *[command] * size).ended():
        assert rank.code == 0, rank.error
        active, peak = json.loads(rank.out)
        assert own <= active <= peak < 1.1 * own
