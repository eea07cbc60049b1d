"""Files that a conversion may replace: what conversions write, and this one does not read."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from specstream_mlx.adapters.description import ADAPTER_CONFIG, ADAPTER_FILES
from specstream_mlx.errors import UserError
from specstream_mlx.files import other_file

_MODEL_FILES = re.compile(
    r"(generation_)?config\.json|model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json"
    # what tokenizers of transformers save
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|tekken)\.json"
    r"|vocab\.txt|merges\.txt|(tokenizer|spiece|sentencepiece\.bpe)\.model"
    r"|chat_template\.(jinja|json)|additional_chat_templates/[^/]*\.jinja"
)


def check_new(target: Path) -> None:
    """Check that there is nothing at ``target``."""
    if target.exists():
        raise UserError(f"--mlx-path {target} exists already, expected a new path or --overwrite")


def check_replaceable(
    target: Path, model: Path, adapters: Sequence[Path] = (), *, overwrite: bool
) -> None:
    """Check that a conversion may write to ``target`` and remove what is there.

    With ``overwrite`` that is an empty directory, a model, an adapter, or a directory of adapters,
    with the files that conversions write and no others.
    """
    place = Path(os.path.realpath(target))
    if not overwrite:
        check_new(target)
    sources = [("the model", model), *(("the adapter", adapter) for adapter in adapters)]
    for what, path in (*sources, ("the current directory", Path.cwd())):
        source = Path(os.path.realpath(path))
        if place == source or place in source.parents:
            verb = "is" if place == source else "holds"
            raise UserError(f"{target} {verb} {what} {path}, expected another --mlx-path")
    if not place.exists():
        return
    if not place.is_dir():
        raise UserError(f"{target} is a file, expected a directory to replace")
    other = _other_file(place)
    if other is not None:
        raise UserError(
            f"{target} holds other files than a converted model's or adapter's, such as {other}, "
            "expected another --mlx-path, since --overwrite would remove them"
        )


def _other_file(directory: Path) -> Path | None:
    """The first file that no conversion writes, relative to the directory; ``None``: none."""
    if (directory / "config.json").is_file() and any(directory.glob("model*.safetensors")):
        return other_file(directory, _MODEL_FILES)
    if (directory / ADAPTER_CONFIG).is_file():
        return other_file(directory, ADAPTER_FILES)
    adapters = [path.name for path in directory.iterdir() if (path / ADAPTER_CONFIG).is_file()]
    names = "|".join(map(re.escape, adapters))
    return other_file(directory, re.compile(f"({names})/({ADAPTER_FILES.pattern})"))
