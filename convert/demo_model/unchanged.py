"""The places of a proofreading item where content and target are the same: nothing to correct."""

from dataclasses import dataclass
from difflib import SequenceMatcher

from .tasks import Item


@dataclass(frozen=True)
class Run:
    """A run of words that are the same in content and target.

    Attributes:
        content: index of its first word among the content's words.
        target: index of its first word among the target's words.
        length: number of words.
    """

    content: int
    target: int
    length: int


def unchanged_runs(item: Item) -> list[Run]:
    """The longest runs of words, split at spaces, that content and target share, in order."""
    words, corrected = item.content.split(" "), item.target.split(" ")
    blocks = SequenceMatcher(None, words, corrected, autojunk=False).get_matching_blocks()
    return [Run(block.a, block.b, block.size) for block in blocks if block.size]


def settled_words(item: Item) -> list[tuple[int, int]]:
    """The words that are the same in content and target and have the same neighbours in both.

    Returns:
        Pairs of an index among the content's words and one among the target's. The target's first
        and last word need no neighbour beyond them.
    """
    last = len(item.target.split(" ")) - 1
    return [
        (run.content + step, run.target + step)
        for run in unchanged_runs(item)
        for step in range(run.length)
        if 0 < step < run.length - 1 or run.target + step in (0, last)
    ]
