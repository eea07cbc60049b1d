"""Commands under ``mlx.launch``: every rank runs them, rank 0 alone talks to the user."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from mlx.core.distributed import Group

    from ..distributed.ranks import Ranks

_COMMANDS = ("generate", "chat", "serve", "doctor")
_NEWS = 2.0  # seconds in which the watching threads learn why a collective has failed


def is_first() -> bool:
    """Whether this process talks to the user."""
    return os.environ.get("MLX_RANK", "0") == "0"


@cache
def group() -> "Group | None":
    """The processes that ``mlx.launch`` has started; ``None``: none or only one."""
    hostfile = os.environ.get("MLX_HOSTFILE")
    alone = hostfile is not None and not os.path.getsize(hostfile)  # what mlx.launch -n 1 writes
    if "MLX_RANK" not in os.environ or alone:
        return None
    import mlx.core as mx

    joined = mx.distributed.init()
    return joined if joined.size() > 1 else None


def ranks() -> "Ranks | None":
    """The ranks of ``group``."""
    if (joined := group()) is None:
        return None
    from ..distributed.ranks import ranks_of

    return ranks_of(joined)


def silence_others() -> None:
    """Let only the first rank print anything."""
    if not is_first():
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@contextmanager
def together(name: str) -> Iterator[None]:
    """Run a command in the block on all ranks; rank 0 reports the mistakes of the others."""
    if group() is not None and name not in _COMMANDS:
        raise UserError(
            f"{name} was started in several processes, expected one process, or one of "
            f"{', '.join(_COMMANDS)}"
        )
    present = ranks()
    if present is None:
        yield
        return
    if not present.is_first:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user interrupts rank 0
    try:
        yield
    except Exception as error:
        if not isinstance(error, UserError):
            time.sleep(_NEWS)  # if a peer is gone, its thread here says so and ends this process
        if not present.is_first:
            present.failed(str(error) or repr(error))
        raise


def refuse(**options: object) -> None:
    """Check that no option is set that needs the whole model in one process."""
    for name, value in options.items():
        if value and group() is not None:
            raise UserError(
                f"--{name.replace('_', '-')} was given to several processes, expected without it, "
                "or one process"
            )


def lines_of_first(lines: Iterator[str]) -> Iterator[str]:
    """Yield rank 0's lines on all ranks."""
    present = ranks()
    if present is None:
        yield from lines
    elif present.is_first:
        for line in lines:
            present.send("line", line)
            yield line
        present.send("line")
    else:
        while (line := present.receive("line")) is not None:
            yield line
