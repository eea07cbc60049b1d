"""Adapters as PEFT saves them, on a tiny random Llama, and logits on both sides."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from parity import BOUND
from peft import LoraConfig, PeftModel, get_peft_model
from specstream_mlx.convert.pytorch.load import load_base
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]


def untied_llama(directory: Path) -> Path:
    """A Hugging Face directory of an untied Llama of four layers with biases."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCAB_SIZE,
        initializer_range=0.3,
        attention_bias=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    model.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def peft_directory(
    hf: Path, directory: Path, dtype: torch.dtype = torch.float32, **config: Any
) -> PeftModel:
    """A PEFT adapter with random values, saved and loaded again by PEFT."""
    torch.manual_seed(1)
    safe = config.pop("safe_serialization", True)
    model = get_peft_model(load_base(hf), LoraConfig(**{"r": 4, "lora_alpha": 6} | config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_magnitude" in name:
                parameter.mul_(torch.empty_like(parameter).uniform_(0.7, 1.3))
            elif "lora_" in name:
                parameter.normal_(std=0.2)
                parameter.data = parameter.to(dtype)
    model.save_pretrained(directory, safe_serialization=safe)
    return PeftModel.from_pretrained(load_base(hf), directory).eval()


def torch_logits(model: torch.nn.Module) -> np.ndarray:
    """Logits (tokens, vocabulary) of a PyTorch model after each of ``TOKENS``."""
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def mlx_logits(model: nn.Module) -> np.ndarray:
    """Logits (tokens, vocabulary) of an mlx-lm model after each of ``TOKENS``."""
    return np.array(model(mx.array([TOKENS]))[0])


def close(expected: np.ndarray, found: np.ndarray) -> bool:
    """Whether two arrays agree within the bound for MLX and PyTorch."""
    return np.abs(expected - found).max() <= BOUND * max(1.0, np.abs(expected).max())


def edit(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
