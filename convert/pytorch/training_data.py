"""Training data: prompts and completions from JSONL files, tokenized, and batches of them."""

from pathlib import Path
from typing import Any

import torch

from specstream_mlx.checked_files import read_json_lines, template_error
from specstream_mlx.config import UserError
from specstream_mlx.train.items import Item

from .losses import Batch


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Read prompts and completions from a JSONL file of ``{"prompt": ..., "completion": ...}``.

    Raises:
        UserError: the file is missing or empty, or a line is not such an object.
    """
    pairs = []
    for number, value in read_json_lines(path):
        try:
            prompt, completion = value["prompt"], value["completion"]
            usable = isinstance(prompt, str) and isinstance(completion, str) and completion
            f"{prompt}{completion}".encode()  # JSON can spell half a character, which is no text
        except (KeyError, TypeError, UnicodeEncodeError):
            usable = False
        if not usable:
            raise UserError(
                f'{path}, line {number}: expected {{"prompt": text, "completion": non-empty text}}'
            )
        pairs.append((prompt, completion))
    if not pairs:
        raise UserError(f"data file {path} is empty")
    return pairs


def tokenize(
    pairs: list[tuple[str, str]], tokenizer: Any, template: str | None, max_length: int
) -> list[Item]:
    """Format and tokenize pairs as the runtime will see them.

    The prompt is one user turn of the tokenizer's chat template, or stands alone if the tokenizer
    has none; the completion's tokens and the end token follow.

    Args:
        pairs: prompts and completions.
        tokenizer: transformers' tokenizer of the base.
        template: text with ``{text}`` where the prompt goes; ``None`` for the prompt alone.
        max_length: tokens; longer items are left out.

    Raises:
        UserError: the chat template refuses a prompt, or no item is short enough.
    """
    prompts = [template.replace("{text}", prompt) if template else prompt for prompt, _ in pairs]
    has_chat = bool(tokenizer.chat_template)
    if has_chat:
        try:
            prompts = [
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": prompt}],
                    add_generation_prompt=True,
                    tokenize=False,
                )
                for prompt in prompts
            ]
        except Exception as error:  # a template may raise anything
            raise template_error(error) from None
    heads = tokenizer(prompts, add_special_tokens=not has_chat)["input_ids"]
    tails = tokenizer([tail for _, tail in pairs], add_special_tokens=False)["input_ids"]
    items = [
        Item([*head, *tail, tokenizer.eos_token_id], len(head))
        for head, tail in zip(heads, tails, strict=True)
        if head and len(head) + len(tail) < max_length
    ]
    if not items:
        raise UserError(f"no item has a prompt and at most {max_length} tokens")
    return items


def collate(items: list[Item]) -> Batch:
    """Put items into one batch, padded on the right."""
    lengths = torch.tensor([len(item.tokens) for item in items])
    tokens = torch.zeros(len(items), int(lengths.max()), dtype=torch.int64)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    return Batch(tokens, torch.tensor([item.stream_from for item in items]), lengths)
