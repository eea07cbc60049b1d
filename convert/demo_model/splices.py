"""Splices: new proofreading items of the head of one item and the tail of another.

A message's plan lets a model recite the likeliest continuation; a text that changes its plan on the
way can only be copied. Held-out messages follow plans that were never trained, so a model must copy
them. Most cuts lie before a clause: elsewhere a verb may lose its subject, and the target would
teach that a verb that does not fit is right.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from .tasks import Item
from .unchanged import unchanged_runs

_MARGIN = 2
_CLAUSE_STARTS = frozenset("and but because so when if before then".split())
_ANYWHERE = 0.25  # of the splices are cut at any word, the others before a clause


@dataclass(frozen=True)
class Cut:
    """A place between words that has no errors nearby.

    Attributes:
        content: index of the content's word behind it.
        target: index of the target's word behind it.
        before_clause: whether a sentence or a clause starts there.
        mark: final mark of the sentence that it lies in; "" between sentences.
    """

    content: int
    target: int
    before_clause: bool
    mark: str


def cuts(item: Item) -> list[Cut]:
    """The places where ``item`` can be cut."""
    corrected = item.target.split(" ")
    return [
        _cut(corrected, run.content + step, run.target + step)
        for run in unchanged_runs(item)
        for step in range(_MARGIN, run.length - _MARGIN + 1)
    ]


def _cut(corrected: list[str], content: int, target: int) -> Cut:
    between = corrected[target - 1][-1] in ".?"
    ends = (word[-1] for word in corrected[target:] if word[-1] in ".?")
    mark = "" if between else next(ends, "")
    return Cut(content, target, between or corrected[target] in _CLAUSE_STARTS, mark)


def splice(first: Item, second: Item, rng: random.Random) -> Item:
    """Join the head of ``first`` and the tail of ``second``; ``first`` itself if none fit.

    A question goes on as a question, so that its mark can be told from its beginning.
    """
    clauses = rng.random() >= _ANYWHERE
    heads, tails = cuts(first), cuts(second)
    pairs = [
        (head, tail)
        for head in heads
        for tail in tails
        if head.mark == tail.mark and ((head.before_clause and tail.before_clause) or not clauses)
    ]
    if not pairs:
        return first
    head, tail = rng.choice(pairs)
    content = first.content.split(" ")[: head.content] + second.content.split(" ")[tail.content :]
    target = first.target.split(" ")[: head.target] + second.target.split(" ")[tail.target :]
    templates = (*first.templates, *second.templates)
    return Item(first.task, " ".join(content), " ".join(target), templates)


def patchwork(items: Sequence[Item], rng: random.Random) -> Item:
    """Splice pieces of all ``items``, one behind the other."""
    return reduce(lambda made, item: splice(made, item, rng), items)
