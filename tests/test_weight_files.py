"""Which files of a directory are the model: in every reader, download and library."""

import json
import shutil

import mlx.core as mx
import pytest
import torch
from specstream_mlx.convert.pytorch.load import load_base
from specstream_mlx.convert.to_mlx.base import convert_base
from specstream_mlx.convert.to_mlx.source_tensors import arrays_of_files
from tiny_models import tiny_llama_directory

from specstream_mlx import UserError, load
from specstream_mlx.files import chosen_files, for_libraries
from specstream_mlx.heads.read_head import head_files
from specstream_mlx.loading.inspection import describe_base
from specstream_mlx.loading.model_paths import from_hub, weight_files

INDEX = "model.safetensors.index.json"
TOKENS = mx.array([[5, 9, 12, 4, 3]])


def sharded(directory, weights, count, index=True):
    names, places = sorted(weights), {}
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = {name: weights[name] for name in names[number::count]}
        mx.save_safetensors(str(directory / file), part, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    if index:
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base, and the tensors of another model of its sizes."""
    root = tmp_path_factory.mktemp("models")
    own, other = (tiny_llama_directory(root / str(seed), seed=seed) for seed in (0, 1))
    return own, mx.load(str(other / "model.safetensors"))


def of_shards(name):
    def stale(directory, weights, other):
        (directory / "model.safetensors").unlink()
        sharded(directory, weights, 2)
        if name.startswith("model"):
            mx.save_safetensors(str(directory / name), other, {"format": "pt"})
        else:
            sharded(directory, other, int(name), index=False)

    return stale


def beside_the_whole(directory, weights, other):
    mx.save_safetensors(str(directory / "model.fp16.safetensors"), other, {"format": "pt"})


STALE = {
    **{f"an older upload of {count} shards": of_shards(str(count)) for count in (1, 3, 5)},
    **{name: of_shards(name) for name in ("model.safetensors", "model.fp16.safetensors")},
    "a variant of a file without an index": beside_the_whole,
}


@pytest.mark.parametrize("case", STALE)
def test_stale_files_are_read_by_nobody(case, models, tmp_path):
    own, other = models
    directory = tmp_path / "model"
    shutil.copytree(own, directory)
    STALE[case](directory, mx.load(str(own / "model.safetensors")), other)
    expected = load(own)[0](TOKENS)
    assert mx.allclose(load(directory)[0](TOKENS), expected, atol=1e-5)
    logits = load_base(directory)(input_ids=torch.tensor(TOKENS.tolist())).logits
    assert mx.allclose(mx.array(logits.detach().numpy()), expected, atol=1e-3)
    convert_base(directory, tmp_path / "converted")
    assert mx.allclose(load(tmp_path / "converted")[0](TOKENS), expected, atol=1e-5)
    assert describe_base(directory)["bytes"] == sum(
        file.stat().st_size for file in weight_files(directory)
    )
    assert len(list(directory.glob("*.safetensors"))) > len(weight_files(directory))


def test_two_sets_without_an_index_are_refused(models, tmp_path):
    own, other = models
    directory = tmp_path / "model"
    shutil.copytree(own, directory)
    (directory / "model.safetensors").rename(directory / "model-00001-of-00001.safetensors")
    sharded(directory, other, 2, index=False)
    for read in (load, load_base, describe_base):
        with pytest.raises(UserError, match=r"both hold .*expected one of them, or an index"):
            read(directory)


def test_draft_heads_too(tmp_path):
    for name in ("model.safetensors", "model.old.safetensors", "optimizer.bin", "x.safetensors"):
        mx.save_safetensors(str(tmp_path / f"{name}.safetensors"), {"x": mx.ones(1)})
        (tmp_path / f"{name}.safetensors").rename(tmp_path / name)
    assert [file.name for file in head_files(tmp_path)] == ["model.safetensors"]
    assert len(list(arrays_of_files(tmp_path, "the head"))) == 1
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"x": "x.safetensors"}}))
    assert [file.name for file in head_files(tmp_path)] == ["x.safetensors"]
    found = chosen_files(tmp_path, "*.bin", whole="pytorch_model.bin")
    assert [file.name for file in found] == ["optimizer.bin"]


INDICES = {
    "lists a file that is not there": ({"a": "model-9.safetensors"}, "lacks 'model-9.safetensors'"),
    "lists nothing": ({}, "has no weight_map"),
    "lists numbers": ({"a": 3}, "has no weight_map"),
}


@pytest.mark.parametrize("case", INDICES)
def test_a_damaged_index(case, models, tmp_path):
    listed, sentence = INDICES[case]
    directory = shutil.copytree(models[0], tmp_path / "model")
    (directory / INDEX).write_text(json.dumps({"weight_map": listed}))
    for read in (load, load_base, describe_base):
        with pytest.raises(UserError, match=sentence):
            read(directory)


@pytest.mark.parametrize(
    ("there", "listed", "got"),
    [
        (["model.safetensors"], None, ["model.safetensors"]),
        (["model.safetensors", "model.fp16.safetensors"], None, ["model.safetensors"]),
        (["model-1.safetensors", "model-2.safetensors"], None, None),
        (["model-1.safetensors", "old.safetensors"], ["model-1.safetensors"], None),
        (["a.safetensors", "model.safetensors"], ["a.safetensors"], ["a.safetensors"]),
    ],
)
def test_a_download_is_of_the_files_that_are_read(there, listed, got, tmp_path, monkeypatch):
    from fnmatch import fnmatch

    hub = {name: name for name in [*there, "config.json"]}
    if listed is not None:
        hub[INDEX] = json.dumps({"weight_map": dict(enumerate(listed))})

    def download(repository, *, allow_patterns, **_):
        for name, text in hub.items():
            if any(fnmatch(name, pattern) for pattern in allow_patterns):
                (tmp_path / name).write_text(text)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    from_hub("the model", "some/model", ["config.json"], ["model*.safetensors"])
    found = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert found == (got or listed or there)


def test_a_library_finds_the_directory_itself_where_nothing_is_left_out(models):
    with for_libraries(models[0], "*.safetensors") as found:
        assert found == models[0]
