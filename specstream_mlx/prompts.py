"""From a user's text or a conversation to the prompt's token ids.

What is said stays text, also where it spells a control token (``control_tokens.py``). Templates
differ in what they take: several system messages or one, any ids of calls or some of nine
characters, one call at a time. A conversation that a template refuses, or of which it leaves
something out, is rendered anew in the forms of ``_FORMS``, up to the first that is complete.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .control_tokens import PrivateCharacters, control_tokens, encoded, template_source
from .errors import UserError, is_integer, shown
from .files import check_tokens, template_error
from .models.architectures import context_length

Prompt = str | mx.array | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or the messages of a chat."""

Turns = list[dict[str, Any]]

Render = Callable[[TokenizerWrapper, Turns, dict[str, Any]], str]
"""Applies the chat template; any mistake is a ``UserError``."""

_TEXT = "{text}"
_MARK = "userquery"  # what the user says where only the chat template's text around it counts
_MOST_FORMS = 64


class LimitError(UserError):
    """A chat template took too long, or too much; no other form of the conversation is tried."""


def in_template(text: str, template: str | None) -> str:
    """``text`` put into an adapter's template, in place of ``{text}``; unchanged without one."""
    return text if template is None else template.replace(_TEXT, text)


def chat_prompt(
    tokenizer: TokenizerWrapper,
    text: str,
    template: str | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Encode ``text``, in an adapter's ``template``, as the user's only turn, up to the answer.

    ``thinking`` is whether the model is to think first; ``None``: as its template has it.
    """
    if tokenizer.has_chat_template:
        turn = {"role": "user", "content": text}
        return chat_text(tokenizer, [turn], template, thinking=thinking).encode(tokenizer)
    mark, control = PrivateCharacters(text, template).new(), control_tokens(tokenizer)
    return control.encode(in_template(control.marked(text, mark), template), mark)


def chat_suffix(
    tokenizer: TokenizerWrapper,
    text: str,
    template: str | None = None,
    thinking: bool | None = None,
) -> list[int]:
    """Encode the rest of a turn that ``mlx_lm.cache_prompt`` has begun, up to the answer."""
    mark, control = PrivateCharacters(text, template).new(), control_tokens(tokenizer)
    content = control.marked(text, mark) + (template or _TEXT).partition(_TEXT)[2]
    if tokenizer.has_chat_template:
        before, _ = around_user(tokenizer)
        content = _turn(tokenizer, content, thinking)[len(before) :]
    return control.encode(content, mark, add_special_tokens=False)  # no second bos, unlike mlx_lm


def around_user(tokenizer: TokenizerWrapper, template: str | None = None) -> tuple[str, str]:
    """Return the chat template's text before and after the user's, in the only turn."""
    turn = _turn(tokenizer, in_template(_MARK, template))
    before, mark, after = turn.partition(_MARK)
    if not mark:
        raise UserError("the tokenizer's chat template leaves out what the user says")
    return before, after


def _turn(tokenizer: TokenizerWrapper, content: str, thinking: bool | None = None) -> str:
    """Apply the template to the user's only turn, up to the answer."""
    turns = [{"role": "user", "content": content}]
    text = rendered(tokenizer, turns, _arguments(False, None, _switch(thinking)))
    return text if thinking is not False else text + _closing(tokenizer, text)


def _switch(thinking: bool | None) -> dict[str, bool]:
    """Say whether the model is to think, under the names that templates have for that."""
    return {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}


def rendered(tokenizer: TokenizerWrapper, turns: Turns, arguments: dict[str, Any]) -> str:
    """Apply the chat template in this process, without limits."""
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, **arguments)
        text.encode()  # half a character of UTF-16 is no text
        return text
    except Exception as error:  # a template may raise anything
        raise template_error(error) from None


def _arguments(goes_on: bool, tools: Any = None, further: Mapping[str, Any] = {}) -> dict[str, Any]:
    ending = {"add_generation_prompt": not goes_on, "continue_final_message": goes_on}
    return {**further, "tools": tools, **ending}


# Conversations ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatText:
    """A conversation in the chat template; ``ignored`` is what that has no place for."""

    text: str
    mark: str  # within the control tokens that are text
    ignored: Sequence[str] = ()

    def encode(self, tokenizer: TokenizerWrapper) -> list[int]:
        return control_tokens(tokenizer).encode(self.text, self.mark, add_special_tokens=False)


def chat_text(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, Any]],
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    thinking: bool | None = None,
    render: Render = rendered,
) -> ChatText:
    """Put a conversation into the chat template; if the last turn is the assistant's, it goes on.

    But not where that has called something, after which a new turn begins.

    Args:
        messages: turns with a role and a content; those of an assistant may have ``tool_calls`` and
            thoughts, as ``reasoning_content``, which a template that does not know them never gets.
        template: an adapter's, into which what users say is put.
        tools, template_kwargs: what the chat template gets besides.
        thinking: whether the model is to think first; ``None``: as the template has it.
        render: applies the template.

    Raises:
        UserError: the template refuses every form of the conversation, or has no place for calls.
    """
    turns = [{n: v for n, v in message.items() if v is not None} for message in messages]
    private = PrivateCharacters(turns, tools, template_kwargs, template)
    mark = private.new()
    turns = [_marked(tokenizer, turn, mark, template, turn is turns[-1]) for turn in turns]
    control, ignored = control_tokens(tokenizer), []
    if not _knows_thoughts(tokenizer) and any("reasoning_content" in turn for turn in turns):
        turns = _without_thoughts(turns)
        ignored.append("reasoning_content")
    tools = control.marked(tools, mark)
    if tools:
        tools, offered = _watched_tools(tools, private)
    turns, watched = _watched(turns, private)
    further = dict(control.marked(template_kwargs or {}, mark))
    further |= _switch(thinking)
    goes_on = turns[-1]["role"] == "assistant" and not turns[-1].get("tool_calls")
    arguments = _arguments(goes_on, tools, further)

    error: UserError | None = None
    best: tuple[int, str, Turns] | None = None
    apart = _thought_apart(tokenizer)
    for form in islice(_forms(turns, (*_FORMS, apart)), _MOST_FORMS):
        try:
            text = render(tokenizer, form, arguments)
        except LimitError:
            raise
        except UserError as refused:
            error = error or refused
            continue
        missing = sum(not private.is_in(one, text) for one in watched)
        if best is None or missing < best[0]:
            best = missing, text, form
        if not missing:
            break
    if best is None:
        assert error is not None
        raise error
    _, text, form = best
    if any(not private.is_in(one, text) for one, of_call in watched.items() if of_call):
        raise UserError(
            "tool_calls are not supported: the model's chat template has no place for them"
        )
    if _without_thoughts(turns) != turns and _without_thoughts(form) == form:
        ignored.append("reasoning_content")
    if not _knows_thoughts(tokenizer) and apart(form) == form and apart(turns) != turns:
        ignored.append("reasoning_content")
    if tools and not private.is_in(offered, text):
        ignored.append("tools")
    text = private.without(text, mark)
    if thinking is False and arguments["add_generation_prompt"]:
        text += _closing(tokenizer, text)
    return ChatText(text, mark, ignored)


def _marked(
    tokenizer: TokenizerWrapper,
    turn: dict[str, Any],
    mark: str,
    template: str | None,
    goes_on: bool,
) -> dict[str, Any]:
    """Mark the control tokens that a turn spells, but for those around an assistant's thought."""
    control, content = control_tokens(tokenizer), turn.get("content")
    made = control.marked(turn, mark)
    if turn["role"] == "user" and isinstance(content, str):
        made["content"] = in_template(made["content"], template)
    start, end = tokenizer.think_start, tokenizer.think_end
    if turn["role"] == "assistant" and isinstance(content, str) and start is not None:
        before, begun, after = content.partition(start)
        thought, ended, answer = after.partition(end)
        if begun and not before.strip() and (ended or goes_on):
            said = control.marked(thought, mark), ended, control.marked(answer, mark)
            made["content"] = before + start + "".join(said)
    return made


def _closing(tokenizer: TokenizerWrapper, text: str) -> str:
    """What ends a thought that nobody asked for, where the template has no switch for it."""
    start, end = tokenizer.think_start, tokenizer.think_end
    if start is None or end is None:
        return ""
    if text.rfind(start) > text.rfind(end):
        return f"\n{end}\n\n"
    source = template_source(tokenizer)
    switch = re.search(r"\b(enable_)?thinking\b", source)
    return "" if switch or end not in source else f"{start}\n\n{end}\n\n"


def _knows_thoughts(tokenizer: TokenizerWrapper) -> bool:
    """Tell whether the chat template reads a turn's thoughts; one that is a program may."""
    source = template_source(tokenizer)
    return not source or _THOUGHTS.search(source) is not None


_THOUGHTS = re.compile(
    r"""\.\s*(reasoning_content|reasoning|thinking)\b|['"](reasoning_content|reasoning|thinking)['"]"""
)


# What the template takes is seen by private characters in it -------------------------------------


def _watched_tools(tools: Any, private: PrivateCharacters) -> tuple[Any, str]:
    """Put a private character behind the tools' names."""
    watch, made = private.new(), []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, Mapping) else {}
        if isinstance(function.get("name"), str):
            function = {**function, "name": function["name"] + watch}
            tool = {**tool, "function": function} if "function" in tool else function
        made.append(tool)
    return made, watch


def _watched(turns: Turns, private: PrivateCharacters) -> tuple[Turns, dict[str, bool]]:
    """Put private characters into what templates leave out, and return which are of calls."""
    watched: dict[str, bool] = {}
    made = []
    for turn in turns:
        content, calls = turn.get("content"), turn.get("tool_calls")
        if turn["role"] in (*_SYSTEMS, "tool") and isinstance(content, str) and content.strip():
            end, watch = len(content.rstrip()), private.new()
            turn = turn | {"content": content[:end] + watch + content[end:]}
            watched[watch] = turn["role"] == "tool"
        if calls:
            watches = [private.new() for _ in calls]
            watched |= dict.fromkeys(watches, True)
            turn = turn | {"tool_calls": [*map(_watched_call, calls, watches)]}
        made.append(turn)
    return made, watched


def _watched_call(call: Any, watch: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return call
    return {**call, "function": {**function, "name": function["name"] + watch}}


# Forms of a conversation -------------------------------------------------------------------------

_SYSTEMS = "system", "developer"


def _forms(turns: Turns, forms: Iterable[Callable[[Turns], Turns]]) -> Iterator[Turns]:
    """Yield a conversation as it is, then in other forms, the more alike the sooner."""
    possible = [form for form in forms if form(turns) != turns]
    for number in range(len(possible) + 1):
        for chosen in combinations(possible, number):
            made = turns
            for form in chosen:
                made = form(made)
            yield made


def _one_system(turns: Turns) -> Turns:
    """Join what system and developer messages say into the first turn."""
    systems = [turn for turn in turns if turn["role"] in _SYSTEMS]
    if not systems:
        return turns
    others = [turn for turn in turns if turn["role"] not in _SYSTEMS]
    return [{"role": "system", "content": _joined(systems)}, *others]


def _no_system(turns: Turns) -> Turns:
    """Let the first user say what system and developer messages do."""
    systems = [turn for turn in turns if turn["role"] in _SYSTEMS]
    others = [turn for turn in turns if turn["role"] not in _SYSTEMS]
    first = next((n for n, turn in enumerate(others) if turn["role"] == "user"), None)
    if not systems:
        return turns
    if first is None:
        return [{"role": "user", "content": _joined(systems)}, *others]
    others[first] = others[first] | {"content": _joined([*systems, others[first]])}
    return others


def _alternating(turns: Turns) -> Turns:
    """Join turns of one side that follow each other."""
    made: Turns = []
    for turn in turns:
        if (
            made
            and turn["role"] == made[-1]["role"] in ("user", "assistant")
            and not (turn.keys() | made[-1].keys()) - {"role", "content"}
        ):
            made[-1] = turn | {"content": _joined([made[-1], turn])}
        else:
            made.append(turn)
    return made


def _joined(turns: Turns) -> Any:
    contents = [turn.get("content", "") for turn in turns]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(filter(None, contents))
    parts = [[_part(one)] if isinstance(one, str) else [*one] for one in contents]
    return [part for some in parts for part in some]


def _after_results(turns: Turns) -> Turns:
    """Let what users say right after results stand behind these."""
    made: Turns = []
    for turn in turns:
        if turn["role"] == "user" and made and made[-1]["role"] == "tool":
            made[-1] = made[-1] | {"content": _joined([made[-1], turn])}
        else:
            made.append(turn)
    return made


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _short_ids(turns: Turns) -> Turns:
    """Give calls ids of nine letters and digits, and what they brought the same ones."""
    made, open_calls, known = [], list[str](), dict[str, str]()
    for place, turn in enumerate(turns):
        if calls := turn.get("tool_calls"):
            named = [
                {**call, "id": _short_id(call.get("id") or f"{place}.{number}", known)}
                for number, call in enumerate(calls)
            ]
            open_calls = [call["id"] for call in named]
            turn = turn | {"tool_calls": named}
        elif turn["role"] == "tool":
            its_id = turn.get("tool_call_id")
            if its_id:
                short = known.get(its_id) or _short_id(its_id, known)
            else:  # whoever leaves it out means the calls in their order
                short = open_calls[0] if open_calls else _short_id(f"{place}", known)
            if short in open_calls:
                open_calls.remove(short)
            turn = turn | {"tool_call_id": short}
        made.append(turn)
    return made


def _short_id(its_id: str, known: dict[str, str]) -> str:
    """Return an id of nine characters that follows from another id, unlike all that are known."""
    short, tried = its_id, 0
    while not _SHORT_ID.fullmatch(short) or short in known.values():
        if its_id in known:
            return known[its_id]
        short = hashlib.sha256(f"{its_id}{tried or ''}".encode()).hexdigest()[:9]
        tried += 1
    known[its_id] = short
    return short


_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


def _text_arguments(turns: Turns) -> Turns:
    """Write the arguments of calls as text, as some templates join them to text."""

    def written(call: Any) -> Any:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return _with_calls(
        turns, lambda turn: [turn | {"tool_calls": [*map(written, turn["tool_calls"])]}]
    )


def _single_calls(turns: Turns) -> Turns:
    """Let each turn have one call, followed by what it brought."""
    made = _with_calls(turns, _one_by_one)
    if made == turns:
        return turns
    # An id may name several calls, and none all of them: what they brought is in their order.
    results: dict[Any, Turns] = {}
    for turn in made:
        if turn["role"] == "tool":
            results.setdefault(turn.get("tool_call_id"), []).append(turn)
    ids = {call.get("id") for turn in made for call in turn.get("tool_calls", ())}
    ordered: Turns = []
    for turn in made:
        if turn["role"] == "tool" and turn.get("tool_call_id") in ids:
            continue  # it stands behind its call
        ordered.append(turn)
        for call in turn.get("tool_calls", ()):
            if brought := results.get(call.get("id")):
                ordered.append(brought.pop(0))
    return ordered


def _one_by_one(turn: dict[str, Any]) -> Turns:
    first, *others = turn["tool_calls"]
    return [
        turn | {"tool_calls": [first]},
        *({"role": "assistant", "content": "", "tool_calls": [call]} for call in others),
    ]


def _with_calls(turns: Turns, change: Callable[[dict[str, Any]], Turns]) -> Turns:
    made: Turns = []
    for turn in turns:
        made += change(turn) if turn.get("tool_calls") else [turn]
    return made


def _thought_apart(tokenizer: TokenizerWrapper) -> Callable[[Turns], Turns]:
    """Return a form in which a turn that goes on has its thought as such, not in its content.

    Templates that cut thoughts out of contents leave nothing there that could go on.
    """
    start, end, knows = tokenizer.think_start, tokenizer.think_end, _knows_thoughts(tokenizer)

    def apart(turns: Turns) -> Turns:
        *others, last = turns
        content = last.get("content")
        if start is None or last["role"] != "assistant" or not isinstance(content, str):
            return turns
        before, _, after = content.partition(start)
        thought, ended, answer = after.partition(end)
        if before.strip() or not ended or "reasoning_content" in last:
            return turns
        last = last | {"content": answer.lstrip()}
        return [*others, last | ({"reasoning_content": thought.strip()} if knows else {})]

    return apart


def _without_thoughts(turns: Turns) -> Turns:
    return [{n: v for n, v in turn.items() if n != "reasoning_content"} for turn in turns]


_FORMS: Iterable[Callable[[Turns], Turns]] = (
    _one_system,
    _short_ids,
    _no_system,
    _text_arguments,
    _single_calls,
    _alternating,
    _without_thoughts,
    _after_results,
)


# Prompts of any kind ------------------------------------------------------------------------------


def encode_prompt(
    tokenizer: TokenizerWrapper,
    prompt: Prompt,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Encode text, token ids or messages.

    Token ids are taken as they are. Messages are put into the chat template, see ``chat_text``.
    Text is encoded as in mlx_lm, which adds special tokens unless it begins with the bos token, and
    makes tokens of what spells a control token; but with an adapter's ``template``, raw text is put
    into that and the chat template, see ``chat_prompt``. Text is not raw if it begins with a
    special token or like the chat template's own text.
    """
    if isinstance(prompt, str):
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"prompt is {shown(prompt)}, which holds half a character, expected Unicode text"
            ) from None
        if template is not None and not _is_templated(tokenizer, prompt):
            return chat_prompt(tokenizer, prompt, template)
        bos = tokenizer.bos_token
        return encoded(
            tokenizer, prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    items: Any = prompt.tolist() if isinstance(prompt, mx.array | np.ndarray) else prompt
    if isinstance(items, Sequence) and not isinstance(items, bytes | bytearray | memoryview):
        if all(map(is_integer, items)):
            return [int(token) for token in items]
        if all(isinstance(item, Mapping) for item in items):
            check_messages(tokenizer, items)
            text = chat_text(tokenizer, items, None, tools, template_kwargs)
            return text.encode(tokenizer)
    raise UserError(f"prompt is {shown(prompt)}, expected text, token ids or chat messages")


def _is_templated(tokenizer: TokenizerWrapper, text: str) -> bool:
    openings = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    if tokenizer.has_chat_template:
        openings.append(_turn(tokenizer, _TEXT).partition(_TEXT)[0])
    return any(text.startswith(opening) for opening in openings if opening)


def check_messages(tokenizer: TokenizerWrapper, messages: Sequence[Mapping[str, Any]]) -> None:
    """Check that chat messages are some, and that there is a chat template for them."""
    for message in messages:
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise UserError(
                f"prompt has the message {shown(message)}, expected a role and a content"
            )
    if not tokenizer.has_chat_template:
        raise UserError(
            "prompt is chat messages and the tokenizer has no chat template, expected text or "
            "token ids"
        )


def check_prompt(ids: list[int], config: dict[str, Any], before: int = 0) -> None:
    """Check that the model of ``config`` can read a prompt after ``before`` cached tokens."""
    if not ids:
        raise UserError("the prompt is empty, expected at least one token")
    context, vocab_size = context_length(config), config["vocab_size"]
    if context is not None and before + len(ids) > context:
        raise UserError(
            f"the prompt has {before + len(ids)} tokens, the model's context "
            f"(max_position_embeddings) holds {context}"
        )
    check_tokens("the prompt", ids, vocab_size)
