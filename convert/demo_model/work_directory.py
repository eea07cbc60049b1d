"""Where the parts lie in the work directory of ``train_adapters``.

Each part has a directory of its name with ``adapter``, as trained, and ``mlx``, the same converted.
"""

from pathlib import Path

from ..to_mlx.adapter import convert_adapter

PLAIN_STREAMS = "plain-streams"
LOSSLESS = "streams", PLAIN_STREAMS
"""The parts that are lossless streams of the base, with a head and without."""


def head_of(part: str) -> str:
    """The name of the part that is another one with a head."""
    return f"{part}-head"


def trained(work: Path, part: str) -> Path:
    """The adapter directory of a part, with its head if that was trained; it may not exist."""
    with_head = work / head_of(part) / "adapter"
    return with_head if with_head.exists() else work / part / "adapter"


def converted(work: Path, part: str) -> Path:
    """The directory of a trained part's adapter in MLX format, written if it is missing.

    Raises:
        UserError: it cannot be converted.
    """
    path = work / part / "mlx"
    if not path.exists():
        convert_adapter(work / part / "adapter", work / "base", path)
    return path
