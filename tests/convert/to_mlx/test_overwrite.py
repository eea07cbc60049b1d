"""What ``convert --overwrite`` replaces, and what it leaves alone: sources, other files, links."""

import shutil

import pytest
from command_line import refusal, run
from tiny_models import stream_adapter_directory, tiny_llama_directory


def convert(*args):
    return run("convert", *args, "--overwrite")


def refused(*args):
    return refusal(convert(*args))


def everything(directory):
    return sorted(directory.rglob("*"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A model and an adapter, to be copied."""
    work = tmp_path_factory.mktemp("sources")
    model = tiny_llama_directory(work / "hf", num_hidden_layers=2)
    stream_adapter_directory(work / "adapters" / "sql", model)
    return work


@pytest.fixture
def model(sources, tmp_path):
    return shutil.copytree(sources, tmp_path / "work") / "hf"


@pytest.fixture
def adapter(model):
    return model.parent / "adapters" / "sql"


def test_a_source_is_never_replaced(model, adapter, tmp_path, monkeypatch):
    """Nor what holds one, by whatever path; ``hf``'s parent would pass for a model here."""
    for file in model.iterdir():
        (model.parent / file.name).write_bytes(file.read_bytes())
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = everything(tmp_path)
    base = ("--model", model)
    both = (*base, "--adapter-path", adapter)
    for flags, target, sentence in (
        (base, model / ".." / "adapters" / "..", f"holds the model {model}"),
        (base, tmp_path / "link", f"is the model {model}"),
        (both, model, "is the model"),
        (both, adapter, "is the adapter"),
        (both, adapter.parent, "holds the adapter"),
        (base, ".", "is the current directory"),
    ):
        assert f"{target} {sentence}" in refused(*flags, "--mlx-path", target)
        assert everything(tmp_path) == before


def test_other_files_are_kept(model, adapter, tmp_path):
    """A training run's checkpoints and its PyTorch adapter are none of a conversion's files."""
    base = ("--model", model)
    one = (*base, "--adapter-path", adapter)
    two = (*one, "--adapter-path", shutil.copytree(adapter, tmp_path / "b"))
    for flags, written, name in (
        (base, False, "config.json"),
        (base, False, ".git/config"),
        (base, True, "README.md"),
        (one, True, "0000100_adapters.safetensors"),
        (one, True, "speculative_streaming.json"),
        (two, True, "b/README.md"),
    ):
        target = tmp_path / f"out of {name.replace('/', ' ')} {written}"
        if written:
            assert run("convert", *flags, "--mlx-path", target).exit_code == 0
        (target / name).parent.mkdir(exist_ok=True, parents=True)
        (target / name).write_text("mine")
        sentence = refused(*flags, "--mlx-path", target)
        assert f"other files than a converted model's or adapter's, such as {name}," in sentence
        assert (target / name).read_text() == "mine"
        (target / name).unlink()
        if written:
            assert convert(*flags, "--mlx-path", target).exit_code == 0


def test_models_and_adapters_are_replaced(model, adapter, tmp_path):
    """Each by each, also a directory of several adapters, and an empty one."""
    second = shutil.copytree(adapter, adapter.parent / "chat")
    target = tmp_path / "out"
    target.mkdir()
    one = ("--model", model, "--adapter-path", adapter, "--mlx-path", target)
    two = (*one, "--adapter-path", second)
    whole = ("--model", model, "--mlx-path", target)
    for flags, written in (
        (two, "chat"),
        (one, "adapter_config.json"),
        (whole, "model.safetensors"),
        (two, "sql"),
    ):
        result = convert(*flags)
        assert result.exit_code == 0, result.output
        assert (target / written).exists()
        (target / ".DS_Store").touch()


@pytest.mark.parametrize("there", ["nothing", "an empty directory", "an adapter"])
def test_a_link_stays_and_what_it_points_to_is_replaced(there, model, adapter, tmp_path):
    out, link = tmp_path / "disk" / "out", tmp_path / "links" / "link"
    link.parent.mkdir()
    link.symlink_to(out)
    if there == "an empty directory":
        out.mkdir(parents=True)
    elif there == "an adapter":
        shutil.copytree(adapter, out)
    assert convert("--model", model, "--mlx-path", link).exit_code == 0
    assert link.is_symlink()
    assert (out / "model.safetensors").is_file()
    assert not (out / "adapter_config.json").exists()
    assert list(link.parent.iterdir()) == [link]
    assert list(out.parent.iterdir()) == [out]


def test_what_the_file_system_refuses_is_one_sentence(model, adapter, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file/out", "loop"):
        flags = ("--model", model, "--mlx-path", tmp_path / name)
        for source in ([], ["--adapter-path", adapter]):
            assert f"{tmp_path / name} cannot be written: " in refused(*flags, *source)
    sentence = refused("--model", model, "--mlx-path", tmp_path / "file")
    assert "is a file, expected a directory to replace" in sentence
