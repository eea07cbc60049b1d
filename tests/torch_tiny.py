"""Tiny random Llamas with streams, and what to train them on, for the tests of the PyTorch side."""

import json
import random

import torch
from peft import LoraConfig, get_peft_model
from specstream_mlx.convert.pytorch.losses import Batch
from specstream_mlx.convert.pytorch.reference import SpeculativeStreamingModel
from transformers import LlamaConfig, LlamaForCausalLM

from specstream_mlx.stream_config import StreamConfig

torch.set_num_threads(1)  # these products are too small to share

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_llama(*, layers=3, heads=4, kv_heads=2, tied=True, vocab=50) -> LlamaForCausalLM:
    """A random Llama of hidden size 32, its weights large enough for spread-out logits."""
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


def tiny_model(
    mode="lossless", *, seed=0, lora=None, trained=True, base=None, **overrides
) -> SpeculativeStreamingModel:
    """A model with streams; ``trained`` replaces the zeros of the start by random values."""
    torch.manual_seed(seed)
    fields = {"mode": mode, "num_msa_layers": 2, "num_streams": 3, "pruner_rank": 4}
    if mode == "lossless":
        fields |= {"stream_mlp": "adapter", "stream_adapter_rank": 4}
    fields |= overrides
    base = base or tiny_llama()
    config = StreamConfig(
        hidden_size=base.config.hidden_size,
        num_hidden_layers=base.config.num_hidden_layers,
        **fields,
    )
    if lora if lora is not None else mode == "shared":
        base = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=LINEAR)).eval()
    model = SpeculativeStreamingModel(base, config).eval()
    if trained:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and (not parameter.any() or "embeddings" in name):
                    parameter.normal_(std=0.3)
    return model


def tiny_batch(*, seed=0, vocab=50, lengths=(9, 12, 7), stream_from=(4, 5, 1)) -> Batch:
    """Random sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (len(lengths), max(lengths)), generator=generator)
    return Batch(tokens, torch.tensor(stream_from), torch.tensor(lengths))


def tiny_completions(path):
    """Write 24 prompts and completions that a tiny model learns soon; returns ``path``."""
    rng = random.Random(0)
    lines = []
    for _ in range(24):
        words = rng.sample(["check", "numbers", "meeting", "report", "team", "noon"], 3)
        lines.append(json.dumps({"prompt": " ".join(words), "completion": "the team " + words[0]}))
    path.write_text("\n".join(lines) + "\n")
    return path
