"""Draft heads of all methods here, read from a directory by their tensors."""

from pathlib import Path

import mlx.core as mx
from specstream_mlx.convert.to_mlx.source_tensors import arrays_of_files

from specstream_mlx import SpeculativeModel
from specstream_mlx.adapters.description import ADAPTER_CONFIG
from specstream_mlx.engine.draft_head import MountedHead
from specstream_mlx.files import read_json
from specstream_mlx.heads.read_head import head_config, read_head

from .eagle import read_eagle
from .head_parts import Tensors
from .hydra import read_hydra
from .medusa import LAYER, read_medusa
from .prompt_tokens import EMBEDDINGS, read_prompt_tokens

_WITHIN_A_MODEL = "medusa_head."


def mounted(directory: Path, model: SpeculativeModel) -> MountedHead:
    """Read a draft head of Medusa, Hydra, EAGLE, EAGLE-3 or of prompt tokens, for a target."""
    arrays: dict[str, mx.array] = {}
    for some in arrays_of_files(directory, "the draft head"):
        arrays |= some
    if any(name.startswith(_WITHIN_A_MODEL) for name in arrays):
        inner = {name: a for name, a in arrays.items() if name.startswith(_WITHIN_A_MODEL)}
        arrays = {name.removeprefix(_WITHIN_A_MODEL): array for name, array in inner.items()}
    file = directory / ADAPTER_CONFIG  # PEFT's
    values = read_json(file) if file.is_file() else head_config(directory)
    tensors = Tensors(directory, arrays, values, model)
    if any(map(LAYER.match, arrays)):
        return read_medusa(tensors)
    if any(name.startswith("hydra_mlp.") for name in arrays):
        return read_hydra(tensors)
    of_eagle = {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= arrays.keys()
    if of_eagle and "layers.0.hidden_norm.weight" not in arrays:  # that would be EAGLE-3's
        return read_eagle(tensors)
    if EMBEDDINGS in arrays:
        return read_prompt_tokens(tensors)
    return read_head(directory, model.model, model.config)


def has_streams(directory: Path) -> bool:
    """Whether a directory is an adapter with streams, not prompt tokens, which PEFT has saved."""
    config = directory / ADAPTER_CONFIG
    return config.is_file() and "num_special_tokens" not in read_json(config)
