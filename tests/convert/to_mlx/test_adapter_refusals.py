"""What cannot be imported ends in one sentence, and nothing is left behind."""

import shutil
import sys

import pytest
import torch
from command_line import refusal, run
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import write_adapter
from specstream_mlx.convert.pytorch.load import load_adapter, load_base
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import VOCAB_SIZE
from tiny_peft import edit, peft_directory
from torch_tiny import tiny_model

from specstream_mlx import UserError


def refused(hf, adapter, target):
    """The one line on refusing to convert ``adapter``; nothing is left behind."""
    before = sorted(target.parent.iterdir())
    result = run("convert", "--model", hf, "--adapter-path", adapter, "--mlx-path", target)
    assert sorted(target.parent.iterdir()) == before
    line = refusal(result)
    assert line.startswith("error: ")
    return line


@pytest.fixture(scope="module")
def plain(hf, tmp_path_factory):
    """A PEFT adapter without any variation, to be copied and spoilt."""
    directory = tmp_path_factory.mktemp("peft") / "plain"
    peft_directory(hf, directory, target_modules=["q_proj", "v_proj"])
    return directory


@pytest.fixture
def spoilt(plain, tmp_path):
    return shutil.copytree(plain, tmp_path / "spoilt")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda t: t.pop(next(iter(t))), "lora_a of model.layers.0.self_attn.q_proj is missing"),
        (
            lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(2, 2)}),
            "tensor base_model.model.lm_head.weight is not LoRA",
        ),
        (
            lambda t: t.update(
                {"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": torch.ones(4, 2)}
            ),
            "LoRA of model.layers.7.self_attn.q_proj, which the base does not have",
        ),
        (
            lambda t: t.update(
                {
                    "base_model.model.lm_head.lora_A.weight": torch.ones(4, 32),
                    "base_model.model.lm_head.lora_B.weight": torch.ones(VOCAB_SIZE, 4),
                    "base_model.model.lm_head.base_layer.weight": torch.ones(VOCAB_SIZE, 32),
                }
            ),
            "lm_head.base_layer.weight is not the base's weight",
        ),
        (dict.clear, "has no LoRA tensors"),
    ],
)
def test_refused_tensors(change, expected, hf, spoilt, tmp_path):
    file = spoilt / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    sentence = refused(hf, spoilt, tmp_path / "out")
    assert expected in sentence
    assert "adapter_model.safetensors" in sentence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("base", "targets", "dora", "expected"),
    [
        ("hf", ["embed_tokens", "q_proj"], True, "use_dora is true with model.embed_tokens"),
        ("tied", ["q_proj", "embed_tokens"], False, "the base's head is tied to it"),
        ("tied", ["q_proj", "lm_head"], False, "the base does not have"),
        ("packed", ["lm_head"], False, "expected --model to be a base that is not quantized"),
    ],
)
def test_refused_targets(base, targets, dora, expected, hf, tied, tmp_path):
    """A copied head cannot be compared with a quantized one."""
    source = tied if base == "tied" else hf
    peft_directory(source, tmp_path / "peft", target_modules=targets, use_dora=dora)
    if base == "packed":
        source = tmp_path / "packed"
        convert_base(hf, source, Quantization(4, 32))
    assert expected in refused(source, tmp_path / "peft", tmp_path / "out")


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_streams_beside_lora_of_the_head(hf, tmp_path):
    write_adapter(tiny_model("shared", base=load_base(hf)), tmp_path / "adapter")
    peft_directory(hf, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    sentence = refused(hf, tmp_path / "adapter", tmp_path / "out")
    assert "has streams beside LoRA of lm_head, expected it in decoder layers alone" in sentence


@pytest.mark.parametrize("ids", [[3, 3], [3, VOCAB_SIZE], [-1, 3]])
def test_a_draft_vocabulary_that_is_none_of_the_base(ids, hf, tmp_path):
    """What decoding would refuse is not written, nor trained on."""
    model = tiny_model("shared", base=load_base(hf), draft_vocabulary=2)
    model.streams.vocabulary.copy_(torch.tensor(ids))
    write_adapter(model, tmp_path / "adapter")
    wrong = f"ids from {min(ids)} to {max(ids)}, expected different ones of the base's {VOCAB_SIZE}"
    assert wrong in refused(hf, tmp_path / "adapter", tmp_path / "out")
    with pytest.raises(UserError, match=wrong):
        load_adapter(hf, tmp_path / "adapter")


def test_of_several_adapters_all_or_none(hf, plain, spoilt, tmp_path):
    edit(spoilt / "adapter_config.json", bias="all")
    for other, target, expected in (
        (spoilt, tmp_path / "out", "bias is 'all'"),
        (plain, tmp_path / "out", "two adapters are named plain"),
        (spoilt, tmp_path, "holds the adapter"),
    ):
        flags = ("--adapter-path", plain, "--adapter-path", other, "--mlx-path", target)
        assert expected in refusal(run("convert", "--model", hf, *flags, "--overwrite"))
        assert list(tmp_path.iterdir()) == [spoilt]


def test_a_torch_file_without_torch(hf, plain, tmp_path, monkeypatch):
    (tmp_path / "adapter").mkdir()
    config = (plain / "adapter_config.json").read_text()
    (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    (tmp_path / "adapter" / "adapter_model.bin").touch()
    monkeypatch.delitem(sys.modules, "specstream_mlx.convert.pytorch.adapter_files")
    monkeypatch.setitem(sys.modules, "torch", None)
    sentence = refused(hf, tmp_path / "adapter", tmp_path / "out")
    assert "adapter_model.bin needs torch: pip install 'specstream-mlx[torch]'" in sentence
