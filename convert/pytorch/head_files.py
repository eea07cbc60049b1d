"""Trained draft heads, written as the published ones are; ``specstream_mlx.heads`` reads both."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from specstream_mlx.files import check_holds_only, staged_directory

from .draft_heads import Eagle, Eagle3, Hydra, Medusa

_CONFIG, _TENSORS = "config.json", "model.safetensors"
_TOKEN_MAP = "token_map"
"""The tokens that are drafted, by vLLM's name; here beside heads too that share the base's."""

_LAYER = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_LM_HEAD = re.compile(r"(\d+)\.\d+\.weight")


def check_head_replaceable(directory: Path) -> None:
    """Check that a head may be written to ``directory``.

    Raises:
        UserError: it is a file, or holds a file that ``write_head`` does not write.
    """
    pattern = re.compile("|".join(map(re.escape, (_CONFIG, _TENSORS))))
    check_holds_only(directory, pattern, "a draft head's")


def write_head(
    network: nn.Module, vocabulary: Tensor | None, base_model: str, directory: Path
) -> None:
    """Write a head, which appears complete or not at all, and replaces one that is there already.

    Args:
        network: a head of ``draft_heads``.
        vocabulary: the tokens that it drafts; ``None``: all.
        base_model: name or path of its base.
        directory: for the files.

    Raises:
        UserError: the directory may not be replaced, or cannot be written.
    """
    named = network.named_parameters()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named}
    if vocabulary is not None and isinstance(network, Eagle3):
        ids, every = vocabulary.cpu(), torch.zeros(network.config.vocab_size, dtype=torch.bool)
        tensors["d2t"], every[ids] = ids - torch.arange(len(ids)), True
        tensors["t2d"] = every
    elif vocabulary is not None:
        tensors[_TOKEN_MAP] = vocabulary.to("cpu", torch.int32)
        if network.lm_heads:
            tensors = {_of_vllm(name): tensor for name, tensor in tensors.items()}
    check_head_replaceable(directory)
    with staged_directory(directory) as scratch:
        text = json.dumps(_config(network, base_model), indent=2) + "\n"
        (scratch / _CONFIG).write_text(text, encoding="utf-8")
        save_file(tensors, scratch / _TENSORS, {"format": "pt"})
        check_head_replaceable(directory)


def _of_vllm(name: str) -> str:
    """The name that vLLM has for a tensor of Medusa's; only there LM heads may be cut."""
    if found := _LAYER.fullmatch(name):
        return f"blocks.{found[1]}.layers.{found[2]}.{found[3]}"
    if found := _LM_HEAD.fullmatch(name):
        return f"lm_heads.{found[1]}.weight"
    return name


def _config(network: nn.Module, base_model: str) -> dict[str, Any]:
    """The ``config.json`` of a head, with its method's own fields."""
    if isinstance(network, Medusa):
        return {
            "base_model_name_or_path": base_model,
            "medusa_num_heads": len(network),
            "medusa_num_layers": network.layers,
        }
    if isinstance(network, Hydra):
        return {
            "base_model_name_or_path": base_model,
            "hydra_num_heads": len(network.hydra_mlp),
            "hydra_num_layers": len(network.hydra_mlp[0]),
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
        }
    assert isinstance(network, Eagle | Eagle3)
    config = network.config
    own: dict[str, Any] = {"bias": True}
    if isinstance(network, Eagle3):
        own = {
            "draft_vocab_size": network.lm_head.out_features,
            "eagle_aux_hidden_state_layer_ids": list(network.boundaries),
        }
    names = (
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
        *("head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings"),
    )
    return {
        "model_type": "llama",
        "base_model_name_or_path": base_model,
        **{name: getattr(config, name) for name in names},
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rope_theta": config.rope_parameters["rope_theta"],
        **own,
    }
