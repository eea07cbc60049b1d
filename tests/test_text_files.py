"""Text files with UTF-8's signature hold the same text as without, whoever reads them."""

import json
import shutil

import pytest
from command_line import run, succeeded
from parity import peft_directory
from specstream_mlx.convert.pytorch.load import load_base, mount_lora
from specstream_mlx.convert.to_mlx.adapter import convert_adapter
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import stream_adapter_directory, tiny_llama_directory
from tiny_training import completions, write_rows

from specstream_mlx import UserError, generate, load
from specstream_mlx.distributed import ranks
from specstream_mlx.files import (
    decoded,
    prompt_lines,
    prompt_text,
    read_json,
    read_json_lines,
    read_text,
)
from specstream_mlx.train.data import read_rows

SIGNATURE = b"\xef\xbb\xbf"


def marked(path):
    path.write_bytes(SIGNATURE + path.read_bytes())
    return path


READERS = {
    "text": (read_text, "a b\r\n", "a b\r\n"),
    "a prompt": (prompt_text, "a b\n", "a b"),
    "prompts": (prompt_lines, "a b\nc\n", ["a b", "c"]),
    "JSON": (read_json, '{"a": 1}', {"a": 1}),
    "JSON lines": (lambda path: list(read_json_lines(path)), "3\n4\n", [(1, 3), (2, 4)]),
}


@pytest.mark.parametrize("case", READERS)
def test_readers(case, tmp_path):
    read, text, expected = READERS[case]
    (path := tmp_path / "file").write_bytes(text.encode())
    assert read(path) == expected == read(marked(path))


def test_one_signature_is_no_text_and_what_follows_is():
    assert decoded(SIGNATURE + b"a", "standard input") == "a"
    assert decoded(SIGNATURE * 2 + b"a", "standard input") == "\ufeffa"
    assert decoded(b"a" + SIGNATURE, "standard input") == "a\ufeff"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tiny_llama_directory(tmp_path_factory.mktemp("base") / "base")
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 5], "top_k": 3}')
    return directory


NAMES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("name", [*NAMES, "chat_template.jinja", "model.safetensors.index.json"])
def test_a_models_files(name, directory, tmp_path):
    """Also as mlx-lm, transformers and their converted copy have them."""
    other = shutil.copytree(directory, tmp_path / "base")
    if name == "model.safetensors.index.json":
        names = dict.fromkeys(["model.norm.weight"], "model.safetensors")
        (other / name).write_text(json.dumps({"weight_map": names}))
    marked(other / name)
    load_base(other)
    convert_base(other, tmp_path / "converted")
    texts = []
    for path in (directory, other, tmp_path / "converted"):
        model, tokenizer, config = load(path, return_config=True)
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": "the meeting"}])
        ends = sorted(tokenizer.eos_token_ids)
        assert config["eos_token_id"] == [1, 5] and ends == [1, 5]
        texts.append((prompt, generate(model, tokenizer, prompt, max_tokens=8)))
    assert texts[0] == texts[1] == texts[2]
    for path in (tmp_path / "converted").iterdir():
        assert not path.read_bytes().startswith(SIGNATURE), path
        assert b"/tmp/tmp" not in path.read_bytes()[:5000], path


def test_adapters(directory, tmp_path):
    adapter = stream_adapter_directory(tmp_path / "adapter", directory, mode="shared", lora_rank=4)
    peft = tmp_path / "peft"
    peft_directory(directory, peft, target_modules=["q_proj"])
    marked(adapter / "adapter_config.json")
    marked(peft / "adapter_config.json")
    load(directory, adapter_path=adapter)
    convert_adapter(peft, directory, tmp_path / "converted")
    mount_lora(load_base(directory), peft)


def test_data_and_settings_of_a_run(directory, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    rows = write_rows(data / "train.jsonl", completions(8))
    expected = [*read_rows(rows)]
    assert [*read_rows(marked(rows))] == expected
    (settings := tmp_path / "c.yaml").write_text("iters: 1\nnum_msa_layers: 2\nbatch_size: 2\n")
    flags = "--model", directory, "--data", data, "--adapter-path", tmp_path / "out", "--no-outcome"
    assert "Iter 1:" in succeeded(run("train", *flags, "--config", marked(settings))).output


@pytest.mark.parametrize("command", ["generate", "chat", "file"])
def test_standard_input_and_files_of_commands(command, directory, tmp_path):
    flags = "--model", directory, "--max-tokens", 8, "--temp", 0
    given = b"the meeting is at noon"
    (file := tmp_path / "prompt.txt").write_bytes(given)
    ways = {
        "generate": lambda text: run("generate", *flags, "--prompt", "-", stdin=text),
        "chat": lambda text: run("chat", *flags, stdin=text),
        "file": lambda text: file.write_bytes(text) and run("generate", *flags, stdin=text),
    }
    texts = [succeeded(ways[command](text)).stdout for text in (given, SIGNATURE + given)]
    assert texts[0] == texts[1]


def test_a_hostfile(tmp_path, monkeypatch):
    (path := tmp_path / "hosts.json").write_text('[["10.0.0.1:5000"], ["10.0.0.2:5000"]]')
    monkeypatch.setenv("MLX_HOSTFILE", str(marked(path)))
    assert ranks._backend() == ("ring", "10.0.0.1")
    for damaged in ("{}", "[[3]]", "[]"):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"hosts.json holds .*, expected lists of addresses"):
            ranks._backend()
