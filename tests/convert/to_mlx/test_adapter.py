"""LoRA as PEFT writes it: the same logits here, in stock mlx_lm and in PyTorch, or one sentence."""

import shutil
import sys

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from command_line import refusal, run, succeeded
from parity import close, edit, mlx_logits, peft_directory, torch_logits
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import VOCAB_SIZE
from torch_tiny import LINEAR, tiny_model

from specstream_mlx import UserError, load

pytestmark = pytest.mark.filterwarnings(
    "ignore:Setting `save_embedding_layers`", "ignore:The following alpha"
)

VARIANTS = {
    "patterns that PEFT does not match, or matches later": {
        "target_modules": LINEAR,
        "alpha_pattern": {"roj": 70, "o_proj": 3, "layers.0.self_attn.o_proj": 50},
    },
    "patterns of single modules, rslora": {
        "target_modules": LINEAR,
        "use_rslora": True,
        "rank_pattern": {"layers.1.self_attn.q_proj": 6, r".*\.3\.mlp\.\w+_proj": 1},
        "alpha_pattern": {"^model.layers.0.mlp.up_proj": 5, "k_proj": 2},
    },
    "last layers": {"target_modules": LINEAR, "layers_to_transform": [2, 3]},
    "rank of the model's width": {"target_modules": ["q_proj", "o_proj"], "r": 32},
    "head": {"target_modules": ["v_proj", "lm_head"]},
    "embedding": {"target_modules": ["v_proj", "embed_tokens"], "rank_pattern": {"v_proj": 2}},
    "dora with patterns, layers in between": {
        "target_modules": LINEAR,
        "use_dora": True,
        "layers_to_transform": [1, 2],
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"v_proj": 3},
    },
}


@pytest.fixture(scope="module")
def bare(hf):
    """The base's own logits."""
    return torch_logits(load_base(hf))


def same_tensors(first, second):
    """Whether two adapter directories hold the same LoRA tensors, bit for bit."""
    one, other = (mx.load(str(path / "adapters.safetensors")) for path in (first, second))
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and mx.array_equal(one[name], other[name])
        for name in one
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_peft(variant, hf, mlx, bare, tmp_path):
    reference = torch_logits(peft_directory(hf, tmp_path / "peft", **VARIANTS[variant]))
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(mlx, adapter_path=tmp_path / "out")
    stock, _ = mlx_lm.load(str(mlx), adapter_path=str(tmp_path / "out"))
    assert close(reference, mlx_logits(ours.model))
    assert close(reference, mlx_logits(stock))
    ours.swap_adapter(None)
    assert close(bare, mlx_logits(ours.model))
    assert np.abs(reference - bare).max() > 0.1


def test_values_are_kept_bit_for_bit(hf, tmp_path):
    """With one rank and one scale nothing is computed: 16 bits stay, of torch's files too."""
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    written = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    file = tmp_path / "peft" / "adapter_model.safetensors"
    name = "model.layers.0.mlp.up_proj.lora_a"
    source = mx.load(str(file))[f"base_model.model.{name[:-1]}A.weight"]
    assert written[name].dtype == mx.bfloat16
    assert mx.array_equal(written[name], source.T)
    torch.save(load_file(file), file.with_suffix(".bin"))
    file.unlink()
    convert_adapter(tmp_path / "peft", hf, tmp_path / "torch")
    assert same_tensors(tmp_path / "torch", tmp_path / "out")


def test_a_quantized_base(hf, tmp_path):
    """The same tensors as for the base it was made from."""
    four, peft, out, expected = (tmp_path / part for part in ("4bit", "peft", "out", "expected"))
    convert_base(hf, four, Quantization(4, 32))
    peft_directory(hf, peft, **VARIANTS["patterns of single modules, rslora"])
    convert_adapter(peft, four, out)
    convert_adapter(peft, hf, expected)
    assert same_tensors(out, expected)
    ours, _ = load(four, adapter_path=out)
    stock, _ = mlx_lm.load(str(four), adapter_path=str(out))
    assert close(mlx_logits(stock), mlx_logits(ours.model))


# What cannot be imported ends in one sentence, and nothing is left behind -------------------------


def refused(hf, adapter, target):
    before = sorted(target.parent.iterdir())
    result = run("convert", "--model", hf, "--adapter-path", adapter, "--mlx-path", target)
    assert sorted(target.parent.iterdir()) == before
    return refusal(result)


@pytest.fixture(scope="module")
def plain(hf, tmp_path_factory):
    """A PEFT adapter without any variation, to be copied and spoilt."""
    directory = tmp_path_factory.mktemp("peft") / "plain"
    peft_directory(hf, directory, target_modules=["q_proj", "v_proj"])
    return directory


@pytest.fixture
def spoilt(plain, tmp_path):
    return shutil.copytree(plain, tmp_path / "spoilt")


HEAD = "base_model.model.lm_head"
HEAD_LORA = {
    f"{HEAD}.lora_A.weight": torch.ones(4, 32),
    f"{HEAD}.lora_B.weight": torch.ones(VOCAB_SIZE, 4),
    f"{HEAD}.base_layer.weight": torch.ones(VOCAB_SIZE, 32),
}
BEYOND = {"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": torch.ones(4, 2)}


def test_refused_tensors(hf, spoilt, tmp_path):
    file = spoilt / "adapter_model.safetensors"
    whole = load_file(file)
    first = next(iter(whole))
    for tensors, expected in (
        ({n: t for n, t in whole.items() if n != first}, "lora_a of model.layers.0.self_attn.q_pr"),
        (whole | {f"{HEAD}.weight": torch.ones(2, 2)}, f"tensor {HEAD}.weight is not LoRA"),
        (whole | BEYOND, "LoRA of model.layers.7.self_attn.q_proj, which the base does not have"),
        (whole | HEAD_LORA, "lm_head.base_layer.weight is not the base's weight"),
        ({}, "has no LoRA tensors"),
    ):
        save_file(tensors, file)
        sentence = refused(hf, spoilt, tmp_path / "out")
        assert expected in sentence
        assert "adapter_model.safetensors" in sentence


@pytest.mark.parametrize(
    ("base", "targets", "dora", "expected"),
    [
        ("hf", ["embed_tokens", "q_proj"], True, "use_dora is true with model.embed_tokens"),
        ("tied", ["q_proj", "embed_tokens"], False, "the base's head is tied to it"),
        ("tied", ["q_proj", "lm_head"], False, "the base does not have"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_refused_targets(base, targets, dora, expected, hf, tied, tmp_path):
    source = tied if base == "tied" else hf
    peft_directory(source, tmp_path / "peft", target_modules=targets, use_dora=dora)
    assert expected in refused(source, tmp_path / "peft", tmp_path / "out")


def test_refused_streams(hf, tmp_path):
    """Next to LoRA of the head, or with a draft vocabulary that is none of the base."""
    model = tiny_model("shared", base=load_base(hf), draft_vocabulary=2)
    write_adapter(model, tmp_path / "head")
    peft_directory(hf, tmp_path / "head", target_modules=["q_proj", "lm_head"])
    sentence = refused(hf, tmp_path / "head", tmp_path / "out")
    assert "has streams beside LoRA of lm_head" in sentence
    for ids in ([3, 3], [3, VOCAB_SIZE]):
        model.streams.vocabulary.copy_(torch.tensor(ids))
        write_adapter(model, tmp_path / "streams")
        wrong = f"ids from 3 to {ids[1]}, expected different ones of the base's"
        assert wrong in refused(hf, tmp_path / "streams", tmp_path / "out")
        with pytest.raises(UserError, match=wrong):
            load_adapter(hf, tmp_path / "streams")


def test_of_several_adapters_all_or_none(hf, mlx, plain, spoilt, tmp_path):
    run_directory, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(plain, run_directory / "adapter")
    edit(spoilt / "adapter_config.json", bias="all")

    def convert(other, target):
        flags = ("--adapter-path", plain, "--adapter-path", other, "--mlx-path", target)
        return run("convert", "--model", hf, *flags, "--overwrite")

    for other, target, expected in (
        (spoilt, out, "bias is 'all'"),
        (spoilt, tmp_path, "holds the adapter"),
    ):
        assert expected in refusal(convert(other, target))
        assert sorted(tmp_path.iterdir()) == [run_directory, spoilt]
    succeeded(convert(run_directory / "adapter", out))
    assert {path.name for path in out.iterdir()} == {"plain", "run"}
    load(mlx, adapter_path=out / "run")


def test_a_torch_file_without_torch(hf, spoilt, tmp_path, monkeypatch):
    (spoilt / "adapter_model.safetensors").rename(spoilt / "adapter_model.bin")
    monkeypatch.delitem(sys.modules, "specstream_mlx.convert.pytorch.adapter_files")
    monkeypatch.setitem(sys.modules, "torch", None)
    sentence = refused(hf, spoilt, tmp_path / "out")
    assert 'adapter_model.bin needs torch: .venv/bin/pip install -e ".[torch]"' in sentence
