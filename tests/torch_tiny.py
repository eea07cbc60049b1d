"""Tiny random Llamas with streams in PyTorch, and what they learn soon."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from specstream_mlx.convert.pytorch.losses import Batch
from specstream_mlx.convert.pytorch.reference import SpeculativeStreamingModel
from specstream_mlx.convert.to_mlx.base import convert_base
from tiny_models import VOCAB_SIZE, tiny_tokenizer
from tiny_training import completions, write_rows
from transformers import LlamaConfig, LlamaForCausalLM

from specstream_mlx.stream_config import StreamConfig

torch.set_num_threads(1)  # these products are too small to share

CONDITIONED = {"stream_head": "conditioned", "stream_head_rank": 5}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def tiny_llama(*, tied=True, vocab=50, **fields):
    """A random Llama of hidden size 32, its weights large enough for spread-out logits."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": vocab}
    usual = {"initializer_range": 0.3, "max_position_embeddings": 256, "tie_word_embeddings": tied}
    return LlamaForCausalLM(LlamaConfig(**sizes | usual | fields)).eval()


def tiny_model(mode="lossless", *, trained=True, base=None, **overrides):
    """A model with streams; ``trained`` replaces the zeros of the start by random values.

    In shared mode a base without LoRA is given some.
    """
    torch.manual_seed(0)
    fields = {"mode": mode, "num_msa_layers": 2, "num_streams": 3, "pruner_rank": 4}
    if mode == "lossless":
        fields |= {"stream_mlp": "adapter", "stream_adapter_rank": 4}
    base = base or tiny_llama()
    sizes = {name: getattr(base.config, name) for name in ("hidden_size", "num_hidden_layers")}
    config = StreamConfig(**sizes, **fields | overrides)
    if mode == "shared" and not hasattr(base, "peft_config"):
        base = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=LINEAR)).eval()
    model = SpeculativeStreamingModel(base, config).eval()
    if trained:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad and (not parameter.any() or "embeddings" in name):
                    parameter.normal_(std=0.3)
    return model


def tiny_batch(*, vocab=50):
    """Random sequences of different lengths."""
    tokens = torch.randint(0, vocab, (3, 12), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, torch.tensor([4, 5, 1]), torch.tensor([9, 12, 7]))


def saved(model, directory, **how):
    """Write a model in Hugging Face's format, with a tokenizer; returns its directory."""
    model.save_pretrained(directory, **how)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    torch.manual_seed(0)
    return saved(tiny_llama(vocab=VOCAB_SIZE), tmp_path_factory.mktemp("tied") / "hf")


@pytest.fixture(scope="session")
def tied_mlx(tied):
    convert_base(tied, tied.parent / "mlx")
    return tied.parent / "mlx"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data") / "train.jsonl", completions(24))
