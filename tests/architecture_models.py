"""Random small models of every tested architecture, made by transformers.

Head counts, head sizes and rope settings are as published; the sliding windows and the contexts
before rope scaling are shorter than the tests' texts.
"""

import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import torch
import transformers
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache
from tiny_models import random_streams
from torch_tiny import saved

from specstream_mlx.engine.kv import make_caches
from specstream_mlx.engine.step import Decoder
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config
from specstream_mlx.loading.speculative_model import SpeculativeModel
from specstream_mlx.stream_config import StreamConfig

VOCAB_SIZE = 97
WINDOW = 12

TIED, WINDOWS = {"tie_word_embeddings": True}, {"sliding_window": WINDOW}


def rope(theta, kind="default", **fields):
    return {"rope_parameters": {"rope_theta": theta, "rope_type": kind, **fields}}


def llama3(factor):
    factors = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return rope(5e5, "llama3", original_max_position_embeddings=8192, **factors)


def yarn(theta, factor):
    return rope(theta, "yarn", factor=factor, original_max_position_embeddings=32)


def longrope():
    short, long = ([1.0 + step * i for i in range(48)] for step in (0.01, 0.2))
    fields = {"original_max_position_embeddings": 16, "short_factor": short, "long_factor": long}
    return {**rope(1e4, "longrope", **fields), "original_max_position_embeddings": 16}


def by_layer(period, count, **full):
    """Gemma 3's layers, of which every ``period``-th sees all."""
    types = ["sliding_attention"] * (period - 1) + ["full_attention"]
    ropes = {"full_attention": rope(1e6, **full), "sliding_attention": rope(1e4)}
    return {
        "num_hidden_layers": count,
        "layer_types": types * (count // period),
        "rope_parameters": {name: one["rope_parameters"] for name, one in ropes.items()},
    }


def whole(count, kv_count, size):
    """Heads that are as wide as the model together."""
    fields = {"num_attention_heads": count, "num_key_value_heads": kv_count}
    return {**fields, "hidden_size": count * size}


def heads(count, kv_count, size):
    return {**whole(count, kv_count, size), "hidden_size": 64, "head_dim": size}


def case(family, *parts, **fields):
    return family, {name: value for part in (*parts, fields) for name, value in part.items()}


PARTIAL = {"factor": 2.0, "partial_rotary_factor": 0.25}
GEMMA_LINEAR = {"kind": "linear", "factor": 8.0}
GEMMA_PART = {"kind": "proportional", "partial_rotary_factor": 0.25}
UPPER = {"use_sliding_window": True, "max_window_layers": 2}
SMALL_OPT = {"num_attention_heads": 2, "hidden_size": 128, "ffn_dim": 96}
AFTER = {"do_layer_norm_before": False, "tie_word_embeddings": False}
CASES = {
    "Llama 2, Vicuna": case("Llama", heads(2, 2, 128), rope(1e4)),
    "OpenLLaMA, linear rope": case("Llama", heads(2, 2, 100), rope(1e4, "linear", factor=2.0)),
    "Llama 3.1": case("Llama", heads(4, 1, 128), llama3(8.0)),
    "Llama 3.2, tied": case("Llama", heads(4, 1, 64), llama3(32.0), TIED),
    "Llama, yarn": case("Llama", heads(2, 1, 128), yarn(1e4, 16.0)),
    "Llama, proportional": case("Llama", heads(2, 1, 64), rope(1e4, "proportional", **PARTIAL)),
    "Mistral 0.3": case("Mistral", heads(4, 1, 128), rope(1e6), sliding_window=None),
    "Mistral 0.1, window": case("Mistral", heads(4, 1, 128), rope(1e4), WINDOWS),
    "Phi-1.5": case("Phi", whole(2, 2, 64), rope(1e4, partial_rotary_factor=0.5)),
    "Phi-2": case("Phi", whole(2, 2, 80), rope(1e4, partial_rotary_factor=0.4)),
    "Phi-3 mini 4k, window": case("Phi3", whole(2, 2, 96), rope(1e4), WINDOWS),
    "Phi-3 mini 128k, longrope": case("Phi3", whole(2, 2, 96), longrope()),
    "Phi-4 mini": case("Phi3", whole(3, 1, 128), rope(1e4, partial_rotary_factor=0.75), TIED),
    "Qwen2 0.5B, tied": case("Qwen2", whole(7, 1, 64), rope(1e6), TIED),
    "Qwen2.5, yarn": case("Qwen2", whole(5, 1, 32), yarn(1e6, 4.0)),
    "Qwen2, windows on the upper layers": case("Qwen2", whole(2, 1, 64), rope(1e6), WINDOWS, UPPER),
    "Qwen3 0.6B, tied": case("Qwen3", heads(2, 1, 128), rope(1e6), TIED),
    "Qwen3 8B": case("Qwen3", heads(4, 1, 128), rope(1e6)),
    "Gemma 2": case("Gemma2", heads(2, 1, 256), rope(1e4), WINDOWS, query_pre_attn_scalar=224),
    "Gemma 3": case("Gemma3Text", heads(4, 1, 256), by_layer(3, 6, **GEMMA_LINEAR), WINDOWS),
    "Gemma 3, partial": case("Gemma3Text", heads(4, 1, 256), by_layer(3, 3, **GEMMA_PART), WINDOWS),
    "OPT": case("OPT", SMALL_OPT),
    "OPT, norms after": case("OPT", SMALL_OPT, AFTER),
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


def filled(family, **fields):
    """Random weights that make a text of many tokens: sharp attention, layers that count."""
    config = getattr(transformers, f"{family}Config")(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
    generator, gemma = torch.Generator().manual_seed(3), family.startswith("Gemma")
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
    return model


@cache
def scratch():
    return tempfile.TemporaryDirectory()


def random_model(case, vocab_size=VOCAB_SIZE):
    """The case's model in transformers, with random weights."""
    family, fields = CASES[case]
    common = {"num_hidden_layers": 4, "vocab_size": vocab_size, "max_position_embeddings": 512}
    common |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    width = "word_embed_proj_dim" if family == "OPT" else "intermediate_size"
    common[width] = fields["hidden_size"] if family == "OPT" else 96
    return filled(family, **{**common, **fields})


def unlisted_model(directory, family, dtype=torch.float32, **fields):
    """Write a random model of a family that has no entry in the table."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB_SIZE}
    return saved(filled(family, **sizes | fields).to(dtype), directory)


@cache
def pair(case):
    """The case's model through ``save_pretrained`` and ``read_model``, with random streams."""
    torch_model = random_model(case)
    config = torch_model.config
    directory = saved(torch_model, Path(scratch().name) / str(list(CASES).index(case)))
    model, _ = read_model(directory)
    sizes = {name: getattr(config, name) for name in ("hidden_size", "num_hidden_layers")}
    fields = {"num_streams": 3, "num_msa_layers": 3, "pruner_rank": 4}
    fields |= {"stream_mlp": "adapter", "stream_adapter_rank": 4}
    streams = random_streams(StreamConfig(mode="lossless", **sizes, **fields), seed=5)
    return Pair(
        torch_model, SpeculativeModel(model, read_config(directory), directory, streams=streams)
    )


def with_streams(case, seed=5, **fields):
    """The case's model with other random streams, by fields of ``StreamConfig``."""
    found = pair(case).model
    streams = random_streams(replace(found.streams.config, **fields), seed=seed)
    return SpeculativeModel(found.model, found.config, found.path, streams=streams)


def mlx_lm_caches(model):
    """Caches with which mlx_lm's greedy decoding has the windows, or ``None``: it cannot."""
    windows = [getattr(cache, "window", None) for cache in make_caches(model.model, model.config)]
    own = make_prompt_cache(model.model)
    if [getattr(cache, "max_size", None) for cache in own] == windows:
        return own
    if len(set(windows)) == 1:
        return [RotatingKVCache(window) for window in windows]
    return None
