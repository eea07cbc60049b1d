"""The OpenAPI document: what the server takes, made from the bodies themselves."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REFUSALS = {
    400: "A field is unsupported or has a wrong value; one sentence names it.",
    401: "The API key is missing or wrong.",
    403: "The Host is none of this server's.",
    404: "There is no such model.",
    408: "The body was too slow in coming.",
    413: "The body is too large.",
    415: "The body is no application/json.",
    429: "The queue is full; Retry-After says when there may be a place.",
    503: "The server is shutting down.",
}

_GETS = {
    "/health": ("Whether the server is up, and how busy.", "application/json"),
    "/metrics": ("Counters in Prometheus's format.", "text/plain"),
    "/openapi.json": ("This document.", "application/json"),
    "/v1/models": ("The base and its adapters.", "application/json"),
    "/v1/models/{name}": ("One of them.", "application/json"),
}


def document(
    bodies: Mapping[str, type[BaseModel]], names: Iterable[str], with_key: bool
) -> dict[str, Any]:
    """Make the document."""
    kinds = [(kind, "validation") for kind in bodies.values()]
    place = "#/components/schemas/{model}"
    _, schemas = models_json_schema(kinds, ref_template=place)  # type: ignore[arg-type]
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    for kind in bodies.values():
        components["schemas"][kind.__name__]["properties"]["model"]["enum"] = list(names)
    paths: dict[str, Any] = {}
    for path, (summary, media_type) in _GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": _responses(media_type, (401, 403))}}
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{name}"]["get"]["parameters"] = [name]
    paths["/v1/models/{name}"]["get"]["responses"] |= _refusals((404,))
    for path, kind in bodies.items():
        schema = {"$ref": place.format(model=kind.__name__)}
        responses = _responses("application/json", _REFUSALS)
        responses["200"]["content"]["text/event-stream"] = {}
        paths[path] = {
            "post": {
                "summary": kind.__doc__,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": schema}},
                },
                "responses": responses,
            }
        }
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "specstream-mlx", "version": version("specstream-mlx")},
        "paths": paths,
        "components": components,
    }
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        made["security"] = [{"key": []}]
    return made


def _responses(media_type: str, refusals: Iterable[int]) -> dict[str, Any]:
    kind = "string" if media_type == "text/plain" else "object"
    content = {media_type: {"schema": {"type": kind}}}
    return {"200": {"description": "The answer.", "content": content}} | _refusals(refusals)


def _refusals(statuses: Iterable[int]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {str(s): {"description": _REFUSALS[s], "content": content} for s in statuses}
