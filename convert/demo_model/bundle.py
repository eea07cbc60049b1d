"""Put trained streams and adapters into the package, in the form in which they are shipped.

    python -m specstream_mlx.convert.demo_model.bundle --work runs/adapters

It takes ``streams`` and the tasks' adapters from ``train_adapters``, as far as they are finished,
and writes ``bundled/streams`` and ``bundled/adapters/<task>``: MLX format, in float16. Each part
appears complete or not at all, and all or none are written.
"""

import json
import shutil
import tempfile
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

MOST_STREAM_BYTES, MOST_ADAPTER_BYTES, MOST_BYTES = 1_500_000, 3 << 20, 30_000_000
"""Of the lossless streams, of one adapter, and of all together."""


def copy_adapter(source: Path, base: Path, target: Path) -> None:
    """Convert a trained adapter, naming its base instead of the directory it was trained in."""
    convert_adapter(source, base, target, dtype="float16")
    path = target / ADAPTER_CONFIG
    config = read_json(path)
    config[STREAM_KEY]["base_model"] = demonstration.REPOSITORY
    path.write_text(json.dumps(config, indent=2) + "\n")


def size_of(directory: Path) -> int:
    """The bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def bundle(work: Path, output: Path) -> dict[str, int]:
    """Write the bundled streams and adapters; returns the bytes of each part, by name."""
    parts = {STREAMS: work / STREAMS} | {f"adapters/{n}": work / n for n in tasks.TASKS}
    finished = {part: s / "adapter" for part, s in parts.items() if (s / "adapter").exists()}
    if not finished:
        raise UserError(f"{work} has no <part>/adapter, expected at least one finished part")
    sizes = {}
    with tempfile.TemporaryDirectory() as name:
        scratch, base = Path(name), demonstration.base_path()
        for part, source in finished.items():
            copy_adapter(source, base, scratch / part)
            most = MOST_STREAM_BYTES if part == STREAMS else MOST_ADAPTER_BYTES
            sizes[part] = size = size_of(scratch / part)
            if size > most:
                raise UserError(f"{part} has {size:,} bytes, expected at most {most:,}")
        if (total := sum(sizes.values())) > MOST_BYTES:
            raise UserError(f"all parts have {total:,} bytes, expected at most {MOST_BYTES:,}")
        for part in finished:
            with staged_directory(output / part) as staged:
                shutil.copytree(scratch / part, staged, dirs_exist_ok=True)
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
