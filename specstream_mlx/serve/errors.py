"""Refusals: a status code, one sentence, and the name of the field that is wrong."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..config import shown


class RefusedError(Exception):
    """A request that is not answered.

    Attributes:
        status: of HTTP.
        field: the name of the field that is wrong, if one is.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(sentence)
        self.status, self.field, self.headers = status, field, headers or {}


Body = TypeVar("Body", bound=BaseModel)


def checked(kind: type[Body], values: Any) -> Body:
    """The body of a request; a field that is null counts as absent.

    Raises:
        RefusedError: it has a field that is not supported, or a wrong value.
    """
    if not isinstance(values, dict):
        raise RefusedError(400, f"the body is {shown(values)}, expected a JSON object")
    try:
        return kind.model_validate({name: v for name, v in values.items() if v is not None})
    except ValidationError as error:
        # Of a union the attempt that came farthest says what is wrong.
        found = max(error.errors(include_url=False), key=lambda one: len(one["loc"]))
    place = _place(found["loc"], values)
    if found["type"] == "extra_forbidden":
        sentence = f"{place} is not supported"
    elif found["type"] == "missing":
        place = ".".join(filter(None, (place, str(found["loc"][-1]))))
        sentence = f"{place} is missing"
    else:
        wish = found["msg"].replace("Input should", "expected to", 1)
        sentence = f"{place} is {shown(found['input'])}, {wish[0].lower() + wish[1:]}"
    raise RefusedError(400, " ".join(sentence.split()), place)


def _place(location: tuple[int | str, ...], value: Any) -> str:
    """The way to a value, as far as it is there; pydantic's also names the types that it tried."""
    names = []
    for part in location:
        there = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if there or (isinstance(value, dict) and part in value):
            value = value[part]
            names.append(str(part))
    return ".".join(names)
