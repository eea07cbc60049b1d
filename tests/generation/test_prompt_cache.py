"""Turns of a conversation on one prompt cache write what each would write from scratch; in files
mlx_lm reads our caches, we read mlx_lm's, and what does not fit is refused."""

import sys
from copy import deepcopy
from pathlib import Path
from unittest.mock import patch

import mlx.core as mx
import mlx_lm
import pytest
from command_line import generate as run_generate
from command_line import refusal, run, succeeded
from mlx.utils import tree_flatten
from mlx_lm import cache_prompt
from mlx_lm.models.cache import KVCache, load_prompt_cache, make_prompt_cache, save_prompt_cache
from random_models import (
    assert_same_rows,
    plain_caches,
    plain_tokens,
    random_prompt,
    request,
    speculative_model,
    written,
)
from tiny_models import (
    stream_adapter_directory,
    tiny_llama,
    tiny_llama_config,
    tiny_llama_directory,
)

from specstream_mlx import PromptCache, UserError, load
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv_quantization import NEVER_QUANTIZED, KVQuantization
from specstream_mlx.generation.batch import decode, fill
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.prompts import chat_suffix

FIRST, MORE = random_prompt(12), random_prompt(6, seed=1)
SETTINGS = {
    "tree": DraftSettings(tree_width=2, tree_size=None),
    "no drafts": DraftSettings(speculation=False),
}


def tokens_of(model, prompt, count, settings=SETTINGS["tree"], cache=None, **options):
    return written(model, prompt, count, settings, prompt_cache=cache, **options)


def test_generated_rows_of_shared_mode_are_other_rows():
    """Negative control: used again, they would change the second turn's text."""
    model, cache = speculative_model(mode="shared"), PromptCache()
    first = tokens_of(model, FIRST, 30, SETTINGS["no drafts"], cache)
    second = [*FIRST, *first, *MORE]
    expected = tokens_of(model, second, 40)
    wrong = PromptCache.of(model, cache.caches, [*FIRST, *first[:-1]])
    assert tokens_of(model, second, 40, cache=wrong)[:40] != expected[:40]
    # Of a prompt's rows the common beginning is.
    tokens_of(model, FIRST, 20, cache=cache)
    for prompt, reused in (([*FIRST[:7], *MORE], 7), (FIRST[:4], 3), (MORE, 0), ([MORE[0]], 0)):
        found = tokens_of(model, prompt, 12, cache=cache)
        assert cache.reused == reused
        assert found == tokens_of(model, prompt, 12)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_an_abandoned_generation_leaves_it_consistent(settings, steps):
    """Its rows are those of a plain forward; left open, it may not go on beside a later one."""
    model, cache = speculative_model(), PromptCache()
    abandoned = decode(model, request(FIRST, settings, prompt_cache=cache))
    text = [*FIRST, *(token for _ in range(steps) for token in next(abandoned).tokens)]
    prompt = [*text, *MORE]
    found = tokens_of(model, prompt, 12, cache=cache)
    assert cache.reused == (len(text) - 1 if steps else 0)
    assert found == tokens_of(model, prompt, 12)
    if steps:
        with pytest.raises(UserError, match="in use by a later generation"):
            next(abandoned)
    fill(cache, model, cache.tokens)
    assert_same_rows(cache.caches, plain_caches(model.model, cache.tokens))


def test_filled_and_gone_on_from():
    """Progress is from the rows that are there already to the last token, pass by pass."""
    model, cache, seen = speculative_model("sliding windows"), PromptCache(), []
    fill(cache, model, FIRST, prefill_step_size=5)
    assert cache.tokens == FIRST
    expected = tokens_of(model, [*FIRST, *MORE], 20)
    options = {"prefill_step_size": 2, "progress": lambda *read: seen.append(read)}
    assert tokens_of(model, [*FIRST, *MORE], 20, cache=cache, **options) == expected
    assert cache.reused == len(FIRST)
    assert seen == [(read, 18) for read in (12, 14, 16, 17, 18)]
    cache = PromptCache()
    tokens_of(model, FIRST, 1, cache=cache)
    with patch("mlx.core.eval", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        next(decode(model, request([*FIRST, *MORE], SETTINGS["tree"], prompt_cache=cache)))
    assert tokens_of(model, [*FIRST, *MORE], 20, cache=cache) == expected
    # What was read before an interruption stays.
    options["progress"], cache = lambda read, _: 1 // (read < 6), PromptCache()
    with pytest.raises(ZeroDivisionError):
        tokens_of(model, [*FIRST, *MORE], 20, cache=cache, **options)
    assert cache.tokens == FIRST[:6]
    assert tokens_of(model, [*FIRST, *MORE], 20, cache=cache) == expected and cache.reused == 6


def test_after_a_swap_of_the_adapter_the_rows_are_dropped(tmp_path):
    base = tiny_llama_directory(tmp_path / "base", seed=3)
    plain = stream_adapter_directory(tmp_path / "streams", base)
    others = [
        stream_adapter_directory(tmp_path / f"lora{n}", base, mode="shared", lora_rank=4, seed=n)
        for n in (1, 2)
    ]
    model, _ = load(base)
    cache, prompt = PromptCache(), [*FIRST, *MORE]
    tokens_of(model, FIRST, 12, cache=cache)
    for adapter, kept in ((plain, True), (others[0], False), (others[1], False), (None, False)):
        model.swap_adapter(adapter)
        assert tokens_of(model, prompt, 12, cache=cache) == tokens_of(model, prompt, 12)
        assert bool(cache.reused) is kept
        tokens_of(model, FIRST, 1, cache=cache)
    another, _ = load(base)
    tokens_of(another, prompt, 12, cache=cache)
    assert cache.reused == 0


@pytest.mark.parametrize("base", ["sliding windows", "quantized"])
@pytest.mark.parametrize("copied", [deepcopy, PromptCache.without_spare_rows])
def test_a_copy_is_a_branch_with_the_same_rows(copied, base):
    model, cache, options = quantizable_model(), PromptCache(), {}
    if base == "quantized":
        options = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    else:
        model = speculative_model(base)
    tokens_of(model, FIRST, 12, cache=cache, **options)
    branch = copied(cache)
    if copied is not deepcopy:
        arrays = tree_flatten([(layer.keys, layer.values) for layer in branch.caches])
        assert {array.shape[2] for _, array in arrays} == {len(cache)}
    expected = tokens_of(model, [*FIRST, *MORE], 12, cache=cache, **options)
    reused, kept = cache.reused, list(cache.tokens)
    assert tokens_of(model, [*FIRST, *MORE], 12, cache=branch, **options) == expected
    assert branch.reused == reused >= len(FIRST)
    tokens_of(model, [*MORE, *FIRST], 12, cache=branch, **options)  # the original's rows stay
    assert cache.tokens == kept
    assert tokens_of(model, [*FIRST, *MORE], 12, cache=cache, **options) == expected


def test_rows_of_another_quantization_are_dropped():
    """So are those that are quantized although a prompt of their length would not be yet."""
    model, cache = quantizable_model(), PromptCache()
    options = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    prompt = [*FIRST, *MORE]
    fill(cache, model, FIRST, quantization=KVQuantization(8, 32, 0))
    assert cache.quantized == (8, 32)
    tokens_of(model, prompt, 5, cache=cache, **options)
    assert cache.reused == len(FIRST)
    tokens_of(model, prompt, 5, cache=cache)
    assert (cache.reused, cache.quantized) == (0, None)
    unknown = PromptCache.of(model, cache.caches, [], cache.rows)
    tokens_of(model, MORE, 5, cache=unknown, **options)
    with pytest.raises(UserError, match="kv_bits of 8 and a kv_group_size of 32, expected the"):
        tokens_of(model, MORE, 5, cache=unknown)
    with pytest.raises(UserError, match="made with another model, expected the same"):
        tokens_of(quantizable_model(), MORE, 1, cache=unknown)
    options["quantized_kv_start"], cache = 16, PromptCache()
    tokens_of(model, FIRST, 20, cache=cache, **options)
    assert cache.quantized == (8, 32)
    found = tokens_of(model, prompt, 20, cache=cache, **options)
    assert cache.reused == 0
    assert found == tokens_of(model, prompt, 20, **options)


def quantizable_model():
    config = tiny_llama_config(num_attention_heads=2)
    return SpeculativeModel(tiny_llama(config), config, Path("in memory"))


# Files

TEXT, QUESTION = "the meeting is at noon, please", "send the report to the team?"
KV = ("--kv-bits", 4, "--kv-group-size", 32, "--quantized-kv-start", 0)


def tiny(directory, **config):
    return tiny_llama_directory(directory, num_attention_heads=2, **config)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("files") / "base", seed=1)


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


def gone_on(path, *args, said=""):
    flags = ("--prompt-cache-file", path, "-p", QUESTION, "-m", 12)
    result = succeeded(run("generate", *flags, *args))
    assert said in result.stderr
    return result.stdout.rstrip("\n")


def mlx_lm_goes_on(path, base):
    """The text of ``mlx_lm.generate --prompt-cache-file``."""
    model, tokenizer = mlx_lm.load(str(base))
    cache = load_prompt_cache(str(path))
    messages = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    suffix = tokenizer.encode(text[text.index(QUESTION) :], add_special_tokens=False)
    return mlx_lm.generate(model, tokenizer, suffix, max_tokens=12, prompt_cache=cache)


@pytest.mark.parametrize("kv", [(), KV], ids=["float", "int4"])
def test_both_go_on_from_both(kv, base, tmp_path, monkeypatch):
    """Four ways, one text; with a float cache it is that of the whole prompt as well."""
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, *kv, monkeypatch=monkeypatch)
    ours = tmp_path / "ours.safetensors"
    write(ours, base, KVQuantization(*kv[1::2]) if kv else NEVER_QUANTIZED)
    texts = {gone_on(path, *model) for path in (ours, theirs) for model in ((), ("--model", base))}
    texts |= {mlx_lm_goes_on(path, base) for path in (ours, theirs)}
    assert len(texts) == 1
    _, tokenizer = load(base)
    suffix = chat_suffix(tokenizer, QUESTION, "say: {text}!")
    assert tokenizer.decode(suffix) == f"{QUESTION}!<|end|><|assistant|>"
    known = len(PromptCache.load(ours, load(base)[0]).tokens)
    suffix = chat_suffix(tokenizer, QUESTION)
    gone_on(ours, said=f"\nPrompt: {known + len(suffix)} tokens, {len(suffix)} of them read, ")
    gone_on(theirs, said=f"\nPrompt: {len(suffix)} tokens, ")  # which names no tokens of its rows
    if not kv:
        whole = run_generate(base, prompt=TEXT + QUESTION).stdout
        assert texts == {whole.rstrip("\n")}


def test_layers_with_a_window(tmp_path):
    """mlx_lm's class for them holds our rows, all of them; one that dropped some is refused."""
    types = ["full_attention", "sliding_attention"] * 2
    base = tiny(tmp_path / "base", seed=2, layer_types=types, sliding_window=8)
    model, _ = load(base)
    prompt, path = random_prompt(30), tmp_path / "cache.safetensors"
    cache = PromptCache()
    fill(cache, model, prompt)
    cache.save(path, model)
    assert PromptCache.load(path, model).tokens == prompt
    found = plain_tokens(model.model, [7, 8, 9], 12, prompt_cache=load_prompt_cache(str(path)))
    assert found == plain_tokens(model.model, [*prompt, 7, 8, 9], 12)
    theirs = make_prompt_cache(model.model)
    for token in prompt:
        model.model(mx.array([[token]]), cache=theirs)
    save_prompt_cache(str(path), theirs, {"model": str(base), "tokenizer_config": "{}"})
    with pytest.raises(UserError, match="has a RotatingKVCache that dropped rows"):
        PromptCache.load(path, model)


def refused(path, *args):
    return refusal(run("generate", "--prompt-cache-file", path, "-p", QUESTION, *args))


def test_other_models_and_quantization(base, ours, tmp_path, monkeypatch):
    lora = stream_adapter_directory(tmp_path / "lora", base, mode="shared", lora_rank=4)
    shape = tiny(tmp_path / "shape", intermediate_size=128)
    weights = tiny(tmp_path / "weights", seed=2)
    assert "made by another model" in refused(ours, "--model", shape)
    assert "same shape with other weights" in refused(ours, "--model", weights)
    assert "made with another LoRA" in refused(ours, "--model", base, "--adapter-path", lora)
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, monkeypatch=monkeypatch)
    assert f"was made by the model {base}, expected {shape}" in refused(theirs, "--model", shape)
    layers = [KVCache() for _ in range(5)]
    for layer in layers:
        layer.update_and_fetch(*[mx.zeros((1, 1, 3, 32))] * 2)
    for count, sentence in (
        (5, "has 5 layers, expected mlx_lm"),
        (4, "keys have the sh"),
    ):
        facts = {"model": str(base), "tokenizer_config": "{}"}
        save_prompt_cache(str(theirs), layers[:count], facts)
        assert sentence in refused(theirs)
    write(theirs, base, KVQuantization(*KV[1::2]))
    found = refused(theirs, "--model", base, "--kv-bits", 8)
    assert "has --kv-bits 4 and --kv-group-size 32" in found
    assert "expected at most one" in refused(ours, "--compare")
    assert "mlx_lm.cache_prompt --model MODEL" in refused(tmp_path / "none.safetensors")


def test_other_files_are_not_replaced(base, tmp_path, monkeypatch):
    damaged, other = tmp_path / "damaged.safetensors", "exists and is not a prompt cache, expected"
    damaged.write_bytes(b"mine")
    directory = tmp_path / "directory.safetensors"
    directory.mkdir()
    for path, reason in (
        (tmp_path / "cache.bin", "ends in .safetensors"),
        (tmp_path / "no" / "cache.safetensors", "does not exist"),
        (base / "model.safetensors", other),
        (damaged, other),
        (directory, other),
    ):
        with pytest.raises(UserError, match=reason):
            write(path, base)
    assert damaged.read_bytes() == b"mine"
    theirs = by_mlx_lm(tmp_path / "theirs.safetensors", base, monkeypatch=monkeypatch)
    for _ in range(2):  # prompt caches are replaced: theirs by ours, and ours by ours
        write(theirs, base)
    assert gone_on(theirs)
