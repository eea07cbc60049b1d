"""The server of the page: the bundled adapters, and the files of ``page/``."""

import webbrowser
from pathlib import Path

from starlette.applications import Starlette

from specstream_mlx import UserError, bundled, demonstration, load
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.run import listening, serve
from specstream_mlx.serve.service import Service, resident
from specstream_mlx.terminal.notes import note

from . import tools
from .running_servers import announced

PAGE = Path(__file__).parent / "page"


def page_app() -> Starlette:
    """The application, which writes with all tools at once.

    Raises:
        UserError: there are no adapters, or no base for them.
    """
    adapters = {name: bundled.adapter_path(name) for name in bundled.adapter_names()}
    if not adapters:
        raise UserError(f"this installation has no bundled adapters ({bundled.ROOT / 'adapters'})")
    base, tokenizer = load(demonstration.base_path(note))
    models = resident(base, adapters)
    service = Service(models, tokenizer, most_texts=16, most_waiting=512)
    return make_app(service, PAGE, cards=tools.cards())


def show_page(port: int, opens_browser: bool) -> None:
    """Serve the page to this machine until Ctrl-C; port 0 is a free one."""
    with listening("127.0.0.1", port) as opened:
        app = page_app()
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/"
        note(f"Writing tools at {address} (Ctrl-C ends them)")
        if opens_browser:
            webbrowser.open(address)
        with announced(app.state.service, opened):
            serve(app, opened)
