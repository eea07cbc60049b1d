"""Draft heads read from their files: published EAGLE-3 heads, in the layouts of two projects."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.llama import ModelArgs

from ..adapters.lora import activations_dtype
from ..engine.draft_head import HeadConfig
from ..errors import UserError
from ..files import chosen_files, read_arrays, read_json, reason
from ..models.rope import POSITION_ONLY, check_rope, rope_fields, rope_parameters
from ..options import COUNT, OBJECT, POSITIVE, choice, integer
from .eagle3 import DEPTH, Eagle3, Eagle3Network

_IDS = "eagle_aux_hidden_state_layer_ids"


def read_head(directory: Path, model: nn.Module, config: Mapping[str, Any]) -> Eagle3:
    """Read an EAGLE-3 head and check that it fits a target, an mlx-lm model and its ``config``."""
    arrays: dict[str, mx.array] = {}
    for file in head_files(directory):
        arrays |= read_arrays(file)
    return head_of(directory, arrays, head_config(directory), model, config)


def head_files(directory: Path) -> list[Path]:
    """List the safetensors of a draft head, without reading one, or refuse the directory."""
    if not os.path.isdir(directory):
        raise UserError(f"the draft head {directory} is not a directory, expected one")
    files = chosen_files(directory, "*.safetensors")
    if not files:
        raise UserError(
            f"the draft head {directory} has no safetensors, expected an EAGLE-3 head's: "
            "specstream-mlx convert --draft-head makes them of torch's files"
        )
    return files


def head_config(directory: Path) -> dict[str, Any]:
    """Read a head's ``config.json``; empty where it has none."""
    path = directory / "config.json"
    return read_json(path) if os.path.lexists(path) else {}


def head_of(
    directory: Path,
    arrays: Mapping[str, mx.array],
    values: Mapping[str, Any],
    model: nn.Module,
    config: Mapping[str, Any],
) -> Eagle3:
    """Make an EAGLE-3 head of its tensors by name and the values of its ``config.json``."""
    named = {name.replace("layers.0.", "midlayer.", 1): array for name, array in arrays.items()}
    named.pop("midlayer.self_attn.rotary_emb.inv_freq", None)
    if "midlayer.hidden_norm.weight" not in named or "fc.weight" not in named:
        raise UserError(f"the draft head {directory} has other tensors, expected EAGLE-3's")
    kind = values.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise UserError(f"{directory}: speculators_model_type is {kind!r}, expected 'eagle3'")
    args = llama_args(directory, values.get("transformer_layer_config", values))
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    if "embed_tokens.weight" not in named and args.hidden_size != hidden:
        raise UserError(
            f"{directory}: hidden_size is {args.hidden_size} and there is no embed_tokens.weight, "
            f"expected the model's {hidden}"
        )
    _check_vocabulary(directory, named, values, vocab)
    for flag, name in {"norm_before_fc": "input_norm", "fc_norm": "fc_norm.0"}.items():
        if values.get(flag) is True and f"{name}.weight" not in named:
            raise UserError(f"{directory}: {flag} is true and {name}.weight is missing")
    boundaries = _boundaries(directory, values, config["num_hidden_layers"])
    width = named["fc.weight"].shape[-1]
    if len(boundaries) * hidden != width:
        raise UserError(
            f"{directory}: fc.weight reads {width} values, expected {len(boundaries)} hidden "
            f"states of {hidden}"
        )
    tokens = _drafted(directory, named, vocab)
    drafted = vocab if tokens is None else tokens.size
    network = Eagle3Network(args, width, len(boundaries), named, drafted, vocab)
    parameters = load_weights(directory, network, named, activations_dtype(model))
    vocabulary = 0 if tokens is None else tokens.size
    head = HeadConfig("eagle3", DEPTH, "conditioned", vocabulary, parameters, own_rows=True)
    before, after = (values.get(name) is True for name in ("norm_before_residual", "norm_output"))
    return Eagle3(head, boundaries, network, tokens, before, after)


def load_weights(
    directory: Path, network: nn.Module, arrays: Mapping[str, mx.array], dtype: mx.Dtype
) -> int:
    """Give a network its weights, in a dtype, or refuse what does not fit; returns their number."""
    for name, array in arrays.items():
        if not mx.issubdtype(array.dtype, mx.floating):
            raise UserError(f"{directory}: {name} has dtype {array.dtype}, expected a float's")
    try:
        network.load_weights([(name, array.astype(dtype)) for name, array in arrays.items()])
    except ValueError as error:
        said = reason(ValueError(" ".join(str(error).split())))
        raise UserError(f"the draft head {directory} does not fit: {said}") from None
    mx.eval(network.parameters())
    weights: Any = tree_flatten(network.parameters())
    return sum(array.size for _, array in weights)


def llama_args(directory: Path, config: Any) -> ModelArgs:
    """Read the sizes and the rope of a Llama layer from a ``config.json`` of transformers'."""
    OBJECT.check(f"{directory}: the layer", config)
    choice("silu").check(f"{directory}: hidden_act", config.get("hidden_act", "silu"))
    if "sliding_attention" in str(config.get("layer_types")):
        raise UserError(f"{directory}: its layer attends in a window, expected 'full_attention'")
    needed = "hidden_size", "intermediate_size", "num_attention_heads"
    for name in (*needed, "num_key_value_heads", "head_dim"):
        if name in needed or config.get(name) is not None:
            COUNT.check(f"{directory}: {name}", config.get(name))
    values: dict[str, Any] = {"rms_norm_eps": 1e-6, "rope_theta": 10000.0}  # transformers'
    rope = rope_parameters(config)
    check_rope(rope, config, POSITION_ONLY)
    values |= {**config, **rope_fields(rope, config), "attention_bias": False, "mlp_bias": False}
    POSITIVE.check(f"{directory}: rms_norm_eps", values["rms_norm_eps"])
    if values.get("head_dim") is None:
        values["head_dim"] = values["hidden_size"] // values["num_attention_heads"]
    values |= {"model_type": "llama", "num_hidden_layers": 1, "layer_types": None, "vocab_size": 0}
    return ModelArgs.from_dict(values)


def _boundaries(directory: Path, values: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Find the boundaries whose hidden states ``fc`` reads; without ids they are the authors'."""
    # Ids in an eagle_config are layers whose outputs are read, unless that is after the last one.
    nested, ids = values.get("eagle_config"), values.get(_IDS)
    if ids is None and isinstance(nested, dict) and nested.get(_IDS) is not None:
        ids = nested[_IDS]
        if isinstance(ids, list) and all(isinstance(i, int) and i < layers for i in ids):
            ids = [number + 1 for number in ids]
    if ids is None:
        ids = [2, layers // 2, layers - 3]
    if not isinstance(ids, list):
        raise UserError(f"{directory}: {_IDS} is {ids!r}, expected a list of layers")
    for number in ids:
        integer(0, layers).check(f"{directory}: a number of {_IDS}", number)
    return tuple(ids)


def _check_vocabulary(
    directory: Path, named: Mapping[str, mx.array], values: Mapping[str, Any], vocab: int
) -> None:
    """Check that the head has the model's vocabulary, by its tensors and its configuration."""
    layer = values.get("transformer_layer_config", values)
    sizes = [layer.get("vocab_size")] if isinstance(layer, Mapping) else []
    sizes += [named["t2d"].size] if "t2d" in named else []
    known = {size for size in sizes if isinstance(size, int)}
    if known and vocab not in known:
        raise UserError(
            f"{directory}: the head was trained for a model of {max(known)} tokens, which is not "
            f"this one, expected {vocab}"
        )


def _drafted(directory: Path, named: dict[str, mx.array], vocab: int) -> mx.array | None:
    """Take the tokens that are drafted, from ``d2t``; ``None``: all. ``t2d`` says the same."""
    offsets, chosen = named.pop("d2t", None), named.pop("t2d", None)
    if offsets is None:
        if chosen is not None:
            raise UserError(f"{directory} has t2d and no d2t, expected both or neither")
        return None
    ids = offsets + mx.arange(offsets.size)
    values: Any = ids.tolist() if ids.ndim == 1 and ids.size else [-1]
    if len(set(values)) < len(values) or min(values) < 0 or max(values) >= vocab:
        raise UserError(
            f"{directory} does not name {ids.size} different tokens to draft, expected some of 0 "
            f"to {vocab - 1}"
        )
    if chosen is not None and np.flatnonzero(np.array(chosen)).tolist() != sorted(values):
        raise UserError(
            f"{directory}: t2d and d2t name different tokens, expected the same: d2t has distances "
            "between ids, not ids"
        )
    return ids.astype(mx.int32)
