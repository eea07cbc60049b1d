"""The user's own running servers, which ``write`` asks, since they have the model in memory.

A server that anybody on this machine may ask says where it is in a file of the user's cache, which
it keeps locked while it runs: so no process id that another process has by now is believed.
"""

import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..hardware import user_cache

_SILENCE = 10.0  # seconds; a server that lives says something every 5
_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Written:
    """The part of a text that has come, and figures of all so far, named as in responses."""

    text: str = ""
    generation_tokens: int = 0
    finish_reason: str | None = None
    accepted_length: float = 0.0
    generation_tps: float = 0.0  # of the tokens after the first


@contextmanager
def announced(service: Any, opened: socket.socket) -> Iterator[None]:
    """Let ``write`` find a server in the block; a cache that cannot be written is no mistake."""
    folder, (address, port, *_) = _folder(), opened.getsockname()
    path, file = folder / f"{os.getpid()}.json", None
    own = {name: model.adapter for name, model in service.models.items() if ":" in name}
    values = {
        "pid": os.getpid(),
        "address": address,
        "port": port,
        "version": version("specstream-mlx"),
        "package": _PACKAGE,
        "base": str(service.models["base"].path.absolute()),
        "adapters": {name.split(":")[1]: str(one.path.absolute()) for name, one in own.items()},
        "max_tokens": service.most_tokens,
    }
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, json.dumps(values).encode())
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):
                path.unlink()
            os.close(file)


def written(
    base: Path, name: str, adapter: Path, text: str, max_tokens: int, reading: Any
) -> Iterator[Written] | None:
    """Let a running server write; ``None``: none runs that writes what this process would.

    ``reading`` is called with the number of prompt tokens read so far and of all.
    """
    for server, since in _servers():
        with suppress(OSError, HTTPException, UserError, ValueError, KeyError):
            same = server["base"] == str(base.absolute())
            same = same and server["adapters"][name] == str(adapter.absolute())
            changed = max(f.stat().st_mtime for f in (*base.iterdir(), *adapter.iterdir()))
            if same and changed < since and max_tokens <= server["max_tokens"]:
                parts = _asked(server, f"base:{name}", text, max_tokens, reading)
                return _from(next(parts), parts)
    return None


def _from(first: Written, others: Iterator[Written]) -> Iterator[Written]:
    yield first
    try:
        yield from others
    except (OSError, HTTPException, ValueError, KeyError):
        raise UserError(
            "the running server broke off; without it the same command writes by itself"
        ) from None


def _servers() -> Iterator[tuple[dict[str, Any], float]]:
    """Yield what running servers of this very package say, and since when they run."""
    own = version("specstream-mlx"), _PACKAGE
    for path in _folder().glob("*.json"):
        with suppress(OSError, ValueError), path.open() as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o077:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                server = json.load(file)
                if (server["version"], server["package"]) == own:
                    yield server, about.st_mtime
            else:
                path.unlink()  # its server was killed


def _asked(
    server: dict[str, Any], model: str, text: str, max_tokens: int, reading: Any
) -> Iterator[Written]:
    """Ask a server, and yield what it writes step by step."""
    asked = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    asked |= {"max_tokens": max_tokens, "temperature": 0}
    connection = HTTPConnection(server["address"], server["port"], timeout=_SILENCE)
    with closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        reply, so_far, began = connection.getresponse(), Written(), 0.0
        if reply.status != 200:
            raise HTTPException(reply.status)
        for line in reply:
            if progress := re.match(rb": (\d+) of (\d+) prompt tokens", line):
                reading(*map(int, progress.groups()))
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            (choice,) = chunk["choices"]  # an error has none
            if "specstream" not in chunk:  # it has only begun
                continue
            figures, now = chunk["specstream"], time.perf_counter()
            count = so_far.generation_tokens + len(figures.get("step", ()))
            began = began or now
            so_far = Written(
                choice["delta"].get("content", ""),
                count,
                choice["finish_reason"],
                figures.get("accepted_length", 0.0),
                (count - 1) / max(now - began, 1e-9),
            )
            yield so_far
            if so_far.finish_reason:
                return
    raise HTTPException("the reply has no end")


def _folder() -> Path:
    return user_cache.directory() / "servers"
