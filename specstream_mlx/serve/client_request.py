"""A parsed request, independent of the API that it came by."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from ..engine.sampling import Sampling
from ..errors import shown
from ..prompts import Prompt
from .fields import PENALTIES, RefusedError, without_nulls
from .tool_calls import called


@dataclass(frozen=True)
class ClientRequest:
    model: str  # as the client knows it
    prompt: Prompt  # text, token ids, or the messages of a chat
    max_tokens: int | None = None  # of a text; None: the client does not say
    sampling: Sampling = Sampling()  # noqa: RUF009
    seed: int | None = None  # None: another one each time
    stop: Sequence[str] = ()
    n: int = 1  # number of texts, with seeds one apart
    draft: bool = True  # which changes no text
    top_logprobs: int | None = None  # None: no log-probabilities
    tools: list[dict[str, Any]] | None = None  # as chat templates describe them
    schema: dict[str, Any] | None = None  # of JSON, that a text is to fit
    penalties: Mapping[str, Any] = field(default_factory=dict)  # of mlx_lm's make_logits_processors
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # of the chat template
    thinking: bool | None = None  # whether the model is to think; None: as its template has it
    thoughts_field: str = "reasoning_content"  # where the client sends earlier thoughts
    ignored: Sequence[str] = ()  # what the client offers and the model does not get

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is turns, and what comes is one; else it is a text that goes on."""
        return not isinstance(self.prompt, str) and isinstance(self.prompt[0], dict)


_ID = re.compile("[0-9]{1,10}")
_SAME = "model max_tokens seed stop n draft".split()


def request_of(body: dict[str, Any], prompt: Prompt, **others: Any) -> ClientRequest:
    """Make a client request of the fields that a body has under the same names, and of others."""
    same = {name: body[name] for name in _SAME if name in body}
    same |= {"thinking": _thinking(body), "template_kwargs": _template_kwargs(body)} | others
    if isinstance(same.get("stop"), str):
        same["stop"] = [same["stop"]]
    penalties = {name: body[name] for name in PENALTIES if name in body}
    if bias := penalties.get("logit_bias"):
        wrong = next((name for name in bias if not _ID.fullmatch(name)), None)
        if wrong is not None:
            sentence = f"logit_bias has the key {shown(wrong)}, expected the id of a token"
            raise RefusedError(400, sentence, "logit_bias")
        penalties["logit_bias"] = {int(name): value for name, value in bias.items()}
    filters = {name: body[name] for name in ("top_p", "top_k", "min_p") if name in body}
    sampling = Sampling(body.get("temperature", 0.0), **filters)
    return ClientRequest(prompt=prompt, sampling=sampling, penalties=penalties, **same)


def tools_of(body: dict[str, Any], kind: str = "function") -> dict[str, Any]:
    """Return the functions that a model may call, of this type, and which tools are left out."""
    choice, tools = body.get("tool_choice"), body.get("tools", ())
    if "none" in (choice, choice.get("type") if isinstance(choice, dict) else None):
        tools = ()
    others = [f"tools.{i}" for i, tool in enumerate(tools) if tool.get("type", kind) != kind]
    known = [tool for tool in tools if tool.get("type", kind) == kind]
    return {"tools": known or None, "ignored": others}


def _thinking(body: dict[str, Any]) -> bool | None:
    """Return whether a client wants thoughts, however it says so."""
    named = body.get("chat_template_kwargs", {})
    for value in (body.get("enable_thinking"), named.get("enable_thinking"), named.get("thinking")):
        if isinstance(value, bool):
            return value
    if "thinking" in body:
        return body["thinking"]["type"] != "disabled"
    reasoning = without_nulls(body.get("reasoning", {}))
    if "enabled" in reasoning:
        return reasoning["enabled"]
    effort = body.get("reasoning_effort", reasoning.get("effort"))
    return None if effort is None else effort != "none"


def _template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    """Return what the chat template gets from a client, which does not replace anything."""
    kwargs = body.get("chat_template_kwargs", {})
    for name in kwargs:
        if name in _OURS:
            sentence = f"chat_template_kwargs.{name} is not supported"
            if name == "chat_template":
                sentence += ": the model's own chat template is used"
            raise RefusedError(400, sentence, f"chat_template_kwargs.{name}")
    effort = body.get("reasoning_effort", (body.get("reasoning") or {}).get("effort"))
    return {"reasoning_effort": effort} | kwargs if effort not in (None, "none") else kwargs


_OURS = {
    *inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters,
    *inspect.signature(render_jinja_template).parameters,
    *PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES,
    *("messages", "additional_special_tokens", "conversations", "tokenizer"),
} - {"documents"}


def text_of(content: str | list[dict[str, Any]] | None) -> str | None:
    """Return what a content says, without thoughts."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"].endswith("text"))


def thought_of(value: Any) -> str:
    """Return the text of thoughts, in any form in which clients send them back."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n\n".join(filter(None, map(thought_of, value)))
    if isinstance(value, dict):
        names = ("text", "thinking", "reasoning", "summary", "content")
        return next(filter(None, (thought_of(value.get(name)) for name in names)), "")
    return ""


def schema_of(format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the schema of one of OpenAI's formats; ``None``: any text."""
    if format is None or format["type"] == "text":
        return None
    if format["type"] == "json_object":
        return {"type": "object"}
    return format.get("json_schema", format)["schema"]


def earlier_call(its_id: str | None, call: dict[str, Any], field: str) -> dict[str, Any]:
    """Return an earlier call as chat templates expect it: with arguments that are no text."""
    try:
        arguments = json.loads(call["arguments"] or "{}")
        # As in a body: JSON has no NaN and no infinity, and half a character of UTF-16 is no text.
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        sentence = f"the arguments of a call of {shown(call['name'])} are no JSON object"
        raise RefusedError(400, sentence, field)
    return called(its_id, call["name"], arguments)
