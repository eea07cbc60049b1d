"""Importing real bases: what they come as, how little memory it takes, and interruptions."""

import functools
import json
import os
import re
import signal
import subprocess
import sys

import mlx.core as mx
import pytest
import torch
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, make_shards
from safetensors.numpy import load_file
from specstream_mlx.convert.to_mlx import shards
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import VOCAB_SIZE, tiny_llama_directory, tiny_tokenizer
from torch_tiny import tiny_llama
from transformers import GraniteConfig, GraniteForCausalLM
from typer.testing import CliRunner

from specstream_mlx.cli import app


def run(*args):
    return CliRunner().invoke(app, ["convert", *(str(a) for a in args)])


def hugging_face(directory, *, dtype=torch.float32, tied=True, **kwargs):
    torch.manual_seed(0)
    model = tiny_llama(vocab=VOCAB_SIZE, tied=tied).to(dtype)
    model.save_pretrained(directory, **kwargs)
    tiny_tokenizer().save_pretrained(directory)
    return model


def weights(directory):
    return dict(tree_flatten(load_model(directory)[0].parameters()))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_values_of_whole_and_sharded_sources(size, tied, tmp_path):
    model = hugging_face(tmp_path / "hf", tied=tied, max_shard_size=size)
    assert (len(list((tmp_path / "hf").glob("model-*"))) > 1) == (size == "20KB")
    assert run("--model", tmp_path / "hf", "--mlx-path", tmp_path / "mlx").exit_code == 0
    found = weights(tmp_path / "mlx")
    expected = {n: p for n, p in model.state_dict().items() if not tied or n != "lm_head.weight"}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert mx.array_equal(found[name], mx.array(value.numpy())), name


@pytest.mark.parametrize("wanted", [None, "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(stored, wanted, tmp_path):
    hugging_face(tmp_path / "hf", dtype=stored)
    convert_base(tmp_path / "hf", tmp_path / "mlx", dtype=wanted)
    dtype = getattr(mx, wanted or str(stored).removeprefix("torch."))
    original = weights(tmp_path / "hf")
    for name, tensor in weights(tmp_path / "mlx").items():
        assert tensor.dtype == dtype
        assert mx.array_equal(tensor, original[name].astype(dtype))


def test_a_tied_head_that_is_stored_all_the_same(tmp_path):
    base = tiny_llama_directory(tmp_path / "hf")
    tensors = mx.load(str(base / "model.safetensors"))
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    mx.save_safetensors(str(base / "model.safetensors"), tensors)
    convert_base(base, tmp_path / "mlx")
    assert "lm_head.weight" not in weights(tmp_path / "mlx")


def test_a_quantized_model_stays_as_it_is(tmp_path):
    base = tiny_llama_directory(tmp_path / "4bit", bits=4)
    assert run("--model", base, "--mlx-path", tmp_path / "mlx").exit_code == 0
    before, after = weights(base), weights(tmp_path / "mlx")
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    result = run("--model", base, "--mlx-path", tmp_path / "again", "--bits", 8)
    assert result.exit_code == 2
    assert "quantized already, 4 bits in groups of 32" in result.stderr
    assert not (tmp_path / "again").exists()


def test_quantized_weights_are_mlx_lms(tmp_path):
    hugging_face(tmp_path / "hf")
    convert_base(tmp_path / "hf", tmp_path / "mlx", bits=4, group_size=32)
    found, plain = weights(tmp_path / "mlx"), weights(tmp_path / "hf")
    packed = mx.quantize(plain["model.embed_tokens.weight"], 32, 4)
    for part, expected in zip(("weight", "scales", "biases"), packed, strict=True):
        assert mx.array_equal(found[f"model.embed_tokens.{part}"], expected)


def test_a_group_size_that_fits_no_layer(tmp_path):
    hugging_face(tmp_path / "hf")
    args = ("--model", tmp_path / "hf", "--mlx-path", tmp_path / "mlx")
    result = run(*args, "--bits", 4, "--group-size", 128)
    assert result.exit_code == 2
    assert "no layer's width is a multiple of the group size 128" in result.stderr


def test_several_files_are_written_and_indexed(tmp_path, monkeypatch):
    base = tiny_llama_directory(tmp_path / "base", bits=4)
    each = functools.partial(make_shards, max_file_size_gb=0)
    monkeypatch.setattr(shards, "make_shards", each)
    seen = []
    convert_base(base, tmp_path / "mlx", progress=lambda done, total: seen.append((done, total)))
    index = json.loads((tmp_path / "mlx" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "mlx").glob("model*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) == len(index["weight_map"]) == len(seen)
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == index["metadata"]["total_size"]
    before, after = weights(base), weights(tmp_path / "mlx")
    assert all(mx.array_equal(before[name], after[name]) for name in before)


def granite(directory):
    """A model of an architecture that is not in the table, and has to be checked when loaded."""
    config = GraniteConfig(
        hidden_size=256,
        intermediate_size=96,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
    )
    GraniteForCausalLM(config).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("tested", [True, False])
def test_memory_follows_the_largest_tensor(tested, bits, tmp_path):
    if tested:
        base = tiny_llama_directory(tmp_path / "base", hidden_size=256, num_hidden_layers=12)
    else:
        base = granite(tmp_path / "base")
    sizes = [tensor.nbytes for tensor in mx.load(str(base / "model.safetensors")).values()]
    assert sum(sizes) > 20 * max(sizes)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    convert_base(base, tmp_path / "mlx", bits=bits)
    assert mx.get_peak_memory() - held < 4 * max(sizes)


def test_the_progress_bar_is_for_terminals(tmp_path, monkeypatch):
    base = tiny_llama_directory(tmp_path / "base")
    assert run("--model", base, "--mlx-path", tmp_path / "1").stderr == f"wrote {tmp_path / '1'}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for a terminal
    monkeypatch.setenv("TERM", "xterm")
    shown = run("--model", base, "--mlx-path", tmp_path / "2").stderr
    done, total = re.findall(r"Converting.*?([\d.]+)/([\d.]+) kB", shown)[-1]
    assert done == total
    size = sum(tensor.nbytes for tensor in weights(base).values())
    assert float(total) == pytest.approx(size / 1000, abs=0.1)


def test_written_files_are_what_safetensors_reads(tmp_path):
    values = mx.random.normal((3, 5, 2))
    tensors = {
        "transposed": values.T,
        "sliced": values[:, ::2],
        "scalar": mx.array(2.5),
        "half": values.astype(mx.float16),
        "words": mx.arange(7, dtype=mx.uint32),
    }
    expected = {name: tensor.tolist() for name, tensor in tensors.items()}
    shards.write_weights(tmp_path, tensors, parameters=0)
    assert tensors == {}
    found = load_file(tmp_path / "model.safetensors")
    assert {name: tensor.tolist() for name, tensor in found.items()} == expected


@pytest.fixture
def cache(tmp_path):
    """A Hugging Face cache with one repository, and an environment that uses it offline."""
    root = tmp_path / "hub"
    repository = root / "models--some--llama"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    hugging_face(repository / "snapshots" / ("0" * 40))
    return {**os.environ, "HF_HUB_CACHE": str(root), "HF_HUB_OFFLINE": "1"}


def specstream(environment, *args):
    """Run in a process of its own, since huggingface_hub reads its environment once."""
    command = [sys.executable, "-m", "specstream_mlx", "convert", *map(str, args)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_repository_in_the_cache_needs_no_network(cache, tmp_path):
    result = specstream(cache, "--model", "some/llama", "--mlx-path", tmp_path / "mlx")
    assert result.returncode == 0, result.stderr
    assert weights(tmp_path / "mlx")


def test_a_repository_that_is_not_in_the_cache(cache, tmp_path):
    result = specstream(cache, "--model", "some/other", "--mlx-path", tmp_path / "mlx")
    assert result.returncode == 2
    assert result.stderr == (
        "error: the model some/other is neither a directory nor complete in the Hugging Face "
        "cache, and HF_HUB_OFFLINE forbids to download it\n"
    )


_STOPS_HALFWAY = """
import sys, time
from pathlib import Path
from specstream_mlx.convert import base_to_mlx
from specstream_mlx.cli import main

def wait(*_):
    print("halfway", flush=True)
    time.sleep(60)

base_to_mlx.save_config = wait
main()
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("replaces", [False, True])
def test_an_interrupted_conversion(replaces, stop, tmp_path):
    """It leaves no half-written model, keeps what was there, and running again succeeds."""
    hugging_face(tmp_path / "hf")
    target = tmp_path / "out" / "mlx"
    flags = ["--model", str(tmp_path / "hf"), "--mlx-path", str(target)]
    if replaces:
        convert_base(tmp_path / "hf", target, bits=4, group_size=32)
        (target / "mine.txt").write_text("mine")
        flags.append("--overwrite")
    command = [sys.executable, "-c", _STOPS_HALFWAY, "convert", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"halfway\n"
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == (130 if stop == signal.SIGINT else -stop)
    assert b"Traceback" not in stderr
    left = [path.name for path in target.parent.iterdir()]
    if replaces:
        assert (target / "mine.txt").exists()
        assert "scales" in str(weights(target).keys())
    else:
        assert not target.exists()
    if stop == signal.SIGINT:
        assert left == (["mlx"] if replaces else [])
    assert run(*flags).exit_code == 0
    assert "scales" not in str(weights(target).keys())
    assert not (target / "mine.txt").exists()
    assert [path.name for path in target.parent.iterdir()] == ["mlx"]


def test_targets_that_cannot_be_written(tmp_path):
    hugging_face(tmp_path / "hf")
    (tmp_path / "file").write_text("")
    result = run("--model", tmp_path / "hf", "--mlx-path", tmp_path / "file" / "mlx")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    result = run("--model", tmp_path / "hf", "--mlx-path", tmp_path / "file", "--overwrite")
    assert result.exit_code == 2
    assert "is a file, expected a directory to replace" in result.stderr


def test_weights_of_pytorch_alone(tmp_path):
    """What to do about them is said only where they are."""
    base = tiny_llama_directory(tmp_path / "base")
    (base / "model.safetensors").unlink()
    sentence = f"error: {base} has no model*.safetensors, expected weights in that format"
    assert run("--model", base, "--mlx-path", tmp_path / "mlx").stderr == f"{sentence}\n"
    (base / "pytorch_model-00001-of-00001.bin").touch()
    result = run("--model", base, "--mlx-path", tmp_path / "mlx")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{sentence}, which transformers makes of pytorch_model*.bin")
    assert "save_pretrained(..., safe_serialization=True)" in result.stderr
