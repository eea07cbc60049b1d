"""Training text as rows of tokens: the mixture's items, packed, with attention within each item.

The rows of a step are a pure function of seed and step, so a run that is resumed sees the text that
it would have seen. Steps come in cycles: most have many short rows, some have fewer long ones for
the texts that are longer, and all have the same number of tokens.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from . import mixture, tasks

ROW_TOKENS = (*(256,) * 7, 512, *(256,) * 7, 2048)
"""The tokens of a row in each step of a cycle."""
LONGEST = max(ROW_TOKENS)
FILL = 0.95
"""The share of a cycle's tokens for which text is drawn; then hardly an item finds no room."""

Encoded = tuple[list[int], int]
"""An item's token ids, and how many of them are the prompt's."""


@dataclass
class PackedRows:
    """Rows that hold several items each.

    Attributes:
        tokens: (B, T) int64.
        document: (B, T) int64, the number of the token's item, -1 for padding; attention stays
            within an item.
        prompt: (B, T) bool, the tokens of prompts, but for the first of each, which nothing
            precedes.
        target: (B, T) bool, the tokens of targets and the end tokens behind them.
    """

    tokens: torch.Tensor
    document: torch.Tensor
    prompt: torch.Tensor
    target: torch.Tensor

    def to(self, device: torch.device) -> "PackedRows":
        """The same rows on a device."""
        return PackedRows(*(tensor.to(device) for tensor in vars(self).values()))


def encode(tokenizer: PreTrainedTokenizerFast, item: tasks.Item) -> Encoded:
    """The token ids of an item with its instruction and the end token, and the prompt's length."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": tasks.instructed(item)}],
        add_generation_prompt=True,
        tokenize=False,
    )
    prompt = tokenizer.encode(text, add_special_tokens=False)
    completion = tokenizer.encode(item.target, add_special_tokens=False)
    return [*prompt, *completion, tokenizer.eos_token_id], len(prompt)


@dataclass
class Row:
    """A row while it is filled.

    Attributes:
        step: the step of the cycle that it belongs to.
        length: its tokens.
        items: the items in it.
        used: tokens of its items.
    """

    step: int
    length: int
    items: list[Encoded] = field(default_factory=list)
    used: int = 0


def place(encoded: list[Encoded], rows: list[Row]) -> None:
    """Distribute items over rows, the longest first, each to the first row that has room.

    Items that find no room are left out.
    """
    for item in sorted(encoded, key=lambda item: -len(item[0])):
        size = len(item[0])
        row = next((row for row in rows if row.used + size <= row.length), None)
        if row is not None:
            row.items.append(item)
            row.used += size


def pack(rows: list[list[Encoded]], length: int, pad: int) -> PackedRows:
    """Write items into rows of ``length`` tokens.

    Args:
        rows: the items of each row, which fit.
        length: tokens of a row.
        pad: id of the padding token.
    """
    tokens = torch.full((len(rows), length), pad)
    document = torch.full((len(rows), length), -1)
    prompt = torch.zeros(len(rows), length, dtype=torch.bool)
    target = torch.zeros(len(rows), length, dtype=torch.bool)
    number = 0
    for row, items in enumerate(rows):
        start = 0
        for ids, prompt_length in items:
            end = start + len(ids)
            tokens[row, start:end] = torch.tensor(ids)
            document[row, start:end] = number
            prompt[row, start + 1 : start + prompt_length] = True
            target[row, start + prompt_length : end] = True
            start, number = end, number + 1
    return PackedRows(tokens, document, prompt, target)


def cycle(
    tokenizer: PreTrainedTokenizerFast,
    number: int,
    step_tokens: int,
    seed: int,
    weights: dict[str, float] | None = None,
) -> list[PackedRows]:
    """Make the rows of one cycle of steps, the same ones for the same arguments.

    Args:
        tokenizer: the model's tokenizer.
        number: number of the cycle.
        step_tokens: tokens of a step, a multiple of the longest row's.
        seed: seed of the run.
        weights: relative frequency of each task; ``None``: the mixture's.

    Returns:
        The rows of each step.
    """
    rng = random.Random(f"{seed}-{number}")
    encoded: list[Encoded] = []
    total = 0
    while total < FILL * step_tokens * len(ROW_TOKENS):
        task = rng.choices(list(weights), list(weights.values()))[0] if weights else None
        item = encode(tokenizer, mixture.draw(rng, task))
        if len(item[0]) <= LONGEST:
            encoded.append(item)
            total += len(item[0])
    shortest = min(ROW_TOKENS)
    rows = [
        Row(step, length)
        for step, length in enumerate(ROW_TOKENS)
        for _ in range(step_tokens // length)
    ]
    rng.shuffle(rows)
    rows.sort(key=lambda row: row.length)  # the longest are for what fits into no other
    place([item for item in encoded if len(item[0]) > shortest], rows)
    rng.shuffle(rows)
    place([item for item in encoded if len(item[0]) <= shortest], rows)
    return [
        pack([row.items for row in rows if row.step == step], length, tokenizer.pad_token_id)
        for step, length in enumerate(ROW_TOKENS)
    ]


class TrainingRows(IterableDataset):
    """The rows of all steps of a run, cycle by cycle, without end.

    Of several processes each makes every nth cycle, so that the order does not depend on how many
    there are.

    Args:
        tokenizer: the model's tokenizer.
        first_step: number of the step that they begin with.
        step_tokens, seed, weights: see ``cycle``.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        first_step: int,
        step_tokens: int,
        seed: int,
        weights: dict[str, float] | None = None,
    ):
        super().__init__()
        self._first_step = first_step
        self._cycle = partial(cycle, tokenizer, step_tokens=step_tokens, seed=seed, weights=weights)

    def __iter__(self) -> Iterator[list[PackedRows]]:
        first, done = divmod(self._first_step, len(ROW_TOKENS))
        worker = get_worker_info()
        offset, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in count(first + offset, stride):
            yield self._cycle(number)[done if number == first else 0 :]

    def in_background(self, processes: int = 1) -> Iterator[PackedRows]:
        """The rows of a step after the other, made by other processes while steps are computed."""
        loader = DataLoader(self, batch_size=None, num_workers=processes, prefetch_factor=2)
        return chain.from_iterable(loader)
