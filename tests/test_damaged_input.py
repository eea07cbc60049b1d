"""Whatever is wrong with what a user gives: it ends in one sentence that names the file or flag."""

import json
import os
import pickle
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import run
from parity import edit, peft_directory
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from specstream_mlx.convert.pytorch.adapter_files import read_tensors
from specstream_mlx.convert.pytorch.load import load_base, mount_lora
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import Quantization, convert_base
from tiny_models import CHAT_TEMPLATE, stream_adapter_directory, tiny_llama_directory
from tiny_training import completions, write_rows

from specstream_mlx import PromptCache, UserError, load
from specstream_mlx.files import _OF_PYTHON
from specstream_mlx.generation import kv_store
from specstream_mlx.generation.batch import fill
from specstream_mlx.loading.inspection import inspect_directory
from specstream_mlx.prompts import chat_prompt, chat_suffix, encode_prompt
from specstream_mlx.train.data import read_rows, read_split

SECONDS = 10
MARK = "code-was-run"
HUGE = 10**30
LONG = "x" * 5000


@pytest.fixture(autouse=True)
def limits(tmp_path, monkeypatch):
    """Code from a file would leave a mark here, and nothing may hang."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # asked whether to run code

    def hangs(*_):
        raise AssertionError(f"took more than {SECONDS} seconds")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor: the machine may be busy
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    assert not (tmp_path / MARK).exists()


def refused(call: Callable[[], object], *names: str | Path) -> str:
    with pytest.raises(UserError) as error:
        call()
    return check_sentence(str(error.value), *names)


def check_sentence(sentence: str, *names: str | Path) -> str:
    assert len(sentence.splitlines()) == 1, sentence
    assert len(sentence) < 1000, sentence
    assert any(str(name) in sentence for name in names), f"{names} not in: {sentence}"
    advice = ("trust_remote_code", "weights_only", "pip install sentencepiece", "https://")
    assert not any(word in sentence for word in advice), sentence
    return sentence


def each(name, *values):
    return [pytest.param(name, value, id=f"{name} {value}"[:60]) for value in values]


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    root = tmp_path_factory.mktemp("good")
    base = tiny_llama_directory(root / "base", num_attention_heads=2)
    tiny_llama_directory(root / "packed", bits=4)
    names = sorted(load_file(base / "model.safetensors"))
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    adapter = stream_adapter_directory(root / "adapter", base, mode="shared", lora_rank=4)
    peft_directory(base, root / "peft", target_modules=["q_proj"])  # and streams beside its LoRA
    config = json.loads((adapter / "adapter_config.json").read_text())
    streams = json.dumps(config["speculative_streaming"])
    (root / "peft" / "speculative_streaming.json").write_text(streams)
    shutil.copy(adapter / STREAMS, root / "peft")
    write_rows(root / "data.jsonl", completions(24))
    model, tokenizer = load(base)
    cache = PromptCache()
    fill(cache, model, tokenizer.encode("the meeting is at noon"))
    cache.save(root / "cache.safetensors", model)
    load(base, adapter_path=adapter)
    convert_adapter(root / "peft", base, root / "converted")
    return root


@pytest.fixture
def copy(good, tmp_path):
    def make(name: str) -> Path:
        how = shutil.copy if (good / name).is_file() else shutil.copytree
        return Path(how(good / name, tmp_path / name))

    return make


@pytest.fixture(scope="module")
def loaded(good):
    return load(good / "base")


@pytest.fixture
def read(good, loaded, tmp_path):
    def read_cache(path):
        kv_store.read_metadata(path)
        PromptCache.load(path, loaded[0])

    def read_base(path):
        _, tokenizer = load(path)
        chat_prompt(tokenizer, "hello")
        chat_suffix(tokenizer, "hello", None)

    readers = {
        "base": read_base,
        "packed": load,
        "adapter": lambda path: loaded[0].swap_adapter(path),
        "peft": lambda path: convert_adapter(path, good / "base", tmp_path / "out"),
        "data.jsonl": lambda path: read_split(path, loaded[1], 99, loaded[0].config["vocab_size"]),
        "cache.safetensors": read_cache,
    }
    yield lambda path: readers[path.name](path)
    assert not (tmp_path / "out").exists()


def with_field(literal: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(f'{path.read_text().rstrip()[:-1]}, "more": {literal}}}')


def as_bytes(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


JSON_DAMAGE = {
    "empty": as_bytes(b""),
    "cut": cut,
    "a list": as_bytes(b"[]"),
    "not UTF-8": as_bytes(b'{"model_type": "\xff\xfe"}'),
    "deep lists": with_field("[" * 100_000 + "]" * 100_000),
    "10^5000": with_field("1" + "0" * 5000),
    "1e999": with_field("1e999"),
    "a directory": as_directory,
}
JSON_FILES = [
    *(("base", f"{name}.json") for name in ("model.safetensors.index", "generation_config")),
    *(("base", "tokenizer.json"), ("adapter", "adapter_config.json")),
    *(("peft", f"{name}.json") for name in ("adapter_config", "speculative_streaming")),
]
CASES = [("base", "config.json", damage, spoil) for damage, spoil in JSON_DAMAGE.items()]
FOUR = ("cut", "a list", "deep lists", "a directory")
CASES += [(*file, damage, JSON_DAMAGE[damage]) for file in JSON_FILES for damage in FOUR]
"""What is spoilt: an example, its file, the damage in words, and what does it to the file."""


def change(tensor: str, make: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        made = make(tensors.pop(tensor))
        save_file(tensors if made is None else tensors | {tensor: made}, path, metadata)

    return spoil


def one_element(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.where(np.arange(array.size).reshape(array.shape) == 7, value, array)


def header(text: bytes, data: bytes = b"") -> Callable[[Path], None]:
    return as_bytes(len(text).to_bytes(8, "little") + text + data)


class Code:
    def __reduce__(self):
        return open, (MARK, "w")


A = b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
FILE_DAMAGE = {
    "cut": cut,
    "no tensor": header(b"{}"),
    "a header beyond the file": as_bytes(b"\xff" * 8 + b"{}"),
    "a pickle": as_bytes(pickle.dumps({"weight": Code()})),
    "a directory": as_directory,
    "deep": header(b'{"a":' * 20_000),
    "beyond its data": header(b"{" + A.replace(b"[1]", b"[1000000000000]") + b"}"),
    "names twice": header(b"{" + A + b"," + A + b"}", bytes(4)),
}
Q, NORM = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.input_layernorm.weight"
EMBEDDING, LORA_A = "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.lora_a"
SCALES, BIASES = Q.replace("weight", "scales"), Q.replace("weight", "biases")
STREAMS = "speculative_streaming.safetensors"


TENSOR_DAMAGE = {
    "NaN": one_element(np.nan),
    "infinity": one_element(np.inf),
    "int32": lambda array: array.astype("int32"),
    "left out": lambda array: None,
    "shorter": lambda array: array[:1],
    "a scalar": lambda array: np.ones((), "float32"),
}
TENSORS = [
    ("base", "model.safetensors", Q),
    ("packed", "model.safetensors", SCALES),
    ("adapter", "adapters.safetensors", LORA_A),
    ("adapter", STREAMS, "streams.embeddings"),
    ("peft", "adapter_model.safetensors", f"base_model.model.{LORA_A[:-1]}A.weight"),
    ("peft", STREAMS, "streams.embeddings"),
]
TENSOR_CASES = [(*tensor, damage) for tensor in TENSORS for damage in TENSOR_DAMAGE]
TENSOR_CASES += [("base", "model.safetensors", t, "NaN") for t in (NORM, EMBEDDING)]
TENSOR_CASES += [("base", "model.safetensors", EMBEDDING, "shorter")]
TENSOR_CASES += [("packed", "model.safetensors", Q, "int32")]
TENSOR_CASES += [("packed", "model.safetensors", BIASES, d) for d in ("NaN", "int32", "left out")]
CASES += [(k, f, f"{t} {d}", change(t, TENSOR_DAMAGE[d])) for k, f, t, d in TENSOR_CASES]
CASES += [("base", "model.safetensors", d, spoil) for d, spoil in FILE_DAMAGE.items()]
THREE = ("cut", "no tensor", "a directory")
CASES += [(*t[:2], d, FILE_DAMAGE[d]) for t in TENSORS[2:] for d in THREE]


def field(name: str, value: object, part: str = "") -> Callable[[Path], None]:
    return lambda path: edit(path, part, **{name: value})


SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
MODEL_FIELDS = [
    *(one for name in SIZES for one in each(name, "8", 0, True, None, 10**5, 10**9, HUGE)),
    *each("num_key_value_heads", 10**9),
    *each("intermediate_size", [], None),
    *each("head_dim", 31),
    *each("max_position_embeddings", {}),
    *each("rms_norm_eps", "2", -1, 0, None),
    *each("rope_theta", 0, HUGE * 10**300, None, []),
    *each("rope_traditional", None, "x"),
    *each("attention_bias", True, [1]),
    *each("architectures", -1, "x", [3]),
    *each("torch_dtype", "x", []),
    *each("text_config", None, -1),
    *each("rope_scaling", "2", [1], {"rope_type": 3}, {"type": "dynamic"}),
    *each("rope_parameters", {"rope_type": "yarn", "factor": "x"}),
    *each("tie_word_embeddings", "false"),
    *each("model_type", None, "../llama", "mamba", "cache", LONG),
    *each("model_type", "olmo"),  # mlx-lm's file exits where a package is missing
    *each("eos_token_id", ["end"], -2),
    *each("layer_types", "x", ["full_attention"], [3] * 4),
    *each("quantization", "4", {"bits": 4}, {"bits": 3.5}, {}),
    *each("quantization_config", {"a": 1}),
    *each("model_file", "model.py"),
]


@pytest.mark.parametrize(("name", "value"), MODEL_FIELDS)
def test_fields_of_a_model(name, value, copy):
    base = copy("base")
    (base / "generation_config.json").unlink()
    (base / "model.py").write_text(f"open({MARK!r}, 'w')")
    field(name, value)(base / "config.json")
    sentence = refused(lambda: load(base), base / "config.json")
    assert name in sentence or (name.startswith("rope_") and "rope" in sentence)
    if name in SIZES[:3] and value in (10**5, HUGE):  # of an architecture that is not tested too
        field("model_type", "olmo2")(base / "config.json")
        refused(lambda: load(base), base / "config.json")


FIELDS = {
    ("base", "model.safetensors.index.json", ""): {
        "weight_map": ["x", {"a": 3}, {"a": "zero\0.safetensors"}],
    },
    ("adapter", "adapter_config.json", "lora_parameters"): {
        "rank": ["4", 0, 10**9],
        "scale": ["4", HUGE * 10**300],
        "keys": ["q", [3], [[]]],
    },
    ("adapter", "adapter_config.json", "speculative_streaming"): {
        "num_streams": [True, HUGE],
        "mode": [{}],
        "stream_init": ["linear", "value_rotation"],
        "base_fingerprint": [{}],
        "prompt_template": [3],
        "stream_head": ["conditioned"],
        "draft_vocabulary": [9],
    },
    ("adapter", "adapter_config.json", ""): {
        "num_layers": ["4", 9],
        "fine_tune_type": ["x"],
        "lora_parameters": ["x"],
        "speculative_streaming": [3],
    },
    ("peft", "adapter_config.json", ""): {
        "r": ["4", 10**9],
        "lora_alpha": ["4", HUGE * 10**300],
        "peft_type": ["IA3", 3],
        "rank_pattern": ["x", {"(": 3}, {".*q_proj": "x"}],
        "init_lora_weights": ["pissa"],
        "use_dora": [True],
        "bias": ["all"],
        "none_such": [1],
    },
    ("base", "tokenizer_config.json", ""): {
        "tokenizer_class": [3],
        "eos_token": [3],
        "chat_template": [3, {"a": 1}],
        "added_tokens_decoder": [{"a": "b"}],
        "tool_parser_type": ["none_such"],
    },
}
CASES += [
    (kind, file, f"{name}={value!r}"[:60], field(name, value, part))
    for (kind, file, part), fields in FIELDS.items()
    for name, values in fields.items()
    for value in values
]


@pytest.mark.parametrize("content", ["code", "numbers", "cut", "NaN"])
def test_pickles_of_peft(content, copy, read):
    adapter = copy("peft")
    weights, path = adapter / "adapter_model.safetensors", adapter / "adapter_model.bin"
    tensors = {name: torch.tensor(tensor) for name, tensor in load_file(weights).items()}
    weights.unlink()
    if content == "NaN":
        next(iter(tensors.values()))[0, 0] = torch.nan
    values = {"code": {"weight": Code()}, "numbers": {"a": 1.0}}
    torch.save(values.get(content, tensors), path)
    if content == "cut":
        cut(path)
    refused(lambda: read(adapter), path)
    if content != "NaN":
        refused(lambda: read_tensors(path), path)


def test_code_that_comes_with_a_model_is_not_run(copy, good, tmp_path):
    base = copy("base")
    (base / "mine.py").write_text(f"open({str(tmp_path / MARK)!r}, 'w')")
    mine = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}
    edit(base / "config.json", auto_map=mine)
    load_base(base)  # transformers has its own code for it
    edit(base / "config.json", model_type="mine")
    for read in (load, load_base):
        refused(lambda read=read: read(base), base)
    shutil.copy(good / "base/config.json", base)
    (base / "tokenizer.json").unlink()
    fields = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    (base / "tokenizer_config.json").write_text(json.dumps(fields))
    refused(lambda: load(base), base)


TEMPLATES = {
    "an unknown name": "{{ nothing.of.this }}",
    "its own refusal": "{{ raise_exception('no\nsuch turn') }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "private": "{{ messages.__class__.__mro__[1].__subclasses__() }}",
    "a number, without the text": "{{ messages | length }}",
}
CASES += [
    ("base", "chat_template.jinja", damage, as_bytes(text.encode()))
    for damage, text in TEMPLATES.items()
]
CASES += [
    ("base", "chat_template.jinja", encoding, as_bytes(CHAT_TEMPLATE.encode(encoding)))
    for encoding in ("UTF-16", "UTF-16LE")
]


@pytest.mark.parametrize("unknown", ["", "<none>"])
def test_an_unknown_token_that_is_none(unknown, copy):
    """The letter h has no token, and what stands for such letters neither."""
    path = (base := copy("base")) / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"] |= {"unk_token": unknown, "merges": []}
    del values["model"]["vocab"]["h"]
    path.write_text(json.dumps(values))
    _, tokenizer = load(base)
    for encode in (chat_prompt, chat_suffix, encode_prompt):
        assert encode(tokenizer, "a")
        assert "cannot encode the text" in refused(lambda e=encode: e(tokenizer, "he"), "token")


def metadata(ours: dict | None = None, **changes: object) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            found = file.metadata()
        facts = json.loads(found["0.specstream_mlx"]) | (ours or {})
        found |= {"0.specstream_mlx": json.dumps(facts)} | changes
        save_file(load_file(path), path, {n: v for n, v in found.items() if v is not None})

    return spoil


def rows(make: Callable[[np.ndarray], np.ndarray | None]) -> Callable[[Path], None]:
    return lambda path: change(sorted(load_file(path))[0], make)(path)


CACHE_FIELDS = [("tokens", value) for value in (3, ["a"], [-1], [10**6])]
CACHE_FIELDS += [("unknown_rows", "x"), ("unknown_rows", HUGE)]
CACHE_FIELDS += [(name, "x") for name in ("base_fingerprint", "weights", "adapter")]
CACHE_DAMAGE = {
    **{damage: FILE_DAMAGE[damage] for damage in ("cut", "no tensor", "a directory")},
    **{f"{n}={v!r}"[:60]: metadata(ours={n: v}) for n, v in CACHE_FIELDS},
    "no part of ours, another model": metadata(**{"0.specstream_mlx": None, "0.model": "none"}),
    "a model with zeros": metadata(**{"0.specstream_mlx": None, "0.model": "a\0b"}),
    "deep metadata": metadata(**{"0.specstream_mlx": "[" * 100_000}),
    "a tokenizer's settings": metadata(**{"0.tokenizer_config": "[]"}),
    "another class": metadata(**{"1.0": "MambaCache"}),
    "NaN in its rows": rows(TENSOR_DAMAGE["NaN"]),
    "rows of three axes": rows(lambda array: array[0]),
    "rows left out": rows(lambda array: None),
}
CASES += [("cache.safetensors", "", damage, spoil) for damage, spoil in CACHE_DAMAGE.items()]


PAIR = b'{"prompt": "a", "completion": "b"}\n'
DATA = {
    "null as completion": as_bytes(b'{"prompt": "a", "completion": null}\n'),
    "a second line that is cut": as_bytes(PAIR + PAIR[:20]),
    "deep": as_bytes(PAIR + b"[" * 100_000),
    "not UTF-8": as_bytes(PAIR + b'{"prompt": "\xff", "completion": "b"}\n'),
    "half a character": as_bytes(b'{"prompt": "\\ud800", "completion": "b"}\n'),
}
CASES += [("data.jsonl", "", damage, spoil) for damage, spoil in DATA.items()]


def test_separators_of_unicode_end_no_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "completion": "b\u2028\x85"}\r\n' * 2, newline="")
    assert len(read_rows(path)) == 2


COMMANDS = [
    ("generate", "--logit-bias", "[" * 100_000),
    *(("generate", "--model", value) for value in (LONG, "..", "\u00e9/\u00fc")),
    *(("generate", flag, LONG) for flag in ("--adapter-path", "--prompt-cache-file", "--adapter")),
    *(("adapters", "info", path) for path in (LONG, "/dev/null")),
    ("adapters", "info", "adapter", "--model", LONG),
    *(("convert", "--mlx-path", "out", "--model", value) for value in (LONG, "base/config.json")),
    ("convert", "--mlx-path", "out", "--model", "base", "--adapter-path", LONG),
    ("doctor", "--model", "adapter"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command)[:60])
def test_command_lines(command, good, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    parts = [good / part if part and os.path.exists(good / part) else part for part in command]
    if command[0] == "generate":
        parts += ["-p", "hello"]
        parts += ["--model", good / "base"] * (command[1] not in ("--model", "--adapter"))
    named = (command[-2].strip("-").replace("-", "_"), "cache", command[-1][:60] or ".")
    result = run(*parts)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    check_sentence(line, *named, "the model", "config.json")


@pytest.mark.parametrize(("kind", "name", "damage", "spoil"), CASES)
def test_files(kind, name, damage, spoil, copy, good, read, tmp_path):
    path = copy(kind)
    spoil(path / name)
    named = [path] if "=" in damage else [path / name, path / "config.json"]
    if name in ("chat_template.jinja", "tokenizer_config.json"):
        named.append("chat template")
        if name == "tokenizer_config.json":
            (path / "chat_template.jinja").unlink()
    sentence = refused(lambda: read(path), *named)
    if kind == "packed":
        refused(lambda: load(path, weights="expanded"), path)
    if name == "model.safetensors" and damage in FILE_DAMAGE.keys() - {"names twice"}:
        refused(lambda: inspect_directory(path), path / name)
    if kind == "base" and damage.endswith((" NaN", " infinity", " int32")):
        assert damage.split()[0] in sentence
    if kind == "base" and damage == f"{Q} NaN":
        load(path, lazy=True)  # which reads no weights
        refused(lambda: convert_base(path, tmp_path / "out", Quantization(4)), Q)
    if kind == "peft" and damage in ("peft_type=3", "r='4'"):
        refused(lambda: mount_lora(load_base(good / "base"), path), path)


LOOPS = [
    ("generate", "--model", "loop", "-p", "a"),
    ("generate", "--model", "loop.gguf", "-p", "a"),
    ("generate", "--model", "base", "-p", "a", "--adapter-path", "loop"),
    ("generate", "--model", "base", "-p", "a", "--draft-head", "loop"),
    ("generate", "--model", "base", "-p", "a", "--draft-model", "loop"),
    ("generate", "--model", "base", "-p", "a", "--prompt-cache-file", "loop.safetensors"),
    ("generate", "--coreml", "loop.mlpackage", "-p", "a"),
    ("chat", "--model", "loop"),
    ("write", "proofread", "--model", "base", "--file", "loop"),
    ("serve", "--model", "loop"),
    ("serve", "--model", "base", "--adapters", "loop"),
    ("train", "--model", "base", "--adapter-path", "out", "--data", "loop"),
    ("train", "--model", "base", "--adapter-path", "out", "--prompts", "loop"),
    ("train", "--model", "base", "--adapter-path", "out", "--data", ".", "--config", "loop.yaml"),
    ("train", "--model", "base", "--adapter-path", "out", "--data", ".", "--init-adapter", "loop"),
    ("convert", "--model", "loop", "--mlx-path", "out"),
    ("convert", "--model", "base", "--mlx-path", "loop"),
    ("convert", "--model", "base", "--mlx-path", "loop/below"),
    ("convert", "--model", "base", "--mlx-path", "out", "--adapter-path", "loop"),
    ("convert", "--model", "base", "--mlx-path", "out", "--draft-head", "loop"),
    ("adapters", "add", "mine", "loop", "--model", "base"),
    ("export-coreml", "--model", "base", "--output", "loop.mlpackage"),
    (
        "export-coreml",
        "--model",
        "base",
        "--context",
        "64",
        "--output",
        "x.mlpackage",
        "--adapter",
        "loop",
    ),
    ("doctor", "--model", "loop"),
    ("benchmark", "speedup", "--model", "base", "--prompts", "loop"),
]


@pytest.mark.parametrize("words", LOOPS, ids=" ".join)
def test_a_link_to_itself_is_one_sentence(words, copy, tmp_path):
    copy("base")
    for name in ("", ".gguf", ".safetensors", ".yaml", ".mlpackage"):
        (tmp_path / f"loop{name}").symlink_to(f"loop{name}")
    result = run(*words)
    assert result.exit_code == 2, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ") and "loop" in last and not _OF_PYTHON.search(last)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"),
        *("tokenizer_config.json", "generation_config.json", "chat_template.jinja"),
    ],
)
def test_a_link_to_itself_in_a_model(name, copy):
    base = copy("base")
    (base / name).unlink()
    (base / name).symlink_to(name)
    refused(lambda: load(base), name, base)


def test_paths_of_no_file_in_python(loaded, tmp_path):
    model, _ = loaded
    (loop := tmp_path / "loop.safetensors").symlink_to(loop.name)
    cache = PromptCache()
    fill(cache, model, [5, 6, 7])
    zero = f"{tmp_path}/zero\0.safetensors"
    for path in (loop, loop / "below.safetensors", f"{LONG}.safetensors", zero):
        for call in (
            lambda path=path: load(path),
            lambda path=path: model.with_adapter(path),
            lambda path=path: model.swap_adapter(path),
            lambda path=path: model.mount_head(path),
            lambda path=path: PromptCache.load(path, model),
            lambda path=path: cache.save(path, model),
            lambda path=path: inspect_directory(Path(path)),
        ):
            refused(call, "loop", "xxx", "zero")


KINDS = (None, 3, True, "x", [], {}, [None], {"a": 1}, HUGE)
"""Values of other kinds than a field has."""


def _fields(values, depth=2):
    for name, value in values.items():
        yield (name,)
        if isinstance(value, dict) and depth and len(value) < 40:
            yield from ((name, *further) for further in _fields(value, depth - 1))


@pytest.mark.parametrize(
    "file",
    [
        *("base/config.json", "base/tokenizer_config.json", "base/generation_config.json"),
        *("adapter/adapter_config.json", "peft/adapter_config.json"),
        "peft/speculative_streaming.json",
    ],
)
def test_no_sentence_has_pythons_own_words(file, copy, read, tmp_path):
    """Whatever kind of value stands in whichever field."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    directory, name = file.split("/")
    path = copy(directory) / name
    whole = path.read_text()
    for place in _fields(json.loads(whole)):
        for value in KINDS:
            values = json.loads(whole)
            within = values
            for key in place[:-1]:
                within = within[key]
            within[place[-1]] = value
            path.write_text(json.dumps(values))
            try:
                read(path.parent)
            except UserError as error:
                found = str(error).replace(str(tmp_path), "")
                assert not _OF_PYTHON.search(found), f"{place} {value!r}: {found}"
            shutil.rmtree(tmp_path / "out", ignore_errors=True)


_PICKLES = {
    "of protocol 4": lambda: pickle.dumps({"a": 1}, 4),
    "of code": lambda: pickle.dumps(Code(), 2),
    "cut": lambda: pickle.dumps({"a": 1}, 4)[:-5],
}


@pytest.mark.parametrize("case", _PICKLES)
def test_nothing_is_printed_above_the_sentence_about_a_pickle(case, tmp_path, capfd):
    (path := tmp_path / "x.bin").write_bytes(_PICKLES[case]())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        refused(lambda: read_tensors(path), path)
    assert not caught and not "".join(capfd.readouterr())
