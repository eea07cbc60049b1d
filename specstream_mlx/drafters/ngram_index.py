"""What followed the n-grams of a growing text: prompt lookup without searching the text."""

from collections.abc import Iterable, Sequence
from itertools import islice


class NGramIndex:
    """Every n-gram of a text, up to a length, with the tokens that came after it.

    A token costs ``longest`` dictionary entries when it is appended and a question costs at most
    as many look-ups, however long the text is.

    Args:
        longest: tokens of the longest n-gram.
    """

    def __init__(self, longest: int):
        self.longest = longest
        self._tail: tuple[int, ...] = ()
        # A dict keeps the order of insertion: the token that followed most recently is last.
        self._next: dict[tuple[int, ...], dict[int, None]] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens`` to the text."""
        for token in tokens:
            tail = self._tail
            for start in range(len(tail)):
                followers = self._next.setdefault(tail[start:], {})
                followers.pop(token, None)
                followers[token] = None
            self._tail = (*tail, token)[-self.longest :]

    def following(self, path: Sequence[int], count: int) -> tuple[int, list[int]]:
        """What may come after the text and ``path``, by the longest n-gram at their end.

        Args:
            path: tokens after the text; they are not in the index themselves.
            count: the most tokens to return.

        Returns:
            The n-gram's length, 0 where none occurs in the text with a token after it, and the
            different tokens that came after it, the most recent first.
        """
        tail = (*self._tail, *path)[-self.longest :]
        for start in range(len(tail)):
            followers = self._next.get(tail[start:])
            if followers:
                return len(tail) - start, list(islice(reversed(followers), count))
        return 0, []
