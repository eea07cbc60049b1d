"""A watch over whether a mounted head is right often enough to be the target's."""

from collections.abc import Callable, Sequence

from ..engine.guesses import StreamGuesses
from ..terminal.notes import note

STEPS = 64
LEAST = 4
"""Steps of ``STEPS`` in which the best guess of a head that fits is right; a chain with fewer right
first guesses writes 1.0 tokens a call, rounded."""


class HeadWatch:
    """Counts how often a head's best guess is right in its first steps, over all texts.

    A head that was trained for the target is right every few tokens, on nearly any text. One that
    hardly ever is has been trained for another target, or is read otherwise than it was trained:
    ids, rotary base, norms. By chance it still meets frequent tokens now and then. That harms no
    text, so nothing else would tell.

    Args:
        name: name of the head, for people.
        tell: function that says a sentence.
    """

    def __init__(self, name: str, tell: Callable[[str], None] = note):
        self._name, self._tell = name, tell
        self._left, self._right = STEPS, 0

    def judge(self, guesses: StreamGuesses, tokens: Sequence[int]) -> None:
        """Take in a head's guesses, and the tokens that were written behind them.

        After ``STEPS`` steps with fewer than ``LEAST`` right best guesses for the next token it
        says so, once.
        """
        guessed = guesses.behind(()) if self._left and tokens else []
        if not guessed:
            return
        best, _ = max(guessed, key=lambda each: each[1])
        self._right += best == tokens[0]
        self._left -= 1
        if not self._left and self._right < LEAST:
            self._tell(
                f"The {self._name} foresaw {self._right or 'none'} of {STEPS} tokens: unless this "
                "text is one that nobody could foresee, it was trained for another model"
            )
