"""Put the trained demonstration model into the package, in the form in which it is shipped.

    python -m specstream_mlx.convert.demo_model.bundle --work runs/adapters

Takes ``base``, ``streams`` and the tasks' adapters of ``train_adapters`` and writes
``bundled/base``, ``bundled/streams`` and ``bundled/adapters/<task>``: MLX format, float16, at most
40 MB in all. Each part appears whole or not at all.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from specstream_mlx import bundled
from specstream_mlx.adapters.description import ADAPTER_CONFIG, STREAM_KEY
from specstream_mlx.checked_files import read_json
from specstream_mlx.cli.errors import one_line_errors
from specstream_mlx.config import UserError

from ..staging import staged_directory
from ..to_mlx.adapter import convert_adapter
from . import tasks
from .calibration import write_calibration

MOST_BYTES = 40_000_000
NAME = "specstream-mlx demonstration model"
BASE_FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)


def copy_base(source: Path, target: Path) -> None:
    """Copy the files that loading a base needs.

    Raises:
        UserError: one of them is missing.
    """
    target.mkdir(parents=True)
    for name in BASE_FILES:
        if not (source / name).exists():
            raise UserError(f"{source / name} is missing, expected a finished part 'base'")
        shutil.copyfile(source / name, target / name)


def copy_adapter(source: Path, base: Path, target: Path) -> None:
    """Convert a trained adapter; the directory it was trained in is not told."""
    convert_adapter(source, base, target, dtype="float16")
    path = target / ADAPTER_CONFIG
    config = read_json(path)
    config[STREAM_KEY]["base_model"] = NAME
    path.write_text(json.dumps(config, indent=2) + "\n")


def size_of(directory: Path) -> int:
    """Bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def collect(work: Path, scratch: Path) -> list[str]:
    """Write everything to ``scratch``; the parts' names.

    Raises:
        UserError: a part is not there yet, or all are too large together.
    """
    adapters = [name for name in tasks.TASKS if (work / name / "adapter").exists()]
    if not (work / "streams" / "adapter").exists():
        raise UserError(f"{work / 'streams' / 'adapter'} is missing, expected finished streams")
    if not adapters:
        raise UserError(f"{work} has no <task>/adapter, expected at least one finished task")
    copy_base(work / "base", scratch / "base")
    copy_adapter(work / "streams" / "adapter", work / "base", scratch / "streams")
    write_calibration(scratch / "streams")
    for name in adapters:
        copy_adapter(work / name / "adapter", work / "base", scratch / "adapters" / name)
        write_calibration(scratch / "adapters" / name, name)
    if (total := size_of(scratch)) > MOST_BYTES:
        raise UserError(
            f"base, streams and {len(adapters)} adapters have {total / 1e6:.1f} MB, "
            f"expected at most {MOST_BYTES / 1e6:.0f} MB"
        )
    return ["base", "streams", *(f"adapters/{name}" for name in adapters)]


def bundle(work: Path, output: Path) -> dict[str, int]:
    """Write the bundled model; bytes by part.

    Args:
        work: directory of ``train_adapters``.
        output: where ``base``, ``streams`` and ``adapters`` are replaced.

    Raises:
        UserError: one sentence; nothing has been written then.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        parts = collect(work, scratch)
        for part in parts:
            with staged_directory(output / part) as staged:
                shutil.copytree(scratch / part, staged, dirs_exist_ok=True)
    return {part: size_of(output / part) for part in parts}


@one_line_errors
def main(
    work: Annotated[Path, typer.Option(help="Work directory of train_adapters.")],
    output: Annotated[Path, typer.Option(help="Where to; inside the package.")] = bundled.ROOT,
) -> None:
    """Put the trained demonstration model into the package."""
    sizes = bundle(work, output)
    for part, size in sizes.items():
        print(f"{size / 1e6:8.2f} MB  {part}")
    print(f"{sum(sizes.values()) / 1e6:8.2f} MB  in all")


if __name__ == "__main__":
    typer.run(main)
