"""Training items: a prompt with its completion, as token ids, for both trainers.

The PyTorch trainer reads this too, so nothing here needs MLX.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One prompt with its completion, tokenized.

    Attributes:
        tokens: ids of the prompt, the completion and the end token.
        stream_from: index of the completion's first token, at least 1.
    """

    tokens: Sequence[int]
    stream_from: int

    @property
    def completion_tokens(self) -> int:
        """How many tokens the completion has, its end token included."""
        return len(self.tokens) - self.stream_from


def most_frequent(items: Iterable[Item], count: int, vocab_size: int) -> list[int]:
    """The tokens that come most often in completions, where these are as frequent in prompts.

    Args:
        items: training data.
        count: how many tokens.
        vocab_size: of the base.

    Returns:
        Their ids, in ascending order.
    """
    in_completions: Counter[int] = Counter()
    anywhere: Counter[int] = Counter()
    for item in items:
        anywhere.update(item.tokens)
        in_completions.update(item.tokens[item.stream_from :])
    order = sorted(
        range(vocab_size),
        key=lambda token: (in_completions[token], anywhere[token]),
        reverse=True,
    )
    return sorted(order[:count])
