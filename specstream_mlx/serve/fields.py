"""What requests may say: each API's fields, and what their values may be.

A field is used, has no effect (``HINTS``, ``LABEL``, ``LABELS``), or may only be empty
(``NOTHING``). One that is not listed is refused by its name.
"""

from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Required, Union

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11

from ..errors import MOST, UserError, shown


class RefusedError(UserError):
    """A request that is not answered; ``field`` names the field that is wrong, if one is."""

    def __init__(self, status: int, sentence: str, field: str | None = None, **headers: str):
        super().__init__(sentence)
        self.status, self.field, self.headers = status, field, headers


# Kinds of values --------------------------------------------------------------------------------


def shape(required: str = "", /, **kinds: Any) -> Any:
    """Make the kind of objects that have these fields and no others."""
    fields = {
        name: Required[kind] if name in required.split() else NotRequired[kind | None]
        for name, kind in kinds.items()
    }
    made = TypedDict("Object", fields)  # type: ignore[misc]
    made.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[attr-defined]
    return made


def integer(least: int | None = None, most: int = MOST) -> Any:
    """Make the kind of integers in a range, for MLX in 32 bits; 1.0 is one in JSON."""
    whole = BeforeValidator(lambda v: int(v) if isinstance(v, float) and v.is_integer() else v)
    return Annotated[int, Field(ge=least, le=most), whole]


def number(least: float, most: float) -> Any:
    return Annotated[float, Field(ge=least, le=most)]


def text(most: int = 1_000_000, least: int = 0) -> Any:
    return Annotated[str, Field(min_length=least, max_length=most)]


def some(kind: Any, most: int | None = None, least: int = 1) -> Any:
    return Annotated[list[kind], Field(min_length=least, max_length=most)]


def by_type(*shapes: Any) -> Any:
    """Make the kind of objects whose ``type`` says which of some shapes they have."""
    return Annotated[Union[shapes], Field(discriminator="type")]  # noqa: UP007


def _nothing(value: Any) -> Any:
    if value:
        raise PydanticCustomError("extra_forbidden", "unsupported")
    return value


def tool(kind: str, function: Any) -> Any:
    """Make the kind of tools: functions, of this type, and others, which no model here knows."""

    def its_tag(value: Any) -> str:
        found = value.get("type") if isinstance(value, dict) else None
        return "a function" if found == kind or not isinstance(found, str) else "another"

    kinds = Annotated[function, Tag("a function")] | Annotated[OBJECT, Tag("another")]
    return Annotated[kinds, Discriminator(its_tag)]


NOTHING = Annotated[Any, AfterValidator(_nothing)]
OBJECT = dict[str, Any]
LABEL = text(512)
LABELS = Annotated[OBJECT, Field(max_length=16)]

# What several APIs have -------------------------------------------------------------------------

SAMPLED = {
    "model": text(128),
    "stream": bool,
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "seed": Annotated[integer(0, 1 << 63), Field(lt=1 << 63)],
    "draft": bool,
    "enable_thinking": bool,
}
THINKS = shape(
    "type",
    type=Literal["disabled", "adaptive", "auto", "between_tools", "enabled"],
    budget_tokens=integer(1),
    display=LABEL,
    clear_thinking=bool,
)
EFFORT = shape(
    enabled=bool,
    exclude=bool,
    max_tokens=integer(0),
    **dict.fromkeys(("effort", "summary", "generate_summary", "context", "mode"), LABEL),
)
STOPS = some(text(256, 1), 16, least=0)
HINTS = dict.fromkeys(
    ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "user"),
    LABEL,
)
AUTO = Literal["auto", "none"]
PART_TYPE = Literal["text", "input_text", "output_text"]
NOTED = {"annotations": NOTHING, "logprobs": NOTHING, "cache_control": OBJECT}
PART = shape("type text", type=PART_TYPE, text=text(), **NOTED)
CONTENT = text() | some(PART, least=0)
OBJECTS = some(OBJECT, least=0)
SIGNED = {"signature": str, "cache_control": OBJECT}
THINKING = shape(
    "type thinking", type=Literal["thinking"], thinking=text() | OBJECTS, closed=bool, **SIGNED
)
REASONING = shape("type text", type=Literal["reasoning"], text=text(), **SIGNED)
REDACTED = shape("type", type=Literal["redacted_thinking"], data=str, cache_control=OBJECT)
FUNCTION = {"name": text(128, 1), "description": str, "parameters": OBJECT, "strict": bool}
CALLED = {"name": str, "arguments": text()}
SCHEMA = {"name": text(64), "description": str, "schema": OBJECT, "strict": bool}
ANY_TEXT = shape("type", type=Literal["text"])
ANY_OBJECT = shape("type", type=Literal["json_object"])

# OpenAI's chats and completions -----------------------------------------------------------------

SIZES = "frequency_context_size", "presence_context_size", "repetition_context_size"
PENALTIES = {
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0, 100),
    "logit_bias": dict[str, number(-100, 100)],  # type: ignore[misc]
    **dict.fromkeys(SIZES, integer(1)),
}
OPENAI = SAMPLED | {
    "max_tokens": integer(1),
    "min_p": number(0, 1),
    "top_k": integer(0),
    "stop": text(256, 1) | STOPS,
    "n": integer(1, 8),
    "stream_options": shape(include_usage=bool, include_obfuscation=bool),
    **PENALTIES,
    **HINTS,
}
CALL = shape(
    "function",
    id=str,
    index=integer(),
    type=Literal["function"],
    function=shape("name arguments", **CALLED),
)
THOUGHTS = (
    *("reasoning_content", "reasoning", "reasoning_text", "thinking"),
    *("reasoning_details", "thinking_blocks"),
)
"""Names under which clients send an assistant's thoughts back, the plainest first."""
MESSAGE = shape(
    "role",
    role=Literal["system", "developer", "user", "assistant", "tool"],
    content=text() | some(by_type(PART, THINKING, REASONING, REDACTED), least=0),
    name=str,
    tool_calls=some(CALL, 128, least=0),
    tool_call_id=str,
    **dict.fromkeys(THOUGHTS, text() | OBJECTS),
    **dict.fromkeys(("reasoning_opaque", "reasoning_signature"), str),
    **dict.fromkeys(("provider_specific_fields", "extra_content"), OBJECT),
    **dict.fromkeys(("annotations", "audio", "function_call", "refusal"), NOTHING),
)
NAMED = {"type": Literal["json_schema"], "json_schema": shape("schema", **SCHEMA)}
TOOL = {"type": Literal["function"], "function": shape("name", **FUNCTION)}
CHAT = shape(
    "model messages",
    **OPENAI,
    messages=some(MESSAGE, 1024),
    max_completion_tokens=integer(1),
    logprobs=bool,
    top_logprobs=integer(0, 20),
    tools=some(tool("function", shape("type function", **TOOL)), 128),
    tool_choice=AUTO,
    parallel_tool_calls=bool,
    chat_template_kwargs=OBJECT,
    reasoning_effort=LABEL,
    reasoning=EFFORT,
    thinking=THINKS,
    verbosity=LABEL,
    prediction=OBJECT,
    response_format=by_type(ANY_TEXT, ANY_OBJECT, shape("type json_schema", **NAMED)),
    metadata=LABELS,
    store=NOTHING,
)
IDS = some(integer(0))


def _kind_of_prompt(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str | list):
        return "texts" if isinstance(first, str) else "lists"
    return "ids" if isinstance(value, list) else "text"


TOGETHER = shape("chats", chats=some(CHAT, 512))  # browsers open six connections at most
COMPLETION = shape(
    "model prompt",
    **OPENAI,
    prompt=Annotated[
        Annotated[text(least=1), Tag("text")]
        | Annotated[IDS, Tag("ids")]
        | Annotated[some(text(least=1), 512), Tag("texts")]
        | Annotated[some(IDS, 512), Tag("lists")],
        Discriminator(_kind_of_prompt),
    ],
    logprobs=integer(0, 20),
    echo=NOTHING,
)

# OpenAI's responses -----------------------------------------------------------------------------

ROLE = Literal["system", "developer", "user", "assistant"]
SAID = {"type": Literal["message"], "role": ROLE, "content": CONTENT}
CALLS = {"type": Literal["function_call"], "call_id": str, **CALLED}
BROUGHT = {"type": Literal["function_call_output"], "call_id": str, "output": CONTENT}
REASONED = {"type": Literal["reasoning"], "encrypted_content": str, "content": text() | OBJECTS}
REASONED["summary"] = OBJECTS
OF_ITEM = {"id": str, "status": str, "internal_chat_message_metadata_passthrough": OBJECT}
ITEMS = {
    "message": shape("role content", phase=str, end_turn=bool, **SAID, **OF_ITEM),
    "function_call": shape("type call_id name arguments", namespace=str, **CALLS, **OF_ITEM),
    "function_call_output": shape("type call_id output", **BROUGHT, **OF_ITEM),
    "reasoning": shape("type", **REASONED, **OF_ITEM),
}
ITEM: Any = Annotated[
    Union[tuple(Annotated[kind, Tag(tag)] for tag, kind in ITEMS.items())],  # noqa: UP007
    Discriminator(
        lambda value: value.get("type", "message") if isinstance(value, dict) else "message",
        custom_error_type="item_type",
        custom_error_message="one whose type is message, function_call, function_call_output or "
        "reasoning",
    ),
]
FLAT_TOOL = shape("type name", type=Literal["function"], **FUNCTION)
NAMED_SCHEMA = shape("type schema", type=Literal["json_schema"], **SCHEMA)
RESPONSE = shape(
    "model input",
    **SAMPLED,
    input=text() | some(ITEM, 1024),
    instructions=text(),
    max_output_tokens=integer(1),
    text=shape(format=by_type(ANY_TEXT, ANY_OBJECT, NAMED_SCHEMA), verbosity=LABEL),
    tools=some(tool("function", FLAT_TOOL), 128),
    tool_choice=AUTO,
    parallel_tool_calls=bool,
    reasoning=EFFORT,
    include=some(LABEL, least=0),
    truncation=LABEL,
    metadata=LABELS,
    client_metadata=OBJECT,
    **dict.fromkeys(("previous_response_id", "background", "store"), NOTHING),
    **HINTS,
)

# Anthropic's messages ---------------------------------------------------------------------------

USE = {"type": Literal["tool_use"], "id": str, "name": str, "input": OBJECT, "caller": OBJECT}
RESULT = {"type": Literal["tool_result"], "tool_use_id": str, "content": CONTENT, "is_error": bool}
BLOCK = by_type(
    PART,
    shape("type id name input", cache_control=OBJECT, **USE),
    shape("type tool_use_id", cache_control=OBJECT, **RESULT),
    THINKING,
    REDACTED,
)
CUSTOM = {"type": Literal["custom"], "name": text(128, 1), "description": str}
CUSTOM_TOOL = shape(
    "name input_schema",
    input_schema=OBJECT,
    cache_control=OBJECT,
    input_examples=list,
    allowed_callers=list,
    **dict.fromkeys(("strict", "eager_input_streaming", "defer_loading"), bool),
    **CUSTOM,
)
BLOCKS = some(BLOCK, least=0)
TURN = shape("role content", role=Literal["user", "assistant", "system"], content=text() | BLOCKS)
INPUT = {
    "messages": some(TURN, 1024),
    "system": CONTENT,
    "tools": some(tool("custom", CUSTOM_TOOL), 128),
    "tool_choice": shape("type", type=AUTO, disable_parallel_tool_use=bool),
    "thinking": THINKS,
    "output_config": shape(effort=LABEL),
    "context_management": OBJECT,
    "cache_control": OBJECT,
}
MESSAGES = shape(
    "model messages max_tokens",
    **SAMPLED,
    **INPUT,
    max_tokens=integer(1),
    stop_sequences=STOPS,
    top_k=integer(0),
    metadata=LABELS,
    service_tier=LABEL,
)
COUNTED = shape("model messages", model=text(128), enable_thinking=bool, **INPUT)

# Checks -----------------------------------------------------------------------------------------

_adapter = cache(TypeAdapter)


def without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in values.items() if value is not None}


def checked(kind: Any, values: Any) -> dict[str, Any]:
    """Check the body of a request; a field that is null counts as absent."""
    if not isinstance(values, dict):
        raise RefusedError(400, f"the body is {shown(values)}, expected a JSON object")
    values = without_nulls(values)
    try:
        return _adapter(kind).validate_python(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    # Of a union the attempt that came farthest says what is wrong; of equals, all of them.
    worst = max(errors, key=lambda one: len(one["loc"]))
    place, value = _place(worst["loc"], values), worst["input"]
    if worst["type"] == "extra_forbidden":
        raise RefusedError(400, f"{place} is not supported", place)
    if worst["type"] in ("missing", "union_tag_not_found"):
        last = str(worst["loc"][-1]) if worst["type"] == "missing" else "type"
        place = ".".join(filter(None, (place, last)))
        raise RefusedError(400, f"{place} is missing", place)
    expected = dict.fromkeys(
        _EXPECTED.get(one["type"], one["msg"]).format(**one.get("ctx", {}))
        for one in errors
        if _place(one["loc"], values) == place
    )
    if worst["type"] == "union_tag_invalid":
        place, value = f"{place}.type", value["type"]
    sentence = f"{place} is {shown(value)}, expected {' or '.join(expected)}"
    raise RefusedError(400, " ".join(sentence.split()), place)


# By the type of pydantic's error, whose own words name its types.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "greater_than_equal": "at least {ge:g}",
    "int_type": "an integer",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le:.10g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "an object",
    "string_too_long": "a string of at most {max_length} characters",
    "string_too_short": "a string of {min_length} or more characters",
    "string_type": "a string",
    "string_unicode": "a string of whole characters",
    "too_long": "a list of at most {max_length}",
    "too_short": "a list of {min_length} or more",
    "union_tag_invalid": "one of {expected_tags}",
}


def _place(location: tuple[int | str, ...], value: Any) -> str:
    """Return the way to a value as far as it is there; pydantic's also names types it tried."""
    names = []
    for part in location:
        there = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if there or (isinstance(value, dict) and part in value):
            value = value[part]
            names.append(str(part))
    return ".".join(names)
