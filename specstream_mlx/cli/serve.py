"""``specstream-mlx serve``."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, install
from ..options import DIRECTORY, MODEL, TEXT, TEXTS, integer, option
from ..terminal.notes import note
from . import launched
from .options import ModelOptions

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ..loading.speculative_model import SpeculativeModel

_NEEDED = "llguidance", "pydantic", "starlette", "uvicorn"


def serve(
    *,
    model: str | None = option(
        None, MODEL, "The base, in MLX format. Default: smollm2 and all adapters that fit it."
    ),
    adapter_path: list[str] | None = option(
        None,
        TEXTS,
        "An adapter, called base:NAME; may be given several times. base=DIR: streams of the base.",
        metavar="NAME=DIR",
    ),
    adapters: Path | None = option(
        None, DIRECTORY, "A folder of adapters, each in a directory of its name."
    ),
    host: str = option("127.0.0.1", TEXT, "The address to listen on."),
    port: int = option(8080, integer(0, 65535), "The port; 0: a free one."),
    api_key: str | None = option(
        None, TEXT, "The clients' API key. Default: SPECSTREAM_API_KEY.", metavar="KEY"
    ),
    max_tokens: int = option(4096, integer(1), "Tokens of a text at most."),
    texts: int = option(4, integer(1), "Texts that are written at a time."),
    queue: int = option(32, integer(0), "Texts that may wait; more get 429."),
    kept_tokens: int = option(16384, integer(0), "Prompt tokens whose KV rows are kept."),
    body_bytes: int = option(1 << 20, integer(1), "Bytes of a request at most."),
    alias: list[str] | None = option(
        None,
        TEXTS,
        "Another name of a model, for clients that know only theirs; may be given several times.",
        metavar="NAME=MODEL",
    ),
    cors: list[str] | None = option(
        None,
        TEXTS,
        "A site whose pages may use this server; may be given several times. '*': all.",
        metavar="ORIGIN",
    ),
) -> None:
    r"""Serve a base and its adapters to programs that speak OpenAI's or Anthropic's API.

    One base stays in memory, and each request names its adapter: base, base:proofread, ..
    Ctrl-C ends it after the replies in progress.

    Examples:

    The demonstration model and its adapters, on port 8080:

        specstream-mlx serve

    For an editor that asks for gpt-4o-mini:

        specstream-mlx serve --alias gpt-4o-mini=base

    Your own model, streams and adapters:

        specstream-mlx serve --model my-model --adapter-path base=streams \
            --adapter-path sql=path/to/adapter --port 8000
    """
    check_extra()
    ModelOptions(model).check()
    if api_key is None:
        api_key = os.environ.get("SPECSTREAM_API_KEY") or None
    if api_key == "":
        raise UserError("--api-key is empty, expected what clients are to send")
    from ..serve.run import listening

    ranks = launched.ranks()
    if ranks is not None and not ranks.is_first:
        from ..hardware import running
        from ..serve.decoding import Batcher
        from ..serve.service import BASE

        models, tokenizer = _resident(model, adapter_path, adapters)
        with running.wired(models[BASE].model):
            Batcher(tokenizer, kept_tokens, ranks).follow(models)
        return
    with listening(host, port) as opened:
        from specstream_mlx.apps.writing_tools import tools
        from specstream_mlx.apps.writing_tools.running_servers import announced

        from ..serve.app import LOOPBACK, make_app
        from ..serve.run import serve as serve_app
        from ..serve.service import BASE, Service

        models, tokenizer = _resident(model, adapter_path, adapters)
        is_local = host in LOOPBACK
        if not is_local and api_key is None:
            note(f"Whoever reaches {host} can use this server: see --api-key")
        hosts = LOOPBACK if is_local else frozenset()
        limits = {"most_texts": texts, "most_waiting": queue, "kept_tokens": kept_tokens}
        named = _aliases(alias, models)
        service = Service(models, tokenizer, max_tokens, aliases=named, **limits)
        app = make_app(service, None, api_key, hosts, body_bytes, cors or (), tools.cards())
        shown = f"[{host}]" if ":" in host else host
        note(f"Serving {', '.join(models)}")
        note(f"at http://{shown}:{opened.getsockname()[1]}/v1 (Ctrl-C ends it)")
        with announced(app.state.service, opened):
            serve_app(app, opened)


def _resident(
    model: str | None, adapter_path: list[str] | None, adapters: Path | None
) -> "tuple[dict[str, SpeculativeModel], TokenizerWrapper]":
    """Load the base and its adapters, by the names that clients use."""
    from ..adapters.description import describe
    from ..adapters.user_adapters import check_name
    from ..loading.model_paths import adapter_directory, named_adapters
    from ..serve.service import BASE, adapters_in, resident

    named: dict[str, str | Path] = {}
    all_named = adapters is None and model is None and not adapter_path
    if adapters is not None:
        named |= adapters_in(adapters)
    for given in adapter_path or ():
        name, _, directory = given.partition("=")
        if not directory.strip():
            raise UserError(f"--adapter-path is {given!r}, expected NAME=DIR")
        if name in named:
            raise UserError(f"two adapters are called {name!r}, expected different names")
        named[name] = directory
    streams = named.pop(BASE, None)
    for name, place in named.items():  # before the base is loaded
        check_name(name)
        describe(adapter_directory(place))
    source = ModelOptions(model, None, None if streams is None else Path(streams)).source()
    base, tokenizer = source.load()
    if all_named:
        named = {name: path for name, path in named_adapters().items() if base.fits(path)}
    if base.ranks is not None:
        base.ranks.agree("the list of adapters", list(named))
    return resident(base, named), tokenizer


def _aliases(alias: list[str] | None, models: "dict[str, SpeculativeModel]") -> dict[str, str]:
    """Read further names of models."""
    aliases = {}
    for given in alias or ():
        name, _, model = given.partition("=")
        if not name or model not in models:
            raise UserError(f"--alias is {given!r}, expected NAME=MODEL of {', '.join(models)}")
        if name in models or name in aliases:
            raise UserError(f"--alias names {name!r} twice, expected different names")
        aliases[name] = model
    return aliases


def check_extra() -> None:
    """Check that what a server needs is installed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(f"the server needs {', '.join(missing)}: {install('serve')}")
