"""Put the trained demonstration model into the package, in the form in which it is shipped.

    python -m specstream_mlx.convert.demo_model.bundle --work runs/adapters

It takes ``base``, ``streams`` and the tasks' adapters from ``train_adapters``, with heads where
they were trained and pay, and writes ``bundled/base``, ``bundled/streams`` and
``bundled/adapters/<task>``: MLX format, adapters in float16, at most 45 MB in all. Each part
appears complete or not at all.
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
from specstream_mlx.staging import staged_directory

from ..to_mlx.adapter import convert_adapter
from . import tasks
from .work_directory import trained

MOST_BYTES = 45_000_000
NAME = "specstream-mlx demonstration model"
PLAIN = ("proofread",)
"""Tasks whose streams keep plain heads: where nearly every guess is right, a head that knows the
token before takes more time than it saves (``benchmarks.studies.conditioned_heads``)."""
BASE_FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)


def copy_base(source: Path, target: Path) -> None:
    """Copy the files of a base that are needed to load it.

    Args:
        source: directory of the base in MLX format.
        target: directory that does not exist yet.

    Raises:
        UserError: a file is missing.
    """
    target.mkdir(parents=True)
    for name in BASE_FILES:
        if not (source / name).exists():
            raise UserError(f"{source / name} is missing, expected a finished part 'base'")
        shutil.copyfile(source / name, target / name)


def copy_adapter(source: Path, base: Path, target: Path) -> None:
    """Convert a trained adapter, leaving out the name of the directory that it was trained in."""
    convert_adapter(source, base, target, dtype="float16")
    path = target / ADAPTER_CONFIG
    config = read_json(path)
    config[STREAM_KEY]["base_model"] = NAME
    path.write_text(json.dumps(config, indent=2) + "\n")


def size_of(directory: Path) -> int:
    """The bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def collect(work: Path, scratch: Path) -> list[str]:
    """Write all parts to ``scratch``.

    Args:
        work: work directory of ``train_adapters``.
        scratch: an empty directory.

    Returns:
        The names of the parts, which are paths below ``scratch``.

    Raises:
        UserError: a part is not trained yet, or all together are larger than ``MOST_BYTES``.
    """
    adapters = [name for name in tasks.TASKS if (work / name / "adapter").exists()]
    if not (work / "streams" / "adapter").exists():
        raise UserError(f"{work / 'streams' / 'adapter'} is missing, expected finished streams")
    if not adapters:
        raise UserError(f"{work} has no <task>/adapter, expected at least one finished task")
    copy_base(work / "base", scratch / "base")
    copy_adapter(work / "streams" / "adapter", work / "base", scratch / "streams")
    for name in adapters:
        source = work / name / "adapter" if name in PLAIN else trained(work, name)
        copy_adapter(source, work / "base", scratch / "adapters" / name)
    if (total := size_of(scratch)) > MOST_BYTES:
        raise UserError(
            f"base, streams and {len(adapters)} adapters have {total / 1e6:.1f} MB, "
            f"expected at most {MOST_BYTES / 1e6:.0f} MB"
        )
    return ["base", "streams", *(f"adapters/{name}" for name in adapters)]


def bundle(work: Path, output: Path) -> dict[str, int]:
    """Write the bundled model.

    Args:
        work: work directory of ``train_adapters``.
        output: directory whose ``base``, ``streams`` and ``adapters`` are replaced.

    Returns:
        The bytes of each part, by name.

    Raises:
        UserError: a part is not trained yet, or all together are too large, and nothing has been
            written; or a part cannot be written.
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
    work: Annotated[Path, typer.Option(help="The --work directory of train_adapters.")],
    output: Annotated[
        Path, typer.Option(help="Directory that the parts are written to.")
    ] = bundled.ROOT,
) -> None:
    """Put the trained demonstration model into the package."""
    sizes = bundle(work, output)
    for part, size in sizes.items():
        print(f"{size / 1e6:8.2f} MB  {part}")
    print(f"{sum(sizes.values()) / 1e6:8.2f} MB  in all")


if __name__ == "__main__":
    typer.run(main)
