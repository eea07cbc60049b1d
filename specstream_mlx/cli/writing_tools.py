"""``specstream-mlx writing-tools``: the bundled adapters on a page."""

import webbrowser

from ..options import FLAG, integer, option
from ..terminal.notes import note
from .serve import check_extra


def writing_tools(
    *,
    port: int = option(0, integer(0, 65535), "The page's port. Default: a free one."),
    no_browser: bool = option(False, FLAG, "Print the page's address, and open no browser."),
) -> None:
    """Serve a page of writing tools to this machine: one base model, one small adapter per tool.

    It ends with Ctrl-C. In the terminal, `write` does one of the tasks.

    Examples:

        specstream-mlx writing-tools --no-browser
    """
    check_extra()
    from specstream_mlx.apps.writing_tools.local_page import page_app

    from ..serve.run import listening, serve

    with listening("127.0.0.1", port) as opened:
        app = page_app()
        address = f"http://127.0.0.1:{opened.getsockname()[1]}/"
        note(f"Writing tools at {address} (Ctrl-C ends them)")
        if not no_browser:
            webbrowser.open(address)
        serve(app, opened)
