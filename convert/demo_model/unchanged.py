"""Where a proofreading item's content already is what its target is."""

from dataclasses import dataclass
from difflib import SequenceMatcher

from .tasks import Item


@dataclass(frozen=True)
class Run:
    """Words that correcting leaves alone.

    Attributes:
        content: index of the first among the content's words.
        target: the same among the target's.
        length: how many there are.
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
    """Where content and target have the same word, and the same neighbours beside it.

    Returns:
        Indices among the content's words and among the target's. The target's first and last word
        need no neighbour beyond them.
    """
    last = len(item.target.split(" ")) - 1
    return [
        (run.content + step, run.target + step)
        for run in unchanged_runs(item)
        for step in range(run.length)
        if 0 < step < run.length - 1 or run.target + step in (0, last)
    ]
