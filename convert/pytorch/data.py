"""Training text: prompts and completions from JSONL files, tokenized and batched by length."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specstream_mlx.config import UserError

from .losses import Batch

# Batches are cut from windows of this many batches, sorted by length: little padding, yet random.
WINDOW = 50


class DataError(UserError):
    """The data cannot be used; the message is one sentence."""


@dataclass
class Item:
    """Token ids of one prompt with its completion, whose first token is ``tokens[stream_from]``."""

    tokens: list[int]
    stream_from: int


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Prompts and completions of a JSONL file of ``{"prompt": ..., "completion": ...}``.

    Raises:
        DataError: the file is missing or empty, or a line is not such an object.
    """
    pairs = []
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data file {path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            prompt, completion = value["prompt"], value["completion"]
            usable = isinstance(prompt, str) and isinstance(completion, str) and completion
        except (ValueError, KeyError, TypeError):
            usable = False
        if not usable:
            raise DataError(
                f'{path}, line {number}: expected {{"prompt": text, "completion": non-empty text}}'
            )
        pairs.append((prompt, completion))
    if not pairs:
        raise DataError(f"data file {path} is empty")
    return pairs


def tokenize(
    pairs: list[tuple[str, str]], tokenizer: Any, template: str | None, max_length: int
) -> list[Item]:
    """Format and tokenize pairs as the runtime will see them.

    The prompt, put in place of ``{text}`` in ``template``, is one user turn of the tokenizer's chat
    template (or stands alone, if the tokenizer has none); the completion's tokens and the end token
    follow. Pairs of more than ``max_length`` tokens are left out.

    Raises:
        DataError: no pair is short enough.
    """
    prompts = [template.replace("{text}", prompt) if template else prompt for prompt, _ in pairs]
    has_chat = bool(tokenizer.chat_template)
    if has_chat:
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
            )
            for prompt in prompts
        ]
    heads = tokenizer(prompts, add_special_tokens=not has_chat)["input_ids"]
    tails = tokenizer([tail for _, tail in pairs], add_special_tokens=False)["input_ids"]
    items = [
        Item([*head, *tail, tokenizer.eos_token_id], len(head))
        for head, tail in zip(heads, tails, strict=True)
        if head and len(head) + len(tail) < max_length
    ]
    if not items:
        raise DataError(f"no item has a prompt and at most {max_length} tokens")
    return items


def collate(items: list[Item]) -> Batch:
    """Pad items on the right, to a batch."""
    lengths = torch.tensor([len(item.tokens) for item in items])
    tokens = torch.zeros(len(items), int(lengths.max()), dtype=torch.int64)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    return Batch(tokens, torch.tensor([item.stream_from for item in items]), lengths)


def epoch(items: list[Item], batch_size: int, seed: int) -> Iterator[Batch]:
    """All items once, in batches of similar lengths, in an order that ``seed`` fixes."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(items), generator=generator).tolist()
    groups = []
    for start in range(0, len(order), WINDOW * batch_size):
        window = sorted(order[start : start + WINDOW * batch_size], key=lambda i: _size(items[i]))
        groups += [window[i : i + batch_size] for i in range(0, len(window), batch_size)]
    for index in torch.randperm(len(groups), generator=generator).tolist():
        yield collate([items[i] for i in groups[index]])


def batches_per_epoch(items: list[Item], batch_size: int) -> int:
    """How many batches ``epoch`` yields."""
    return -(-len(items) // batch_size)


def _size(item: Item) -> tuple[int, int]:
    """Sort key: total length roughly, then length of the completion, which decides the streams."""
    return len(item.tokens) // 32, len(item.tokens) - item.stream_from
