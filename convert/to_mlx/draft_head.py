"""EAGLE-3 heads: from torch's files to safetensors, with names and dtypes as published."""

import json
from pathlib import Path

import mlx.core as mx

from specstream_mlx.errors import UserError
from specstream_mlx.files import chosen_files, sampled_digest, staged_directory
from specstream_mlx.hardware import user_cache
from specstream_mlx.heads.eagle3 import Eagle3
from specstream_mlx.heads.published_heads import repository_of
from specstream_mlx.heads.read_head import head_config, head_of
from specstream_mlx.loading.load import read_model
from specstream_mlx.loading.model_paths import read_config

from .overwrite import check_replaceable
from .source_tensors import arrays_of_files


def runnable_head(source: Path, base: Path) -> Path:
    """Return a published head's directory, or that of torch's files converted, once, in the cache.

    Raises:
        UserError: see ``convert_head``.
    """
    files = chosen_files(source, "*.bin", whole="pytorch_model.bin")
    if not files or any(source.glob("*.safetensors")):
        return source
    name = (repository_of(source) or source.name).replace("/", "--")
    target = (
        user_cache.directory() / "heads" / sampled_digest([*files, base / "config.json"]) / name
    )
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        convert_head(source, base, target)
    return target


def convert_head(source: Path, base: Path, target: Path, *, overwrite: bool = False) -> Eagle3:
    """Convert a published head, and check that it fits its base.

    Raises:
        UserError: a file is missing or damaged, it is no EAGLE-3 head, it does not fit the base, or
            the target exists or cannot be written.
    """
    check_replaceable(target, base, [source], overwrite=overwrite)
    if not source.is_dir():
        raise UserError(f"the draft head {source} is not a directory, expected one")
    arrays: dict[str, mx.array] = {}
    for some in arrays_of_files(source, "the draft head"):
        arrays |= some
    values = head_config(source)
    model = read_model(base, to_run=False)[0]
    head = head_of(source, arrays, values, model, read_config(base))
    with staged_directory(target, replace=overwrite) as scratch:
        mx.save_safetensors(str(scratch / "model.safetensors"), arrays, {"format": "mlx"})
        (scratch / "config.json").write_text(json.dumps(values, indent=2) + "\n", "utf-8")
    return head
