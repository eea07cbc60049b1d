"""What a conversion replaces, and what it leaves alone: sources, other files, links."""

from pathlib import Path

import pytest
from specstream_mlx.convert.staging import staged_directory
from tiny_models import stream_adapter_directory, tiny_llama_directory
from typer.testing import CliRunner

from specstream_mlx.cli import app


def convert(*args):
    return CliRunner().invoke(app, ["convert", *(str(a) for a in args), "--overwrite"])


def refused(*args):
    """The one line on refusing."""
    result = convert(*args)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: ")
    return result.stderr


def everything(directory):
    return sorted(directory.rglob("*"))


@pytest.fixture
def model(tmp_path):
    return tiny_llama_directory(tmp_path / "work" / "hf")


@pytest.fixture
def adapter(model):
    return stream_adapter_directory(model.parent / "adapters" / "sql", model)


def test_a_source_is_never_replaced(model, adapter, tmp_path):
    """Nor what holds one, by whatever path; ``hf``'s parent would pass for a model here."""
    for file in model.iterdir():
        (model.parent / file.name).write_bytes(file.read_bytes())
    (tmp_path / "link").symlink_to(model)
    before = everything(tmp_path)
    for target, sentence in (
        (model, "is the model"),
        (model.parent, "holds the model"),
        (model / ".." / "adapters" / "..", "holds the model"),
        (tmp_path / "link", "is the model"),
    ):
        assert f"{target} {sentence} {model}" in refused("--model", model, "--mlx-path", target)
        assert everything(tmp_path) == before
    flags = ("--model", model, "--adapter-path", adapter, "--mlx-path")
    for target, sentence in (
        (model, "is the model"),
        (adapter, "is the adapter"),
        (adapter.parent, "holds the adapter"),
    ):
        assert sentence in refused(*flags, target)
        assert everything(tmp_path) == before


def test_the_current_directory_is_not_replaced(model, tmp_path, monkeypatch):
    """The caller's shell would stand in a directory that is gone."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the current directory" in refused("--model", model, "--mlx-path", ".")


@pytest.mark.parametrize("name", ["notes.txt", "config.json", ".git/config", "sources/model.bin"])
def test_a_directory_of_other_files_is_not_replaced(name, model, tmp_path):
    file = tmp_path / "other" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    flags = ("--model", model, "--mlx-path", tmp_path / "other")
    assert "other files than a model's or an adapter's" in refused(*flags)
    assert file.read_text() == "mine"


def test_models_and_adapters_are_replaced(model, adapter, tmp_path):
    """Each by each, also a directory of several adapters, and an empty directory."""
    second = stream_adapter_directory(model.parent / "adapters" / "chat", model)
    target = tmp_path / "out"
    target.mkdir()
    one = ("--model", model, "--adapter-path", adapter, "--mlx-path", target)
    two = (*one, "--adapter-path", second)
    base = ("--model", model, "--mlx-path", target)
    for flags, written in (
        (two, "chat"),
        (two, "sql"),
        (one, "adapter_config.json"),
        (base, "config.json"),
        (base, "model.safetensors"),
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
        stream_adapter_directory(out, model)
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


def test_leftovers_of_a_running_conversion_are_kept(tmp_path):
    with staged_directory(tmp_path / "model") as first:
        with staged_directory(tmp_path / "model") as second:
            assert first.exists()
            (second / "file").write_text("second")
        (first / "file").write_text("first")
    assert (tmp_path / "model" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_running_conversion_is_replacing_is_left_to_it(tmp_path, monkeypatch):
    """Another one starts between its two renames, and would put back what it has moved away."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    rename, others = Path.rename, []

    def interrupted(self, to):
        if ".partial-" in self.name:
            others.append(self)
            with pytest.raises(KeyError), staged_directory(tmp_path / "model"):
                raise KeyError
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", interrupted)
    with staged_directory(tmp_path / "model") as scratch:
        (scratch / "new").touch()
    assert len(others) == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new"]


def test_what_was_replaced_comes_back_after_a_kill_in_between(tmp_path):
    """As if the process had been killed between its last two renames."""
    (tmp_path / ".model.replaced-abcd1234").mkdir()
    (tmp_path / ".model.replaced-abcd1234" / "mine.txt").write_text("mine")
    neighbour = tmp_path / ".model.partial-of-something-else"
    neighbour.mkdir()
    with pytest.raises(KeyError), staged_directory(tmp_path / "model"):
        raise KeyError
    assert (tmp_path / "model" / "mine.txt").read_text() == "mine"
    assert neighbour.exists()
