"""Adapters as PEFT saves them, on a tiny random Llama, and logits on both sides."""

import json

import mlx.core as mx
import numpy as np
import torch
from parity import BOUND
from peft import LoraConfig, PeftModel, get_peft_model
from specstream_mlx.convert.pytorch.load import load_base

TOKENS = [3, 17, 41, 5, 22, 9, 30, 12, 7, 44, 18, 2]


def peft_directory(hf, directory, dtype=torch.float32, **config):
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


def torch_logits(model, tokens=TOKENS):
    """Logits (tokens, vocabulary) of a PyTorch model after each token."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def mlx_logits(model, tokens=TOKENS):
    """Logits (tokens, vocabulary) of an mlx-lm model after each token."""
    return np.array(model(mx.array([tokens]))[0])


def close(expected, found):
    """Whether two arrays agree within the bound for MLX and PyTorch."""
    return np.abs(expected - found).max() <= BOUND * max(1.0, np.abs(expected).max())


def edit(path, **fields):
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
