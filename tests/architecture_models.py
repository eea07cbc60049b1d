"""Random small models of every tested architecture, made by transformers.

Head counts, head sizes and rope settings are as published; the sliding windows and the contexts
before rope scaling are shorter than the tests' texts.
"""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import mlx.core as mx
import torch
import transformers
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from tiny_models import tiny_streams

from specstream_mlx.config import StreamConfig
from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading import SpeculativeModel, read_config, read_model
from specstream_mlx.models.streams import Streams

torch.set_num_threads(1)  # these products are too small to share

VOCAB_SIZE = 97
WINDOW = 12

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
    "Llama, proportional rope": (
        "Llama",
        {
            **heads(2, 1, 64),
            **rope(1e4, "proportional", factor=2.0, partial_rotary_factor=0.25),
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
    "Gemma 3, proportional rope": (
        "Gemma3Text",
        {
            **heads(4, 1, 256),
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "rope_parameters": {
                "full_attention": {
                    "rope_theta": 1e6,
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.25,
                },
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


def random_model(case, vocab_size=VOCAB_SIZE):
    """The case's model in transformers, with random weights."""
    family, fields = CASES[case]
    common = {"num_hidden_layers": 4, "vocab_size": vocab_size, "max_position_embeddings": 512}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family != "OPT":
        common["intermediate_size"] = 96
    else:
        common["word_embed_proj_dim"] = fields["hidden_size"]
    config = getattr(transformers, f"{family}Config")(**{**common, **fields})
    config._attn_implementation = "eager"
    torch_model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    fill(torch_model)
    return torch_model


@cache
def pair(case):
    """The case's model through ``save_pretrained`` and ``read_model``, with random streams."""
    torch_model = random_model(case)
    config = torch_model.config
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


def mlx_lm_caches(model):
    """Caches with which mlx_lm's greedy decoding has the windows, or ``None``: it cannot."""
    windows = [getattr(cache, "window", None) for cache in make_caches(model.model, model.config)]
    own = make_prompt_cache(model.model)
    if [getattr(cache, "max_size", None) for cache in own] == windows:
        return own
    if len(set(windows)) == 1:
        return [RotatingKVCache(window) for window in windows]
    return None
