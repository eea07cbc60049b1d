"""Whatever is wrong with what a user gives: it ends in one sentence that names the file or flag.

Each case spoils one thing in a copy of a good model, adapter, cache, tree, data file or command
line. None may end in a traceback, take more than seconds, or run code that came with a file.
"""

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
from command_line import run
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import read_tensors
from specstream_mlx.convert.pytorch.load import load_base, mount_lora
from specstream_mlx.convert.pytorch.trainer import train
from specstream_mlx.convert.pytorch.training_data import read_pairs
from specstream_mlx.convert.pytorch.training_settings import TrainSettings
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import stream_adapter_directory, tiny_llama_directory
from torch_tiny import tiny_completions

from specstream_mlx import PromptCache, UserError, load, prompt_cache_files
from specstream_mlx.config import StreamConfig
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.inspection import inspect_directory
from specstream_mlx.prompts import chat_prompt, chat_suffix

SECONDS = 10
MARK = "code-was-run"
HUGE = 10**30
LONG = "x" * 5000


# What every case is held to -----------------------------------------------------------------


@pytest.fixture(autouse=True)
def limits(tmp_path, monkeypatch):
    """Code from a file would leave a mark here, and nothing may hang."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody may ask whether to run code

    def hangs(*_):
        raise AssertionError(f"took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: the machine may be busy
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    assert not (tmp_path / MARK).exists()


def refused(call: Callable[[], object], *names: str | Path) -> str:
    """The one sentence that ``call`` is refused with, which has one of ``names`` in it."""
    with pytest.raises(UserError) as error:
        call()
    check_sentence(str(error.value), *names)
    return str(error.value)


def check_sentence(sentence: str, *names: str | Path) -> None:
    assert len(sentence.splitlines()) == 1, sentence
    assert len(sentence) < 1000, sentence
    assert any(str(name) in sentence for name in names), f"{names} not in: {sentence}"
    advice = ("trust_remote_code", "weights_only", "pip install sentencepiece", "https://")
    assert not any(word in sentence for word in advice), sentence


# Good ones ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A directory with one good example of all that is read."""
    root = tmp_path_factory.mktemp("good")
    base = tiny_llama_directory(root / "base", num_attention_heads=2)
    tiny_llama_directory(root / "packed", bits=4)
    names = sorted(load_file(base / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    adapter = stream_adapter_directory(root / "adapter", base, mode="shared", lora_rank=4)
    write_peft(root / "peft", root / "adapter")
    tiny_completions(root / "data.jsonl")
    result = run("cache-prompt", "--model", base, "--prompt-cache-file", root / "c.safetensors")
    assert result.exit_code == 2  # an empty prompt
    cache = ("--prompt-cache-file", root / "cache.safetensors", "-p", "the meeting is at noon")
    assert run("cache-prompt", "--model", base, *cache).exit_code == 0
    load(base, adapter_path=adapter)
    convert_adapter(root / "peft", base, root / "converted")
    return root


def write_peft(directory: Path, adapter: Path) -> None:
    """The PyTorch side of an adapter: PEFT's LoRA with streams beside it."""
    directory.mkdir()
    config = json.loads((adapter / "adapter_config.json").read_text())
    streams = config["speculative_streaming"]
    (directory / "speculative_streaming.json").write_text(json.dumps(streams))
    shutil.copy(adapter / "speculative_streaming.safetensors", directory)
    generator = np.random.default_rng(0)
    tensors = {}
    for layer in range(4):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        for part, shape in (("A", (4, 64)), ("B", (64, 4))):
            tensors[f"{name}.lora_{part}.weight"] = generator.normal(size=shape).astype("float32")
    save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
    fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(fields))


@pytest.fixture
def copy(good, tmp_path):
    """Copies the good example named into this test's directory."""

    def make(name: str) -> Path:
        if (good / name).is_file():
            return Path(shutil.copy(good / name, tmp_path))
        return Path(shutil.copytree(good / name, tmp_path / name))

    return make


@pytest.fixture(scope="module")
def loaded(good):
    return load(good / "base")


# Ways to spoil ------------------------------------------------------------------------------


def with_field(literal: str) -> Callable[[Path], None]:
    """A JSON file with one more field that holds ``literal``."""

    def spoil(path: Path) -> None:
        text = path.read_text().rstrip()
        path.write_text(f'{text[:-1]}, "one_more": {literal}}}')

    return spoil


def as_bytes(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def in_utf16(path: Path) -> None:
    path.write_text(path.read_text(), encoding="utf-16")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


JSON_DAMAGE = {
    "empty": as_bytes(b""),
    "cut": cut,
    "a list": as_bytes(b"[]"),
    "a number": as_bytes(b"3"),
    "null": as_bytes(b"null"),
    "text": as_bytes(b'"text"'),
    "zeros": as_bytes(bytes(100)),
    "not UTF-8": as_bytes(b'{"model_type": "\xff\xfe"}'),
    "UTF-16": in_utf16,
    "deep lists": with_field("[" * 100_000 + "]" * 100_000),
    "deep objects": as_bytes(b'{"a":' * 100_000),
    "10^5000": with_field("1" + "0" * 5000),
    "NaN": with_field("NaN"),
    "Infinity": with_field("-Infinity"),
    "1e999": with_field("1e999"),
    "a directory": as_directory,
    "a link to itself": as_link_to_itself,
}


@pytest.mark.parametrize("damage", JSON_DAMAGE)
@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors.index.json", "generation_config.json"),
        *("tokenizer_config.json", "tokenizer.json"),
    ],
)
def test_json_of_a_model(name, damage, copy):
    base = copy("base")
    JSON_DAMAGE[damage](base / name)
    refused(lambda: load(base), base / name)


@pytest.mark.parametrize("damage", JSON_DAMAGE)
def test_json_of_an_adapter(damage, copy, loaded):
    adapter = copy("adapter")
    JSON_DAMAGE[damage](adapter / "adapter_config.json")
    refused(lambda: loaded[0].swap_adapter(adapter), adapter / "adapter_config.json")


@pytest.mark.parametrize("damage", JSON_DAMAGE)
@pytest.mark.parametrize("name", ["adapter_config.json", "speculative_streaming.json"])
def test_json_of_the_pytorch_side(name, damage, copy, good, tmp_path):
    adapter = copy("peft")
    JSON_DAMAGE[damage](adapter / name)
    refused(lambda: convert_adapter(adapter, good / "base", tmp_path / "out"), adapter / name)


def edit(path: Path, **fields: object) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | fields))


SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
MODEL_FIELDS = [
    *((name, value) for name in SIZES for value in ("8", 0, -1, 1.5, True, [], {}, None)),
    *((name, value) for name in SIZES for value in (10**5, 10**8, 10**9, 2**31, 2**63, HUGE)),
    *(("num_key_value_heads", value) for value in ("2", 0, -1, 1.5, [], 10**9, HUGE)),
    *(("intermediate_size", value) for value in ("2", 0, -1, 1.5, [], 10**9, HUGE)),
    *(("head_dim", value) for value in ("2", 0, -1, 1.5, [], 31, 10**9, HUGE)),
    *(("max_position_embeddings", value) for value in ("2", 0, -1, 1.5, [], {}, HUGE)),
    *(("rms_norm_eps", value) for value in ("2", None, [], -1, True)),
    *(("rope_theta", value) for value in ("2", [], {}, 0, -1, True, HUGE * 10**300)),
    *(("rope_scaling", value) for value in ("2", [1], 3, {"rope_type": 3}, {"type": "dynamic"})),
    *(("rope_parameters", value) for value in ("2", [1], {"rope_type": "yarn", "factor": "x"})),
    *(("tie_word_embeddings", value) for value in ("false", 3, [], {})),
    *(("model_type", value) for value in (None, 3, [], {}, "", "../llama", "mamba", "cache", LONG)),
    *(("eos_token_id", value) for value in ("end", 1.5, {}, ["end"], [[1]], -2, HUGE)),
    *(("layer_types", value) for value in ("x", 3, {}, ["full_attention"], [3] * 4)),
    *(("quantization", value) for value in ("4", 4, [], {"bits": 4}, {"bits": 3.5})),
    ("quantization", {"bits": "x", "group_size": 64}),
    ("model_type", "olmo"),  # mlx-lm's file exits where a package is missing
    ("quantization_config", "x"),
    ("model_file", "model.py"),
    ("hidden_act", "gelu"),
]


def ids(fields):
    return [f"{name}={value!r}"[:60] for name, value in fields]


@pytest.mark.parametrize(("name", "value"), MODEL_FIELDS, ids=ids(MODEL_FIELDS))
def test_fields_of_a_model(name, value, copy):
    base = copy("base")
    (base / "generation_config.json").unlink()
    (base / "model.py").write_text(f"open({MARK!r}, 'w')")
    edit(base / "config.json", **{name: value})
    refused(lambda: load(base), base / "config.json")


UNTESTED = [(n, v) for n in SIZES[:3] for v in (10**5, 10**9, HUGE)]


@pytest.mark.parametrize(("name", "value"), UNTESTED, ids=ids(UNTESTED))
def test_sizes_of_an_untested_architecture(name, value, copy):
    base = copy("base")
    edit(base / "config.json", model_type="olmo2", **{name: value})
    refused(lambda: load(base), base / "config.json")


@pytest.mark.parametrize(
    "index",
    [
        *({"weight_map": value} for value in ("x", 3, [], [1], {"a": 3}, {"a": None}, {"a": []})),
        {"weight_map": {"a": "none.safetensors"}},
        {"weight_map": {"a": LONG}},
        {"weight_map": {"a": "zero\0.safetensors"}},
        {"weight_map": {"a": "../base/model.safetensors"}},
        {},
    ],
    ids=str,
)
def test_index(index, copy):
    base = copy("base")
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(lambda: load(base), base)


# Weights ------------------------------------------------------------------------------------


def change(tensor: str, make: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    """Replaces a tensor of a safetensors file, or leaves it out where ``make`` gives ``None``."""

    def spoil(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        made = make(tensors.pop(tensor))
        save_file(tensors if made is None else tensors | {tensor: made}, path, metadata)

    return spoil


def one_element(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def make(array: np.ndarray) -> np.ndarray:
        array = array.copy()
        array.flat[array.size // 2] = value
        return array

    return make


def header(text: bytes, data: bytes = b"") -> Callable[[Path], None]:
    """A safetensors file of this header."""
    return as_bytes(len(text).to_bytes(8, "little") + text + data)


FILE_DAMAGE = {
    "empty": as_bytes(b""),
    "cut": cut,
    "no tensor": header(b"{}"),
    "no JSON": header(b"x" * 64),
    "a list": header(b"[]"),
    "a header beyond the file": as_bytes(b"\xff" * 8 + b"{}"),
    "a page": as_bytes(b"<html>not found</html>"),
    "a pointer of git": as_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
    "zeros": as_bytes(bytes(1000)),
    "a pickle": as_bytes(pickle.dumps({"weight": [1.0]})),
    "a directory": as_directory,
    "a link to itself": as_link_to_itself,
    "deep": header(b'{"a":' * 20_000),
    "beyond its data": header(
        b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    ),
    "an unknown dtype": header(b'{"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "names twice": header(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
        b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
    ),
}
Q, NORM = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.input_layernorm.weight"
EMBEDDING = "model.embed_tokens.weight"
TENSOR_DAMAGE = {
    **{
        f"{what} in {tensor}": change(tensor, one_element(value))
        for tensor in (Q, NORM, EMBEDDING)
        for what, value in (("NaN", np.nan), ("infinity", np.inf), ("-infinity", -np.inf))
    },
    **{
        f"{dtype} {tensor}": change(tensor, lambda array, dtype=dtype: array.astype(dtype))
        for tensor in (Q, NORM, EMBEDDING)
        for dtype in ("int32", "uint8", "bool", "uint32", "int64")
    },
    "no norm": change(NORM, lambda array: None),
    "a longer norm": change(NORM, lambda array: np.ones(65, "float32")),
    "a norm of two axes": change(NORM, lambda array: np.ones((1, 64), "float32")),
    "an empty product": change(Q, lambda array: np.ones((0, 64), "float32")),
    "a scalar product": change(Q, lambda array: np.ones((), "float32")),
    "a short vocabulary": change(EMBEDDING, lambda array: array[:300]),
}


@pytest.mark.parametrize("damage", [*FILE_DAMAGE, *TENSOR_DAMAGE])
def test_weights(damage, copy):
    base = copy("base")
    {**FILE_DAMAGE, **TENSOR_DAMAGE}[damage](base / "model.safetensors")
    sentence = refused(lambda: load(base), base / "model.safetensors", base / "config.json")
    for tensor in (Q, NORM, EMBEDDING):
        if tensor in damage:
            assert tensor in sentence


def test_lazy_weights_are_not_read(copy):
    base = copy("base")
    TENSOR_DAMAGE[f"NaN in {Q}"](base / "model.safetensors")
    load(base, lazy=True)


@pytest.mark.parametrize("bits", [None, 4])
def test_weights_that_are_converted(bits, copy, tmp_path):
    base = copy("base")
    TENSOR_DAMAGE[f"NaN in {Q}"](base / "model.safetensors")
    refused(lambda: convert_base(base, tmp_path / "out", bits), Q)
    assert not (tmp_path / "out").exists()


PACKED_DAMAGE = {
    f"{what} in {part}": change(Q.replace("weight", part), one_element(value))
    for part in ("scales", "biases")
    for what, value in (("NaN", np.nan), ("infinity", np.inf))
} | {
    "int32 scales": change(Q.replace("weight", "scales"), lambda array: array.astype("int32")),
    "int32 biases": change(Q.replace("weight", "biases"), lambda array: array.astype("int32")),
    "float weight": change(Q, lambda array: array.astype("float32")),
    "no scales": change(Q.replace("weight", "scales"), lambda array: None),
    "no biases": change(Q.replace("weight", "biases"), lambda array: None),
    "empty scales": change(Q.replace("weight", "scales"), lambda array: array[:, :0]),
}


@pytest.mark.parametrize("weights", ["packed", "expanded"])
@pytest.mark.parametrize("damage", PACKED_DAMAGE)
def test_packed_weights(damage, weights, copy):
    base = copy("packed")
    PACKED_DAMAGE[damage](base / "model.safetensors")
    refused(lambda: load(base, weights=weights), base)


@pytest.mark.parametrize("damage", [damage for damage in FILE_DAMAGE if damage != "names twice"])
def test_inspect_weights(damage, copy):
    base = copy("base")
    FILE_DAMAGE[damage](base / "model.safetensors")
    result = run("inspect", base)
    assert result.exit_code == 2, result.output
    check_sentence(result.stderr.strip(), base / "model.safetensors")


INSPECTED = [(n, v) for n in (*SIZES, "head_dim") for v in ("8", 0, [], True, 10**18, HUGE)]


@pytest.mark.parametrize(("name", "value"), INSPECTED, ids=ids(INSPECTED))
def test_inspect_fields(name, value, copy):
    base = copy("base")
    edit(base / "config.json", **{name: value})
    refused(lambda: inspect_directory(base), base / "config.json")


# Tokenizer and template ---------------------------------------------------------------------

TOKENIZER_FIELDS = [
    ("tokenizer_class", 3),
    ("model_max_length", "x"),
    ("eos_token", 3),
    ("eos_token", ["a"]),
    ("chat_template", 3),
    ("chat_template", {"a": 1}),
    ("chat_template", [1]),
    ("added_tokens_decoder", "x"),
    ("added_tokens_decoder", {"a": "b"}),
    ("chat_template_type", "none_such"),
    ("tool_parser_type", "none_such"),
]


@pytest.mark.parametrize(("name", "value"), TOKENIZER_FIELDS, ids=ids(TOKENIZER_FIELDS))
def test_fields_of_a_tokenizer(name, value, copy):
    base = copy("base")
    (base / "chat_template.jinja").unlink(missing_ok=True)
    edit(base / "tokenizer_config.json", **{name: value})

    def read():
        _, tokenizer = load(base)
        chat_prompt(tokenizer, "hello")

    refused(read, base, "chat template")


@pytest.mark.parametrize("command", ["load", "train"])
def test_code_of_a_tokenizer_is_not_run(command, copy, good, tmp_path):
    base = copy("base")
    (base / "tokenizer.json").unlink()
    (base / "mine.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')")
    fields = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    (base / "tokenizer_config.json").write_text(json.dumps(fields))
    if command == "load":
        refused(lambda: load(base), base)
        return
    values = {"model": base, "data": good / "data.jsonl", "output": tmp_path / "out"}
    refused(lambda: train(TrainSettings(**values, num_msa_layers=2, iters=1)), base)


@pytest.mark.parametrize("model_type", ["mine", "llama"])
def test_code_of_a_model_is_not_run(model_type, copy, tmp_path):
    base = copy("base")
    (base / "mine.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')")
    fields = {"auto_map": {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}}
    edit(base / "config.json", model_type=model_type, **fields)
    if model_type == "llama":
        load_base(base)  # transformers has its own code for it
        return
    refused(lambda: load(base), base)
    refused(lambda: load_base(base), base)


TEMPLATES = {
    "no jinja": "{% if %}",
    "unclosed": "{% for message in messages %}",
    "division": "{{ 1 / 0 }}",
    "an unknown filter": "{{ messages | none_such }}",
    "an unknown name": "{{ nothing.of.this }}",
    "a sum of text and number": "{{ 'a' + 1 }}",
    "an index": "{{ messages[5]['role'] }}",
    "a call": "{{ messages() }}",
    "its own refusal": "{{ raise_exception('no\nsuch turn') }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a range": "{% for i in range(10 ** 12) %}{% endfor %}",
    "private": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "a date": "{{ strftime_now(3) }}",
    "half a character": "{{ '\\ud800' }}",
    "a class": "{{ messages | map(attribute='x') | sort | sum }}",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_template(template, copy):
    base = copy("base")
    (base / "chat_template.jinja").write_text(TEMPLATES[template])

    def read():
        _, tokenizer = load(base)
        chat_prompt(tokenizer, "hello")

    refused(read, "chat template")


@pytest.mark.parametrize("template", ["", "hello", "{{ messages | length }}"])
def test_chat_template_without_the_text(template, copy):
    base = copy("base")
    (base / "chat_template.jinja").write_text(template)

    def read():
        _, tokenizer = load(base)
        chat_suffix(tokenizer, "hello")

    refused(read, "chat template")


# Adapters -----------------------------------------------------------------------------------

LORA_A, STREAM = "model.layers.1.self_attn.q_proj.lora_a", "streams.embeddings"


def tensor_damage(tensor: str) -> dict[str, Callable[[Path], None]]:
    return {
        "NaN": change(tensor, one_element(np.nan)),
        "infinity": change(tensor, one_element(np.inf)),
        "int32": change(tensor, lambda array: array.astype("int32")),
        "float64": change(tensor, lambda array: array.astype("float64")),
        "left out": change(tensor, lambda array: None),
        "shorter": change(tensor, lambda array: array[:1]),
        "a scalar": change(tensor, lambda array: np.ones((), "float32")),
    }


ADAPTER_FILES = {
    ("adapters.safetensors", "adapter"): FILE_DAMAGE | tensor_damage(LORA_A),
    ("speculative_streaming.safetensors", "adapter"): FILE_DAMAGE | tensor_damage(STREAM),
    ("adapter_model.safetensors", "peft"): FILE_DAMAGE
    | tensor_damage(f"base_model.model.{LORA_A.replace('lora_a', 'lora_A.weight')}"),
    ("speculative_streaming.safetensors", "peft"): FILE_DAMAGE | tensor_damage(STREAM),
}
ADAPTER_CASES = [(*key, damage) for key, damages in ADAPTER_FILES.items() for damage in damages]
ADAPTER_CASES = [case for case in ADAPTER_CASES if case[1:] != ("peft", "float64")]


@pytest.mark.parametrize(("name", "kind", "damage"), ADAPTER_CASES)
def test_tensors_of_an_adapter(name, kind, damage, copy, loaded, good, tmp_path):
    adapter = copy(kind)
    ADAPTER_FILES[name, kind][damage](adapter / name)
    if kind == "adapter":
        refused(lambda: loaded[0].swap_adapter(adapter), adapter / name)
    else:
        out = tmp_path / "out"
        refused(lambda: convert_adapter(adapter, good / "base", out), adapter / name)
        assert not out.exists()


LORA_FIELDS = [
    *(("rank", value) for value in ("4", 0, -1, 1.5, True, None, 10**9, HUGE)),
    *(("scale", value) for value in ("4", None, True, [], HUGE * 10**300)),
    *(("keys", value) for value in ("q", 3, {}, [3], [None], [[]])),
]
STREAM_FIELDS = [
    *(("num_streams", value) for value in ("4", 0, True, 10**9, HUGE, None)),
    *(("num_msa_layers", value) for value in ("4", 0, 5, 10**9, HUGE)),
    *(("num_hidden_layers", value) for value in ("4", 0, 3, 10**9, HUGE)),
    *(("hidden_size", value) for value in ("4", 0, 65, 10**9, HUGE)),
    *(("pruner_rank", value) for value in ("4", -1, 9, 10**9, HUGE)),
    *(("value_rotation_epsilon", value) for value in ("x", None, True, [], 0.3)),
    ("stream_init", "value_rotation"),
    *(("mode", value) for value in ("x", None, [], {}, 3)),
    *(("stream_init", value) for value in ("x", "linear", None, [], {})),
    *(("base_model", value) for value in (3, [], {})),
    *(("base_fingerprint", value) for value in (3, [], {}, "x" * 16)),
    *(("prompt_template", value) for value in (3, [], "no text")),
    *(("version", value) for value in (1, 3, "1", None, [], True)),
    *(("stream_head", value) for value in ("x", "conditioned", None, [], 3)),
    *(("stream_head_rank", value) for value in ("4", -1, 9, HUGE)),
    *(("draft_vocabulary", value) for value in ("4", -1, 9, HUGE)),
    *(("stream_keys", value) for value in ("4", -1, None, True, HUGE)),
    ("unknown", 1),
]
TOP_FIELDS = [
    *(("num_layers", value) for value in ("4", 9, -2, 1.5, True, None, HUGE)),
    *(("fine_tune_type", value) for value in ("x", 3, None, [], {})),
    *(("lora_parameters", value) for value in ("x", 3, None, [], {})),
    *(("speculative_streaming", value) for value in ("x", 3, None, [], {})),
]


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        *(("lora_parameters", *field) for field in LORA_FIELDS),
        *(("speculative_streaming", *field) for field in STREAM_FIELDS),
        *((None, *field) for field in TOP_FIELDS),
    ],
    ids=ids([*LORA_FIELDS, *STREAM_FIELDS, *TOP_FIELDS]),
)
def test_fields_of_an_adapter(part, name, value, copy, loaded):
    adapter = copy("adapter")
    path = adapter / "adapter_config.json"
    values = json.loads(path.read_text())
    (values if part is None else values[part])[name] = value
    path.write_text(json.dumps(values))
    refused(lambda: loaded[0].swap_adapter(adapter), adapter)


PEFT_FIELDS = [
    *(("r", value) for value in ("4", 0, -1, 1.5, True, None, [], 10**9, HUGE)),
    *(("lora_alpha", value) for value in ("4", None, True, [], {}, HUGE * 10**300)),
    *(("peft_type", value) for value in ("IA3", 3, None, [], {})),
    *(("rank_pattern", value) for value in ("x", [1], {"(": 3}, {".*q_proj": "x"}, {"q_proj": []})),
    *(("alpha_pattern", value) for value in ("x", [1], {"*": 3}, {"q_proj": "x"})),
    *(("init_lora_weights", value) for value in ("pissa", 3, [], {})),
    *(("use_dora", value) for value in (True, "x", 3)),
    *(("bias", value) for value in ("all", 3)),
    *(("modules_to_save", value) for value in (["lm_head"], "lm_head")),
    ("use_rslora", "x"),
    ("none_such", 1),
]


@pytest.mark.parametrize(("name", "value"), PEFT_FIELDS, ids=ids(PEFT_FIELDS))
def test_fields_of_peft(name, value, copy, good, tmp_path):
    adapter = copy("peft")
    edit(adapter / "adapter_config.json", **{name: value})
    refused(lambda: convert_adapter(adapter, good / "base", tmp_path / "out"), adapter)


class Code:
    """A pickle that runs code when it is read."""

    def __reduce__(self):
        return open, (MARK, "w")


@pytest.mark.parametrize("suffix", [".bin", ".pt"])
@pytest.mark.parametrize("content", ["code", "a list", "numbers", "text", "cut", "empty", "NaN"])
def test_pickles_of_peft(content, suffix, copy, good, tmp_path):
    adapter = copy("peft")
    tensors = {name: torch.tensor(t) for name, t in load_file(adapter_model(adapter)).items()}
    adapter_model(adapter).unlink()
    path = adapter / f"adapter_model{suffix}"
    if content == "code":
        torch.save({"weight": Code()}, path)
    elif content == "NaN":
        next(iter(tensors.values()))[0, 0] = torch.nan
        torch.save(tensors, path)
    elif content == "cut":
        torch.save(tensors, path)
        cut(path)
    else:
        values = {"a list": [1.0], "numbers": {"a": 1.0}, "text": {"a": "b"}, "empty": {}}
        torch.save(values[content], path)
    refused(lambda: convert_adapter(adapter, good / "base", tmp_path / "out"), path)
    if content not in ("empty", "NaN"):
        refused(lambda: read_tensors(path), path)


def adapter_model(adapter: Path) -> Path:
    return adapter / "adapter_model.safetensors"


@pytest.mark.parametrize(("name", "value"), [("peft_type", 3), ("r", "x"), ("target_modules", 3)])
def test_peft_for_training(name, value, copy, good):
    adapter = copy("peft")
    edit(adapter / "adapter_config.json", **{name: value})
    refused(lambda: mount_lora(load_base(good / "base"), adapter), adapter)


def test_an_adapter_that_names_a_strange_base(copy):
    adapter = copy("adapter")
    path = adapter / "adapter_config.json"
    values = json.loads(path.read_text())
    for name in (LONG, "zero\0", "none-such"):
        values["speculative_streaming"]["base_model"] = name
        path.write_text(json.dumps(values))
        assert inspect_directory(adapter)["base"] is None


# Prompt caches ------------------------------------------------------------------------------


def metadata(**changes: object) -> Callable[[Path], None]:
    """Changes the metadata of a prompt cache; ``ours`` are fields of our own part."""

    def spoil(path: Path) -> None:
        arrays, found = mx.load(str(path), return_metadata=True)
        found = dict(found)
        for name, value in changes.items():
            if name == "ours":
                facts = json.loads(found["0.specstream_mlx"])
                found["0.specstream_mlx"] = json.dumps(facts | value)
            elif value is None:
                del found[name]
            else:
                found[name] = value
        mx.eval(arrays)
        path.unlink()
        mx.save_safetensors(str(path), arrays, found)

    return spoil


def rows(make: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        change(sorted(load_file(path))[0], make)(path)

    return spoil


CACHE_DAMAGE = {
    **FILE_DAMAGE,
    **{
        f"{name}={value!r}"[:60]: metadata(ours={name: value})
        for name, value in (
            *(
                ("tokens", value)
                for value in (3, None, ["a"], [1.5], [True], [HUGE], [-1], [10**6])
            ),
            *(("unknown_rows", value) for value in ("x", -1, 1.5, None, True, HUGE)),
            *(("base_fingerprint", value) for value in (3, None, "x")),
            *(("weights", value) for value in (3, None, "x")),
            *(("adapter", value) for value in (3, [], "x")),
        )
    },
    "no part of ours, another model": metadata(**{"0.specstream_mlx": None, "0.model": "none"}),
    "a long model": metadata(**{"0.specstream_mlx": None, "0.model": LONG}),
    "a model with zeros": metadata(**{"0.specstream_mlx": None, "0.model": "a\0b"}),
    "deep metadata": metadata(**{"0.specstream_mlx": "[" * 100_000}),
    "a huge number": metadata(**{"0.specstream_mlx": '{"tokens": [1' + "0" * 5000 + "]}"}),
    "no class": metadata(**{"1.0": None}),
    "another class": metadata(**{"1.0": "MambaCache"}),
    "an unknown class": metadata(**{"1.0": "os"}),
    "NaN in its rows": rows(one_element(np.nan)),
    "infinity in its rows": rows(one_element(np.inf)),
    "integer rows": rows(lambda array: array.astype("int32")),
    "rows of three axes": rows(lambda array: array[0]),
    "no rows": rows(lambda array: array[:, :, :0]),
    "narrow rows": rows(lambda array: array[..., :1]),
    "rows left out": rows(lambda array: None),
}


@pytest.mark.parametrize("damage", CACHE_DAMAGE)
def test_prompt_cache(damage, copy, loaded):
    path = copy("cache.safetensors")
    CACHE_DAMAGE[damage](path)

    def read():
        prompt_cache_files.read_metadata(path)
        PromptCache.load(path, loaded[0])

    refused(read, path)


@pytest.mark.parametrize("value", ["x", "[]", "3", "[" * 100_000, '{"a": NaN}', "1" + "0" * 5000])
def test_tokenizer_config_of_a_prompt_cache(value, copy):
    path = copy("cache.safetensors")
    metadata(**{"0.tokenizer_config": value})(path)
    refused(lambda: prompt_cache_files.read_metadata(path), path)


# Training -----------------------------------------------------------------------------------

PAIR = b'{"prompt": "a", "completion": "b"}\n'
DATA = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "no JSON": b"hello\n",
    "a list": b"[]\n",
    "a number": b"3\n",
    "null": b"null\n",
    "text": b'"prompt"\n',
    "no completion": b'{"prompt": "a"}\n',
    "an empty completion": b'{"prompt": "a", "completion": ""}\n',
    "a number as prompt": b'{"prompt": 1, "completion": "b"}\n',
    "null as completion": b'{"prompt": "a", "completion": null}\n',
    "a second line that is cut": PAIR + PAIR[:20],
    "deep": PAIR + b"[" * 100_000,
    "10^5000": PAIR + b'{"prompt": 1' + b"0" * 5000 + b"}\n",
    "not UTF-8": PAIR + b'{"prompt": "\xff", "completion": "b"}\n',
    "UTF-16": PAIR.decode().encode("utf-16"),
    "zeros": bytes(100),
    "one array": b'[{"prompt": "a", "completion": "b"}]',
    "half a character": b'{"prompt": "\\ud800", "completion": "b"}\n',
}


@pytest.mark.parametrize("content", DATA)
def test_training_data(content, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(DATA[content])
    refused(lambda: read_pairs(path), path)


@pytest.mark.parametrize("spoil", [as_directory, as_link_to_itself, Path.unlink])
def test_training_data_that_is_no_file(spoil, copy):
    path = copy("data.jsonl")
    spoil(path)
    refused(lambda: read_pairs(path), path)


def test_separators_of_unicode_end_no_line(tmp_path):
    path = tmp_path / "data.jsonl"
    text = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven"
    line = json.dumps({"prompt": "a", "completion": text}, ensure_ascii=False)
    path.write_text(line.replace("\\u000b", "\\u000b") + "\r\n" + line + "\n", newline="")
    assert [pair[:2] for pair in read_pairs(path)] == [("a", text)] * 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, value)
            for name in ("num_streams", "num_msa_layers")
            for value in (0, 10**9, HUGE)
        ),
        *(("pruner_rank", value) for value in (-1, 10**12, HUGE)),
        *(("batch_size", value) for value in (0, HUGE)),
        *(("iters", value) for value in (0, HUGE)),
        *(("segments", value) for value in (0, HUGE)),
        *(("seed", value) for value in (-HUGE, HUGE)),
        *(("stream_init_rank", value) for value in (-1, 0)),
        *(("learning_rate", value) for value in (-1, 0, float("nan"), float("inf"))),
        *(("weight_decay", value) for value in (-1, float("nan"))),
        *(("epochs", value) for value in (-1, float("nan"), float("inf"))),
        *(("alpha_main", value) for value in (-1, float("nan"))),
        *(("max_seq_length", value) for value in (0, 1)),
        ("prompt_template", "none"),
        ("mode", "x"),
        ("stream_mlp", "x"),
        ("pruner_form", "x"),
        ("data", Path(LONG)),
        ("model", Path(LONG)),
        ("model", Path("zero\0")),
        ("init_adapter", Path(LONG)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_settings_of_the_trainer(name, value, good, tmp_path):
    values = {"model": good / "base", "data": good / "data.jsonl", "output": tmp_path / "out"}
    values |= {"num_msa_layers": 2, "iters": None if name == "epochs" else 1, "bf16": False}
    named = "tokens" if name == "max_seq_length" else name
    refused(lambda: train(TrainSettings(**values | {name: value})), named, str(value)[:100])


# Flags --------------------------------------------------------------------------------------

DIGITS = "9" * 5000
COUNTS = [
    *("--max-tokens", "--prefill-step-size", "--num-streams", "--tree-width", "--tree-size"),
    *("--lookup-size", "--lookup-ngram", "--max-nodes", "--stream-nodes", "--quantized-kv-start"),
    *("--top-k", "--min-tokens-to-keep", "--seed", "--kv-bits", "--kv-group-size"),
]
NUMBERS = [
    *("--temp", "--top-p", "--min-p", "--xtc-probability", "--xtc-threshold"),
    *("--repetition-penalty", "--draft-threshold", "--prune-threshold"),
]
FLAGS = [
    *(
        (flag, value)
        for flag in COUNTS
        for value in ("1" + "0" * 30, DIGITS, "-1", "1.5", "nan", "")
    ),
    *((flag, value) for flag in NUMBERS for value in ("nan", "inf", "-1", "x", DIGITS, "")),
    *(
        ("--logit-bias", v)
        for v in ("[" * 100_000, '{"1": NaN}', '{"1": 1e999}', "[]", "3", "null")
    ),
    *(("--logit-bias", v) for v in ('{"1": "x"}', '{"1": [1]}', '{"-1": 1}', f'{{"{DIGITS}": 1}}')),
    *((flag, LONG) for flag in ("--model", "--adapter-path", "--prompt-cache-file")),
    *((flag, "") for flag in ("--model", "--adapter-path", "--prompt-cache-file")),
    *(("--model", value) for value in ("..", "/", "a/b/c", "~x/y", "a//b", "é/ü")),
    *(("--adapter", value) for value in (LONG, "", "../base", "/", "none")),
    *(("--mode", value) for value in ("", "x")),
    *(("--verify", value) for value in ("", "x")),
    *(("--weights", value) for value in ("", "x", "packed")),
    ("--none-such", "1"),
]


@pytest.fixture(scope="module")
def offline():
    """The hub is not asked for what is not in the cache."""
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", True)
        yield


@pytest.mark.parametrize(("flag", "value"), FLAGS, ids=[f"{f} {v}"[:60] for f, v in FLAGS])
def test_flags_of_generate(flag, value, good, offline):
    given = {"--model": good / "base", "--max-tokens": 4, "-p": "hello"}
    if flag == "--adapter":
        del given["--model"]
    given[flag] = value
    flags = [str(part) for pair in given.items() for part in pair]
    if flag.startswith("--lookup-"):
        flags.append("--lookup")
    if flag in ("--top-k", "--min-tokens-to-keep", "--top-p", "--min-p", "--seed") or "xtc" in flag:
        flags += ["--temp", "1"]
    result = run("generate", *flags)
    assert result.exit_code == 2, result.output + repr(result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    name = flag.strip("-").replace("-", "_")
    shown = {"--prompt-cache-file": "cache", "--none-such": flag}
    assert len(lines) == 1
    named = (flag, name, shown.get(flag, name), value[:100] or ".", "the model", "weights")
    check_sentence(lines[0], *named)


MIXED = ("convert", "--model", "base", "--mlx-path", "out", "--quant-predicate", "msa_4_8")
COMMANDS = [
    *(("inspect", path) for path in (LONG, "", "none", "/dev/null", "/")),
    *(("inspect", path, "--model", LONG) for path in ("adapter", "peft")),
    *(
        ("convert", "--model", value, "--mlx-path", "out")
        for value in (LONG, "", "none", "base/config.json")
    ),
    *(
        ("convert", "--model", "base", "--mlx-path", "out", "--adapter-path", v)
        for v in (LONG, "none")
    ),
    ("convert", "--model", "base", "--mlx-path", "out", "--quant-predicate", "x"),
    *((*MIXED, "--num-msa-layers", value) for value in ("0", "9", "1" + "0" * 30, DIGITS)),
    *(("autotune", "--model", "base", "--prompts", value) for value in (LONG, "none", "base")),
    *(("autotune", "--model", "base", "--max-tokens", v) for v in ("1", "1" + "0" * 30, DIGITS)),
    ("doctor", "--model", LONG),
    ("doctor", "--model", "adapter"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:60])
def test_flags_of_other_commands(command, good, tmp_path, offline):
    parts = [good / part if part and os.path.exists(good / part) else part for part in command]
    parts = [tmp_path / part if part == "out" else part for part in parts]
    result = run(*parts)
    assert result.exit_code == 2, result.output + repr(result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    named = (command[1].strip("-"), str(parts[-1])[:60], "config.json", "num_msa_layers")
    check_sentence(lines[0], *named)


# Values from Python -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [HUGE, 10**9, -1, 1.5, "4", True])
@pytest.mark.parametrize(
    "name",
    [
        *("num_streams", "tree_width", "tree_size", "max_nodes", "lookup_size", "lookup_ngram"),
        "stream_nodes",
    ],
)
def test_draft_settings(name, value):
    refused(lambda: DraftSettings(**{name: value}), name)


@pytest.mark.parametrize(
    "name", ["num_streams", "num_msa_layers", "num_hidden_layers", "hidden_size"]
)
def test_stream_config(name):
    values = {"num_msa_layers": 2, "hidden_size": 64, "num_hidden_layers": 4, name: HUGE}
    refused(lambda: StreamConfig(mode="shared", **values), name)
