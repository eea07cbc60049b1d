"""Which of a file's answers a study takes."""

from collections.abc import Sequence

from specstream_mlx.train.items import Item


def evenly_spread(items: Sequence[Item], count: int) -> list[Item]:
    """Choose so many answers, evenly spread over their file; all where there are fewer."""
    count = min(count, len(items))
    return [items[place * len(items) // count] for place in range(count)]
