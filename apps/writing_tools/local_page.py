"""The server of the page: the bundled adapters, and the files of ``page/``."""

from pathlib import Path

from starlette.applications import Starlette

from specstream_mlx import UserError, bundled, demonstration, load
from specstream_mlx.serve.app import make_app
from specstream_mlx.serve.service import Service, resident
from specstream_mlx.terminal.notes import note

from . import tools

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
