"""Put trained streams and adapters into the package, in the form in which they are shipped.

    python -m specstream_mlx.convert.demo_model.bundle --work runs/adapters

It takes ``streams`` and the tasks' adapters from ``train_adapters``, as far as they are finished,
and writes ``bundled/streams`` and ``bundled/adapters/<task>``: MLX format, in float16.
"""

import json
import shutil
from pathlib import Path

from specstream_mlx import bundled, demonstration
from specstream_mlx.adapters.description import ADAPTER_CONFIG, STREAM_KEY
from specstream_mlx.errors import UserError
from specstream_mlx.files import read_json, staged_directory
from specstream_mlx.options import PATH, option
from specstream_mlx.terminal.commands import program

from ..to_mlx.adapter import convert_adapter
from . import tasks
from .train_adapters import STREAMS

MOST_STREAM_BYTES, MOST_ADAPTER_BYTES = 1_500_000, 3 << 20
"""Of the lossless streams, and of one adapter."""


def size_of(directory: Path) -> int:
    """The bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def bundle(work: Path, output: Path) -> dict[str, int]:
    """Write the bundled streams and adapters; returns the bytes of each part, by name."""
    parts = {STREAMS: work / STREAMS} | {f"adapters/{n}": work / n for n in tasks.TASKS}
    finished = {part: s / "adapter" for part, s in parts.items() if (s / "adapter").exists()}
    if not finished:
        raise UserError(f"{work} has no <part>/adapter, expected at least one finished part")
    sizes, converted = {}, work / "bundled"
    for part, source in finished.items():
        made = converted / part
        convert_adapter(source, demonstration.base_path(), made, dtype="float16", overwrite=True)
        config = read_json(made / ADAPTER_CONFIG)
        config[STREAM_KEY]["base_model"] = demonstration.REPOSITORY  # no directory of this machine
        (made / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        sizes[part] = size_of(made)
        most = MOST_STREAM_BYTES if part == STREAMS else MOST_ADAPTER_BYTES
        if sizes[part] > most:
            raise UserError(f"{part} has {sizes[part]:,} bytes, expected at most {most:,}")
    for part in finished:
        with staged_directory(output / part) as staged:
            shutil.copytree(converted / part, staged, dirs_exist_ok=True)
    return sizes


def main(
    work: Path = option(..., PATH, "The --work directory of train_adapters."),
    output: Path = option(bundled.ROOT, PATH, "Directory that the parts are written to."),
) -> None:
    """Put trained streams and adapters into the package."""
    sizes = bundle(work, output)
    for part, size in {**sizes, "in all": sum(sizes.values())}.items():
        print(f"{size / 1e6:8.2f} MB  {part}")


if __name__ == "__main__":
    program(main)()
