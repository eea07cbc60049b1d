"""What followed the n-grams of a growing text: prompt lookup without searching the text."""

from collections.abc import Iterable, Sequence


class NGramIndex:
    """Every n-gram of a text, up to a length, with the tokens that came after it most recently.

    A token costs ``longest`` dictionary entries when it is appended and a question costs at most
    as many look-ups, however long the text is.

    Args:
        longest: tokens of the longest n-gram.
        alternatives: different tokens that are kept for an n-gram.
    """

    def __init__(self, longest: int, alternatives: int):
        self._longest, self._alternatives = longest, alternatives
        self._tail: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens`` to the text."""
        for token in tokens:
            tail = self._tail
            for start in range(len(tail)):
                ngram = tail[start:]
                others = (other for other in self._followers.get(ngram, ()) if other != token)
                self._followers[ngram] = (token, *others)[: self._alternatives]
            self._tail = (*tail, token)[-self._longest :]

    def following(self, path: Sequence[int] = ()) -> tuple[int, tuple[int, ...]]:
        """What may come after the text and ``path``, by the longest n-gram at their end.

        Args:
            path: tokens after the text; they are not in the index themselves.

        Returns:
            The n-gram's length, 0 where none occurs in the text with a token after it, and the
            different tokens that came after it, the most recent first.
        """
        tail = (*self._tail, *path)[-self._longest :]
        for start in range(len(tail)):
            followers = self._followers.get(tail[start:])
            if followers:
                return len(tail) - start, followers
        return 0, ()
