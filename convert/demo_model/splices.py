"""New proofreading items from others: the head of one and the tail of the next.

A message's plan lets a model recite the likeliest continuation; a text that changes its plan in
the middle can only be copied. Held-out messages follow plans that were never trained, so what they
need is copying.
"""

import random
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import reduce

from .tasks import Item

_MARGIN = 2


def cuts(item: Item) -> list[tuple[int, int]]:
    """Places (word of the content, word of the target) that lie in text without errors nearby."""
    words, corrected = item.content.split(" "), item.target.split(" ")
    blocks = SequenceMatcher(None, words, corrected, autojunk=False).get_matching_blocks()
    return [
        (block.a + step, block.b + step)
        for block in blocks
        for step in range(_MARGIN, block.size - _MARGIN + 1)
    ]


def splice(first: Item, second: Item, rng: random.Random) -> Item:
    """The head of ``first`` and the tail of ``second``; ``first`` where one has no place to cut."""
    heads, tails = cuts(first), cuts(second)
    if not heads or not tails:
        return first
    (head, head_target), (tail, tail_target) = rng.choice(heads), rng.choice(tails)
    content = first.content.split(" ")[:head] + second.content.split(" ")[tail:]
    target = first.target.split(" ")[:head_target] + second.target.split(" ")[tail_target:]
    templates = (*first.templates, *second.templates)
    return Item(first.task, " ".join(content), " ".join(target), templates)


def patchwork(items: Sequence[Item], rng: random.Random) -> Item:
    """Pieces of all ``items``, one behind the other."""
    return reduce(lambda made, item: splice(made, item, rng), items)
