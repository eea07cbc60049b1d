"""From a user's text to the prompt's token ids."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from jinja2 import TemplateError
from mlx_lm.tokenizer_utils import TokenizerWrapper

from .config import UserError


def chat_prompt(tokenizer: TokenizerWrapper, text: str, template: str | None = None) -> list[int]:
    """Token ids of ``text`` as the user's only turn, up to where the answer begins.

    Args:
        tokenizer: without a chat template, the text is the prompt.
        text: what the user typed.
        template: the adapter's ``prompt_template``; its ``{text}`` becomes the text.

    Raises:
        UserError: the chat template refuses the turn.
    """
    content = text if template is None else template.replace("{text}", text)
    if not tokenizer.has_chat_template:
        return tokenizer.encode(content)
    turn = {"role": "user", "content": content}
    try:
        prompt = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise UserError(f"the tokenizer's chat template fails: {error}") from None
    return tokenizer.encode(prompt, add_special_tokens=False)


def encode_prompt(tokenizer: TokenizerWrapper, prompt: str | mx.array | Sequence[int]) -> list[int]:
    """Token ids of a prompt, special tokens added as mlx_lm does."""
    if isinstance(prompt, str):
        bos = tokenizer.bos_token
        return tokenizer.encode(
            prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    return prompt.tolist() if isinstance(prompt, mx.array) else list(prompt)


def check_prompt(ids: list[int], config: dict[str, Any]) -> None:
    """Whether the model can read a prompt.

    Args:
        ids: the prompt's token ids.
        config: the model's ``config.json``.

    Raises:
        UserError: it is empty, longer than the context, or holds a token that does not exist.
    """
    if not ids:
        raise UserError("the prompt is empty, expected at least one token")
    context, vocab_size = config.get("max_position_embeddings"), config["vocab_size"]
    if context is not None and len(ids) > context:
        raise UserError(
            f"the prompt has {len(ids)} tokens, the model's context "
            f"(max_position_embeddings) holds {context}"
        )
    if not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise UserError(f"the prompt holds token {wrong}, the model's are 0 to {vocab_size - 1}")
