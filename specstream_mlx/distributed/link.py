"""The connections between rank 0 and the others: decisions one way, signs of life both ways.

MLX's collectives do not end where a peer hangs or its cable is pulled. So threads here end the
process when a peer closes its connection without saying so, or is silent for ``SILENCE`` seconds.
"""

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any

from ..errors import UserError

_BEAT = 1.0  # seconds between two signs of life
SILENCE = 20.0  # seconds after which a silent rank is gone; one that swaps is silent for some
_JOINING = 60.0  # seconds in which all ranks must have connected
_GRACE = 0.5  # seconds in which rank 0 may come upon the same mistake as another rank
_LONGEST = 1 << 24  # bytes of a line
_GONE, _MISTAKE = 1, 2  # exit codes: another rank is gone, or reports a mistake of the user's

Message = list[Any]
"""A kind and a value of JSON."""


def listen(host: str) -> socket.socket:
    """Open a free port of rank 0; refuses a host that is not this machine."""
    try:
        return socket.create_server((host, 0))
    except OSError as error:
        raise UserError(
            f"rank 0 cannot listen on {host} ({error.strerror}), expected an address of its own"
        ) from None


def connect(host: str, port: int) -> socket.socket:
    """Connect to rank 0, or say that it cannot be reached."""
    try:
        return socket.create_connection((host, port), timeout=_JOINING)
    except OSError as error:
        raise UserError(f"rank 0 at {host}:{port} cannot be reached: {error.strerror}") from None


class Link:
    """A rank's connections, by the rank of the peer: rank 0 to all others, any other to rank 0."""

    def __init__(self, rank: int, peers: dict[int, tuple[socket.socket, IO[bytes]]]):
        self._rank, self._peers = rank, peers
        self._received: SimpleQueue[Message] = SimpleQueue()
        self._sending = threading.Lock()
        self._ends = False
        self.ended: list[int] = []  # peers that have said that they end
        self._failure: str | None = None  # of another rank, which rank 0 tells
        for connection, _ in peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(SILENCE)
        for peer, (_, lines) in peers.items():
            threading.Thread(target=self._watch, args=(peer, lines), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        atexit.register(self._at_exit)

    @classmethod
    def of_first(
        cls, listening: socket.socket, size: int, key: Sequence[int], versions: dict[str, str]
    ) -> "Link":
        """Wait until all others are connected; only they know ``key``."""
        peers: dict[int, tuple[socket.socket, IO[bytes]]] = {}
        versions_of: dict[int, dict[str, str]] = {}
        until = time.monotonic() + _JOINING
        with listening:
            while len(peers) < size - 1:
                try:
                    listening.settimeout(max(0.01, until - time.monotonic()))
                    connection, _ = listening.accept()
                except TimeoutError:
                    missing = next(rank for rank in range(1, size) if rank not in peers)
                    raise UserError(
                        f"rank {missing} has not connected within {_JOINING:.0f} s"
                    ) from None
                connection.settimeout(SILENCE)
                lines = connection.makefile("rb")
                with suppress(OSError, ValueError, TypeError):  # somebody who does not belong here
                    rank, its_key, its_versions = json.loads(lines.readline(_LONGEST))
                    if its_key == list(key):
                        peers[rank] = connection, lines
                        versions_of[rank] = its_versions
        link = cls(0, peers)
        for rank, its_versions in versions_of.items():
            for name, version in versions.items():
                if its_versions.get(name) != version:
                    link.send(["gone", None])
                    raise UserError(
                        f"rank {rank} runs {name} {its_versions.get(name)}, expected {version} as "
                        "on rank 0"
                    )
        return link

    @classmethod
    def of_other(
        cls, connection: socket.socket, rank: int, key: Sequence[int], versions: dict[str, str]
    ) -> "Link":
        connection.sendall(_line([rank, key, versions]))
        return cls(rank, {0: (connection, connection.makefile("rb"))})

    def send(self, message: Message) -> None:
        """Send a message to all peers; the threads notice peers that are gone."""
        line = _line(message)
        with self._sending:
            for connection, _ in self._peers.values():
                with suppress(OSError):
                    connection.sendall(line)

    def receive(self) -> Message:
        """Wait for a message from rank 0."""
        return self._received.get()

    def _at_exit(self) -> None:
        """Tell the peers that this process ends, or which uncaught exception has ended it."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self._ends = True
            self.send(["end", None])
        elif self._rank:
            self.send(["failed", str(error) or repr(error)])
        else:  # maybe of a collective, since the other rank's end is noticed there first
            self.send(["gone", None])
            self._tell_failure()

    def _tell_failure(self) -> None:
        """Print, once, why another rank has ended, if it sent a reason."""
        sentence, self._failure = self._failure, None
        if sentence is not None:
            _print(sentence)

    def _beat(self) -> None:
        while not self._ends:
            self.send(["beat", None])
            time.sleep(_BEAT)

    def _watch(self, rank: int, lines: IO[bytes]) -> None:
        """Read messages of a peer until its connection ends."""
        reason = "its process has ended"
        try:
            while line := lines.readline(_LONGEST):
                kind, value = json.loads(line)
                if kind == "end":
                    self.ended.append(rank)
                    if self._rank:  # rank 0 has said all that there is to say
                        time.sleep(SILENCE)
                        os._exit(_GONE)
                    return
                elif kind == "gone":
                    os._exit(_GONE)  # rank 0 has said why
                elif kind == "failed":
                    self._failure = f"rank {rank}: {value}"
                    time.sleep(_GRACE)
                    self._tell_failure()
                    os._exit(_MISTAKE)
                elif kind != "beat":
                    self._received.put([kind, value])
        except TimeoutError:
            reason = f"it was silent for {SILENCE:.0f} s"
        except (OSError, ValueError):
            pass
        if self._ends:
            return
        if not self._rank:
            self.send(["gone", None])
        if self._rank <= 1:  # of several that may be left, one says why
            _print(f"rank {rank} is gone ({reason}), so the other ranks end too")
        os._exit(_GONE)


def _print(sentence: str) -> None:
    os.write(2, f"error: {' '.join(sentence.split())}\n".encode())


def _line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"
