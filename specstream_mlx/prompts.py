"""Encoding of a user's text as the prompt's token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .errors import UserError, is_integer, shown
from .files import check_tokens, template_error
from .models.architectures import context_length

Prompt = str | mx.array | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or the messages of a chat."""

_TEXT = "{text}"
_MARK = "userquery"  # what the user says where only the chat template's text around it counts


def in_template(text: str, template: str | None) -> str:
    """``text`` put into an adapter's template, in place of ``{text}``; unchanged without one."""
    return text if template is None else template.replace(_TEXT, text)


def chat_prompt(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Encode ``text``, in an adapter's ``template``, as the user's only turn, up to the answer."""
    content = in_template(text, template)
    if not tokenizer.has_chat_template:
        return tokenizer.encode(content)
    return tokenizer.encode(_turn(tokenizer, content), add_special_tokens=False)


def chat_suffix(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Encode the rest of a turn that ``mlx_lm.cache_prompt`` has begun, up to the answer."""
    content = text + (template or _TEXT).partition(_TEXT)[2]
    if tokenizer.has_chat_template:
        before, _ = around_user(tokenizer)
        content = _turn(tokenizer, content)[len(before) :]
    return tokenizer.encode(content, add_special_tokens=False)  # no second bos, unlike in mlx_lm


def around_user(tokenizer: TokenizerWrapper, template: str | None = None) -> tuple[str, str]:
    """Return the chat template's text before and after the user's, in the only turn."""
    turn = _turn(tokenizer, in_template(_MARK, template))
    before, mark, after = turn.partition(_MARK)
    if not mark:
        raise UserError("the tokenizer's chat template leaves out what the user says")
    return before, after


def _turn(tokenizer: TokenizerWrapper, content: str) -> str:
    """Apply the template to the user's only turn, up to the answer."""
    return _chat(tokenizer, [{"role": "user", "content": content}], False)


def _chat(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, Any]],
    continue_final_message: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    arguments = {**(template_kwargs or {}), "tools": tools, "tokenize": False}
    arguments["add_generation_prompt"] = not continue_final_message
    arguments["continue_final_message"] = continue_final_message
    try:
        text = tokenizer.apply_chat_template(messages, **arguments)
        text.encode()  # half a character of UTF-16 is no text
        return text
    except Exception as error:  # a template may raise anything
        raise template_error(error) from None


def encode_prompt(
    tokenizer: TokenizerWrapper,
    prompt: Prompt,
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Encode text, token ids or messages.

    Token ids are taken as they are. Messages are put into the chat template, with ``tools`` and its
    further ``template_kwargs``; if the last one is the assistant's, it is continued. Text is
    encoded as in mlx_lm, which adds special tokens unless it begins with the bos token; but with an
    adapter's ``template``, raw text is put into that and the chat template, see ``chat_prompt``.
    Text is not raw if it begins with a special token or like the chat template's own text.
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
        return tokenizer.encode(
            prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    items: Any = prompt.tolist() if isinstance(prompt, mx.array | np.ndarray) else prompt
    if isinstance(items, Sequence) and not isinstance(items, bytes | bytearray | memoryview):
        if all(map(is_integer, items)):
            return [int(token) for token in items]
        if all(isinstance(item, Mapping) for item in items):
            return _encode_messages(tokenizer, items, tools, template_kwargs)
    raise UserError(f"prompt is {shown(prompt)}, expected text, token ids or chat messages")


def _is_templated(tokenizer: TokenizerWrapper, text: str) -> bool:
    openings = [t.content for t in tokenizer.added_tokens_decoder.values() if t.special]
    if tokenizer.has_chat_template:
        openings.append(_turn(tokenizer, _TEXT).partition(_TEXT)[0])
    return any(text.startswith(opening) for opening in openings if opening)


def _encode_messages(
    tokenizer: TokenizerWrapper,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None,
) -> list[int]:
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
    goes_on = messages[-1]["role"] == "assistant"
    text = _chat(tokenizer, list(messages), goes_on, tools, template_kwargs)
    return tokenizer.encode(text, add_special_tokens=False)


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
