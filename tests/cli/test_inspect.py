"""``specstream-mlx adapters info``: what people and programs are shown."""

import re
import shutil

import mlx.core as mx
from command_line import refusal
from command_line import run as run_command
from tiny_models import tiny_llama_directory
from tiny_peft import edit


def run(*args):
    return run_command("adapters", "info", *args)


def test_people_see_it_in_80_columns(base, shared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for args in ((base,), (shared, "--model", base), (shared,)):
        result = run(*args)
        assert result.exit_code == 0
        assert max(len(line) for line in result.stdout.splitlines()) <= 80
        assert "\u2026" not in result.stdout
    assert "is not a directory here" in result.stderr
    assert f"{base} is a base model, and {base} was" in refusal(run(base, "--model", base))
    assert "there is no adapter '', expected one of" in refusal(run(""))
    text = run(shared, "--model", base).stdout
    assert re.search(r"^ *stream_head +plain *$", text, re.MULTILINE)
    assert re.search(r"pruner 1,024 \(\d\.\d+% of the base\)", text)


def test_weights_are_not_read(base, tmp_path, monkeypatch):
    monkeypatch.setattr(mx, "load", None)
    assert run(base).exit_code == 0


def test_what_does_not_fit_is_described_and_noted(base, shared, tmp_path):
    other = tiny_llama_directory(tmp_path / "other", intermediate_size=128)
    assert "made for another base" in run(shared, "--model", other).stderr
    copy = shutil.copytree(base, tmp_path / "base")
    edit(copy / "config.json", model_type="mamba")
    assert "model_type is 'mamba', which is refused" in run(copy).stderr
