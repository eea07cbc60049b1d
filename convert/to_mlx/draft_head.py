"""Draft heads: from torch's files, or out of a whole model's, to safetensors that MLX reads.

Tensors keep the names, shapes and dtypes that they were published with; ``heads.files`` knows them.
"""

import json
from pathlib import Path

import mlx.core as mx

from specstream_mlx.config import UserError
from specstream_mlx.engine.draft_head import MountedHead
from specstream_mlx.heads.files import CONFIG, WITHIN_MODEL, head_config, head_of
from specstream_mlx.loading import read_config, read_model
from specstream_mlx.staging import staged_directory

from .overwrite import check_replaceable
from .source_tensors import arrays_of_files


def convert_head(source: Path, base: Path, target: Path, *, overwrite: bool = False) -> MountedHead:
    """Convert a draft head, and check that it fits its base.

    Args:
        source: directory of the head, or of a whole model with one, as published: safetensors, or
            torch's ``.pt`` or ``.bin`` files, which are read without running any code in them.
        base: directory of the base, in Hugging Face's or MLX format.
        target: directory for the result, which appears once it is complete.
        overwrite: replace what is at ``target``, if ``check_replaceable`` allows it.

    Returns:
        The head.

    Raises:
        UserError: a file is missing or damaged, there is no head in it that is known here, it does
            not fit the base, or the target exists or cannot be written.
    """
    check_replaceable(target, base, [source], overwrite=overwrite)
    if not source.is_dir():
        raise UserError(f"the draft head {source} is not a directory, expected one")
    arrays, values = _arrays(source), head_config(source)
    model = read_model(base, to_run=False)[0]
    head = head_of(source, arrays, values, model, read_config(base))
    with staged_directory(target, replace=overwrite) as scratch:
        mx.save_safetensors(str(scratch / "model.safetensors"), arrays, {"format": "mlx"})
        text = json.dumps(values or {"draft_head": head.config.kind}, indent=2)
        (scratch / CONFIG).write_text(text + "\n", encoding="utf-8")
    return head


def _arrays(source: Path) -> dict[str, mx.array]:
    """Read a head's tensors by name, file by file; of a whole model, those of the head alone."""
    own: dict[str, mx.array] = {}
    others: dict[str, mx.array] = {}
    for arrays in arrays_of_files(source, "the draft head"):
        for name, array in arrays.items():
            if name.startswith(WITHIN_MODEL):
                own[name] = array
            elif not own:
                others[name] = array
    return own or others
