"""From a user's text to the prompt's token ids."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .config import UserError
from .models.architectures import completed

_TEXT = "{text}"


def chat_prompt(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Token ids of ``text`` as the user's only turn, up to where the answer begins.

    Args:
        tokenizer: without a chat template, the text is the prompt.
        text: what the user typed.
        template: the adapter's ``prompt_template``, whose ``{text}`` is replaced by the text.

    Raises:
        UserError: the chat template refuses the turn.
    """
    content = text if template is None else template.replace(_TEXT, text)
    if not tokenizer.has_chat_template:
        return tokenizer.encode(content)
    return tokenizer.encode(_turn(tokenizer, content), add_special_tokens=False)


def chat_prefix(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Token ids of the user's only turn up to the end of ``text``, as ``mlx_lm.cache_prompt`` does.

    Args:
        tokenizer, template: see ``chat_prompt``.
        text: the beginning of what the user types.

    Raises:
        UserError: the chat template refuses the turn.
    """
    content = (template or _TEXT).partition(_TEXT)[0] + text
    if not tokenizer.has_chat_template:
        return tokenizer.encode(content)
    prompt = _turn(tokenizer, content, continue_final_message=True)
    return tokenizer.encode(prompt, add_special_tokens=False)


def chat_suffix(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Token ids that follow ``chat_prefix``: the rest of the turn, to where the answer begins.

    They are those of ``mlx_lm.generate --prompt-cache-file``, except that no second bos token is
    added where there is no chat template.

    Args:
        tokenizer, template: see ``chat_prompt``.
        text: the rest of what the user types.

    Raises:
        UserError: the chat template refuses the turn.
    """
    content = text + (template or _TEXT).partition(_TEXT)[2]
    if tokenizer.has_chat_template:
        mark = "<query>"
        content = _turn(tokenizer, content)[_turn(tokenizer, mark).index(mark) :]
    return tokenizer.encode(content, add_special_tokens=False)


def _turn(tokenizer: TokenizerWrapper, content: str, continue_final_message: bool = False) -> str:
    """The template's text of the user's only turn, left open or up to where the answer begins."""
    try:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=False,
            add_generation_prompt=not continue_final_message,
            continue_final_message=continue_final_message,
        )
    except TemplateError as error:
        raise UserError(f"the tokenizer's chat template fails: {error}") from None


def encode_prompt(tokenizer: TokenizerWrapper, prompt: str | mx.array | Sequence[int]) -> list[int]:
    """Token ids of a prompt, special tokens added as mlx_lm does."""
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        return tokenizer.encode(
            prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    return prompt.tolist() if isinstance(prompt, mx.array) else list(prompt)


def check_prompt(ids: list[int], config: dict[str, Any], before: int = 0) -> None:
    """Check that the model can read a prompt.

    Args:
        ids: the prompt's token ids.
        config: the model's ``config.json``.
        before: how many tokens are in the cache before them.

    Raises:
        UserError: the prompt is empty, longer than the context, or has an id beyond the vocabulary.
    """
    if not ids:
        raise UserError("the prompt is empty, expected at least one token")
    context, vocab_size = completed(config).get("max_position_embeddings"), config["vocab_size"]
    if context is not None and before + len(ids) > context:
        raise UserError(
            f"the prompt has {before + len(ids)} tokens, the model's context "
            f"(max_position_embeddings) holds {context}"
        )
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise UserError(f"the prompt holds token {wrong}, the model's are 0 to {vocab_size - 1}")
