"""A refused, failed or killed export is one sentence at most, and leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

pytest.importorskip("coremltools", reason="coremltools is not installed: the extra [coreml]")

from command_line import refusal, run
from specstream_mlx.convert.to_coreml import export as exporting
from specstream_mlx.convert.to_coreml.package import PackageBuilder
from tiny_models import tiny_llama_directory

SIZES = ("--context", 32, "--nodes", 4, "--chunk", 8)
KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from specstream_mlx.convert.to_coreml import export as exporting
from specstream_mlx.cli import app

def killed(model, path):
    path.mkdir()
    (path / "half").write_text("written")
    assert list(Path(tempfile.gettempdir()).iterdir())
    os.kill(os.getpid(), signal.SIGKILL)

exporting.save = killed
app(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_llama_directory(tmp_path_factory.mktemp("coreml") / "base", bits=4)


def export(base, output, *flags):
    return run("export-coreml", "--model", base, "--output", output, *SIZES, *flags)


def test_an_unsupported_family(base, tmp_path, monkeypatch):
    monkeypatch.delattr(exporting, "read_model")
    other = tmp_path / "other"
    shutil.copytree(base, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "model_type": "phi3"}))
    sentence = refusal(export(other, tmp_path / "x.mlpackage"))
    assert "config.json: model_type is 'phi3', expected one of llama, qwen2" in sentence
    assert {path.name for path in tmp_path.iterdir()} == {"other"}


def test_a_context_that_is_too_short_for_the_nodes(base, tmp_path):
    flags = ("--context", 12, "--nodes", "8,16")
    sentence = refusal(export(base, tmp_path / "x.mlpackage", *flags))
    assert "context is 12, expected at least 16, the most rows of a call" in sentence


@pytest.mark.parametrize("output", [".", "/", "", "package"])
def test_names_of_packages(output, base):
    sentence = refusal(export(base, output))
    assert f"the output is {output or '.'}, expected a name that ends in .mlpackage" in sentence


def test_a_disk_that_fills_up_while_coremltools_converts(base, tmp_path, monkeypatch):
    """It says so in words of its own."""

    def full(self, facts):
        raise RuntimeError("could not write to the file")

    monkeypatch.setattr(PackageBuilder, "model", full)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    sentence = refusal(export(base, tmp_path / "x.mlpackage"))
    assert "x.mlpackage cannot be written: No space left on device" in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_killed_export_leaves_what_the_next_one_removes(base, tmp_path):
    output = tmp_path / "x.mlpackage"
    flags = ("export-coreml", "--model", base, "--output", output, *SIZES)
    command = [sys.executable, "-c", KILLED, *map(str, flags)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.run(
        command, capture_output=True, env=os.environ | {"TMPDIR": str(temporary)}
    )
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not list(temporary.iterdir())
    left = {path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()} - {"temporary"}
    assert left == {".x.mlpackage.partial", ".x.tokenizer.partial"}
    assert export(base, output).exit_code == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"temporary", "x.mlpackage", "x.tokenizer"}
