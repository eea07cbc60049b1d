"""Prompt caches in files: mlx_lm reads ours, we read mlx_lm's, and what does not fit is refused."""

import json
import sys

import mlx.core as mx
import mlx_lm
import pytest
from command_line import generate as run_generate
from command_line import run
from mlx_lm import cache_prompt
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache
from random_models import plain_tokens, random_prompt
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import PromptCache, UserError, generate, load
from specstream_mlx.engine.kv import NEVER_QUANTIZED, KVQuantization
from specstream_mlx.prompts import chat_suffix
from specstream_mlx.scheduler import fill

TEXT, QUESTION = "the meeting is at noon, please", "send the report to the team?"
KV = ("--kv-bits", 4, "--kv-group-size", 32, "--quantized-kv-start", 0)


def tiny(directory, **config):
    return tiny_llama_directory(directory, num_attention_heads=2, **config)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("files") / "base", seed=1)


@pytest.fixture(scope="module")
def lora(base):
    return stream_adapter_directory(base.parent / "lora", base, mode="shared", lora_rank=4)


@pytest.fixture(scope="module")
def ours(base):
    path = base.parent / "ours.safetensors"
    write(path, base)
    return path


def write(path, base, quantization=NEVER_QUANTIZED):
    """A prompt cache file of a turn that begins with ``TEXT``."""
    model, tokenizer = load(base)
    turn = [{"role": "user", "content": TEXT}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, continue_final_message=True)
    cache = PromptCache()
    ids = tokenizer.encode(text, add_special_tokens=False)
    fill(cache, model, ids, quantization=quantization)
    cache.save(path, model, str(base))


def by_mlx_lm(path, base, *args, monkeypatch):
    """What ``mlx_lm.cache_prompt`` writes."""
    command = ["cache_prompt", "--model", base, "--prompt-cache-file", path, "--prompt", TEXT]
    monkeypatch.setattr(sys, "argv", [str(part) for part in (*command, *args)])
    cache_prompt.main()
    return path


def gone_on(path, *args):
    flags = ("--prompt-cache-file", path, "-p", QUESTION, "-m", 12)
    result = run("generate", *flags, *args)
    assert result.exit_code == 0, result.stderr
    return result.stdout.rstrip("\n")


def mlx_lm_goes_on(path, base):
    """The text of ``mlx_lm.generate --prompt-cache-file``."""
    model, tokenizer = mlx_lm.load(str(base))
    cache, metadata = load_prompt_cache(str(path), return_metadata=True)
    assert metadata["model"] == str(base)
    assert json.loads(metadata["tokenizer_config"]).get("trust_remote_code") in (None, False)
    messages = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    suffix = tokenizer.encode(text[text.index(QUESTION) :], add_special_tokens=False)
    return mlx_lm.generate(model, tokenizer, suffix, max_tokens=12, prompt_cache=cache)


@pytest.mark.parametrize("kv", [(), KV], ids=["float", "int4"])
def test_both_go_on_from_both(kv, base, tmp_path, monkeypatch):
    """Four ways, one text; with a float cache it is that of the whole prompt as well."""
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, *kv, monkeypatch=monkeypatch)
    ours = tmp_path / "ours.safetensors"
    quantization = KVQuantization(*kv[1::2]) if kv else NEVER_QUANTIZED
    write(ours, base, quantization)
    texts = {gone_on(path, *model) for path in (ours, theirs) for model in ((), ("--model", base))}
    texts |= {mlx_lm_goes_on(path, base) for path in (ours, theirs)}
    assert len(texts) == 1
    for found, expected in zip(
        load_prompt_cache(str(ours)), load_prompt_cache(str(theirs)), strict=1
    ):
        assert type(found) is type(expected)
        assert found.offset == expected.offset
    _, tokenizer = load(base)
    suffix = chat_suffix(tokenizer, QUESTION, "say: {text}!")
    assert tokenizer.decode(suffix) == f"{QUESTION}!<|end|><|assistant|>"
    if not kv:
        whole = run_generate(base, prompt=TEXT + QUESTION).stdout
        assert texts == {whole.rstrip("\n")}


def test_a_turn_of_shared_mode(base, lora, tmp_path):
    """The file of a cache that generated holds the rows without streams alone."""
    model, tokenizer = load(base, adapter_path=lora)
    cache, prompt = PromptCache(), random_prompt(20)
    text = generate(model, tokenizer, prompt, max_tokens=12, prompt_cache=cache)
    path = tmp_path / "turn.safetensors"
    cache.save(path, model)
    found = PromptCache.load(path, model)
    assert found.tokens == prompt[:-1]
    assert generate(model, tokenizer, prompt, max_tokens=12, prompt_cache=found) == text
    assert found.reused == 19


@pytest.mark.parametrize("rows", [5, 30])
def test_layers_with_a_window(rows, tmp_path):
    """mlx_lm's class for them holds our rows, all of them; one that dropped some is refused."""
    base = tiny(tmp_path / "base", seed=2)
    config = json.loads((base / "config.json").read_text())
    kinds = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8}
    (base / "config.json").write_text(json.dumps(config | kinds))
    model, _ = load(base)
    prompt, path = random_prompt(rows), tmp_path / "cache.safetensors"
    cache = PromptCache()
    fill(cache, model, prompt)
    cache.save(path, model)
    assert PromptCache.load(path, model).tokens == prompt
    expected = plain_tokens(model.model, [*prompt, 7, 8, 9], 12)
    found = plain_tokens(model.model, [7, 8, 9], 12, prompt_cache=load_prompt_cache(str(path)))
    assert found == expected
    theirs = make_prompt_cache(model.model)
    for token in prompt:
        model.model(mx.array([[token]]), cache=theirs)
    save_prompt_cache(str(path), theirs, {"model": str(base), "tokenizer_config": "{}"})
    if rows < 8:
        assert PromptCache.load(path, model).unknown_rows == rows
    else:
        with pytest.raises(UserError, match="layer 1 has a RotatingKVCache that dropped rows"):
            PromptCache.load(path, model)


def refusal(path, *args):
    result = run("generate", "--prompt-cache-file", path, "-p", QUESTION, *args)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_other_models(base, ours, lora, tmp_path, monkeypatch):
    shape = tiny(tmp_path / "shape", intermediate_size=128)
    weights = tiny(tmp_path / "weights", seed=2)
    assert "made by another model" in refusal(ours, "--model", shape)
    assert "same shape with other weights" in refusal(ours, "--model", weights)
    assert "expected the LoRA of digest" in refusal(ours, "--model", base, "--adapter-path", lora)
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, monkeypatch=monkeypatch)
    assert f"was made by the model {base}, expected {shape}" in refusal(theirs, "--model", shape)
    layers = make_prompt_cache(mlx_lm.load(str(tiny(tmp_path / "five", num_hidden_layers=5)))[0])
    for layer in layers:
        layer.update_and_fetch(mx.zeros((1, 2, 3, 32)), mx.zeros((1, 2, 3, 32)))
    facts = {"model": str(base), "tokenizer_config": "{}"}
    save_prompt_cache(str(theirs), layers, facts)
    assert "has 5 layers, expected the model's 4" in refusal(theirs)
    for layer in layers:
        layer.keys = layer.keys[:, :1]
    save_prompt_cache(str(theirs), layers[:4], facts)
    assert "keys have the shape" in refusal(theirs)


def test_other_quantization_and_bad_names(base, ours, tmp_path):
    path = tmp_path / "int4.safetensors"
    write(path, base, KVQuantization(*KV[1::2]))
    assert "has --kv-bits 4 and --kv-group-size 32" in refusal(
        path, "--model", base, "--kv-bits", 8
    )
    assert "expected at most one" in refusal(ours, "--compare")
    for path, reason in (
        (tmp_path / "cache.bin", "ends in .safetensors"),
        (tmp_path / "no" / "cache.safetensors", "does not exist"),
    ):
        with pytest.raises(UserError, match=reason):
            write(path, base)


def test_other_files_are_kept(base, lora, tmp_path, monkeypatch):
    """A model's weights, an adapter's tensors, a damaged file; prompt caches are replaced."""
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"mine")
    for path in (base / "model.safetensors", lora / "adapters.safetensors", damaged):
        before = path.read_bytes()
        with pytest.raises(UserError, match=f"{path} exists and is not a prompt cache, expected"):
            write(path, base)
        assert path.read_bytes() == before
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, monkeypatch=monkeypatch)
    for _ in range(2):  # theirs by ours, and ours by ours
        write(theirs, base)
    assert gone_on(theirs)
