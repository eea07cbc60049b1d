"""Adapters by name: a tiny random model stands in for the demonstration model."""

import json
import re
import shutil

import mlx.core as mx
import pytest
from command_line import refusal, run, succeeded
from parity import edit
from tiny_installation import TEXT, expected
from tiny_models import LORA_KEYS, stream_adapter_directory, tiny_llama_directory, tiny_lora

from specstream_mlx.adapters.files import LoraPart, write_adapter
from specstream_mlx.adapters.user_adapters import user_adapters

pytestmark = pytest.mark.usefixtures("installed")


def refused(*args, **kwargs):
    return refusal(run(*args, **kwargs))


def test_an_adapter_is_added_listed_used_and_removed(installed):
    assert run("adapters", "add", "my-own.2", installed / "mine").exit_code == 0
    listed = json.loads(run("adapters", "list", "--json").stdout)["adapters"]
    found = [(row["name"], row["from"]) for row in listed]
    assert found == [("fix", "the package"), ("my-own.2", "you")]
    assert json.loads(run("adapters", "info", "my-own.2", "--json").stdout)["adapter"]
    result = run("write", "my-own.2", "-m", 8, stdin=TEXT)
    assert result.stdout == expected(installed, installed / "mine") + "\n"
    other = ("my-own.2", installed / "adapters/fix")
    assert "adapter 'my-own.2' already" in refused("adapters", "add", *other)
    assert run("adapters", "add", "--replace", *other).exit_code == 0
    assert run("write", "my-own.2", "-m", 8, stdin=TEXT).stdout == expected(installed, "fix") + "\n"
    assert run("adapters", "remove", "my-own.2").exit_code == 0
    assert user_adapters() == {}
    assert "there is no adapter 'my-own.2'" in refused("write", "my-own.2")


def test_an_adapter_for_another_base_is_listed_with_it_and_refused_without(installed, tmp_path):
    """With streams or LoRA alone; where it names no base, that of ``adapters add`` is."""
    other, parameters = installed / "other", {"rank": 4, "scale": 2.0, "dropout": 0.0}
    parameters["keys"] = LORA_KEYS
    tensors = tiny_lora(json.loads((other / "config.json").read_text()), 4, 0)
    (made := tmp_path / "lora").mkdir()
    write_adapter(made, LoraPart(tensors, parameters, 4), None, {})
    cases = {"streams": (installed / "strange", "other"), "lora": (made, str(other))}
    for name, (directory, base) in cases.items():
        succeeded(run("adapters", "add", name, directory, "--model", other))
        rows = json.loads(run("adapters", "list", "--json").stdout)["adapters"]
        assert {row["name"]: row["base_model"] for row in rows}[name] == base
        shown = "".join(run("adapters", "list").stdout.split())  # a long path is broken
        assert re.search(rf"{name}Yours:[^Y]*ondisk,for{base}", shown)
        asks = ("--adapter", name, "-p", "hi", "-m", 4)
        assert "--model" in refused("generate", "-q", *asks)
        assert base in refused("generate", "-q", *asks)
        succeeded(run("generate", "--model", other, *asks))
    succeeded(run("adapters", "add", "own", installed / "mine"))
    assert "own" in run("adapters", "list").stdout


def test_a_damaged_adapter_is_named_and_the_others_are_listed(installed):
    for name in ("broken", "whole"):
        assert run("adapters", "add", name, installed / "mine").exit_code == 0
    (user_adapters()["broken"] / "adapter_config.json").write_text("{")
    for flags in ((), ("--json",)):
        result = run("adapters", "list", *flags)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("broken is left out: ")
        assert "adapter_config.json" in line
        found = [name in result.stdout for name in ("broken", "fix", "whole")]
        assert found == [False, True, True]


def test_a_name_is_never_a_path(installed, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for name in ("../x", "a/b", "", "..", "-x", "x" * 65, "ü"):
        for command in (("add", "--", name, installed / "mine"), ("remove", "--", name)):
            assert "expected" in refused("adapters", *command)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_no_adapter_of_the_base_is_not_kept(installed):
    for path in ("strange", "base", "nowhere"):
        refused("adapters", "add", "x", installed / path)
    assert "adapter of the package" in refused("adapters", "add", "fix", installed / "mine")
    assert "adapter of the package" in refused("adapters", "remove", "fix")
    assert user_adapters() == {}


def test_info_is_shown_in_80_columns(base, shared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(mx, "load", None)  # no weights are read
    assert "is not a directory here" in run("adapters", "info", shared).stderr
    assert f"{base} is a base model" in refusal(run("adapters", "info", base, "--model", base))
    text = run("adapters", "info", shared, "--model", base).stdout
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\u2026" not in text
    assert re.search(r"pruner 1,024 \(\d\.\d+% of the base\)", text)


def test_what_does_not_fit_is_described_and_noted(base, shared, tmp_path):
    other = tiny_llama_directory(tmp_path / "other", intermediate_size=128)
    assert "made for another base" in run("adapters", "info", shared, "--model", other).stderr
    copy = shutil.copytree(base, tmp_path / "base")
    edit(copy / "config.json", model_type="mamba")
    assert "model_type is 'mamba', which is refused" in run("adapters", "info", copy).stderr


STREAMS = "the bundled streams"
USED, FIT = "Using SmolLM2-135M-Instruct", "The bundled streams fit this model; --no-streams leaves"


@pytest.mark.parametrize(
    ("flags", "adapter", "note"),
    [
        ([], STREAMS, f"{USED} with the bundled streams"),
        (["--model", "smollm2"], STREAMS, FIT),
        (["--model", "base"], STREAMS, FIT),
        (["--model", "other"], None, "No streams are mounted, so only lookup may draft"),
        (["--no-streams"], None, USED),
        (["--adapter", "fix"], "fix", f"{USED} with fix"),
    ],
)
def test_what_is_mounted_by_itself(flags, adapter, note, installed, monkeypatch):
    monkeypatch.chdir(installed)
    result = run("generate", "-p", "hi", "-m", 4, "--json", *flags)
    assert result.stderr.startswith(note)
    assert json.loads(result.stdout)["adapter"] == adapter


def test_streams_that_a_user_has_added_draft_for_the_model_that_they_fit(installed, tmp_path):
    """A LoRA beside them would change the text, so that one has to be named."""
    base = ("--model", installed / "other")
    command = ("generate", "-p", "hi", "-m", 4, *base)
    lora = stream_adapter_directory(tmp_path / "lora", installed / "other", lora_rank=4)
    assert run("adapters", "add", "task", lora, *base).exit_code == 0
    assert run(*command).stderr.startswith("No streams are mounted")
    assert run("adapters", "add", "faster", installed / "strange", *base).exit_code == 0
    assert run(*command).stderr.startswith("The streams faster fit this model; --no-streams leaves")
