"""Training data: prompts and completions from JSONL files, tokenized, and batches of them."""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from specstream_mlx.errors import UserError
from specstream_mlx.files import (
    check_tokens,
    read_json_lines,
    template_error,
    tokenizer_files,
)
from specstream_mlx.terminal.notes import note
from specstream_mlx.train.items import Item

from .losses import Batch
from .training_settings import RunSettings


class Pair(NamedTuple):
    """A prompt and its completion.

    Attributes:
        prompt: what the user says.
        completion: what follows.
        cut: whether the completion stopped before its end.
        earlier: the turns of the conversation before the prompt, the user's and the model's in
            turn.
        source: where the prompt comes from, in whatever words.
    """

    prompt: str
    completion: str
    cut: bool = False
    earlier: tuple[str, ...] = ()
    source: str = ""

    def messages(self, template: str | None = None) -> list[dict[str, str]]:
        """The conversation up to the prompt, for a chat template."""
        prompt = template.replace("{text}", self.prompt) if template else self.prompt
        roles = ("user", "assistant")
        turns = (*self.earlier, prompt)
        return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]


def read_pairs(path: Path) -> list[Pair]:
    """Read prompts and completions from a JSONL file of ``{"prompt": ..., "completion": ...}``.

    A completion with a ``finish_reason`` of ``length`` was cut, as answers of a base may be. A list
    of texts under ``earlier`` holds the turns before the prompt, ``source`` says where that is
    from.

    Raises:
        UserError: the file is missing or empty, or a line is not such an object.
    """
    pairs = []
    for number, value in read_json_lines(path):
        try:
            prompt, completion = value["prompt"], value["completion"]
            turns = [prompt, *value.get("earlier", [])]
            usable = all(isinstance(turn, str) for turn in turns) and len(turns) % 2 == 1
            usable = usable and isinstance(completion, str) and bool(completion)
            f"{prompt}{completion}".encode()  # JSON can spell half a character, which is no text
        except (KeyError, TypeError, UnicodeEncodeError):
            usable = False
        if not usable:
            raise UserError(
                f'{path}, line {number}: expected {{"prompt": text, "completion": non-empty text}}'
            )
        cut, earlier = value.get("finish_reason") == "length", value.get("earlier", [])
        pairs.append(Pair(prompt, completion, cut, tuple(earlier), value.get("source", "")))
    if not pairs:
        raise UserError(f"data file {path} is empty")
    return pairs


def tokenize(
    pairs: list[Pair], tokenizer: Any, template: str | None, max_length: int
) -> list[Item]:
    """Format and tokenize pairs as the runtime will see them.

    The prompt is a user turn of the tokenizer's chat template, or stands alone if the tokenizer has
    none; the completion's tokens follow and, unless it was cut, the end token.

    Args:
        pairs: prompts and completions.
        tokenizer: transformers' tokenizer of the base.
        template: text with ``{text}`` where the prompt goes; ``None`` for the prompt alone.
        max_length: tokens; longer items are left out.

    Raises:
        UserError: the chat template refuses a prompt, or no item is short enough.
    """
    conversations = [pair.messages(template) for pair in pairs]
    prompts = [messages[-1]["content"] for messages in conversations]
    has_chat = bool(tokenizer.chat_template)
    if has_chat:
        try:
            prompts = [
                tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
                for messages in conversations
            ]
        except Exception as error:  # a template may raise anything
            raise template_error(error) from None
    heads = tokenizer(prompts, add_special_tokens=not has_chat)["input_ids"]
    tails = tokenizer([pair.completion for pair in pairs], add_special_tokens=False)["input_ids"]
    items = [
        Item(
            [*head, *tail, *([] if pair.cut else [tokenizer.eos_token_id])], len(head), pair.source
        )
        for head, tail, pair in zip(heads, tails, pairs, strict=True)
        if head and tail and len(head) + len(tail) < max_length
    ]
    if not items:
        raise UserError(f"no item has a prompt and at most {max_length} tokens")
    return items


def load_items(
    settings: RunSettings, template: str | None, vocab_size: int
) -> tuple[list[Item], list[Item]]:
    """Read and tokenize the training data of a run, and its held-out data, if it has any.

    Args:
        settings: the run's.
        template: see ``tokenize``.
        vocab_size: the base's number of tokens.

    Raises:
        UserError: a file or the tokenizer cannot be read, or holds a token that the base lacks.
    """
    with tokenizer_files(settings.model):
        tokenizer = AutoTokenizer.from_pretrained(
            settings.model, local_files_only=True, trust_remote_code=False
        )
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {settings.model} has no end token")
    sets: list[list[Item]] = []
    for path in (settings.data, settings.valid_data):
        if path is None:
            sets.append([])
            continue
        pairs = read_pairs(path)
        items = tokenize(pairs, tokenizer, template, settings.max_seq_length)
        for item in items:
            check_tokens(f"{path}, in tokens,", item.tokens, vocab_size)
        if len(items) < len(pairs):
            left_out = len(pairs) - len(items)
            note(f"{path}: {left_out} items over {settings.max_seq_length} tokens left out")
        sets.append(items)
    return sets[0], sets[1]


def collate(items: list[Item], device: torch.device | None = None) -> Batch:
    """Put items into one batch, padded on the right, on a device."""
    lengths = torch.tensor([len(item.tokens) for item in items])
    tokens = torch.zeros(len(items), int(lengths.max()), dtype=torch.int64)
    for row, item in zip(tokens, items, strict=True):
        row[: len(item.tokens)] = torch.tensor(item.tokens)
    starts = torch.tensor([item.stream_from for item in items])
    return Batch(tokens.to(device), starts.to(device), lengths.to(device))
