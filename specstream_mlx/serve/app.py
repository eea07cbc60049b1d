"""The HTTP side: routes, who may ask, how much, and errors."""

import asyncio
import hmac
import json
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import UserError, shown
from ..hardware.weights import parameter_bytes
from .anthropic_api import MessagesWriter, request_of_messages
from .fields import (
    CHAT,
    COMPLETION,
    COUNTED,
    MESSAGES,
    RESPONSE,
    TOGETHER,
    RefusedError,
    checked,
    without_nulls,
)
from .openai_api import (
    ChatWriter,
    CompletionWriter,
    bodies_of,
    request_of_chat,
    request_of_completion,
)
from .replies import Reply, sentence_of
from .responses_api import ResponseWriter, request_of_response
from .service import BASE, Service

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}

_OTHER_SERVICES = (
    *("embeddings", "audio", "images", "videos", "moderations", "rerank", "files", "batches"),
    *("assistants", "threads", "vector_stores", "fine_tuning", "realtime"),
)

_HOST = re.compile(r"(\[[\da-f:.]+\]|[\w.-]+)(?::\d+)?")
_SLOWEST_BODY = 30.0  # seconds
_MOST_DIGITS = 400

# A page takes nothing from elsewhere, and no other page takes it into a frame.
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

# By path: what a request may say, what it asks for, and the form of the reply.
APIS: dict[str, tuple[Any, Any, Any]] = {
    "/v1/chat/completions": (CHAT, request_of_chat, ChatWriter),
    "/v1/completions": (COMPLETION, request_of_completion, CompletionWriter),
    "/v1/responses": (RESPONSE, request_of_response, ResponseWriter),
    "/v1/messages": (MESSAGES, request_of_messages, MessagesWriter),
}


class AdapterCard(Protocol):
    """What an application says of an adapter to users: its purpose, an example, its quality."""

    def facts(self) -> dict[str, Any]:
        """Return all of it for JSON."""


def make_app(
    service: Service,
    page: Path | None = None,
    api_key: str | None = None,
    hosts: frozenset[str] = LOOPBACK,
    body_bytes: int = 1 << 20,
    origins: Sequence[str] = (),
    cards: Mapping[Path, AdapterCard] | None = None,
) -> Starlette:
    """Make the application, which stops the worker when it ends.

    Args:
        page: a folder whose files are shown, ``index.html`` at ``/``.
        hosts: names that a request's Host may have, lest a page of another site has its own name
            resolved to this machine; empty: any.
        origins: other sites whose pages may use the server; ``*``: all.
        cards: a registry of what is said of adapters, by their resolved directories; the list of
            models shows it.
    """
    started, worker, cards = int(time.time()), service.worker, cards or {}
    base_bytes = parameter_bytes(service.models[BASE].model)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.worker.stop)

    async def write(kind: Any, request_of: Any, writer: Any, request: Request) -> Response:
        body = checked(kind, await _json(request, body_bytes))
        bodies = bodies_of(body)
        jobs = await service.prepare(*map(request_of, bodies))
        reply = Reply(service, jobs, writer(bodies[0], service.tokenizer))
        streams = kind is TOGETHER or body.get("stream")
        return reply if streams else await reply.whole(request)

    async def count_tokens(request: Request) -> Response:
        body = without_nulls(checked(COUNTED, await _json(request, body_bytes)))
        return JSONResponse({"input_tokens": await service.count(request_of_messages(body))})

    def model_object(name: str) -> dict[str, Any]:
        model = service.model(name)
        facts = {
            "base": model.path.name,
            "mode": model.mode,
            "streams": 0 if model.streams is None else model.streams.config.num_streams,
            "adapter_bytes": None if model.adapter is None else model.adapter.nbytes,
            "base_bytes": base_bytes,
        }
        if model.adapter is not None and (card := cards.get(model.adapter.path.resolve())):
            facts["tool"] = card.facts()
        model_object = {"id": name, "object": "model", "created": started}
        return model_object | {"owned_by": "specstream-mlx", "specstream": facts}

    def models(request: Request) -> Response:
        if name := request.path_params.get("name"):
            return JSONResponse(model_object(name))
        return JSONResponse({"object": "list", "data": [*map(model_object, service.names)]})

    def front(request: Request) -> Response:
        root = str(request.base_url).rstrip("/")
        return PlainTextResponse(
            f"specstream-mlx is running.\n\nBase URL of OpenAI's clients: {root}/v1\n"
            f"Base URL of Anthropic's clients: {root}\nAPI key: any text, or what --api-key says\n"
            f"Models: {', '.join(service.names)}\nWhat a request may say: {root}/openapi.json\n"
        )

    def route(path: str, method: str, answer: Any) -> Route:
        async def guarded(request: Request) -> Response:
            try:
                _check_caller(request, hosts, api_key)
                response: Any = answer(request)
                return await response if method == "POST" else response
            except ClientDisconnect:
                return Response(status_code=499)  # nobody reads it
            except Exception as error:
                return refusal(path, error)

        return Route(path, guarded, methods=[method])

    gets: dict[str, Callable[[Request], Response]] = {
        "/health": lambda _: JSONResponse(
            {"status": "ok", "waiting": worker.waiting, "decoding": worker.decoding}
        ),
        "/openapi.json": lambda _: JSONResponse(document()),
        "/v1/models": models,
        "/v1/models/{name:path}": models,
    }
    posts = APIS
    if page is None:
        gets["/"] = front
    else:
        posts = APIS | {"/together": (TOGETHER, request_of_chat, ChatWriter)}
        for file in page.iterdir():
            if file.suffix in (".html", ".css", ".js", ".json", ".svg"):
                place = "/" if file.name == "index.html" else f"/{file.name}"
                gets[place] = partial(_file, file)
    routes = [route(path, "GET", answer) for path, answer in gets.items()]
    routes += [route(path, "POST", partial(write, *api)) for path, api in posts.items()]
    routes.append(route("/v1/messages/count_tokens", "POST", count_tokens))
    handlers: Any = {HTTPException: _no_route}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    # For programs of this machine, which need no key.
    app.state.service = service if hosts and api_key is None else None
    if origins:
        allowed: dict[str, Any] = {"allow_origins": origins, "allow_methods": ["*"]}
        app.add_middleware(CORSMiddleware, allow_headers=["*"], **allowed)
    return app


def _no_route(request: Request, error: HTTPException) -> Response:
    """Answer a request for which there is no route, and say which there are."""
    path, method = request.url.path, request.method
    if error.status_code == 405:
        takes = sorted((error.headers or {}).get("Allow", "").split(", "))
        error.detail = f"{shown(path)} was asked by {method}, expected {', '.join(takes)}"
    elif error.status_code == 404:
        other = next((word for word in _OTHER_SERVICES if word in path), None)
        begin = f"there is no {shown(path)} here"
        if other is not None:
            begin += f": this server writes text, it has no {other}"
        routes = [f"POST {place}" for place in APIS] + ["GET /v1/models"]
        error.detail = f"{begin}; expected {', '.join(routes)}"
    return refusal(path, error)


def _file(file: Path, _: Request) -> Response:
    return FileResponse(file, headers=_PAGE_HEADERS)


def document() -> dict[str, Any]:
    """Make the OpenAPI document: what a request of each API may say."""
    bodies = [(path, "validation", TypeAdapter(kind)) for path, (kind, *_) in APIS.items()]
    place = "#/components/schemas/{model}"
    schemas, shared = TypeAdapter.json_schemas(bodies, ref_template=place)  # type: ignore[arg-type]
    answers = {"default": {"description": "The answer or its events, or a refusal's sentence."}}
    paths = {}
    for (path, _), schema in schemas.items():
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": {"requestBody": body, "responses": answers}}
    info = {"title": "specstream-mlx", "version": version("specstream-mlx")}
    components = {"schemas": shared["$defs"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def refusal(path: str, error: Exception) -> Response:
    """Return the answer to a request that failed, in the form of the path's API."""
    sentence, status, name, headers = sentence_of(error), 500, None, {}
    match error:
        case RefusedError():
            status, name, headers = error.status, error.field, error.headers
        case UserError():
            status = 400
        case RecursionError():
            status, sentence = 400, "the body is nested too deeply"
        case HTTPException():
            status, sentence = error.status_code, error.detail
            headers = dict(error.headers or {})
        case _:
            logging.getLogger(__name__).error("a request failed", exc_info=error)
    kind = _TYPES.get(status, "invalid_request_error")
    if path.startswith("/v1/messages"):
        content = {"type": "error", "error": {"type": kind, "message": sentence}}
    else:
        code = "model_not_found" if status == 404 and name == "model" else None
        content = {"error": {"message": sentence, "type": kind, "param": name, "code": code}}
    return JSONResponse(content, status, headers)


def _check_caller(request: Request, hosts: frozenset[str], api_key: str | None) -> None:
    if hosts:
        host = _HOST.fullmatch(request.headers.get("host", "").lower())
        if host is None or host[1].strip("[]") not in hosts:
            raise RefusedError(403, "the Host is none of this server's, expected its own name")
    if api_key is None or request.url.path == "/health":
        return
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    own = key if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not hmac.compare_digest(own.strip().encode("latin-1"), api_key.encode()):
        bearer = {"WWW-Authenticate": "Bearer"}
        raise RefusedError(401, "the API key is missing or wrong", **bearer)


async def _json(request: Request, most: int) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "application/json":
        found = f"is {shown(kind)}" if kind else "is missing"
        raise RefusedError(415, f"the Content-Type {found}, expected application/json")
    coding = request.headers.get("content-encoding", "identity").strip()
    if coding.lower() not in ("", "identity"):
        sentence = (
            f"the Content-Encoding is {shown(coding)}, expected a body that is not compressed"
        )
        raise RefusedError(415, sentence)
    too_large = RefusedError(413, f"the body is too large, expected at most {most} bytes")
    said = request.headers.get("content-length", "0")
    if said.isdecimal() and (len(said) > 18 or int(said) > most):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_SLOWEST_BODY):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise RefusedError(408, "the body was too slow in coming") from None
    try:
        text = body.decode("utf-8-sig")
        value = json.loads(text, parse_constant=_no_number, parse_int=_integer, parse_float=_float)
        # Half a character of UTF-16 is no text.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except RefusedError:
        raise
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"byte {error.start} of the body is no text in UTF-8") from None
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise RefusedError(400, f"the body has {half}, which is half a character") from None
    except ValueError as error:
        raise RefusedError(400, f"the body is no JSON: {error}") from None
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:  # Python itself refuses some
        sentence = f"the body has an integer of {len(text)} digits, expected at most {_MOST_DIGITS}"
        raise RefusedError(400, sentence)
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise RefusedError(400, f"the body has the number {shown(text)}, expected a finite one")
    return number
