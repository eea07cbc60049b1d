"""Base models that are damaged or cannot be run: one sentence says what is wrong."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from specstream_mlx import UserError, load


@pytest.fixture
def model(base, tmp_path):
    """A copy of the base, to be spoilt."""
    return Path(shutil.copytree(base, tmp_path / "model"))


def refusal(model):
    with pytest.raises(UserError) as error:
        load(model)
    return str(error.value)


def test_what_is_no_directory(base, tmp_path):
    assert f"{tmp_path / 'none'} does not exist" in refusal(tmp_path / "none")
    file = base / "model.safetensors"
    assert f"{file} is a file, expected a directory" in refusal(file)
    assert "the model is '', expected a directory or a repository" in refusal("")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba'"),
        ({"hidden_size": ...}, "hidden_size"),
        ({"num_hidden_layers": 5}, "num_hidden_layers is 5, expected 4, which the tensors have"),
    ],
)
def test_configuration(fields, sentence, model):
    path = model / "config.json"
    values = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: v for name, v in values.items() if v is not ...}))
    found = refusal(model)
    assert str(model) in found
    assert sentence in found


def test_damaged_files(model):
    weights, tokenizer = model / "model.safetensors", model / "tokenizer.json"
    whole = tokenizer.read_text()
    tokenizer.write_text("{}")
    assert "the tokenizer cannot be read" in refusal(model)
    tokenizer.write_text(whole)
    weights.write_bytes(weights.read_bytes()[:-10])
    assert f"{weights} is not a complete safetensors file" in refusal(model)
    (model / "config.json").write_text("{")
    assert f"{model / 'config.json'} is not valid JSON" in refusal(model)


class Payload:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    "save", [lambda values, path: path.write_bytes(pickle.dumps(values)), torch.save]
)
def test_a_pickle_is_not_opened(save, model, tmp_path):
    trace = tmp_path / "executed"
    save({"weight": Payload(trace)}, model / "model.safetensors")
    assert "model.safetensors is not a complete safetensors file" in refusal(model)
    assert not trace.exists()
