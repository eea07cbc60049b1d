"""What requests may say: each API's fields, and what their values may be.

A field that is not listed here is refused by its name, so nothing that a client asks for is
ignored. Lists of accepted fields in README.md and in the OpenAPI document come from here.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)
from pydantic_core import PydanticCustomError


def _says_nothing(value: Any) -> Any:
    if value:
        raise PydanticCustomError("extra_forbidden", "unsupported")
    return value


def _whole(value: Any) -> Any:
    """1.0 is an integer in JSON Schema, and in JSON it may be written so."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, Field(max_length=1_000_000)]
_WHOLE = BeforeValidator(_whole)
Whole = Annotated[int, _WHOLE]
Positive = Annotated[int, Field(ge=1), _WHOLE]
AtLeastZero = Annotated[int, Field(ge=0), _WHOLE]
UpToTwenty = Annotated[int, Field(ge=0, le=20), _WHOLE]
Temperature = Annotated[float | None, Field(ge=0, le=2, description="0: the likeliest token.")]
Share = Annotated[float | None, Field(ge=0, le=1)]
Count = Positive | None
Seed = Annotated[
    Annotated[int, Field(ge=0, lt=1 << 63), _WHOLE] | None,
    Field(description="Repeats what was drawn."),
]
Stops = Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=16)]
Stop = Annotated[str, Field(min_length=1, max_length=256)] | Stops | None
Choices = Annotated[
    Annotated[int, Field(ge=1, le=8), _WHOLE] | None,
    Field(description="Texts, with seeds one apart."),
]
Draft = Annotated[bool | None, Field(description="False: no drafts; the text stays the same.")]
Unsupported = Annotated[
    Any,
    AfterValidator(_says_nothing),
    Field(
        description="Accepted where it asks for nothing.",
        json_schema_extra={"enum": [None, False, 0, "", [], {}]},
    ),
]
Labels = Annotated[
    dict[str, Any] | None, Field(max_length=16, description="A label without effect.")
]
Label = Annotated[str | None, Field(max_length=512, description="A label without effect.")]
CacheControl = Annotated[
    dict[str, Any] | None, Field(description="All prompts are kept, marked or not.")
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Part(_Body):
    """A piece of a message's text."""

    type: Literal["text", "input_text", "output_text"]
    text: Text
    annotations: Unsupported = None
    logprobs: Unsupported = None
    cache_control: CacheControl = None


Content = Text | list[Part]


def text_of(content: Content | None) -> str | None:
    """The text of a message."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text for part in content)


class Function(_Body):
    """A function that a model may call."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, Field(description="A JSON schema.")] = None
    strict: Annotated[bool | None, Field(description="A label for the chat template.")] = None


class Tool(_Body):
    """A tool that a model may call."""

    type: Literal["function"]
    function: Function


FewTools = Field(min_length=1, max_length=128, description="Put into the chat template.")
Tools = Annotated[list[Tool] | None, FewTools]
WhetherTools = Literal["auto", "none"] | None


class CalledFunction(_Body):
    """What a model has called."""

    name: str
    arguments: Annotated[Text, Field(description="A JSON object.")]


class ToolCall(_Body):
    """A call of an earlier turn."""

    id: str | None = None
    index: Whole | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Body):
    """A turn of a chat."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
                {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array"}}},
            ]
        }
    )
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall] | None, Field(max_length=128)] = None
    tool_call_id: str | None = None
    annotations: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Unsupported = None


class StreamOptions(_Body):
    """What a stream holds besides text."""

    include_usage: bool | None = None


class Schema(_Body):
    """A JSON schema with a name."""

    name: Annotated[str, Field(max_length=64)] = "schema"
    description: str | None = None
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: Annotated[bool | None, Field(description="Every schema is followed strictly.")] = None


class TextFormat(_Body):
    """Any text."""

    type: Literal["text"]


class JSONFormat(_Body):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(_Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: Schema


class NamedSchemaFormat(Schema):
    """JSON that fits a schema."""

    type: Literal["json_schema"]


Format = Annotated[TextFormat | JSONFormat | SchemaFormat, Field(discriminator="type")]
FlatFormat = Annotated[TextFormat | JSONFormat | NamedSchemaFormat, Field(discriminator="type")]


class _Sampled(_Body):
    """What all APIs have."""

    model: Annotated[str, Field(max_length=128)]
    stream: bool | None = None
    temperature: Temperature = None
    top_p: Share = None
    seed: Seed = None
    draft: Draft = None

    def said(self) -> dict[str, Any]:
        """The fields that a ``service.Wish`` has under the same names."""
        names = "model max_tokens temperature top_p top_k min_p seed stop n draft".split()
        return {name: getattr(self, name) for name in names if name in type(self).model_fields}


class _OpenAI(_Sampled):
    max_tokens: Count = None
    min_p: Share = None
    top_k: AtLeastZero | None = None
    stop: Stop = None
    n: Choices = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Unsupported = None
    presence_penalty: Unsupported = None
    logit_bias: Unsupported = None
    user: Label = None


class Chat(_OpenAI):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Count = None
    logprobs: bool | None = None
    top_logprobs: UpToTwenty | None = None
    tools: Tools = None
    tool_choice: WhetherTools = None
    response_format: Format | None = None
    metadata: Labels = None
    store: Unsupported = None


class Together(_Body):
    """Body of a page's ``/together``: chats whose texts come in one stream, each by its number.

    Browsers open six connections to a server at most.
    """

    chats: Annotated[list[Chat], Field(min_length=1, max_length=16)]


class Completion(_OpenAI):
    """Body of ``/v1/completions``."""

    prompt: Annotated[Text, Field(min_length=1)] | Annotated[list[Whole], Field(min_length=1)]
    logprobs: UpToTwenty | None = None
    echo: Unsupported = None


class MessageItem(_Body):
    """A turn of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: str | None = None


class FunctionCall(CalledFunction):
    """A call of an earlier turn."""

    type: Literal["function_call"]
    call_id: str
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(_Body):
    """What a tool has brought."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


def _kind_of_item(value: Any) -> Any:
    return value.get("type", "message") if isinstance(value, dict) else "message"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")],
    Discriminator(
        _kind_of_item,
        custom_error_type="item_type",
        custom_error_message="one whose type is message, function_call or function_call_output",
    ),
]


class FunctionTool(Function):
    """A tool that a model may call."""

    type: Literal["function"]


class ResponseText(_Body):
    """What a response's text is."""

    format: FlatFormat | None = None


class Response(_Sampled):
    """Body of ``/v1/responses``."""

    input: Text | Annotated[list[Item], Field(min_length=1, max_length=1024)]
    instructions: Text | None = None
    max_output_tokens: Count = None
    text: ResponseText | None = None
    tools: Annotated[list[FunctionTool] | None, FewTools] = None
    tool_choice: WhetherTools = None
    metadata: Labels = None
    user: Label = None
    store: Unsupported = None


class ToolUse(_Body):
    """A call of an earlier turn."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[dict[str, Any] | None, Field(description="A label without effect.")] = None
    cache_control: CacheControl = None


class ToolResult(_Body):
    """What a tool has brought."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Content | None = None
    is_error: Annotated[bool | None, Field(description="True: the text begins so.")] = None
    cache_control: CacheControl = None


Block = Annotated[Part | ToolUse | ToolResult, Field(discriminator="type")]


class AnthropicMessage(_Body):
    """A turn of a chat."""

    role: Literal["user", "assistant"]
    content: Text | list[Block]


class AnthropicTool(_Body):
    """A tool that a model may call."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    input_schema: Annotated[dict[str, Any], Field(description="A JSON schema.")]
    cache_control: CacheControl = None


class ToolChoice(_Body):
    """Whether tools may be called."""

    type: Literal["auto", "none"]


class Messages(_Sampled):
    """Body of ``/v1/messages``."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=1024)]
    max_tokens: Positive
    system: Content | None = None
    stop_sequences: Stops | None = None
    tools: Annotated[list[AnthropicTool] | None, FewTools] = None
    tool_choice: ToolChoice | None = None
    top_k: AtLeastZero | None = None
    metadata: Labels = None
