"""Turns of a conversation on one prompt cache write what each would write from scratch."""

from copy import deepcopy
from pathlib import Path

import pytest
from mlx.utils import tree_flatten
from random_models import (
    assert_same_rows,
    plain_caches,
    random_prompt,
    request,
    speculative_model,
)
from tiny_models import (
    stream_adapter_directory,
    tiny_llama,
    tiny_llama_config,
    tiny_llama_directory,
)

from specstream_mlx import PromptCache, UserError, load
from specstream_mlx.drafting.settings import DraftSettings
from specstream_mlx.engine.kv import KVQuantization
from specstream_mlx.loading import SpeculativeModel
from specstream_mlx.prompts import check_prompt
from specstream_mlx.scheduler import decode, fill

FIRST, MORE = random_prompt(12), random_prompt(6, seed=1)
SETTINGS = {
    "tree": DraftSettings(tree_width=2, tree_size=None),
    "no drafts": DraftSettings(speculation=False),
}


def tokens_of(model, prompt, count, settings=SETTINGS["tree"], cache=None, **options):
    tokens = []
    steps = decode(model, request(prompt, settings, prompt_cache=cache, **options))
    while len(tokens) < count:
        tokens += next(steps).tokens
    steps.close()
    return tokens


def test_generated_rows_of_shared_mode_are_other_rows():
    """Negative control: used again, they would change the second turn's text."""
    model, cache = speculative_model(mode="shared"), PromptCache()
    first = tokens_of(model, FIRST, 30, SETTINGS["no drafts"], cache)
    second = [*FIRST, *first, *MORE]
    expected = tokens_of(model, second, 40)
    wrong = PromptCache.of(model, cache.caches, [*FIRST, *first[:-1]])
    assert tokens_of(model, second, 40, cache=wrong)[:40] != expected[:40]


def test_the_common_beginning_alone_is_used():
    model, cache = speculative_model(mode="shared"), PromptCache()
    tokens_of(model, FIRST, 20, cache=cache)
    for prompt, reused in (
        ([*FIRST[:7], *MORE], 7),
        (FIRST[:4], 3),
        (MORE, 0),
        (MORE, 5),
        ([MORE[0]], 0),
    ):
        found = tokens_of(model, prompt, 12, cache=cache)
        assert cache.reused == reused
        assert found == tokens_of(model, prompt, 12)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_an_abandoned_generation_leaves_it_consistent(settings, steps):
    """Its rows are those of a plain forward; left open, it may not go on beside a later one."""
    model, cache = speculative_model(), PromptCache()
    abandoned = decode(model, request(FIRST, settings, prompt_cache=cache))
    text = list(FIRST)
    for _ in range(steps):
        text += next(abandoned).tokens
    prompt = [*text, *MORE]
    found = tokens_of(model, prompt, 12, cache=cache)
    assert cache.reused == (len(text) - 1 if steps else 0)
    assert found == tokens_of(model, prompt, 12)
    if steps:
        with pytest.raises(UserError, match="in use by a later generation"):
            next(abandoned)
    fill(cache, model, cache.tokens)
    assert_same_rows(cache.caches, plain_caches(model.model, cache.tokens))


def test_an_interrupted_prefill(monkeypatch):
    model, cache = speculative_model(), PromptCache()
    tokens_of(model, FIRST, 1, cache=cache)
    monkeypatch.setattr("mlx.core.eval", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(decode(model, request([*FIRST, *MORE], SETTINGS["tree"], prompt_cache=cache)))
    monkeypatch.undo()
    found = tokens_of(model, [*FIRST, *MORE], 12, cache=cache)
    assert found == tokens_of(model, [*FIRST, *MORE], 12)


def _interrupt(*_):
    raise KeyboardInterrupt


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


@pytest.mark.parametrize("base", ["grouped heads, tied", "sliding windows", "quantized"])
@pytest.mark.parametrize("copied", [deepcopy, PromptCache.without_spare_rows])
def test_a_copy_is_a_branch_with_the_same_rows(copied, base):
    model, cache, options = quantizable_model(), PromptCache(), {}
    if base == "quantized":
        options = {"kv_bits": 8, "kv_group_size": 32, "quantized_kv_start": 0}
    else:
        model = speculative_model(base)
    tokens_of(model, FIRST, 12, cache=cache, **options)
    branch, rows = copied(cache), len(cache)
    assert len(branch) == rows > len(FIRST)
    if copied is not deepcopy:
        arrays = tree_flatten([(layer.keys, layer.values) for layer in branch.caches])
        assert {array.shape[2] for _, array in arrays} == {rows}
    expected = tokens_of(model, [*FIRST, *MORE], 12, cache=cache, **options)
    reused, kept = cache.reused, list(cache.tokens)
    found = tokens_of(model, [*FIRST, *MORE], 12, cache=branch, **options)
    assert found == expected
    assert branch.reused == reused >= len(FIRST)
    tokens_of(model, [*MORE, *FIRST], 12, cache=branch, **options)  # the original's rows stay
    assert cache.tokens == kept
    again = tokens_of(model, [*FIRST, *MORE], 12, cache=cache, **options)
    assert again == expected


def test_rows_without_tokens_cannot_be_replaced():
    model, other = speculative_model(), speculative_model(seed=1)
    cache = PromptCache()
    fill(cache, model, FIRST)
    unknown = PromptCache.of(model, cache.caches, [], len(FIRST))
    found = tokens_of(model, MORE, 12, cache=unknown)
    assert found == tokens_of(model, [*FIRST, *MORE], 12)
    with pytest.raises(UserError, match="made with another model, expected the same"):
        tokens_of(other, MORE, 1, cache=unknown)
    with pytest.raises(UserError, match="the prompt has 18 tokens"):
        check_prompt(MORE, {**model.config, "max_position_embeddings": 17}, len(FIRST))


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
    options["quantized_kv_start"], cache = 16, PromptCache()
    tokens_of(model, FIRST, 20, cache=cache, **options)
    assert cache.quantized == (8, 32)
    found = tokens_of(model, prompt, 20, cache=cache, **options)
    assert cache.reused == 0
    assert found == tokens_of(model, prompt, 20, **options)


def quantizable_model():
    config = tiny_llama_config(num_attention_heads=2)
    return SpeculativeModel(tiny_llama(config), config, Path("in memory"))
