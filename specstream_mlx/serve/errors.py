"""Refusals: a status code, one sentence, and the name of the field that is wrong."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ..errors import shown


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
    """The body of a request; a field that is null counts as absent."""
    if not isinstance(values, dict):
        raise RefusedError(400, f"the body is {shown(values)}, expected a JSON object")
    values = {name: value for name, value in values.items() if value is not None}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    # Of a union the attempt that came farthest says what is wrong; of equals, all of them.
    found = max(errors, key=lambda one: len(one["loc"]))
    place = _place(found["loc"], values)
    if found["type"] == "extra_forbidden":
        raise RefusedError(400, f"{place} is not supported", place)
    if found["type"] in ("missing", "union_tag_not_found"):
        name = "type" if found["type"] == "union_tag_not_found" else str(found["loc"][-1])
        place = ".".join(filter(None, (place, name)))
        raise RefusedError(400, f"{place} is missing", place)
    wishes = dict.fromkeys(_wish(one) for one in errors if _place(one["loc"], values) == place)
    value = found["input"]
    if found["type"] == "union_tag_invalid":
        place, value = f"{place}.type", value["type"]
    sentence = f"{place} is {shown(value)}, expected {' or '.join(wishes)}"
    raise RefusedError(400, " ".join(sentence.split()), place)


_WISHES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "an integer",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "model_type": "an object",
    "string_too_long": "a string of at most {max_length} characters",
    "string_too_short": "a string of {min_length} or more characters",
    "string_type": "a string",
    "string_unicode": "a string of whole characters",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of {min_length} or more",
    "union_tag_invalid": "one of {expected_tags}",
}
"""What was expected, by the type of pydantic's error, whose own words name classes of ours."""


def _wish(error: ErrorDetails) -> str:
    """What was expected in the place of a value."""
    wish = _WISHES.get(error["type"])
    return error["msg"] if wish is None else wish.format(**error.get("ctx", {}))


def _place(location: tuple[int | str, ...], value: Any) -> str:
    """The way to a value, as far as it is there; pydantic's also names the types that it tried."""
    names = []
    for part in location:
        there = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if there or (isinstance(value, dict) and part in value):
            value = value[part]
            names.append(str(part))
    return ".".join(names)
