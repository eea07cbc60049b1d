"""Every tested architecture: transformers' logits, trees, pruning, streams, and mlx_lm's text.

The models are random and small, with head counts, head sizes and rope settings as published; the
sliding windows and the contexts before rope scaling are shorter than the texts here.
"""

import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper
from random_models import (
    Oracle,
    assert_close,
    assert_lossless,
    random_prompt,
    random_tree,
    relative_error,
    tokens_of,
)
from specstream_mlx.convert.base_to_mlx import convert_base
from tiny_models import tiny_streams, tiny_tokenizer

from specstream_mlx import UserError, stream_generate
from specstream_mlx import decoder as decoder_module
from specstream_mlx.architectures import ARCHITECTURES, REFUSED, explicit_fields
from specstream_mlx.base_model import read_config, read_model
from specstream_mlx.config import StreamConfig, fingerprint
from specstream_mlx.decoder import Decoder
from specstream_mlx.generation import SpeculativeModel
from specstream_mlx.kv import make_caches
from specstream_mlx.streams import Streams
from specstream_mlx.tree import DraftTree

torch.set_num_threads(1)  # these products are too small to share

VOCAB_SIZE = 97
WINDOW = 12
PROMPT = random_prompt(21, vocab_size=VOCAB_SIZE)
PLACEMENTS = ("none", "deferred", "beside")

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.01 * i for i in range(48)],
    "long_factor": [1.0 + 0.2 * i for i in range(48)],
    "original_max_position_embeddings": 16,
}


def rope(theta, kind="default", **fields):
    return {"rope_parameters": {"rope_theta": theta, "rope_type": kind, **fields}}


def heads(count, kv_count, size, hidden=64, name="head_dim"):
    fields = {"num_attention_heads": count, "num_key_value_heads": kv_count, "hidden_size": hidden}
    return {**fields, name: size} if name else {**fields, "hidden_size": count * size}


CASES = {
    "Llama 2, Vicuna": ("Llama", {**heads(2, 2, 128), **rope(1e4)}),
    "OpenLLaMA, linear rope": ("Llama", {**heads(2, 2, 100), **rope(1e4, "linear", factor=2.0)}),
    "Llama 3.1": ("Llama", {**heads(4, 1, 128), "rope_parameters": _LLAMA3_ROPE}),
    "Llama 3.2, tied": (
        "Llama",
        {
            **heads(4, 1, 64),
            "rope_parameters": {**_LLAMA3_ROPE, "factor": 32.0},
            "tie_word_embeddings": True,
        },
    ),
    "Llama, yarn": (
        "Llama",
        {
            **heads(2, 1, 128),
            **rope(1e4, "yarn", factor=16.0, original_max_position_embeddings=32),
        },
    ),
    "Mistral 0.3": ("Mistral", {**heads(4, 1, 128), **rope(1e6), "sliding_window": None}),
    "Mistral 0.1, window": (
        "Mistral",
        {**heads(4, 1, 128), **rope(1e4), "sliding_window": WINDOW},
    ),
    "Phi-1.5": ("Phi", {**heads(2, 2, 64, name=""), **rope(1e4, partial_rotary_factor=0.5)}),
    "Phi-2": ("Phi", {**heads(2, 2, 80, name=""), **rope(1e4, partial_rotary_factor=0.4)}),
    "Phi-3 mini 4k, window": (
        "Phi3",
        {**heads(2, 2, 96, name=""), **rope(1e4), "sliding_window": WINDOW},
    ),
    "Phi-3 mini 128k, longrope": (
        "Phi3",
        {
            **heads(2, 2, 96, name=""),
            "rope_parameters": _LONGROPE,
            "original_max_position_embeddings": 16,
        },
    ),
    "Phi-4 mini, partial, tied": (
        "Phi3",
        {
            **heads(3, 1, 128, name=""),
            **rope(1e4, partial_rotary_factor=0.75),
            "tie_word_embeddings": True,
        },
    ),
    "Qwen2 0.5B, tied": (
        "Qwen2",
        {**heads(7, 1, 64, name=""), **rope(1e6), "tie_word_embeddings": True},
    ),
    "Qwen2.5, yarn": (
        "Qwen2",
        {
            **heads(5, 1, 32, name=""),
            **rope(1e6, "yarn", factor=4.0, original_max_position_embeddings=32),
        },
    ),
    "Qwen2, windows on the upper layers": (
        "Qwen2",
        {
            **heads(2, 1, 64, name=""),
            **rope(1e6),
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
        },
    ),
    "Qwen3 0.6B, tied": (
        "Qwen3",
        {**heads(2, 1, 128), **rope(1e6), "tie_word_embeddings": True},
    ),
    "Qwen3 8B": ("Qwen3", {**heads(4, 1, 128), **rope(1e6)}),
    "Gemma 2": (
        "Gemma2",
        {**heads(2, 1, 256), **rope(1e4), "sliding_window": WINDOW, "query_pre_attn_scalar": 224},
    ),
    "Gemma 3": (
        "Gemma3Text",
        {
            **heads(4, 1, 256),
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
    ),
    "OPT": ("OPT", {"num_attention_heads": 2, "hidden_size": 128, "ffn_dim": 96}),
    "OPT, norms after": (
        "OPT",
        {
            "num_attention_heads": 2,
            "hidden_size": 128,
            "ffn_dim": 96,
            "do_layer_norm_before": False,
            "tie_word_embeddings": False,
        },
    ),
}


@dataclass
class Pair:
    """One random model on both sides."""

    torch_model: torch.nn.Module
    model: SpeculativeModel

    def logits(self, tokens):
        """(n, vocab) of transformers."""
        with torch.no_grad():
            return self.torch_model(torch.tensor([tokens])).logits[0].numpy()

    def continuation(self, prompt, count):
        """transformers' greedy tokens, without any cache."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def decoder_after(self, tokens, chunk=7):
        """A decoder that holds ``tokens``."""
        caches = make_caches(self.model.model, self.model.config)
        decoder = Decoder(self.model.model, self.model.streams, caches)
        for start in range(0, len(tokens), chunk):
            decoder.prefill(mx.array(tokens[start : start + chunk]))
        return decoder


def fill(model):
    """Random weights that make a text of many tokens: sharp attention, layers that count."""
    generator = torch.Generator().manual_seed(3)
    gemma = model.config.model_type.startswith("gemma")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                if name.endswith("bias"):
                    parameter.normal_(0, 0.1, generator=generator)
                else:
                    parameter.uniform_(0.8, 1.2, generator=generator).sub_(float(gemma))
                if "q_norm" in name or (gemma and "post_" in name):
                    parameter.add_(3)
                continue
            std = parameter.shape[1] ** -0.5
            if "embed" in name or "lm_head" in name:
                std *= 2
            if "q_proj" in name:
                std *= 4
            if any(part in name for part in ("qkv_proj", "o_proj", "out_proj", "down_proj")):
                std *= 2
            parameter.normal_(0, std, generator=generator)


@cache
def scratch():
    return tempfile.TemporaryDirectory()


@cache
def pair(case):
    """The case's model through ``save_pretrained`` and ``read_model``, with random streams."""
    family, fields = CASES[case]
    common = {"num_hidden_layers": 4, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 512}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family != "OPT":
        common["intermediate_size"] = 96
    else:
        common["word_embed_proj_dim"] = fields["hidden_size"]
    config = getattr(transformers, f"{family}Config")(**{**common, **fields})
    config._attn_implementation = "eager"
    torch_model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    fill(torch_model)
    directory = Path(scratch().name) / str(list(CASES).index(case))
    torch_model.save_pretrained(directory)
    model, _ = read_model(directory)
    saved = read_config(directory)
    stream_config = StreamConfig(
        mode="lossless",
        num_streams=3,
        num_msa_layers=3,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        stream_mlp="adapter",
        stream_adapter_rank=4,
        pruner_rank=4,
    )
    streams = Streams(stream_config)
    streams.load_weights(list(tiny_streams(stream_config, seed=5).items()))
    return Pair(torch_model, SpeculativeModel(model, saved, directory, streams=streams))


def chain(tokens):
    indices = np.arange(len(tokens), dtype=np.int32)
    return DraftTree(np.array(tokens, np.int32), indices - 1, indices)


def mlx_lm_caches(case):
    """Caches with which mlx_lm's greedy decoding has the windows, or ``None``: it cannot."""
    model = pair(case).model
    windows = [getattr(c, "window", None) for c in make_caches(model.model, model.config)]
    own = make_prompt_cache(model.model)
    if [getattr(c, "max_size", None) for c in own] == windows:
        return own
    if len(set(windows)) == 1:
        return [RotatingKVCache(window) for window in windows]
    return None


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
        result = pair(case).decoder_after(tokens[:start]).step(chain(tokens[start:]), "none")
        assert_close(result.logits, expected[start:])


@pytest.mark.parametrize("case", CASES)
def test_a_tree_is_its_paths(case):
    """Against transformers; whole, with streams beside or deferred, and pruned in mid-network."""
    tree = random_tree(np.random.default_rng(2), PROMPT[-1], depth=4, width=2, truth=[5, 6, 7, 8])
    assert not tree.is_chain
    paths = [[*PROMPT[:-1], *tree.tokens[tree.path(node)].tolist()] for node in range(len(tree))]
    expected = np.stack([pair(case).logits(path)[-1] for path in paths])
    for placement in PLACEMENTS:
        result = pair(case).decoder_after(PROMPT[:-1]).step(tree, placement)
        assert_close(result.logits, expected)
    drafts = []
    for placement in PLACEMENTS[1:]:
        result = pair(case).decoder_after(PROMPT[:-1]).step(tree, placement, max_nodes=6)
        assert_close(result.logits, expected[np.array(result.kept)])
        drafts.append(result.stream_logits)
    assert_close(drafts[0], drafts[1])


@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_mlx_lm(case, monkeypatch):
    """Far past the window, with long right paths among the drafts."""
    found_pair, count = pair(case), 40
    expected = found_pair.continuation(PROMPT, count + 6)
    assert len(set(expected)) >= 5
    caches = mlx_lm_caches(case)
    if caches is not None:
        steps = generate_step(
            mx.array(PROMPT), found_pair.model.model, max_tokens=count, prompt_cache=caches
        )
        assert [token for token, _ in steps] == expected[:count]
    oracle = Oracle(expected, vocab_size=VOCAB_SIZE).install(monkeypatch)
    found = tokens_of(found_pair.model, PROMPT, count, max_nodes=12)
    assert_lossless(found_pair.model.model, PROMPT, found, expected)
    assert oracle.longest >= 3


def write_config(directory, **fields):
    """A ``config.json`` without any weights beside it."""
    directory.mkdir(exist_ok=True)
    config = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": VOCAB_SIZE, **fields}
    config = {"num_attention_heads": 2, "max_position_embeddings": 512, **config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


REFUSALS = {
    "unknown": ({"model_type": "nonsense"}, "model_type is 'nonsense', expected one that mlx-lm"),
    "no type": ({"model_type": None}, "model_type is None"),
    "a path": ({"model_type": "../llama"}, "model_type is '../llama'"),
    "nested text model": ({"model_type": "gemma3", "hidden_size": None}, "hidden_size is None"),
    "activation": ({"model_type": "llama", "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    "norms of Phi's heads": ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm is True"),
    "dynamic rope": (
        {"model_type": "qwen2", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope_type is 'dynamic', whose angles depend on the length of the text",
    ),
    "scaled rope that mlx-lm's Gemma 2 has not": (
        {"model_type": "gemma2", **rope(1e4, "linear", factor=2.0)},
        r"rope_type is 'linear', expected one of \('default',\)",
    ),
    "rope without its factor": (
        {"model_type": "llama", **rope(1e4, "linear")},
        "rope_type is 'linear' without factor",
    ),
    "attention factor": (
        {"model_type": "llama", **rope(1e4, "yarn", factor=4.0, attention_factor=2.0)},
        "attention_factor is 2.0, expected mlx-lm's own",
    ),
    "rope that is no object": ({"model_type": "llama", "rope_scaling": "linear"}, "rope_scaling"),
    "Gemma 3 without a period": (
        {
            "model_type": "gemma3_text",
            "layer_types": ["sliding_attention", "full_attention", "full_attention"] * 2,
            "num_hidden_layers": 6,
        },
        "layer_types is not periodic",
    ),
    "Gemma 3 without a full layer": (
        {"model_type": "gemma3_text"},
        "num_hidden_layers is 4, expected at least 6",
    ),
    "OPT 350m": (
        {"model_type": "opt", "word_embed_proj_dim": 32},
        "word_embed_proj_dim is 32, expected hidden_size = 64: project_in and project_out",
    ),
    "OPT without biases": ({"model_type": "opt", "enable_bias": False}, "enable_bias is False"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_work_is_refused_by_its_config(case, tmp_path):
    """One sentence that names the file and the field; there are no weights to be read."""
    fields, message = REFUSALS[case]
    directory = write_config(tmp_path, **fields)
    with pytest.raises(UserError, match=message) as error:
        read_model(directory)
    assert str(error.value).startswith(f"{directory / 'config.json'}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", REFUSED)
def test_every_refused_type_is_refused(model_type, tmp_path):
    with pytest.raises(UserError, match=f"model_type is '{model_type}', which is refused: "):
        read_model(write_config(tmp_path, model_type=model_type))


def test_a_recurrent_model_is_known_by_its_caches(tmp_path, monkeypatch):
    """What the list of refused types forgets; the model is made without weights."""
    monkeypatch.delitem(REFUSED, "mamba")
    fields = {"intermediate_size": 96, "state_size": 4, "conv_kernel": 4, "time_step_rank": 4}
    fields |= {"use_bias": False, "use_conv_bias": True}
    directory = write_config(tmp_path, model_type="mamba", **fields)
    with pytest.raises(UserError, match=r"'mamba', whose layer 0 has a \w+, expected a KVCache"):
        read_model(directory)


def saved(directory, family, seed=0, **fields):
    """A random model of a family that has no entry in the table."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        **fields,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    fill(model)
    model.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("family", ["Olmo2", "Granite", "Cohere2"])
def test_another_architecture_has_to_pass_the_self_check(family, tmp_path, monkeypatch):
    directory = saved(tmp_path, family)
    read_model(directory)
    right = decoder_module.shape_tables

    def sees_everything_before(*shape):
        parents, depths, _ = right(*shape)
        return parents, depths, mx.tri(depths.size).astype(mx.bool_)

    monkeypatch.setattr(decoder_module, "shape_tables", sees_everything_before)
    with pytest.raises(UserError, match="its logits over a tree as a whole differ"):
        read_model(directory)


@pytest.mark.parametrize("case", ["Mistral 0.1, window", "Phi-3 mini 4k, window", "Gemma 2"])
def test_a_forgotten_window_would_show(case):
    """Negative control: the same decoder on caches without windows."""
    tokens = random_prompt(40, seed=1, vocab_size=VOCAB_SIZE)
    found = pair(case)
    caches = [KVCache() for _ in found.model.model.layers]
    result = Decoder(found.model.model, found.model.streams, caches).step(chain(tokens), "none")
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
