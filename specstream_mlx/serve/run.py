"""Serving an application on a socket until a signal comes."""

import socket
from contextlib import suppress

import uvicorn
from starlette.applications import Starlette

from ..errors import UserError, shown


def listening(host: str, port: int) -> socket.socket:
    """Open a socket that clients can connect to; port 0 is a free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except UnicodeError:  # no name has a part of so many characters
        raise UserError(f"the host is {shown(host)}, expected a name or an address") from None
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose a free port"
        ) from None
    return opened


def serve(app: Starlette, opened: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; a second signal breaks off the replies under way."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=30,  # seconds, after the first signal
        h11_max_incomplete_event_size=16384,
        limit_concurrency=1024,
        http="h11",
        ws="none",
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run([opened])
