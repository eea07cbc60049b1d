"""Call reduction that drafting without a network reaches on a given greedy output.

The output of greedy decoding does not depend on the drafts, so the target calls of a drafting
method can be counted from the finished token sequence alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

Drafter = Callable[[Sequence[int]], list[int]]
"""``tokens so far -> drafted chain``."""


def target_calls(prompt: Sequence[int], output: Sequence[int], draft: Drafter) -> int:
    """Target calls that produce ``output`` when every call verifies one drafted chain."""
    tokens = list(prompt)
    end = len(prompt) + len(output)
    full = [*prompt, *output]
    calls = 0
    while len(tokens) < end:
        calls += 1
        position = len(tokens)
        accepted = 0
        if calls > 1:  # the first call follows the prompt's last token and has no drafts yet
            for token in draft(tokens):
                if position + accepted >= end or token != full[position + accepted]:
                    break
                accepted += 1
        tokens = full[: min(end, position + accepted + 1)]
    return calls


def prompt_lookup(length: int, longest: int = 3) -> Drafter:
    """Draft what followed the last earlier occurrence of the newest n-gram (n <= ``longest``)."""

    def draft(tokens: Sequence[int]) -> list[int]:
        for size in range(min(longest, len(tokens) - 1), 0, -1):
            pattern = list(tokens[-size:])
            for start in range(len(tokens) - size - 1, -1, -1):
                if list(tokens[start : start + size]) == pattern:
                    return list(tokens[start + size : start + size + length])
        return []

    return draft


def n_gram(sequences: Iterable[Sequence[int]], length: int, order: int = 5) -> Drafter:
    """Draft with a back-off n-gram model: the commonest token after the longest known context.

    Of equally common tokens the one that was seen first is drafted. Nothing is drafted where
    ``sequences`` holds no token at all.
    """
    known = list(sequences)
    best = [_commonest_next(known, size) for size in range(order)]

    def draft(tokens: Sequence[int]) -> list[int]:
        drafted: list[int] = []
        while best[0] and len(drafted) < length:
            recent = [*tokens[-order:], *drafted]
            for size in range(order - 1, -1, -1):
                token = best[size].get(tuple(recent[len(recent) - size :]))
                if token is not None:
                    drafted.append(token)
                    break
        return drafted

    return draft


def _commonest_next(sequences: list[Sequence[int]], size: int) -> dict[tuple[int, ...], int]:
    """The commonest token after each context of ``size`` tokens."""
    counts: Counter[tuple[int, ...]] = Counter()
    for sequence in sequences:
        counts.update(zip(*(sequence[offset:] for offset in range(size + 1)), strict=False))
    best: dict[tuple[int, ...], int] = {}
    most: dict[tuple[int, ...], int] = {}
    for gram, count in counts.items():
        context = gram[:-1]
        if count > most.get(context, 0):
            most[context], best[context] = count, gram[-1]
    return best
