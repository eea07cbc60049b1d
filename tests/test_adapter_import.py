"""LoRA as PEFT and mlx_lm write it: the same logits here, in stock mlx_lm and in PyTorch."""

import json
import math
import pickle
import sys
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
import torch
from mlx.utils import tree_flatten
from mlx_lm.models import phi3
from mlx_lm.tuner.utils import linear_to_lora_layers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from specstream_mlx.convert.adapter_to_mlx import convert_adapter
from specstream_mlx.convert.base_to_mlx import convert_base
from specstream_mlx.convert.formats import load_base, write_adapter
from specstream_mlx.convert.parity import BOUND, layer_differences
from specstream_mlx.convert.peft_lora import read_peft_lora
from tiny_models import VOCAB_SIZE, stream_adapter_directory, tiny_tokenizer
from torch_tiny import LINEAR, tiny_llama, tiny_model
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM
from typer.testing import CliRunner

from specstream_mlx import UserError, load
from specstream_mlx.adapters import read_adapter
from specstream_mlx.cli import app
from specstream_mlx.lora_layers import unmount

TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]

VARIANTS = {
    "all linear layers": {"target_modules": LINEAR},
    "all-linear": {"target_modules": "all-linear"},
    "two modules": {"target_modules": ["q_proj", "down_proj"]},
    "regular expression": {"target_modules": r".*\.[23]\.self_attn\.[qv]_proj"},
    "rslora": {"target_modules": LINEAR, "use_rslora": True},
    "rank_pattern": {"target_modules": LINEAR, "rank_pattern": {"q_proj": 2, "down_proj": 7}},
    "alpha_pattern": {"target_modules": LINEAR, "alpha_pattern": {"o_proj": 3, "up_proj": 11}},
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
    "layers in between": {"target_modules": LINEAR, "layers_to_transform": [0, 2]},
    "last layers": {"target_modules": LINEAR, "layers_to_transform": [2, 3]},
    "rank of the model's width, where shapes cannot tell": {
        "target_modules": ["q_proj", "o_proj"],
        "r": 32,
    },
    "head": {"target_modules": ["v_proj", "lm_head"]},
    "embedding": {"target_modules": ["v_proj", "embed_tokens"], "rank_pattern": {"v_proj": 2}},
    "dora": {"target_modules": LINEAR, "use_dora": True},
    "dora with patterns, layers in between": {
        "target_modules": LINEAR,
        "use_dora": True,
        "layers_to_transform": [1, 2],
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"v_proj": 3},
    },
}


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def hf(tmp_path_factory):
    """An untied Llama of four layers with biases."""
    directory = tmp_path_factory.mktemp("import") / "hf"
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        initializer_range=0.3,
        attention_bias=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def base(hf):
    convert_base(hf, hf.parent / "mlx")
    return hf.parent / "mlx"


def peft_directory(hf, directory, dtype=torch.float32, **config):
    """A PEFT adapter with random values, saved and loaded again by PEFT.

    Loaded again, since PEFT sorts the patterns as it saves them, and the first that matches counts.
    """
    torch.manual_seed(1)
    safe = config.pop("safe_serialization", True)
    model = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, "lora_alpha": 6} | config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name:
                parameter.normal_(std=0.2)
                parameter.data = parameter.to(dtype)
    model.save_pretrained(directory, safe_serialization=safe)
    return PeftModel.from_pretrained(load_base(hf), directory).eval()


def torch_logits(model):
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def mlx_logits(model):
    return np.array(model(mx.array([TOKENS]))[0])


def close(expected, found):
    return np.abs(expected - found).max() <= BOUND * max(1.0, np.abs(expected).max())


def edit(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`", "ignore:The following alpha")
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_peft(variant, hf, base, tmp_path):
    reference = torch_logits(peft_directory(hf, tmp_path / "peft", **VARIANTS[variant]))
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(base, adapter_path=tmp_path / "out")
    stock, _ = mlx_lm.load(str(base), adapter_path=str(tmp_path / "out"))
    assert close(reference, mlx_logits(ours.model))
    assert close(reference, mlx_logits(stock))
    ours.swap_adapter(None)
    bare = mlx_logits(ours.model)
    assert close(torch_logits(load_base(hf)), bare)
    assert np.abs(reference - bare).max() > 0.1


def test_rank_scale_and_keys_as_mlx_lm_has_them(hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", **VARIANTS["patterns of single modules, rslora"])
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (config["fine_tune_type"], config["num_layers"]) == ("lora", 4)
    assert len(config["lora_parameters"]["keys"]) == 7
    assert config["lora_parameters"]["rank"] == 6
    assert config["lora_parameters"]["scale"] == pytest.approx(6 / math.sqrt(1))
    tensors = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    assert not tensors["model.layers.3.mlp.up_proj.lora_a"][:, 1:].any()
    assert not tensors["model.layers.3.mlp.up_proj.lora_b"][1:].any()


def test_only_the_last_layers_of_two(hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", **VARIANTS["last layers"])
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["num_layers"] == 2
    assert config["lora_parameters"]["keys"][0] == "mlp.down_proj"


def test_values_are_kept_bit_for_bit(hf, tmp_path):
    """One rank and one scale: nothing is computed, so a 16-bit adapter stays what it is."""
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    written = mx.load(str(tmp_path / "out" / "adapters.safetensors"))
    source = mx.load(str(tmp_path / "peft" / "adapter_model.safetensors"))
    assert len(written) == len(source)
    for name, tensor in source.items():
        name = name.removeprefix("base_model.model.").removesuffix(".weight")
        name = name.replace("lora_A", "lora_a").replace("lora_B", "lora_b")
        assert written[name].dtype == mx.bfloat16
        assert mx.array_equal(written[name], tensor.T)


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_a_quantized_base(hf, tmp_path):
    """The same tensors as for the base it was made from; only a copied weight cannot be checked."""
    four = tmp_path / "4bit"
    convert_base(hf, four, bits=4, group_size=32)
    for name, variant in (("lora", VARIANTS["rank_pattern"]), ("dora", VARIANTS["dora"])):
        peft_directory(hf, tmp_path / f"peft-{name}", **variant)
        convert_adapter(tmp_path / f"peft-{name}", four, tmp_path / name)
        convert_adapter(tmp_path / f"peft-{name}", hf, tmp_path / f"{name}-expected")
        found, expected = (
            mx.load(str(tmp_path / directory / "adapters.safetensors"))
            for directory in (name, f"{name}-expected")
        )
        assert found.keys() == expected.keys()
        assert all(mx.array_equal(found[key], expected[key]) for key in found)
        ours, _ = load(four, adapter_path=tmp_path / name)
        stock, _ = mlx_lm.load(str(four), adapter_path=str(tmp_path / name))
        assert close(mlx_logits(stock), mlx_logits(ours.model))
    peft_directory(hf, tmp_path / "head", **VARIANTS["head"])
    assert "expected --model to be a base that is not quantized" in refused(
        four, tmp_path / "head", tmp_path / "out"
    )


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_torch_files_without_code(suffix, hf, tmp_path):
    peft_directory(hf, tmp_path / "peft", torch.bfloat16, target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "expected")
    file = tmp_path / "peft" / "adapter_model.safetensors"
    torch.save(load_file(file), file.with_suffix(suffix))
    file.unlink()
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    expected, found = (
        mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("expected", "out")
    )
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert mx.array_equal(found[name], tensor)


def test_bin_as_peft_writes_it(hf, base, tmp_path):
    model = peft_directory(hf, tmp_path / "peft", target_modules=LINEAR, safe_serialization=False)
    assert (tmp_path / "peft" / "adapter_model.bin").exists()
    convert_adapter(tmp_path / "peft", hf, tmp_path / "out")
    ours, _ = load(base, adapter_path=tmp_path / "out")
    assert close(torch_logits(model), mlx_logits(ours.model))


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
def test_streams_from_torch_files(suffix, hf, base, tmp_path):
    """Embeddings, rank-eta initialisation, stream adapters and pruner."""
    torch.manual_seed(2)
    streams = {"stream_init": "linear", "stream_init_rank": 4}
    write_adapter(tiny_model(base=load_base(hf), **streams), tmp_path / "streams")
    file = tmp_path / "streams" / "speculative_streaming.safetensors"
    torch.save(load_file(file), file.with_suffix(suffix))
    file.unlink()
    convert_adapter(tmp_path / "streams", hf, tmp_path / "out")
    differences = layer_differences(hf, tmp_path / "streams", base, tmp_path / "out", TOKENS, 5)
    assert max(d.relative for d in differences) <= BOUND


@pytest.mark.parametrize("variant", ["dora", "patterns of single modules, rslora"])
def test_streams_beside_any_lora(variant, hf, base, tmp_path):
    """Shared mode: streams pass through the same LoRA, layer by layer as in PyTorch."""
    lora = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, **VARIANTS[variant]}))
    write_adapter(tiny_model("shared", base=lora, lora=False), tmp_path / "shared")
    convert_adapter(tmp_path / "shared", hf, tmp_path / "out")
    differences = layer_differences(hf, tmp_path / "shared", base, tmp_path / "out", TOKENS, 5)
    assert max(d.relative for d in differences) <= BOUND


class Payload:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["adapter_model.bin", "speculative_streaming.pt"])
@pytest.mark.parametrize("by_torch", [True, False])
def test_malicious_pickle_is_refused(name, by_torch, hf, tmp_path):
    trace = tmp_path / "executed"
    write_adapter(tiny_model("shared", base=load_base(hf)), tmp_path / "adapter")
    file = tmp_path / "adapter" / name
    file.with_suffix(".safetensors").unlink()
    if by_torch:
        torch.save({"weight": Payload(trace)}, file)
    else:
        file.write_bytes(pickle.dumps({"weight": Payload(trace)}))
    assert f"{file} is refused" in refused(hf, tmp_path / "adapter", tmp_path / "out")
    assert not trace.exists()


def test_a_torch_file_without_torch(hf, plain, tmp_path, monkeypatch):
    (tmp_path / "adapter").mkdir()
    config = (plain / "adapter_config.json").read_text()
    (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    (tmp_path / "adapter" / "adapter_model.bin").touch()
    monkeypatch.delitem(sys.modules, "specstream_mlx.convert.formats")
    monkeypatch.setitem(sys.modules, "torch", None)
    sentence = refused(hf, tmp_path / "adapter", tmp_path / "out")
    assert "adapter_model.bin needs torch: pip install 'specstream-mlx[torch]'" in sentence


def refused(hf, adapter, target):
    """The one line on refusing to convert ``adapter``; nothing is left behind."""
    before = sorted(target.parent.iterdir())
    result = run("convert", "--model", hf, "--adapter-path", adapter, "--mlx-path", target)
    assert result.exit_code == 2, result.output
    assert sorted(target.parent.iterdir()) == before
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def plain(hf):
    """A PEFT adapter without any variation, to be copied and spoilt."""
    peft_directory(hf, hf.parent / "plain", target_modules=["q_proj", "v_proj"])
    return hf.parent / "plain"


@pytest.fixture
def spoilt(plain, tmp_path):
    directory = tmp_path / "spoilt"
    directory.mkdir()
    for file in plain.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    return directory


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bias", "lora_only"),
        ("modules_to_save", ["embed_tokens", "lm_head"]),
        ("init_lora_weights", "pissa_niter_4"),
        ("layer_replication", [[0, 2], [1, 3]]),
        ("lora_bias", True),
        ("target_parameters", ["experts.gate_up_proj"]),
        ("trainable_token_indices", [1, 2]),
        ("a_field_of_the_future", 1),
        ("peft_type", "LOHA"),
        ("rank_pattern", ["q_proj"]),
        ("rank_pattern", {"(": 3}),
        ("alpha_pattern", {"q_proj": "much"}),
        ("r", "four"),
    ],
)
def test_refused_field(field, value, hf, spoilt, tmp_path):
    edit(spoilt / "adapter_config.json", **{field: value})
    sentence = refused(hf, spoilt, tmp_path / "out")
    assert "adapter_config.json: " in sentence
    assert {"r": "r is 'four'", "alpha_pattern": "lora_alpha 'much'"}.get(field, field) in sentence


@pytest.mark.parametrize("kind", ["bias", "modules_to_save"])
def test_what_peft_writes_for_them_is_refused(kind, hf, tmp_path):
    value = {"bias": "all", "modules_to_save": ["lm_head"]}[kind]
    peft_directory(hf, tmp_path / "peft", target_modules=["q_proj"], **{kind: value})
    assert f"{kind} is {value!r}" in refused(hf, tmp_path / "peft", tmp_path / "out")


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
            lambda t: t.update({next(iter(t)): torch.ones(4, 31)}),
            "q_proj has shape (31, 4) when transposed, expected (32, 4)",
        ),
        (
            lambda t: t.update({next(iter(t)): torch.ones(4, 32, dtype=torch.int32)}),
            "has dtype mlx.core.int32, expected a floating-point one",
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


def test_dora_of_an_embedding_is_refused(hf, tmp_path):
    targets = ["embed_tokens", "q_proj"]
    peft_directory(hf, tmp_path / "peft", target_modules=targets, use_dora=True)
    sentence = refused(hf, tmp_path / "peft", tmp_path / "out")
    assert "use_dora is true with model.embed_tokens" in sentence


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("target", "expected"),
    [("embed_tokens", "the base's head is tied to it"), ("lm_head", "the base does not have")],
)
def test_tied_embeddings(target, expected, tmp_path):
    tied = tmp_path / "tied"
    tiny_llama(vocab=VOCAB_SIZE).save_pretrained(tied)
    peft_directory(tied, tmp_path / "peft", target_modules=["q_proj", target])
    assert expected in refused(tied, tmp_path / "peft", tmp_path / "out")


def test_several_adapters_in_one_run(hf, base, plain, tmp_path):
    peft_directory(hf, tmp_path / "run" / "adapter", target_modules=LINEAR, use_rslora=True)
    sources = plain, tmp_path / "run" / "adapter"
    flags = [flag for source in sources for flag in ("--adapter-path", source)]
    result = run("convert", "--model", hf, *flags, "--mlx-path", tmp_path / "out", "--verify")
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plain", "run"}
    for name in ("plain", "run"):
        load(base, adapter_path=tmp_path / "out" / name)


def test_of_several_adapters_all_or_none(hf, plain, spoilt, tmp_path):
    edit(spoilt / "adapter_config.json", bias="all")
    for other, target, expected in (
        (spoilt, tmp_path / "out", "bias is 'all'"),
        (plain, tmp_path / "out", "two adapters are named plain"),
        (spoilt, tmp_path, "holds the adapter"),
    ):
        flags = ("--adapter-path", plain, "--adapter-path", other, "--mlx-path", target)
        result = run("convert", "--model", hf, *flags, "--overwrite")
        assert (result.exit_code, expected in result.stderr) == (2, True)
        assert list(tmp_path.iterdir()) == [spoilt]


def mlx_lm_directory(base, directory, kind, keys, num_layers):
    """An adapter as ``mlx_lm.lora`` leaves it: all its settings in the file, checkpoints beside."""
    model, _ = mlx_lm.load(str(base))
    model.freeze()
    parameters = {"rank": 3, "dropout": 0.1, "scale": 4.0} | ({"keys": keys} if keys else {})
    linear_to_lora_layers(model, num_layers, parameters, use_dora=kind == "dora")
    mx.random.seed(3)
    tensors = {
        name: mx.random.normal(tensor.shape) * (0.1 if ".lora" in name else 1.0)
        for name, tensor in tree_flatten(model.trainable_parameters())
    }
    directory.mkdir()
    mx.save_safetensors(str(directory / "adapters.safetensors"), tensors)
    mx.save_safetensors(str(directory / "0000100_adapters.safetensors"), tensors)
    config = {
        "model": str(base),
        "train": True,
        "fine_tune_type": kind,
        "optimizer": "adam",
        "num_layers": num_layers,
        "adapter_path": str(directory),
        "lora_parameters": parameters,
        "lr_schedule": None,
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("kind", "keys", "num_layers"),
    [
        ("lora", None, 2),
        ("lora", None, -1),
        ("lora", ["self_attn.q_proj", "lm_head"], 3),
        ("lora", ["self_attn.q_proj", "model.embed_tokens"], 0),
        ("dora", None, 2),
    ],
)
def test_an_adapter_of_mlx_lm_itself(kind, keys, num_layers, base, tmp_path):
    directory = mlx_lm_directory(base, tmp_path / "lora", kind, keys, num_layers)
    stock, _ = mlx_lm.load(str(base), adapter_path=str(directory))
    expected = mlx_logits(stock)
    ours, _ = load(base, adapter_path=directory)
    assert ours.streams is None
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    convert_adapter(directory, base, tmp_path / "out")
    again = read_adapter(tmp_path / "out", ours.model, ours.config)
    assert again.lora.keys() == ours.adapter.lora.keys()
    ours.swap_adapter(tmp_path / "out")
    np.testing.assert_array_equal(mlx_logits(ours.model), expected)
    unmount(ours.model)
    bare, _ = mlx_lm.load(str(base))
    np.testing.assert_array_equal(mlx_logits(ours.model), mlx_logits(bare))


def test_an_adapter_without_streams_decodes_plainly_and_says_so(base, tmp_path):
    directory = mlx_lm_directory(base, tmp_path / "lora", "lora", None, 4)
    flags = ("--adapter-path", directory, "--ignore-chat-template", "--compare", "--json")
    result = run("generate", "--model", base, "-p", "the meeting", "-m", 8, *flags)
    assert result.exit_code == 0, result.output
    assert f"The adapter {directory} has no streams, so nothing is drafted" in result.stderr
    values = json.loads(result.stdout)
    assert (values["identical"], values["accepted_length"]) == (True, 1.0)


def test_swapping_between_kinds(hf, base, tmp_path):
    """LoRA, DoRA and streams one after the other: each as if it were the first."""
    peft_directory(hf, tmp_path / "peft", target_modules=LINEAR)
    convert_adapter(tmp_path / "peft", hf, tmp_path / "lora")
    peft_directory(hf, tmp_path / "peft-dora", target_modules=LINEAR, use_dora=True)
    convert_adapter(tmp_path / "peft-dora", hf, tmp_path / "dora")
    streams = stream_adapter_directory(tmp_path / "streams", base)
    model, _ = load(base)
    for name in ("lora", "dora", "streams", "dora", "lora"):
        model.swap_adapter(tmp_path / name if name != "streams" else streams)
        fresh, _ = load(base, adapter_path=model.adapter.path)
        np.testing.assert_array_equal(mlx_logits(model.model), mlx_logits(fresh.model))


def test_full_fine_tuning_is_refused(base, tmp_path):
    directory = mlx_lm_directory(base, tmp_path / "lora", "lora", None, 2)
    edit(directory / "adapter_config.json", fine_tune_type="full", lora_parameters=None)
    with pytest.raises(UserError, match="fine_tune_type is 'full', expected 'lora' or 'dora'"):
        load(base, adapter_path=directory)


def test_fused_projections(tmp_path):
    """phi3's qkv_proj and gate_up_proj: HF and mlx-lm fuse them in the same order."""
    torch.manual_seed(4)
    config = Phi3Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        pad_token_id=0,
        initializer_range=0.3,
    )
    hf = tmp_path / "phi3"
    Phi3ForCausalLM(config).save_pretrained(hf)
    targets = ["qkv_proj", "gate_up_proj", "o_proj", "down_proj"]
    pattern = {"rank_pattern": {"qkv_proj": 2}, "alpha_pattern": {"gate_up_proj": 3}}
    reference = peft_directory(hf, tmp_path / "peft", target_modules=targets, **pattern)
    values = json.loads((hf / "config.json").read_text())
    rope = values.get("rope_parameters") or {}
    values |= {"rope_theta": rope.get("rope_theta", 10000.0), "rope_scaling": None}
    model = phi3.Model(phi3.ModelArgs.from_dict(values))
    model.load_weights(str(hf / "model.safetensors"))
    assert close(torch_logits(load_base(hf)), mlx_logits(model))
    lora = read_peft_lora(tmp_path / "peft", model)
    assert lora.parameters["keys"] == [f"mlp.{t}" for t in ("down_proj", "gate_up_proj")] + [
        f"self_attn.{t}" for t in ("o_proj", "qkv_proj")
    ]
    linear_to_lora_layers(model, lora.num_layers, lora.parameters)
    model.load_weights(list(lora.tensors.items()), strict=False)
    assert close(torch_logits(reference), mlx_logits(model))
