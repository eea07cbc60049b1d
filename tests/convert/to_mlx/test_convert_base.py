"""Importing real bases: what they come as, how little memory it takes, and interruptions."""

import json
import shutil

import mlx.core as mx
import pytest
import torch
from architecture_models import unlisted_model
from command_line import refusal, run, succeeded
from huggingface_hub import constants
from mlx.utils import tree_flatten
from mlx_lm.convert import convert as mlx_lm_convert
from mlx_lm.utils import load_model, make_shards
from specstream_mlx.convert.to_mlx import base as conversion
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import VOCAB_SIZE, stream_adapter_directory, tiny_llama_directory
from torch_tiny import saved, tiny_llama


def convert(*args):
    return run("convert", *args)


def converted(base, target, *flags):
    succeeded(convert("--model", base, "--mlx-path", target, *flags))
    return target


def hugging_face(directory, *, dtype=torch.float32, tied=True, **kwargs):
    torch.manual_seed(0)
    model = tiny_llama(vocab=VOCAB_SIZE, tied=tied).to(dtype)
    saved(model, directory, **kwargs)
    return model


def each_its_own(weights, **_):
    """A file for each tensor."""
    return make_shards(weights, max_file_size_gb=0)


def weights(directory):
    return dict(tree_flatten(load_model(directory)[0].parameters()))


@pytest.mark.parametrize(
    ("size", "tied", "stored", "wanted"),
    [
        ("20KB", True, torch.float32, None),
        ("1GB", False, torch.bfloat16, None),
        ("1GB", True, torch.float32, "float16"),
    ],
)
def test_values_of_whole_and_sharded_sources(size, tied, stored, wanted, tmp_path):
    model = hugging_face(tmp_path / "hf", dtype=stored, tied=tied, max_shard_size=size)
    assert (len(list((tmp_path / "hf").glob("model-*"))) > 1) == (size == "20KB")
    flags = ("--dtype", wanted) if wanted else ()
    dtype = getattr(mx, wanted or str(stored).removeprefix("torch."))
    found = weights(converted(tmp_path / "hf", tmp_path / "mlx", *flags))
    expected = {n: p for n, p in model.state_dict().items() if not tied or n != "lm_head.weight"}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == dtype
        assert mx.array_equal(found[name], mx.array(value.float().numpy()).astype(dtype)), name


def test_a_quantized_model_stays_as_it_is(tmp_path, monkeypatch):
    """Also in several files, which are indexed."""
    base = tiny_llama_directory(tmp_path / "4bit", bits=4)
    sentence = refusal(convert("--model", base, "--mlx-path", tmp_path / "again", "--bits", 8))
    assert "quantized already, 4 bits in groups of 32" in sentence
    assert not (tmp_path / "again").exists()
    monkeypatch.setattr(conversion, "make_shards", each_its_own)
    convert_base(base, tmp_path / "mlx")
    before, after = weights(base), weights(tmp_path / "mlx")
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    index = json.loads((tmp_path / "mlx" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "mlx").glob("model*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) == len(index["weight_map"])


def test_memory_follows_the_file_that_is_written(tmp_path, monkeypatch):
    """Also of a model whose family is not tested, and is run where it is loaded."""
    monkeypatch.setattr(conversion, "make_shards", each_its_own)
    wide = {"hidden_size": 256, "num_hidden_layers": 12, "vocab_size": VOCAB_SIZE}
    base = unlisted_model(tmp_path / "base", "Granite", **wide)
    sizes = [tensor.nbytes for tensor in mx.load(str(base / "model.safetensors")).values()]
    assert sum(sizes) > 20 * max(sizes)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    convert_base(base, tmp_path / "mlx", Quantization(4))
    assert mx.get_peak_memory() - held < 4 * max(sizes)


def test_what_the_wanted_dtype_does_not_hold_is_refused(tmp_path):
    """float16 ends at 65504; before, infinity was written, which no command could load."""
    directory = tiny_llama_directory(tmp_path / "base")
    path = directory / "model.safetensors"
    arrays = dict(mx.load(str(path)))
    arrays["model.norm.weight"] = arrays["model.norm.weight"] * 1e6
    mx.save_safetensors(str(path), arrays, {"format": "mlx"})
    flags = ("--model", directory, "--mlx-path", tmp_path / "mlx")
    sentence = refusal(convert(*flags, "--dtype", "float16"))
    assert f"{directory}: model.norm.weight is not finite in float16" in sentence
    assert not (tmp_path / "mlx").exists()
    assert convert(*flags).exit_code == 0


def test_a_repository_is_read_from_the_cache_without_network(tied, tmp_path, monkeypatch):
    repository = tmp_path / "hub" / "models--some--llama"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    shutil.copytree(tied, repository / "snapshots" / ("0" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert weights(converted("some/llama", tmp_path / "mlx"))


def test_weights_of_pytorch_alone(tmp_path):
    base = tiny_llama_directory(tmp_path / "base")
    (base / "model.safetensors").rename(base / "pytorch_model-00001-of-00001.bin")
    sentence = refusal(convert("--model", base, "--mlx-path", tmp_path / "mlx"))
    assert "save_pretrained(..., safe_serialization=True)" in sentence


# Quantization: which layers get how many bits ---------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8}
    directory = tmp_path_factory.mktemp("recipes") / "base"
    return tiny_llama_directory(directory, **sizes, tie_word_embeddings=False)


def bits_by_layer(directory):
    model, _ = load_model(directory, lazy=True)
    return {name: m.bits for name, m in model.named_modules() if "scales" in m}


def test_group_sizes_and_bits_of_embeddings(base, tmp_path):
    target = converted(base, tmp_path / "128", "--bits", 4, "--group-size", 128)
    assert json.loads((target / "config.json").read_text())["quantization"]["group_size"] == 128
    target = converted(base, tmp_path / "mlx", "--quant-predicate", "embeddings_4_8")
    found = bits_by_layer(target)
    assert {found.pop("model.embed_tokens"), found.pop("lm_head")} == {8}
    assert set(found.values()) == {4}
    assert json.loads((target / "config.json").read_text())["quantization"]["bits"] == 4


def test_mixed_recipes_give_mlx_lms_weights(base, tmp_path):
    """The very tensors and bits that ``mlx_lm.convert`` writes."""
    recipe = "mixed_2_6"
    target = converted(base, tmp_path / "ours", "--quant-predicate", recipe)
    theirs = tmp_path / "theirs"
    mlx_lm_convert(str(base), str(theirs), quantize=True, quant_predicate=recipe)
    found, expected = weights(target), weights(theirs)
    assert found.keys() == expected.keys()
    assert all(mx.array_equal(found[name], expected[name]) for name in expected)
    assert set(bits_by_layer(target).values()) == {2, 6}
    assert bits_by_layer(target) == bits_by_layer(theirs)


# What ``--overwrite`` replaces, and what it leaves alone: sources, other files, links -------------


def replace(*args):
    return convert(*args, "--overwrite")


def refused(*args):
    return refusal(replace(*args))


@pytest.fixture
def model(tmp_path):
    return tiny_llama_directory(tmp_path / "work" / "hf", num_hidden_layers=2)


@pytest.fixture
def adapter(model):
    return stream_adapter_directory(model.parent / "adapters" / "sql", model)


def test_a_source_is_never_replaced(model, adapter, tmp_path, monkeypatch):
    """Nor what holds one, by whatever path; ``hf``'s parent would pass for a model here."""
    for file in model.iterdir():
        (model.parent / file.name).write_bytes(file.read_bytes())
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
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
        assert sorted(tmp_path.rglob("*")) == before


def test_other_files_are_kept_and_own_ones_replaced(model, adapter, tmp_path):
    """A training run's checkpoints and its PyTorch adapter are none of a conversion's files."""
    base = ("--model", model)
    one = (*base, "--adapter-path", adapter)
    two = (*one, "--adapter-path", shutil.copytree(adapter, tmp_path / "b"))
    for flags, written, name in (
        (base, False, ".git/config"),
        (base, True, "README.md"),
        (one, True, "0000100_adapters.safetensors"),
        (two, True, "b/README.md"),
    ):
        target = tmp_path / f"out of {name.replace('/', ' ')} {written}"
        if written:
            assert convert(*flags, "--mlx-path", target).exit_code == 0
        (target / name).parent.mkdir(exist_ok=True, parents=True)
        (target / name).write_text("mine")
        sentence = refused(*flags, "--mlx-path", target)
        assert f"other files than a converted model's or adapter's, such as {name}," in sentence
        assert (target / name).read_text() == "mine"
        (target / name).rename(target / ".DS_Store")
        if written:
            assert replace(*flags, "--mlx-path", target).exit_code == 0


def test_a_link_stays_and_what_it_points_to_is_replaced(model, adapter, tmp_path):
    out, link = shutil.copytree(adapter, tmp_path / "disk" / "out"), tmp_path / "link"
    link.symlink_to(out)
    assert replace("--model", model, "--mlx-path", link).exit_code == 0
    assert link.is_symlink()
    assert (out / "model.safetensors").is_file()
    assert not (out / "adapter_config.json").exists()
    assert list(out.parent.iterdir()) == [out]


def test_what_the_file_system_refuses_is_one_sentence(model, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, sentence in (
        ("file/out", "cannot be written: "),
        ("loop", "cannot be written: "),
        ("file", "is a file, expected a directory to replace"),
    ):
        flags = ("--model", model, "--mlx-path", tmp_path / name)
        assert f"{tmp_path / name} {sentence}" in refused(*flags)
