"""What several processes cannot do is refused with a sentence."""

import re
from types import SimpleNamespace

import mlx.core as mx
import pytest
from command_line import generate, refusal, run
from tiny_models import tiny_llama, tiny_llama_config

from specstream_mlx import UserError
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
