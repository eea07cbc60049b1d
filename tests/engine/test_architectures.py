"""Every tested architecture: transformers' logits, trees, pruning, streams, and mlx_lm's text."""

import json
import shutil
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
import torch
from architecture_models import CASES, VOCAB_SIZE, WINDOW, mlx_lm_caches, pair, rope
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from random_models import (
    Oracle,
    assert_close,
    assert_lossless,
    random_prompt,
    random_tree,
    relative_error,
    take,
    tokens_of,
)
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import tiny_streams, tiny_tokenizer

from specstream_mlx import stream_generate
from specstream_mlx.drafting.tree import DraftTree
from specstream_mlx.engine.borrowed import BorrowedModel
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.models.architectures import ARCHITECTURES, REFUSED, explicit_fields
from specstream_mlx.models.fingerprint import fingerprint
from specstream_mlx.models.streams import Streams

PROMPT = random_prompt(21, vocab_size=VOCAB_SIZE)
PLACEMENTS = ("none", "deferred", "beside")


def chain(tokens):
    indices = np.arange(len(tokens), dtype=np.int32)
    return DraftTree(np.array(tokens, np.int32), indices - 1, indices)


def test_every_architecture_has_a_case():
    assert {pair(case).model.config["model_type"] for case in CASES} == set(ARCHITECTURES)
    assert not set(ARCHITECTURES) & set(REFUSED)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case):
    """In one pass and behind a prefilled prompt; the text goes three windows far."""
    tokens = random_prompt(40, seed=1, vocab_size=VOCAB_SIZE)
    expected = pair(case).logits(tokens)
    assert expected.std() >= 1
    for start in (0, 30):
        result = take(pair(case).decoder_after(tokens[:start]), chain(tokens[start:]), "none")
        assert_close(result.logits, expected[start:])


@pytest.mark.parametrize("case", CASES)
def test_a_tree_is_its_paths(case):
    """Against transformers; whole, with streams beside or deferred, and pruned in mid-network."""
    tree = random_tree(np.random.default_rng(2), PROMPT[-1], depth=4, width=2, truth=[5, 6, 7, 8])
    assert not tree.is_chain
    paths = [[*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()] for node in range(len(tree))]
    expected = np.stack([pair(case).logits(path)[-1] for path in paths])
    for placement in PLACEMENTS:
        result = take(pair(case).decoder_after(PROMPT[:-1]), tree, placement)
        assert_close(result.logits, expected)
    drafts = []
    for placement in PLACEMENTS[1:]:
        result = take(pair(case).decoder_after(PROMPT[:-1]), tree, placement, max_nodes=6)
        assert_close(result.logits, expected[np.array(result.kept)])
        drafts.append(result.stream_logits)
    assert_close(drafts[0], drafts[1])


@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_mlx_lm(case, monkeypatch):
    """Far past the window, with long right paths among the drafts."""
    found_pair, count = pair(case), 40
    expected = found_pair.continuation(PROMPT, count + 6)
    assert len(set(expected)) >= 5
    caches = mlx_lm_caches(found_pair.model)
    if caches is not None:
        steps = generate_step(
            mx.array(PROMPT), found_pair.model.model, max_tokens=count, prompt_cache=caches
        )
        assert [token for token, _ in steps] == expected[:count]
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(found_pair.model, PROMPT, count, max_nodes=12)
    assert_lossless(found_pair.model.model, PROMPT, found, expected)
    assert oracle.longest >= 3


@pytest.mark.parametrize("case", ["Llama 3.1", "Phi-2", "Qwen3 8B", "Gemma 3", "OPT"])
def test_the_literal_pruner_passes_the_final_norm_by(case):
    """It has another name in some models."""
    found = pair(case)
    config = replace(found.model.streams.config, pruner_form="literal")
    streams = Streams(config)
    streams.load_weights(list(tiny_streams(config).items()))
    hidden = np.random.default_rng(0).normal(size=(5, config.hidden_size)).astype(np.float32)
    logits = BorrowedModel(found.model.model, streams).early_exit(mx.array(hidden)[None])[0]
    mapped = torch.tensor(np.array(streams.pruner(mx.array(hidden))))
    with torch.no_grad():
        assert_close(logits, found.torch_model.lm_head(mapped).numpy())


@pytest.mark.parametrize("case", ["Mistral 0.1, window", "Phi-3 mini 4k, window", "Gemma 2"])
def test_a_forgotten_window_would_show(case):
    """Negative control: the same decoder on caches without windows."""
    tokens = random_prompt(40, seed=1, vocab_size=VOCAB_SIZE)
    found = pair(case)
    caches = [KVCache() for _ in found.model.model.layers]
    result = take(Decoder(found.model.model, found.model.streams, caches), chain(tokens), "none")
    expected = found.logits(tokens)
    assert_close(result.logits[:WINDOW], expected[:WINDOW])
    assert relative_error(result.logits, expected) > 1e-2


@pytest.mark.parametrize("case", ["Gemma 3", "OPT", "Mistral 0.1, window", "Llama 3.1"])
def test_converted_to_mlx_it_is_the_same_model(case, tmp_path):
    """With the same fingerprint, and with its windows."""
    found = pair(case)
    source = tmp_path / "source"
    shutil.copytree(found.model.path, source)
    tiny_tokenizer().save_pretrained(source)
    convert_base(source, tmp_path / "mlx")
    model, _ = read_model(tmp_path / "mlx")
    config = read_config(tmp_path / "mlx")
    assert fingerprint(config) == fingerprint(found.model.config)
    windows = [getattr(cache, "window", None) for cache in make_caches(model, config)]
    expected = make_caches(found.model.model, found.model.config)
    assert windows == [getattr(cache, "window", None) for cache in expected]
    tokens = mx.array([PROMPT])
    assert mx.array_equal(model(tokens), found.model.model(tokens))


def test_a_config_that_leaves_defaults_out_keeps_its_fingerprint(tmp_path):
    """Converting spells them out; Gemma 2's heads are not hidden_size / num_attention_heads."""
    found = pair("Gemma 2")
    source = tmp_path / "source"
    shutil.copytree(found.model.path, source)
    tiny_tokenizer().save_pretrained(source)
    config = json.loads((source / "config.json").read_text())
    assert config.pop("head_dim") == 256 != config["hidden_size"] // config["num_attention_heads"]
    (source / "config.json").write_text(json.dumps(config))
    convert_base(source, tmp_path / "mlx")
    converted = fingerprint(read_config(tmp_path / "mlx"))
    assert converted == fingerprint(config) == fingerprint(found.model.config)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_fingerprint_is_that_of_the_explicit_fields(model_type):
    sizes = {"hidden_size": 96, "num_hidden_layers": 6, "num_attention_heads": 2, "vocab_size": 7}
    for extra in ({}, rope(5e5), {"rope_theta": 5e5}, {"rope_theta": None}):
        config = {"model_type": model_type, **sizes, **extra}
        assert fingerprint({**config, **explicit_fields(config)}) == fingerprint(config), extra


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "phi3", "phi"])
def test_both_forms_of_rope_settings_say_the_same(model_type):
    common = {"model_type": model_type, "max_position_embeddings": 512, "hidden_size": 64}
    kind = "default" if model_type == "phi" else "linear"
    settings = {} if model_type == "phi" else {"factor": 4}
    new = {**common, **rope(5e5, kind, partial_rotary_factor=0.5, **settings)}
    old = {**common, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    if settings:
        old["rope_scaling"] = {"type": kind, **settings}
    found = explicit_fields(new)
    assert found["rope_theta"] == 5e5
    assert found["partial_rotary_factor"] == 0.5
    if settings:
        assert found["rope_scaling"]["factor"] == 4.0
        assert found["rope_scaling"]["type"] == kind
    for name in ("rope_theta", "partial_rotary_factor"):
        assert explicit_fields(old)[name] == found[name]
    assert explicit_fields(old).get("rope_scaling", {}).items() >= settings.items()


@pytest.mark.parametrize("speculation", [True, False])
def test_learned_positions_end_the_text(speculation, tmp_path):
    """OPT's table has 512 rows; the text stops where the last one has been read."""
    found = pair("OPT")
    tokenizer = TokenizerWrapper(tiny_tokenizer())
    tokenizer.eos_token_ids = set()
    prompt = random_prompt(506, vocab_size=VOCAB_SIZE)
    responses = list(
        stream_generate(found.model, tokenizer, prompt, max_tokens=-1, speculation=speculation)
    )
    assert responses[-1].finish_reason == "length"
    tokens = [response.token for response in responses]
    assert len(tokens) == 512 - 506 + 1
    expected = found.continuation(prompt, 7)
    assert tokens == expected
