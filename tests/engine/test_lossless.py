"""``lossless`` + greedy prints what mlx_lm prints, token for token."""

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache
from random_models import (
    BASES,
    STREAMS,
    TREES,
    VOCAB_SIZE,
    Oracle,
    assert_lossless,
    assert_same_rows,
    plain_caches,
    plain_tokens,
    random_prompt,
    speculative_model,
    tokens_of,
)
from tiny_models import stream_adapter_directory, tiny_llama_directory

from specstream_mlx import load
from specstream_mlx.engine import step as decoder_module

PLACEMENTS = {
    "deferred": {"deferred": True},
    "beside": {"deferred": False},
    "beside one": {"stream_nodes": 1},
    "beside three": {"stream_nodes": 3},
}
PRUNES = ("max_nodes", "prune_threshold")


@pytest.mark.parametrize("base", BASES)
def test_the_random_models_are_a_fair_test(base):
    """Logits spread out, a text that does not repeat one token, no near-ties."""
    model, prompt = speculative_model(base), random_prompt(9)
    tokens = plain_tokens(model.model, prompt, 40)
    logits = model.model(mx.array([[*prompt, *tokens]]))[0]
    assert mx.std(logits).item() >= 1
    assert len(set(tokens)) >= 10
    best = np.sort(np.array(logits[len(prompt) - 1 :]), axis=-1)
    assert (best[:, -1] - best[:, -2]).min() > 5e-4


@pytest.mark.parametrize(
    ("tree", "placement"),
    [
        (tree, placement)
        for tree in TREES
        for placement in PLACEMENTS
        if "stream_nodes" not in PLACEMENTS[placement]
        or (tree != "no streams" and not set(PRUNES) & set(TREES[tree]))
    ],
)
def test_every_tree(tree, placement):
    model, prompt = speculative_model(seed=1), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 30)
    found = tokens_of(model, prompt, 30, **PLACEMENTS[placement], **TREES[tree])
    assert_lossless(model.model, prompt, found, expected)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("streams", STREAMS)
def test_every_kind_of_streams(streams, placement):
    model, prompt = speculative_model(seed=1, **STREAMS[streams]), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 30)
    settings = PLACEMENTS[placement]
    pruning = {} if "stream_nodes" in settings else {"max_nodes": 6}
    found = tokens_of(model, prompt, 30, **settings, **pruning)
    assert_lossless(model.model, prompt, found, expected)


@pytest.mark.parametrize("base", BASES)
def test_every_base(base):
    model, prompt = speculative_model(base), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 30)
    assert_lossless(model.model, prompt, tokens_of(model, prompt, 30), expected)


@pytest.mark.parametrize(
    ("length", "chunk"), [(1, 2048), (2, 2048), (2, 1), (23, 1), (23, 5), (300, 64)]
)
def test_prompts_of_every_length_in_chunks(length, chunk):
    model, prompt = speculative_model(seed=1), random_prompt(length)
    expected = plain_tokens(model.model, prompt, 12)
    found = tokens_of(model, prompt, 12, prefill_step_size=chunk)
    assert_lossless(model.model, prompt, found, expected)


@pytest.mark.parametrize(
    ("settings", "placement"),
    [
        *(pytest.param({}, placement, id=f"all-{placement}") for placement in PLACEMENTS),
        *(
            pytest.param(pruning, placement, id=f"{next(iter(pruning))}-{placement}")
            for pruning in ({"max_nodes": 30}, {"prune_threshold": 1e-4})
            for placement in ("deferred", "beside")
        ),
    ],
)
@pytest.mark.parametrize("base", ["grouped heads, tied", "one kv head, untied"])
def test_accepted_paths(base, settings, placement, monkeypatch):
    """Long right paths among distractors: tokens, and the rows that stay in the KV cache."""
    model, prompt, count = speculative_model(base, seed=1), random_prompt(9), 60
    expected = plain_tokens(model.model, prompt, count + 10)
    oracle = Oracle(expected).install(monkeypatch)
    found = tokens_of(model, prompt, count, **PLACEMENTS[placement], **settings)
    assert_lossless(model.model, prompt, found, expected)
    if not settings:
        assert oracle.longest == 6
        assert len(oracle.paths) < 0.5 * count
    assert oracle.longest >= 3
    assert oracle.gathered >= 5
    caches = oracle.decoders[0].caches
    assert_same_rows(caches, plain_caches(model.model, [*prompt, *found][:-1]))
    assert all(type(cache) is KVCache for cache in caches)


@pytest.mark.parametrize("drafts", ["streams", "oracle"])
def test_past_the_growth_of_the_cache(drafts, monkeypatch):
    """600 tokens: the buffers grow in mid-step twice, and hold no row more than plain ones."""
    model, prompt, count = speculative_model(seed=1), random_prompt(5), 610
    expected = plain_tokens(model.model, prompt, count + 10)
    oracle = Oracle(expected).install(monkeypatch, drafts=drafts == "oracle")
    found = tokens_of(model, prompt, count)
    assert_lossless(model.model, prompt, found, expected)
    caches = oracle.decoders[0].caches
    plain = plain_caches(model.model, [*prompt, *found][:-1])
    assert_same_rows(caches, plain)
    for cache, plain_cache in zip(caches, plain, strict=True):
        assert cache.keys.shape[2] <= plain_cache.keys.shape[2] + KVCache.step


@pytest.mark.parametrize("bits", [None, 4, 8])
@pytest.mark.parametrize("lora_rank", [0, 4])
def test_quantized_base_and_lora(bits, lora_rank, tmp_path, monkeypatch):
    """Against mlx_lm's own loading of the same directories, weights packed as they are."""
    base = tiny_llama_directory(tmp_path / "base", bits=bits, seed=3, tie_word_embeddings=False)
    adapter = stream_adapter_directory(
        tmp_path / "adapter", base, lora_rank=lora_rank, stream_mlp="adapter", stream_adapter_rank=4
    )
    model, _ = load(base, adapter_path=adapter, weights="expanded")
    reference, _ = mlx_lm.load(str(base), adapter_path=str(adapter) if lora_rank else None)
    prompt = random_prompt(9)
    expected = plain_tokens(reference, prompt, 40)
    assert len(set(expected)) >= 8
    assert_lossless(reference, prompt, tokens_of(model, prompt, 30), expected)
    oracle = Oracle(expected).install(monkeypatch)
    assert_lossless(reference, prompt, tokens_of(model, prompt, 30), expected)
    assert oracle.longest >= 4


def test_a_mismatch_states_the_gap():
    """Negative control: a wrong token, and how near a tie it was."""
    model, prompt = speculative_model(), random_prompt(9)
    expected = plain_tokens(model.model, prompt, 5)
    wrong = [*expected[:3], (expected[3] + 1) % VOCAB_SIZE, expected[4]]
    with pytest.raises(
        AssertionError, match=r"token 3 is \d+, expected \d+; the top two .* gap of"
    ):
        assert_lossless(model.model, prompt, wrong, expected)


def test_committing_the_wrong_rows_is_noticed(monkeypatch):
    """Negative control: compaction that keeps the first rows instead of the accepted ones."""
    model, prompt, count = speculative_model(seed=1), random_prompt(9), 60
    expected = plain_tokens(model.model, prompt, count + 10)
    oracle = Oracle(expected).install(monkeypatch)
    right = decoder_module.commit
    monkeypatch.setattr(
        decoder_module, "commit", lambda caches, path: right(caches, range(len(path)))
    )
    found = tokens_of(model, prompt, count)
    assert found[:count] != expected[:count]
    with pytest.raises(AssertionError, match="relative difference"):
        assert_same_rows(
            oracle.decoders[0].caches, plain_caches(model.model, [*prompt, *found][:-1])
        )


@pytest.mark.slow
@pytest.mark.parametrize("tree", ["chain", "binary", "best-first", "pruned"])
def test_two_hundred_prompts(tree):
    """Many short texts: prompts of 1 to 23 tokens."""
    model = speculative_model("grouped heads, tied")
    for number in range(200):
        prompt = random_prompt(1 + number % 23, seed=number)
        expected = plain_tokens(model.model, prompt, 12)
        found = tokens_of(model, prompt, 12, **TREES[tree])
        assert_lossless(model.model, prompt, found[:12], expected)
