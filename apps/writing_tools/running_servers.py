"""The user's own running servers, which ``write`` asks, since they have the model in memory.

A server that anybody on this machine may ask says where it is in a file of the user's cache, which
it keeps locked while it runs: so no process id that another process has by now is believed.
"""

import fcntl
import json
import os
import re
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import specstream_mlx
from specstream_mlx import UserError
from specstream_mlx.hardware import user_cache

if TYPE_CHECKING:
    from specstream_mlx.serve.service import Service

_SILENCE = 10.0  # seconds; a server that lives says something every 5
_AT_ONCE = 16  # texts that are asked for, of which a server writes as many as it does at once
_PACKAGE = str(Path(specstream_mlx.__file__).parent)


@dataclass(frozen=True)
class Piece:
    """What is new of a text, and figures of all so far, named as in responses."""

    text: str = ""
    generation_tokens: int = 0
    finish_reason: str | None = None
    target_calls: int = 0  # known at the end


@dataclass(frozen=True)
class AdapterText:
    """A text for an adapter, by its name and directory."""

    name: str
    adapter: Path
    text: str


@contextmanager
def announced(service: "Service | None", opened: socket.socket) -> Iterator[None]:
    """Let ``write`` find a server in the block; a cache that cannot be written is no mistake.

    ``service`` is ``app.state.service``: there is none if it is not for every program of the user.
    """
    if service is None:
        yield
        return
    folder, (address, port, *_) = _folder(), opened.getsockname()
    path, file = folder / f"{os.getpid()}.json", None
    adapters = {
        name.split(":")[1]: str(model.adapter.path.absolute())
        for name, model in service.models.items()
        if model.adapter is not None and ":" in name
    }
    values = {
        "pid": os.getpid(),
        "address": address,
        "port": port,
        "version": version("specstream-mlx"),
        "package": _PACKAGE,
        "base": str(service.models["base"].path.absolute()),
        "weights": getattr(service.models["base"].held, "form", None),
        "adapters": adapters,
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
    base: Path, chats: Sequence[AdapterText], max_tokens: int, weights: str, reading: Any
) -> Iterator[tuple[int, Piece]] | None:
    """Let a running server write, and yield the pieces of one text after the other, by number.

    ``None``: none runs that writes what this process would, with ``weights`` held as they are to
    be. ``reading`` is called with the number of prompt tokens read so far and of all.
    """
    used = {chat.name: chat.adapter for chat in chats}
    for server, since in _servers():
        with suppress(OSError, HTTPException, UserError, ValueError, KeyError):
            same = server["base"] == str(base.absolute())
            for name, path in used.items():
                same = same and server["adapters"][name] == str(path.absolute())
            files = chain.from_iterable(place.iterdir() for place in (base, *used.values()))
            changed = max(file.stat().st_mtime for file in files)
            same = same and weights in ("auto", server["weights"])
            if same and changed < since and max_tokens <= server["max_tokens"]:
                pieces = _side_by_side(server, chats, max_tokens, reading)
                return _from(next(pieces), pieces)
    return None


def _from(
    first: tuple[int, Piece], others: Iterator[tuple[int, Piece]]
) -> Iterator[tuple[int, Piece]]:
    yield first
    try:
        yield from others
    except (OSError, HTTPException, ValueError, KeyError):
        raise UserError(
            "the running server broke off; without it the same command writes by itself"
        ) from None


def _side_by_side(
    server: dict[str, Any], chats: Sequence[AdapterText], max_tokens: int, reading: Any
) -> Iterator[tuple[int, Piece]]:
    """Ask for several texts at once, and read the replies one after the other."""
    asked, waiting = deque[HTTPConnection](), deque(chats)
    with ExitStack() as ends:
        for number in range(len(chats)):
            while waiting and len(asked) < _AT_ONCE:
                asked.append(_asked(server, waiting.popleft(), max_tokens))
                ends.callback(asked[-1].close)
            for piece in _reply(asked.popleft(), reading):
                yield number, piece


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


def _asked(server: dict[str, Any], chat: AdapterText, max_tokens: int) -> HTTPConnection:
    messages = [{"role": "user", "content": chat.text}]
    asked: dict[str, Any] = {"model": f"base:{chat.name}", "messages": messages, "stream": True}
    asked |= {"max_tokens": max_tokens, "temperature": 0}
    connection = HTTPConnection(server["address"], server["port"], timeout=_SILENCE)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
    return connection


def _reply(connection: HTTPConnection, reading: Any) -> Iterator[Piece]:
    """Yield what a server writes step by step."""
    reply, so_far = connection.getresponse(), Piece()
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
        figures = chunk["specstream"]
        so_far = Piece(
            choice["delta"].get("content", ""),
            so_far.generation_tokens + len(figures.get("step", ())),
            choice["finish_reason"],
            figures.get("target_calls", 0),
        )
        yield so_far
        if so_far.finish_reason:
            return
    raise HTTPException("the reply has no end")


def _folder() -> Path:
    return user_cache.directory() / user_cache.SERVERS
